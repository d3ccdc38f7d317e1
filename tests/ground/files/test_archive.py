"""The file: tensors and header come back as they went, and a damaged file is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lapwing.ground.errors import ConfigError, DataError
from lapwing.ground.files import atomic
from lapwing.ground.files.archive import Archive, Tensors, seal

KIND = Archive("lapwing", "lapwing.posterior", 1, "lapwing.save")
HEADER = {"versions": {"lapwing": "0.1.0"}, "names": ["a", "b"], "third": 1 / 3, "text": "ρ · θ", "none": None}


def written(path: Path, *values: Tensor) -> list[dict[str, Any]]:
    tensors = Tensors()
    specs = [tensors.put(str(i), value) for i, value in enumerate(values)]
    KIND.write(path, HEADER, tensors)
    return specs


def reread(path: Path, specs: list[dict[str, Any]]) -> list[Tensor]:
    tensors = KIND.tensors(path, KIND.header(path))
    return [tensors.get(spec) for spec in specs]


def test_header_comes_back_number_for_number(tmp_path: Path) -> None:
    written(tmp_path / "a", torch.zeros(2))
    header = KIND.header(tmp_path / "a")
    assert {key: header[key] for key in HEADER} == HEADER
    assert (header["format"], header["schema"]) == ("lapwing.posterior", 1)
    assert KIND.header(str(tmp_path / "a")) == header


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(1 / 3, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.tensor([[1, 2**40]]),
        torch.tensor([0.1, float("nan"), float("inf")], dtype=torch.bfloat16),
        torch.arange(6.0).view(2, 3).mT,
        torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last),
        torch.arange(24.0).view(2, 3, 4).permute(1, 2, 0),
        torch.arange(8.0)[::2],
        torch.tensor([1.0, 2.0]).expand(3, 2),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=repr,
)
def test_tensors_come_back_bit_for_bit(value: Tensor, tmp_path: Path) -> None:
    (again,) = reread(tmp_path / "a", written(tmp_path / "a", value))
    assert (again.dtype, again.shape, again.requires_grad) == (value.dtype, value.shape, False)
    assert torch.equal(again.nan_to_num(7.0), value.detach().nan_to_num(7.0))


def test_order_of_axes_in_memory_survives(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    (again,) = reread(tmp_path / "a", written(tmp_path / "a", images))
    assert again.stride() == images.stride()


def test_tensors_of_one_storage_are_written_apart(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    again = reread(tmp_path / "a", written(tmp_path / "a", whole, whole, whole[2:], whole.view(2, 3).mT))
    assert [x.tolist() for x in again[:3]] == [whole.tolist(), whole.tolist(), whole[2:].tolist()]
    assert torch.equal(again[3], whole.view(2, 3).mT)


def test_what_is_read_outlives_the_file(tmp_path: Path) -> None:
    specs = written(tmp_path / "a", torch.ones(1000))
    (again,) = reread(tmp_path / "a", specs)
    (tmp_path / "a").write_bytes(b"")
    assert bool((again == 1).all())


def test_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    written(tmp_path / "a", torch.ones(2), torch.zeros(3))
    written(tmp_path / "b", torch.ones(2), torch.zeros(3))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_other_readers_see_plain_safetensors(tmp_path: Path) -> None:
    written(tmp_path / "a", torch.ones(2))
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert list(file.keys()) == ["0"]
        assert json.loads(file.metadata()["lapwing"])["text"] == "ρ · θ"


class Interrupted(Exception):
    pass


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = written(tmp_path / "a", torch.ones(2))

    def half(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise Interrupted

    monkeypatch.setattr(atomic, "save_file", half)
    with pytest.raises(Interrupted):
        written(tmp_path / "a", torch.zeros(2))
    assert reread(tmp_path / "a", specs)[0].tolist() == [1.0, 1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    written(tmp_path / "a", torch.ones(2))
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_missing_directory_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a directory that exists.*missing"):
        written(tmp_path / "missing" / "a", torch.ones(2))


def test_missing_file_is_reported_as_python_does(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        KIND.header(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError):
        KIND.header(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_cut_short(kept: int, tmp_path: Path) -> None:
    written(tmp_path / "a", torch.ones(100))
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:kept])
    with pytest.raises(DataError, match="cut short"):
        KIND.header(tmp_path / "a")


def test_changed_bit_in_a_tensor(tmp_path: Path) -> None:
    written(tmp_path / "a", torch.ones(100))
    content = bytearray((tmp_path / "a").read_bytes())
    content[-3] ^= 1
    (tmp_path / "a").write_bytes(content)
    header = KIND.header(tmp_path / "a")
    with pytest.raises(DataError, match="tensors do not match their checksum"):
        KIND.tensors(tmp_path / "a", header)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [(b"0.333", b"0.433", "header does not match its checksum"), (b"names", b'na\\"s', "header is not JSON")],
)
def test_changed_byte_in_the_header(old: bytes, new: bytes, complaint: str, tmp_path: Path) -> None:
    written(tmp_path / "a", torch.ones(100))
    content = (tmp_path / "a").read_bytes()
    assert content.count(old) == 1
    (tmp_path / "a").write_bytes(content.replace(old, new))
    with pytest.raises(DataError, match=complaint):
        KIND.header(tmp_path / "a")


def test_not_safetensors(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "a")
    with pytest.raises(DataError, match="no safetensors file"):
        KIND.header(tmp_path / "a")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_safetensors_of_something_else(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a", metadata=metadata)
    with pytest.raises(DataError, match="a safetensors file of something else"):
        KIND.header(tmp_path / "a")


def test_another_format(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a", metadata={"lapwing": json.dumps({"format": "lapwing.report"})})
    with pytest.raises(DataError, match=r"format lapwing\.posterior.*of format lapwing\.report"):
        KIND.header(tmp_path / "a")


def test_newer_schema_says_what_to_install_and_one_too_old_is_refused(tmp_path: Path) -> None:
    replace(KIND, schema=2).write(tmp_path / "a", HEADER, Tensors())
    with pytest.raises(DataError, match=r"of schema 2.*lapwing>=0\.1\.0"):
        KIND.header(tmp_path / "a")
    written(tmp_path / "b", torch.ones(2))
    with pytest.raises(DataError, match="the lapwing that wrote it"):
        replace(KIND, schema=3, oldest=2).header(tmp_path / "b")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "its header is a list"),
        ("null", "its header is a NoneType"),
        ('{"a":' * 64 + "1" + "}" * 64, "its header is a tree too deep"),
        ("[" * 100_000 + "]" * 100_000, "header is not JSON"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "header is not JSON"),
        ("1" * 5000, "header is not JSON"),
        ("{}", "of format None"),
        ('{"format": "lapwing.posterior", "schema": true}', "of format"),
        ('{"format": "lapwing.posterior", "schema": 9, "versions": [1]}', "another version"),
    ],
    ids=["list", "null", "tree", "deep", "deep-objects", "long", "empty", "schema", "versions"],
)
def test_headers_of_other_shapes_are_refused(text: str, complaint: str, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a", metadata={"lapwing": text})
    with pytest.raises(DataError, match=complaint):
        KIND.header(tmp_path / "a")


def test_a_missing_checksum_is_no_checksum(tmp_path: Path) -> None:
    header = {"format": "lapwing.posterior", "schema": 1}
    save_file({"w": torch.ones(2)}, tmp_path / "a", metadata={"lapwing": json.dumps(header | {"seal": seal(header)})})
    with pytest.raises(DataError, match="tensors do not match"):
        KIND.tensors(tmp_path / "a", KIND.header(tmp_path / "a"))


@pytest.mark.parametrize(
    "spec", [None, [], {}, {"tensor": 1}, {"tensor": "b"}, {"tensor": "a", "axes": [1, 1]}], ids=repr
)
def test_tensors_that_are_not_there(spec: Any) -> None:
    with pytest.raises(DataError, match="Try saving it again"):
        Tensors({"a": torch.ones(2, 3)}).get(spec)
