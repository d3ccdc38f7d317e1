"""A file of tensors is there whole, or the one before it still is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lapwing.ground.errors import ConfigError
from lapwing.ground.files import atomic
from tests.posterior_cases import refused


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for value in (1.0, 2.0):
        atomic.write_whole(path, {"w": torch.full((3,), value)}, {"about": "w"})
    assert load_file(path)["w"].tolist() == [2.0, 2.0, 2.0]
    (tmp_path / "b").touch()
    assert path.stat().st_mode == (tmp_path / "b").stat().st_mode


def test_an_interrupted_write_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    atomic.write_whole(path, {"w": torch.ones(3)}, {})

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_whole(path, {"w": torch.zeros(3)}, {})
    assert load_file(path)["w"].tolist() == [1.0, 1.0, 1.0] and list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with refused(ConfigError, "a directory"):
        atomic.write_whole(tmp_path / "nowhere" / "a", {}, {})


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with refused(ConfigError, "the path of a file"):
        atomic.write_whole(tmp_path, {}, {})
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}*"))


@pytest.mark.parametrize("bad", [3, None, b"a"])
def test_a_path_is_a_path(bad: object) -> None:
    with refused(ConfigError, "the path to be one of str, PathLike"):
        atomic.file_at(bad)
    assert atomic.file_at("a") == atomic.file_at(Path("a")) == Path("a")


def killed(path: Path) -> int:
    """The number of a process that was killed while it wrote a file."""
    child = os.fork()
    if child == 0:
        try:
            atomic.save_file = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            atomic.write_whole(path, {"w": torch.zeros(3)}, {})
        finally:
            os._exit(1)  # never back into the tests
    os.waitpid(child, 0)
    return child


@pytest.mark.skipif(os.name != "posix", reason="processes are killed otherwise there")
def test_what_a_killed_process_left_is_swept_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "a[1]"
    atomic.write_whole(path, {"w": torch.ones(3)}, {})
    killed(path)
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.is_dir() and load_file(path)["w"].tolist() == [1.0, 1.0, 1.0]
    mine, other = (left.with_name(left.name.replace(path.name, name)) for name in (path.name, "b"))
    mine = mine.with_name(f".{path.name}.{atomic.HOST}-{os.getpid()}-00000000")
    foreign = left.with_name(left.name.replace(atomic.HOST, "0" * 8))
    for living in (mine, other, foreign):
        living.mkdir()
    atomic.write_whole(path, {"w": torch.full((3,), 2.0)}, {})
    assert set(tmp_path.iterdir()) == {path, mine, other, foreign}
    assert load_file(path)["w"].tolist() == [2.0, 2.0, 2.0]
