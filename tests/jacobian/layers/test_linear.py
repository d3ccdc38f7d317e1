"""Covariances of a layer by pairs of its positions, and the choice between these and explicit rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lapwing.jacobian.layers.base import NUMBERS
from lapwing.jacobian.layers.linear import Linear, cancelled, pairs_cost, rows_cost, turned
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose


def layer(generator: torch.Generator, t: int) -> Linear:
    """Four examples of five cotangents in two groups of three outputs and seven inputs."""
    g = torch.randn(4, 5, 2, 3, t, generator=generator, dtype=torch.float64)
    a = torch.randn(4, 2, 7, t, generator=generator, dtype=torch.float64)
    return Linear("w", "b", g, a)


@pytest.mark.parametrize("t", [2, 3, 11])
@pytest.mark.parametrize("m", [1, 3])
def test_pairs_of_positions_have_the_covariance_of_rows(generator: torch.Generator, t: int, m: int) -> None:
    factor = layer(generator, t)
    variances = torch.rand(m, 2 * 3 * 8, generator=generator, dtype=torch.float64)
    rows = factor.rows()
    expected = torch.einsum("nkd,md,nld->mnkl", rows, variances, rows)
    scale = torch.stack([factor.matrix(variance) for variance in variances])
    by_pairs, separate = factor.from_pairs(scale)
    torch.testing.assert_close(by_pairs, expected, rtol=1e-12, atol=1e-12)
    each = [replace(factor, g=factor.g[..., s : s + 1], a=factor.a[..., s : s + 1]) for s in range(t)]
    alone = torch.stack([one.covariances(variances) for one in each]).sum(0)
    torch.testing.assert_close(separate, alone.diagonal(dim1=-2, dim2=-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(factor.covariances(variances), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", [1, 3])
def test_positions_that_all_but_cancel_keep_their_digits(generator: torch.Generator, m: int) -> None:
    """Of two inputs of which the outputs are subtracted, the second example is nearly the same twice."""
    g = torch.randn(3, 5, 1, 30, 1, generator=generator) * torch.tensor([1.0, -1.0])
    a = torch.randn(3, 1, 30, 2, generator=generator)
    a[1, ..., 1] = a[1, ..., 0] + 1e-3 * a[1, ..., 1]
    factor = Linear("w", None, g, a)
    variances = torch.rand(m, 900, generator=generator) + 0.1
    exact = factor.widened().covariances(variances.double())
    by_pairs, separate = factor.from_pairs(factor.weight_arrays(variances))
    assert cancelled(by_pairs, separate).tolist() == [False, True, False]
    assert float((by_pairs - exact)[:, 1].norm() / exact[:, 1].norm()) > 1e-3
    torch.testing.assert_close(factor.covariances(variances).double(), exact, rtol=2e-4, atol=2e-8)


@pytest.mark.parametrize(("n", "t"), [(140, 4), (12, 40)], ids=["pairs", "rows"])
@pytest.mark.parametrize("m", [1, 3])
def test_examples_of_several_pieces_are_as_alone(generator: torch.Generator, n: int, t: int, m: int) -> None:
    """More examples than a processor's cache has room for."""
    g = torch.randn(n, 2, 1, 200, t, generator=generator, dtype=torch.float64)
    a = torch.randn(n, 1, 200, t, generator=generator, dtype=torch.float64)
    factor = Linear("w", None, g, a)
    variances = torch.rand(m, 200 * 200, generator=generator, dtype=torch.float64)
    alone = [factor.taken(slice(i, i + 1)).covariances(variances) for i in range(n)]
    torch.testing.assert_close(factor.covariances(variances), torch.cat(alone, 1), rtol=1e-12, atol=1e-12)


def test_matrices_of_several_pieces_are_turned_as_alone(generator: torch.Generator) -> None:
    n, o, i, t = 11, 2, 4, 2**14
    g = torch.randn(n, 1, 1, o, t, generator=generator, dtype=torch.float64)
    factor = Linear("w", None, g, torch.randn(n, 1, i, t, generator=generator, dtype=torch.float64))
    assert n * i * t > NUMBERS
    bases = []
    for side in (o, i):
        root = torch.randn(side, side, generator=generator, dtype=torch.float64)
        bases.append(decompose(root @ root.mT))
    alone = [factor.taken(slice(k, k + 1)).rotated(*bases).rows() for k in range(n)]
    torch.testing.assert_close(factor.rotated(*bases).rows(), torch.cat(alone))


def test_few_positions_are_paired_and_many_are_not() -> None:
    """Of the last stage of a ResNet-18, with 2 x 2 positions, and of its first, with 32 x 32."""
    assert pairs_cost(1, 10, 512, 4608, 4) < rows_cost(1, 10, 512, 4608, 4) / 10
    assert pairs_cost(1, 10, 64, 576, 1024) > rows_cost(1, 10, 64, 576, 1024)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("t", [6, 17])
def test_columns_turned_group_by_group_are_those_turned_one_by_one(
    generator: torch.Generator, groups: int, rank: int | None, t: int
) -> None:
    x = torch.randn(3, 4, groups, 5, t, generator=generator, dtype=torch.float64)
    root = torch.randn(groups, 5, 5, generator=generator, dtype=torch.float64)
    basis = decompose(root @ root.mT)
    if rank is not None:
        basis = Eigenbasis(basis.values[0, -rank:], basis.vectors[0, :, -rank:], rest=0.5)
    torch.testing.assert_close(turned(basis, x), basis.into(x), rtol=1e-12, atol=1e-12)
