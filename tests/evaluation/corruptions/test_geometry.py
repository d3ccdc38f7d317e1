from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from lapwing.evaluation.corruptions.geometry import elastic, resample, rotation


@pytest.fixture
def x(generator: torch.Generator) -> Tensor:
    return torch.rand(12, 2, 15, 15, generator=generator, dtype=torch.float64)


def test_pixels_are_taken_from_where_the_shift_says(generator: torch.Generator) -> None:
    x = torch.rand(2, 3, 8, 11, generator=generator, dtype=torch.float64)
    whole = torch.tensor([2.0, 3.0], dtype=x.dtype).expand(2, 1, 1, 2)
    torch.testing.assert_close(resample(x, whole)[..., :6, :8], x[..., 2:, 3:], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(resample(x, whole)[..., 6:, 0], x[..., -1:, 3].expand(2, 3, 2), rtol=1e-12, atol=1e-12)
    field = 3 * torch.randn(2, 8, 11, 2, generator=generator, dtype=x.dtype)
    found = resample(x, field)
    places = np.indices((8, 11)) + field[1].movedim(-1, 0).numpy()
    expected = ndimage.map_coordinates(x[1, 2].numpy(), places, order=1, mode="nearest")
    np.testing.assert_allclose(found[1, 2].numpy(), expected, rtol=1e-10, atol=1e-12)


def test_a_quarter_turn_is_a_quarter_turn_to_either_side(x: Tensor, generator: torch.Generator) -> None:
    turned = rotation(x, 90.0, generator)
    sides = [(turned - torch.rot90(x, k, (2, 3))).flatten(1).abs().amax(1) < 1e-12 for k in (1, 3)]
    assert bool((sides[0] ^ sides[1]).all())
    assert bool(sides[0].any()) and bool(sides[1].any())


def test_elastic_moves_by_its_amount(generator: torch.Generator) -> None:
    rows = torch.arange(64, dtype=torch.float64)[:, None].expand(64, 64) / 64
    ramp = rows.expand(30, 1, 64, 64)
    moved = (elastic(ramp, 1.5, generator) - ramp)[..., 8:-8, 8:-8] * 64
    assert float(moved.square().mean().sqrt()) == pytest.approx(1.5, rel=0.1)
    assert float(moved.diff(dim=-1).abs().mean()) < 0.25  # smoothly
    assert float(moved.flatten(1).std(1).min()) > 0.5  # not as a whole
