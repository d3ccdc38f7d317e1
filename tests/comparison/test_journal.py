"""A file that grows line by line."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lapwing.comparison.journal import Journal, circumstances, commit, whole_length
from lapwing.ground.errors import ConfigError, DataError


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "run.jsonl")


def test_lines_are_read_in_order_and_numbers_that_are_not_finite_are_null(journal: Journal) -> None:
    assert journal.read() == []
    for number in range(3):
        journal.append({"number": number, "stderr": float("nan")})
    assert [line["number"] for line in journal.read()] == [0, 1, 2]
    assert journal.read()[0]["stderr"] is None


@pytest.mark.parametrize("torn", ['{"meth', "x" * 200_000])
def test_a_torn_last_line_is_neither_read_nor_kept(journal: Journal, torn: str) -> None:
    journal.append({"number": 0})
    whole = journal.path.read_text()
    journal.path.write_text(whole + torn)
    assert [line["number"] for line in journal.read()] == [0]
    journal.append({"number": 1})
    assert [line["number"] for line in journal.read()] == [0, 1]
    assert torn not in journal.path.read_text()


def test_a_file_of_one_torn_line_begins_anew(journal: Journal) -> None:
    journal.path.write_text("{")
    assert journal.read() == []
    journal.append({"number": 0})
    assert len(journal.read()) == 1
    with journal.path.open("rb+") as file:
        assert whole_length(file.fileno()) == journal.path.stat().st_size


def test_lines_of_several_writers_do_not_mix(journal: Journal) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: journal.append({"number": number, "long": "x" * 10_000}), range(64)))
    assert sorted(line["number"] for line in journal.read()) == list(range(64))


@pytest.mark.parametrize("content", ["no json\n", "[1]\n", '{"format": "other"}\n'])
def test_a_file_of_something_else_is_refused(journal: Journal, content: str) -> None:
    journal.path.write_text(content)
    with pytest.raises(DataError, match=r"run\.jsonl', line 1"):
        journal.read()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory that exists"):
        Journal(tmp_path / "no" / "run.jsonl")


def test_circumstances_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = circumstances(torch.device("cpu"), ("torch", "not installed"))
    assert json.loads(json.dumps(told)) == told
    assert Path(sys.executable).name in told["command"] and told["versions"]["torch"] == torch.__version__
    assert "not installed" not in told["versions"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
    monkeypatch.setenv("PATH", "")
    assert commit() is None
