from __future__ import annotations

import math

import pytest
import torch

from benchmarks.command import Setting
from benchmarks.tasks import matrix_free
from studies.full.setting import ALPHA, Digits
from studies.full.spectrum import effective_ranks, gap, leading, spectrum


def test_the_spectrum_is_that_of_the_dense_curvature() -> None:
    setting = Digits(Setting(quick=True))
    model = setting.network(kernel=3).double()
    data = (setting.split.x_train[:6].double(), setting.split.y_train[:6])
    values = spectrum(model, data)
    dense = matrix_free(model, data, ALPHA).precision_operator.dense()
    expected = torch.linalg.eigvalsh(dense).flip(0) - ALPHA
    torch.testing.assert_close(values, expected[: len(values)], atol=1e-9, rtol=1e-9)
    assert len(values) == 6 * 9, "ten classes of an example have nine directions"
    assert float(expected[len(values)]) < 1e-9


def test_the_top_of_the_spectrum_is_that_of_the_whole_and_ends_where_it_is_no_longer_resolved() -> None:
    setting = Digits(Setting(quick=True))
    model = setting.network(kernel=3).double()
    data = setting.head(20, 20)
    data = (data[0].double(), data[1])
    top = leading(model, data)
    assert 20 < len(top) <= 100
    torch.testing.assert_close(top, spectrum(model, data)[: len(top)], rtol=0.02, atol=0)


def test_effective_ranks_of_known_spectra() -> None:
    flat = effective_ranks(torch.full((7,), 3.0, dtype=torch.float64), alpha=1.0)
    assert flat["entropy"] == pytest.approx(7) and flat["participation"] == pytest.approx(7)
    assert flat["dimension"] == pytest.approx(7 * 0.75)
    steep = effective_ranks(torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64), alpha=1.0)
    assert steep["entropy"] == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert steep["participation"] == pytest.approx(16 / 10)
    assert steep["dimension"] == pytest.approx(0.75 + 0.5)


def test_the_gap_is_where_the_largest_drop_is() -> None:
    assert gap(torch.tensor([50.0, 40.0, 30.0, 2.0, 1.0, 0.5])) == 3
    assert gap(torch.tensor([5.0, 4.0, 3.0, 1e-12])) == 2, "drops to rounding do not count"
    assert gap(torch.tensor([5.0])) == 1
    assert gap(torch.tensor([8.0, 7.0, 6.0, 0.1]), within=2) == 2
