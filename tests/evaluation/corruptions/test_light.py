from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.evaluation.corruptions.light import brightness, contrast, fog, occlusion


@pytest.fixture
def x(generator: torch.Generator) -> Tensor:
    return torch.rand(5, 3, 20, 24, generator=generator, dtype=torch.float64)


def test_brightness_adds_and_contrast_keeps_the_mean(x: Tensor) -> None:
    torch.testing.assert_close(brightness(x, 0.2) - x, torch.full_like(x, 0.2))
    flat = contrast(x, 0.3)
    torch.testing.assert_close(flat.mean((1, 2, 3)), x.mean((1, 2, 3)))
    torch.testing.assert_close(flat.flatten(1).std(1), 0.3 * x.flatten(1).std(1))


def test_fog_is_one_haze_over_all_channels(x: Tensor, generator: torch.Generator) -> None:
    haze = (fog(x, 0.25, generator) - 0.75 * x) / 0.25
    torch.testing.assert_close(haze[:, 0], haze[:, 2])
    torch.testing.assert_close(haze.amin((1, 2, 3)), torch.full([5], 0.5, dtype=x.dtype))
    torch.testing.assert_close(haze.amax((1, 2, 3)), torch.ones(5, dtype=x.dtype))
    assert float((haze[0] - haze[1]).abs().mean()) > 0.02


def test_a_square_is_hidden_anywhere_in_the_image(generator: torch.Generator) -> None:
    x = torch.zeros(400, 2, 10, 14)
    hidden = occlusion(x, 0.4, generator) == 0.5
    assert bool((hidden.sum((2, 3)) == 16).all())
    for axis, side in ((3, 10), (2, 14)):
        lines = hidden[:, 0].any(axis - 1)
        starts = lines.double().argmax(-1)
        assert bool((lines.sum(-1) == 4).all())
        assert sorted(starts.unique().tolist()) == list(range(side - 3))
