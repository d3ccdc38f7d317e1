"""Kernels of distances against differences in extended precision, wherever the inputs are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.gp import GP, RBF, Kernel, KernelMatrix, Matern, RationalQuadratic
from tests.posterior_cases import normal

PROFILES: dict[Kernel, Callable[[np.ndarray], np.ndarray]] = {
    RBF(): lambda r: np.exp(-(r**2) / 2),
    Matern(smoothness=0.5): lambda r: np.exp(-r),
    Matern(smoothness=1.5): lambda r: (1 + 3**0.5 * r) * np.exp(-np.sqrt(np.longdouble(3)) * r),
    Matern(smoothness=2.5): lambda r: (1 + 5**0.5 * r + 5 * r**2 / 3) * np.exp(-np.sqrt(np.longdouble(5)) * r),
}
"""Kernels as functions of the distance."""


def scattered(columns: int) -> Tensor:
    """Inputs around 0, near each other, in a far cluster, and one alone."""
    x = normal(14, columns)
    x[4:7] = x[:3] + 1e-4 * normal(3, columns, seed=1)
    x[7:11] += 3e4
    x[11] = 1e9
    x[12] = x[0]
    return x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("kernel", PROFILES, ids=str)
def test_a_kernel_is_right_to_a_few_units_of_the_last_place(kernel: Kernel, columns: int, dtype: torch.dtype) -> None:
    x = scattered(columns).to(dtype)
    scales = np.linspace(0.5, 2.0, columns).astype("float32")
    wide = x.numpy().astype(np.longdouble)
    apart = (((wide[:, None] - wide) / scales) ** 2).sum(-1) ** 0.5
    exact = torch.as_tensor(PROFILES[kernel](apart).astype("float64"))
    found = type(kernel)(**{**vars(kernel), "lengthscale": tuple(scales.tolist())})(x, x)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", PROFILES, ids=str)
def test_squares_that_overflow_are_a_kernel_of_nothing(kernel: Kernel, dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0], [torch.finfo(dtype).max / 4]], dtype=dtype)
    assert torch.equal(kernel(x, x), torch.eye(2, dtype=dtype))
    gradient = kernel.gradient(x, x, torch.ones(2, 2, dtype=dtype))
    torch.testing.assert_close(gradient, torch.zeros(1, dtype=torch.float64))


def test_an_input_far_from_all_others_changes_nothing_for_them() -> None:
    x, y, new = normal(40, 2), normal(40, seed=1), normal(5, 2, seed=2)
    far, unknown = torch.full((1, 2), 1e9, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    recipe = GP(Matern(1.0), lw.Gaussian(10.0), mean="zero")
    with_it = recipe.fit((torch.cat([x, far]), torch.cat([y, unknown]))).predict(new)
    without = recipe.fit((x, y)).predict(new)
    torch.testing.assert_close(with_it.mean, without.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(with_it.std, without.std, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    "kernel", [Matern((0.7, 1.3)), Matern((0.7, 1.3), 2.5), RBF(0.9), RationalQuadratic((0.7, 1.3), 0.6)], ids=str
)
def test_the_gradient_in_length_scales_is_that_of_differences(kernel: Kernel) -> None:
    x, weight = scattered(2), normal(14, 14, seed=3)
    expected = Kernel.gradient(kernel, x, x, weight)
    torch.testing.assert_close(kernel.gradient(x, x, weight), expected, rtol=1e-9, atol=1e-9)


def test_derivatives_in_inputs_come_through_both_ways() -> None:
    x = scattered(6)

    def value(a: Tensor) -> Tensor:
        return Matern(2.0, 2.5)(a, x[3:9])

    assert torch.autograd.gradcheck(value, x[:4].clone().requires_grad_(), eps=1e-7, atol=1e-5)


def test_tiles_of_a_matrix_are_the_kernel() -> None:
    x = scattered(4)
    whole = KernelMatrix(RBF(0.8), x).dense()
    torch.testing.assert_close(whole, RBF(0.8)(x, x), rtol=0, atol=1e-15)
