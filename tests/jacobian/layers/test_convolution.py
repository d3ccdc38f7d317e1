"""Patches pixel by pixel, and their second moment without them."""

from __future__ import annotations

import pytest
import torch

from lapwing.jacobian.layers.convolution import Convolution, ConvolutionGeometry, autocorrelation, patches, slides
from tests.curvature import naive

GEOMETRIES = {
    "plain-1d": ((2, 3, 5), ConvolutionGeometry((2,), (1,), ((0, 0),), (1,), 1)),
    "uneven-padding": ((2, 2, 5), ConvolutionGeometry((4,), (1,), ((1, 2),), (1,), 1)),
    "stride-and-dilation": ((2, 2, 7, 6), ConvolutionGeometry((2, 3), (2, 1), ((1, 1), (0, 0)), (1, 2), 1)),
    "groups": ((3, 4, 3, 3), ConvolutionGeometry((2, 2), (1, 1), ((0, 0), (1, 1)), (1, 1), 2)),
    "depthwise": ((2, 3, 4, 4), ConvolutionGeometry((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 3)),
    "pointwise": ((2, 5, 3, 3), ConvolutionGeometry((1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
    "3d": ((2, 2, 3, 4, 2), ConvolutionGeometry((2, 3, 1), (1, 2, 1), ((0, 0), (1, 1), (0, 0)), (1, 1, 1), 2)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_patches_are_those_under_each_pixel(name: str, layout: str) -> None:
    shape, options = GEOMETRIES[name]
    image = torch.randn(shape, dtype=torch.float64)
    expected = naive.patches(image, options)
    if layout == "channels-last":
        image = image.movedim(1, -1).contiguous().movedim(-1, 1)
    with_ones = patches(image, options, 1)
    assert torch.equal(patches(image, options), expected)
    assert torch.equal(with_ones[:, :, :-1], expected) and bool((with_ones[:, :, -1] == 1).all())
    factor = Convolution("w", None, torch.randn(len(image), 3, options.groups, 2, expected.shape[3]), image, options)
    assert factor.width == expected.shape[2]


SLIDING = {
    "square": ((2, 3, 6, 7), ConvolutionGeometry((3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
    "oblong": ((3, 2, 8, 5), ConvolutionGeometry((4, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
    "uneven-padding-and-groups": ((2, 4, 3, 5), ConvolutionGeometry((2, 3), (1, 1), ((1, 0), (0, 2)), (1, 1), 2)),
    "a-column": ((2, 2, 7, 3), ConvolutionGeometry((3, 1), (1, 1), ((1, 1), (0, 0)), (1, 1), 1)),
    "a-row": ((2, 2, 3, 7), ConvolutionGeometry((1, 3), (1, 1), ((0, 0), (1, 1)), (1, 1), 1)),
    "smallest": ((1, 1, 6, 6), ConvolutionGeometry((3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
}


@pytest.mark.parametrize("ones", [0, 1])
@pytest.mark.parametrize("name", SLIDING)
def test_autocorrelation_is_the_second_moment_of_the_patches(name: str, ones: int) -> None:
    shape, options = SLIDING[name]
    image = torch.randn(shape, dtype=torch.float64)
    assert slides(image, options)
    columns = naive.patches(image, options)
    columns = torch.cat([columns, torch.ones_like(columns[:, :, :ones])], 2)
    expected = torch.einsum("npit,npjt->pij", columns, columns)
    torch.testing.assert_close(autocorrelation(image, options, ones), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["plain-1d", "stride-and-dilation", "groups", "3d"])
def test_steps_other_axes_and_small_images_do_not_slide(name: str) -> None:
    shape, options = GEOMETRIES[name]
    assert not slides(torch.empty(shape), options)
