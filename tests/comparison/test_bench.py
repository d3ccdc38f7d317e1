from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from lapwing.comparison import bench

CPU = torch.device("cpu")


def test_seconds_are_those_of_the_call() -> None:
    slow, fast = bench.measured(lambda: time.sleep(0.05), CPU), bench.measured(lambda: None, CPU)
    assert slow.seconds >= 0.05 > fast.seconds


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps the high-water mark on Linux")
def test_peak_counts_what_was_freed_again_and_forgets_what_came_before() -> None:
    def passing(mib: int) -> None:
        torch.ones(mib * 2**18).sum()

    large, small = bench.measured(lambda: passing(64), CPU), bench.measured(lambda: passing(1), CPU)
    assert large.peak_mib is not None
    assert small.peak_mib is not None
    assert 60 < large.peak_mib < 80
    assert small.peak_mib < 16


def test_peak_is_unknown_where_nothing_keeps_it(tmp_path: Path) -> None:
    assert bench.measured(lambda: 3, CPU, tmp_path).peak_mib is None


def test_peak_is_unknown_where_the_mark_cannot_be_reset(tmp_path: Path) -> None:
    (tmp_path / "clear_refs").mkdir()  # a folder cannot be written to
    cost = bench.measured(lambda: 3, CPU, tmp_path)
    assert (cost.value, cost.peak_mib) == (3, None)


@pytest.mark.gpu
def test_peak_on_a_gpu_is_what_torch_allocated() -> None:
    device = torch.device("cuda")
    cost = bench.measured(lambda: torch.ones(2**20, device=device).sum(), device)
    assert cost.peak_mib is not None
    assert 4 <= cost.peak_mib < 5


def test_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        bench.measured(lambda: 1 // 0, CPU)
