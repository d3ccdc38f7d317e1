"""Kernel matrices of several tiles against the kernel itself, in both precisions."""

from __future__ import annotations

import math

import pytest
import torch

from lapwing.gp import RBF, Constant, Kernel, KernelMatrix, Linear, Matern, Periodic
from lapwing.gp.kernels.matrix import CACHE, SIDE, WIDE, cross, cross_product, side_of, tiles, weighted_gradient
from lapwing.linalg import Diagonal
from lapwing.linear.preconditioners import PivotedCholesky
from lapwing.linear.problem import Problem
from tests.posterior_cases import normal

N = 2 * SIDE + 7
KERNELS: list[Kernel] = [0.5 * RBF((0.7, 2.0)) + Constant(), Matern(1.0) * Periodic(3.0)]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_products_rows_and_blocks_are_those_of_the_kernel(kernel: Kernel) -> None:
    x, new, block = normal(N, 2), normal(5, 2, seed=1), normal(N, 3, seed=2)
    matrix, whole, index = KernelMatrix(kernel, x), kernel(x, x), torch.tensor([N - 1, 0, SIDE])
    for product in (matrix @ block, matrix._tiled_product(block)):
        torch.testing.assert_close(product, whole @ block)
    torch.testing.assert_close(matrix.dense(), whole)
    torch.testing.assert_close(matrix.rows(index), whole[index])
    for rows in (matrix.product_rows(index, block), matrix._tiled_rows(index, block)):
        torch.testing.assert_close(rows, whole[index] @ block)
    torch.testing.assert_close(cross(kernel, x, new), kernel(x, new))
    torch.testing.assert_close(cross_product(kernel, new, x, block), kernel(new, x) @ block)


@pytest.mark.parametrize("kernel", [Linear(0.5) + RBF(1.0), 2.0 * Matern(1.0, 0.5)], ids=str)
def test_rows_of_many_tiles_have_the_diagonal_where_it_is(kernel: Kernel) -> None:
    x = normal(N, 2)
    matrix, index = KernelMatrix(kernel, x), torch.arange(N - 1, -1, -2)
    rows = matrix.rows(index)
    torch.testing.assert_close(rows, kernel(x, x)[index], rtol=0, atol=1e-7)
    assert torch.equal(rows[torch.arange(len(index)), index], kernel.diagonal(x)[index])
    torch.testing.assert_close(matrix._tiled_rows(index, x), rows @ x)


def test_a_matrix_is_kept_where_it_fits_in_memory() -> None:
    kept, made = (KernelMatrix(RBF(1.0), torch.zeros(n, 1).double()) for n in (3, math.isqrt(CACHE // 8) + 1))
    assert kept._cached is not None and made._cached is None


def test_tiles_cover_a_matrix_once() -> None:
    for shape in ((N, N), (3, 100 * SIDE**2), (N, 1)):
        assert sum((i.stop - i.start) * (j.stop - j.start) for i, j in tiles(*shape, SIDE)) == shape[0] * shape[1]


def test_an_accelerator_gets_larger_tiles() -> None:
    assert side_of(torch.empty(0, device="meta")) > side_of(torch.empty(0)) == SIDE


def test_a_contraction_over_tiles_is_the_gradient_of_the_whole() -> None:
    x, weights = normal(WIDE + 5, 1), normal(WIDE + 5, 1, seed=1)
    kernel = 0.5 * Matern(1.0, 2.5)
    at = kernel.hyper.requires_grad_()
    (weights.mT @ kernel.with_hyper(at)(x, x) @ weights).sum().backward()
    found = weighted_gradient(KernelMatrix(kernel, x), lambda i, j: weights[i] @ weights[j].mT)
    torch.testing.assert_close(found, at.grad)


@pytest.mark.parametrize("smoothness", [0.5, 1.5, 2.5])
def test_single_precision_loses_little_even_where_inputs_nearly_coincide(smoothness: float) -> None:
    x = normal(N, 3) + 50.0
    x[1::2] = x[::2][: N // 2] + 1e-3
    exact = KernelMatrix(Matern(1.0, smoothness), x.float().double()).dense()
    found = KernelMatrix(Matern(1.0, smoothness), x.float()).dense().double()
    rounding = 4 * torch.finfo(torch.float32).eps * float((x - x.mean(0)).square().sum(1).max())  # of r²
    torch.testing.assert_close(found, exact, rtol=0, atol=rounding if smoothness > 1 else rounding**0.5)
    torch.testing.assert_close(found, found.mT, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", [Matern(1.0), RBF(1.0)], ids=str)
def test_single_precision_bears_many_length_scales(kernel: Kernel) -> None:
    x = torch.arange(500.0)[:, None].repeat_interleave(2, 0) * 20
    x[1::2] += 0.25
    found, exact = (KernelMatrix(kernel, each).dense() for each in (x, x.double()))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)


def test_a_pivoted_factor_reads_rows_and_makes_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    x, noise = normal(60, 2), Diagonal(0.1 + torch.rand(60, generator=torch.Generator().manual_seed(0)).double())
    whole = RBF(1.0)(x, x)
    monkeypatch.delattr(KernelMatrix, "_matmat")
    factor = PivotedCholesky(40).curvature(Problem(KernelMatrix(RBF(1.0), x), noise))
    torch.testing.assert_close(factor.dense(), whole, rtol=0, atol=1e-4)
