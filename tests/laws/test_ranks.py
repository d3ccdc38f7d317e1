"""Several processes, each with a part of the data, say what one process says that has them all.

Two are held against one in all they say; from the checkpoints of two and of four, one goes on; of three, one goes away.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).parent.parent / "ranks.py"
WORLDS = (2, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each process was told, in a file."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(PROGRAM), str(folder), *map(str, (*WORLDS, 3))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "1-0.pt")


@pytest.mark.parametrize("rank", [0, 1])
def test_they_say_what_one_process_says(folder: Path, one: dict[str, Any], rank: int) -> None:
    """Every structure's covariances, its evidence, and what tuning makes of them, by the last rank as by the first."""
    found = torch.load(folder / f"2-{rank}.pt")
    numbers = {name: value for name, value in one.items() if "EM" not in name}
    assert len(numbers) == 17
    for name, value in numbers.items():
        torch.testing.assert_close(found[name], value, rtol=1e-11, atol=1e-12 * float(value.abs().max()), msg=name)


@pytest.mark.parametrize("world", WORLDS)
def test_tuning_goes_on_with_another_number_of_processes(one: dict[str, Any], world: int) -> None:
    torch.testing.assert_close(one[f"EM from {world}"], one["EM"], rtol=1e-10, atol=0.0)


def test_a_product_sends_one_number_a_weight_and_column(folder: Path) -> None:
    weights = 3 * 4 + 4 + 2 * 4 + 4 + 1
    assert torch.load(folder / "2-0.pt")["bytes"] == 8 * weights * 5


@pytest.mark.parametrize("rank", [0, 2])
def test_a_process_that_is_gone_ends_the_others_with_a_sentence(folder: Path, rank: int) -> None:
    assert "one that is gone" in torch.load(folder / f"lost-{rank}.pt")


@pytest.mark.parametrize(
    ("what", "fragment"),
    [
        ("Nystrom", "one process for Nystrom"),
        ("Full", "view over the training outputs"),
        ("Sampled", "mini-batches"),
        ("all of the data", "the same for ranks 0 and 1"),
        ("other weights", "the same weights in every process"),
    ],
)
def test_what_needs_all_data_in_one_process_says_so(folder: Path, what: str, fragment: str) -> None:
    assert fragment in torch.load(folder / "2-1.pt")["refused"][what]
