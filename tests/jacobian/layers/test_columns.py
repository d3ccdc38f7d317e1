"""Inputs of layers as columns: patches of convolutions by explicit loops, and their moments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.jacobian.layers.capture import ConvOptions
from lapwing.jacobian.layers.columns import Columns, ConvColumns, DenseColumns, joined, sum_outer
from tests.curvature.naive import patches

GEOMETRIES = {
    "plain-1d": ((2, 3, 5), ConvOptions((2,), (1,), ((0, 0),), (1,), 1)),
    "uneven-padding": ((2, 2, 5), ConvOptions((4,), (1,), ((1, 2),), (1,), 1)),
    "stride-and-dilation": ((2, 2, 7, 6), ConvOptions((2, 3), (2, 1), ((1, 1), (0, 0)), (1, 2), 1)),
    "groups": ((3, 4, 3, 3), ConvOptions((2, 2), (1, 1), ((0, 0), (1, 1)), (1, 1), 2)),
    "depthwise": ((2, 3, 4, 4), ConvOptions((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 3)),
    "pointwise": ((2, 5, 3, 3), ConvOptions((1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
    "3d": ((2, 2, 3, 4, 2), ConvOptions((2, 3, 1), (1, 2, 1), ((0, 0), (1, 1), (0, 0)), (1, 1, 1), 2)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_columns_of_a_convolution_are_its_patches(name: str, layout: str) -> None:
    shape, options = GEOMETRIES[name]
    image = torch.randn(shape, dtype=torch.float64)
    expected = patches(image, options)
    if layout == "channels-last":
        image = image.movedim(1, -1).contiguous().movedim(-1, 1)
    columns = ConvColumns(image, options)
    assert torch.equal(columns.columns(), expected)
    assert columns.positions == expected.shape[3] and columns.width == expected.shape[2]
    check_moments(columns, expected)


def test_dense_columns_are_what_they_hold() -> None:
    values = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    columns = DenseColumns(values)
    assert torch.equal(columns.columns(), values)
    assert (columns.positions, columns.width) == (5, 4)
    check_moments(columns, values)


def check_moments(columns: Columns, values: Tensor) -> None:
    with_ones = columns.columns(1)
    assert torch.equal(with_ones[:, :, :-1], values) and bool((with_ones[:, :, -1] == 1).all())
    torch.testing.assert_close(columns.total(), values.sum((0, 3)))
    torch.testing.assert_close(columns.second_moment(), torch.einsum("npit,npjt->pij", values, values))


@pytest.mark.parametrize("shape", [(3, 2, 2, 5), (3, 2, 5, 2), (1, 1, 4, 4)], ids=["wide", "tall", "square"])
def test_outer_products_add_up_over_examples_and_positions(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(sum_outer(x), torch.einsum("npit,npjt->pij", x, x))


def test_uses_of_one_weight_become_positions() -> None:
    shape, options = GEOMETRIES["plain-1d"]
    first, second = (ConvColumns(torch.randn(*shape[:2], size).double(), options) for size in (5, 3))
    assert joined([first]) is first
    both = joined([first, second])
    assert both.positions == first.positions + second.positions
    assert torch.equal(both.columns(), torch.cat([first.columns(), second.columns()], dim=-1))
