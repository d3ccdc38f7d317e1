from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import fft
from torch import Tensor

from lapwing.evaluation.corruptions.blocks import LUMINANCE, jpeg, pixelate


@pytest.fixture
def x(generator: torch.Generator) -> Tensor:
    return torch.rand(2, 3, 16, 24, generator=generator, dtype=torch.float64)


def test_pixels_are_the_means_of_their_cells(x: Tensor) -> None:
    found = pixelate(x, 0.25)
    expected = x.unflatten(3, (6, 4)).unflatten(2, (4, 4)).mean((3, 5))
    torch.testing.assert_close(found, expected.repeat_interleave(4, 2).repeat_interleave(4, 3))
    uneven = pixelate(x, 0.8)  # 13 rows of cells, 3 of them of two pixels, by 19 columns
    torch.testing.assert_close(uneven.mean((2, 3)), x.mean((2, 3)), rtol=0.05, atol=0)
    assert int((uneven[0, 0].diff(dim=0).abs().amax(1) > 0).sum()) == 12
    assert int((uneven[0, 0].diff(dim=1).abs().amax(0) > 0).sum()) == 18


@pytest.mark.parametrize(("quality", "scale"), [(50.0, 1.0), (10.0, 5.0), (80.0, 0.4)])
def test_blocks_are_rounded_to_the_steps_of_the_table(x: Tensor, quality: float, scale: float) -> None:
    found = jpeg(x, quality)
    block = 255 * x[1, 2, 8:, 16:].numpy() - 128
    steps = np.round(np.array(LUMINANCE) * scale).clip(1, 255)
    rounded = np.round(fft.dctn(block, norm="ortho") / steps) * steps
    expected = (fft.idctn(rounded, norm="ortho") + 128) / 255
    np.testing.assert_allclose(found[1, 2, 8:, 16:].numpy(), expected, atol=1e-12)


def test_the_best_quality_loses_little_and_odd_sizes_are_kept(generator: torch.Generator) -> None:
    x = torch.rand(1, 1, 13, 21, generator=generator, dtype=torch.float64)
    assert jpeg(x, 5.0).shape == x.shape
    assert float((jpeg(x, 100.0) - x).abs().max()) < 0.02
