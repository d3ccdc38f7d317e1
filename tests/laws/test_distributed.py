"""Several processes, each with a part of the data, say what one process says that has them all.

Two are held against one in all they say, three, with parts of unequal length, in a fit, tuning and refits; from the
checkpoints of both, one goes on; of three, one is killed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).parent.parent / "distributed.py"
WORLDS = (2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each process was told, in a file."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(PROGRAM), str(folder), *map(str, WORLDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "1-0.pt")


@pytest.mark.parametrize(("world", "rank", "numbers"), [(2, 0, 48), (2, 1, 48), (3, 0, 18), (3, 2, 18)])
def test_they_say_what_one_process_says(folder: Path, one: dict[str, Any], world: int, rank: int, numbers: int) -> None:
    """Covariances, evidence, and what tuning makes of them, by the last rank as by the first; of two every structure's.

    Of the same batches, all. Elsewhere one process has larger ones, which round differently: refits that move outputs
    by a millionth of their deviation lose as many digits by that, and draws in float32 one.
    """
    found = torch.load(folder / f"{world}-{rank}.pt")
    compared = [name for name in one if name in found and name != "EM"]
    assert len(compared) == numbers
    nearly = {"refits: Newton by a millionth": 1e-8, "classes Sampled torch.float32": 1e-5}
    for name in compared:
        value = one[name]
        rtol = nearly.get(name, 1e-6 if value.dtype == torch.float32 else 1e-12)
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=0.1 * rtol * float(value.abs().max()), msg=name)


@pytest.mark.parametrize("world", WORLDS)
def test_tuning_goes_on_with_another_number_of_processes(one: dict[str, Any], world: int) -> None:
    torch.testing.assert_close(one[f"EM from {world}"], one["EM"], rtol=1e-12, atol=0.0)


def test_a_product_sends_one_number_a_weight_and_column(folder: Path) -> None:
    weights = 3 * 4 + 4 + 2 * 4 + 4 + 1
    assert torch.load(folder / "2-0.pt")["bytes"] == 8 * weights * 5


def test_the_first_process_saves_for_all(folder: Path) -> None:
    assert [file.name for file in folder.glob("saved-by-*")] == ["saved-by-0.safetensors"]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_process_that_is_killed_ends_the_others_with_a_sentence(folder: Path, rank: int) -> None:
    said, seconds = torch.load(folder / f"lost-{rank}.pt")
    assert "one that is gone" in said and seconds < 60


@pytest.mark.parametrize(
    ("what", "fragment"),
    [
        ("Nystrom", "one process for Nystrom"),
        ("Full", "view over the training outputs"),
        ("Sampled", "mini-batches"),
        ("all of the data", "the same for ranks 0 and 1"),
        ("other weights", "the same weights and buffers in every process"),
        ("other buffers", "the same weights and buffers in every process"),
        ("other prior", "the same Laplace(...)"),
        ("other noise", "the same Laplace(...)"),
        ("other structure", "the same Laplace(...)"),
        ("other refits", "the same HessianFree(...)"),
        ("known to all", "KeyError"),
        ("known to one", "OfFirst"),
        ("other inputs", "the same inputs to be predicted by solves in every process"),
        ("inputs too large to square", "a matrix of finite numbers"),
        ("other method", "the same method to tune by in every process"),
        ("other choices", "the same method to tune by in every process"),
        ("other mini-batches", "the same number of mini-batches in every process"),
        ("save", "a directory that exists"),
    ],
)
def test_what_needs_all_data_in_one_process_says_so(folder: Path, what: str, fragment: str) -> None:
    """In every process: one that did not hear of it would wait."""
    assert all(fragment in torch.load(folder / f"2-{rank}.pt")["refused"][what] for rank in (0, 1))
