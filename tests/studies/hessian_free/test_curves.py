from __future__ import annotations

import pytest
import torch

from benchmarks.data import generator
from studies.hessian_free.curves import CURVES, NOISE, drawn, parts, quadratic, sine, spaced


@pytest.mark.parametrize(("name", "train", "tested"), [("Quadratic-Uniform", 32, 45), ("Sin-Inbetween", 160, 80)])
def test_a_draw_has_the_stated_sizes_and_is_that_of_its_seed(name: str, train: int, tested: int) -> None:
    data = CURVES[name].draw(3)
    sizes = [len(x) for pair in (data.train, data.validation, data.inside, data.outside) for x in pair]
    assert sizes == [train] * 6 + [tested] * 2
    assert torch.equal(CURVES[name].draw(3).outside[1], data.outside[1])
    assert not torch.equal(CURVES[name].draw(4).outside[1], data.outside[1])


@pytest.mark.parametrize("name", list(CURVES))
def test_inputs_lie_in_the_stated_ranges_and_targets_on_the_curve(name: str) -> None:
    data, curve = CURVES[name].draw(0), CURVES[name]
    for ranges, pairs in ((curve.inside, (data.train, data.validation, data.inside)), (curve.outside, (data.outside,))):
        for x, y in pairs:
            assert not ranges or bool(torch.stack([(x >= low) & (x <= high) for low, high in ranges]).any(0).all())
            left = y - curve.response(x)
            assert abs(float(left.mean())) < 4 * NOISE / len(x) ** 0.5
            assert 0.6 * NOISE < float(left.std()) < 1.4 * NOISE


def test_the_curves_are_those_of_the_source() -> None:
    x = torch.tensor([0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(quadratic(x), torch.tensor([5.0, 4.4], dtype=torch.float64))
    torch.testing.assert_close(sine(x + 0.1), torch.tensor([0.0, 0.2794155], dtype=torch.float64), rtol=0, atol=1e-6)


def test_ranges_share_the_inputs() -> None:
    ranges = ((0.0, 1.0), (2.0, 4.0))
    assert parts(7, 3) == [3, 2, 2]
    assert spaced(ranges, 5)[:, 0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 2, 3])
    x = drawn(ranges, 2001, generator())
    assert int((x <= 1).sum()) == 1001 and abs(float(x[1001:].mean()) - 3) < 0.1
    assert abs(float(drawn((), 4000, generator()).std()) - 1) < 0.05
