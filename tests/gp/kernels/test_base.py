"""Kernels against scikit-learn's, their derivatives against differences, and what random features stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from lapwing.gp import (
    RBF,
    Columns,
    Constant,
    Custom,
    Hamming,
    Kernel,
    Linear,
    Matern,
    Periodic,
    RationalQuadratic,
    Tanimoto,
)  # fmt: skip
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError
from tests.checker import unchecked
from tests.posterior_cases import normal

SCALES = (0.7, 1.3, 2.0)
KERNELS: dict[str, tuple[Kernel, sk.Kernel]] = {
    "rbf": (RBF(SCALES), sk.RBF(SCALES)),
    "matern 1/2": (Matern(SCALES, 0.5), sk.Matern(SCALES, nu=0.5)),
    "matern 3/2": (Matern(1.4), sk.Matern(1.4, nu=1.5)),
    "matern 5/2": (Matern(SCALES, 2.5), sk.Matern(SCALES, nu=2.5)),
    "rational quadratic": (RationalQuadratic(1.4, 0.6), sk.RationalQuadratic(1.4, 0.6)),
    "columns": (Columns(RBF((0.7, 2.0)), (2, 0)), sk.RBF((2.0, 1e12, 0.7))),
    "linear": (Linear(2.0), sk.DotProduct(0.0) * sk.ConstantKernel(0.25)),
    "sum": (0.5 * RBF(2.0) + 0.1 * Constant(), sk.ConstantKernel(0.5) * sk.RBF(2.0) + sk.ConstantKernel(0.1)),
    "product": (RBF(2.0) * Matern(SCALES), sk.RBF(2.0) * sk.Matern(SCALES, nu=1.5)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_blocks_and_diagonals_are_those_of_scikit_learn(name: str) -> None:
    ours, theirs = KERNELS[name]
    a, b = normal(5, 3), normal(4, 3, seed=1)
    torch.testing.assert_close(ours(a, b), torch.as_tensor(theirs(a, b)), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.diagonal(a), torch.as_tensor(theirs.diag(a)), rtol=1e-12, atol=1e-12)


def test_a_periodic_kernel_is_that_of_scikit_learn_in_one_dimension() -> None:
    a, b = normal(5, 1), normal(4, 1, seed=1)
    theirs = sk.ExpSineSquared(length_scale=0.8, periodicity=1.7)(a, b)
    torch.testing.assert_close(Periodic(1.7, 0.8)(a, b), torch.as_tensor(theirs))


def test_tanimoto_is_minima_over_maxima() -> None:
    a = torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
    b = torch.tensor([[2.0, 1.0, 3.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(Tanimoto()(a, b), torch.tensor([[4.0 / 6.0, 0.0], [0.0, 1.0]]))


@pytest.mark.parametrize("name", KERNELS)
def test_hyper_parameters_come_back_and_move_the_kernel(name: str) -> None:
    kernel, _ = KERNELS[name]
    assert len(kernel.labels()) == len(kernel.hyper)
    torch.testing.assert_close(kernel.with_hyper(kernel.hyper).hyper, kernel.hyper, rtol=1e-12, atol=1e-12)
    a, b = normal(5, 3), normal(4, 3, seed=1)

    def block(values: Tensor) -> Tensor:
        return kernel.with_hyper(values)(a, b)

    assert torch.autograd.gradcheck(block, kernel.hyper.requires_grad_())


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_have_derivatives_in_inputs(name: str) -> None:
    kernel, _ = KERNELS[name]
    a, b = normal(3, 3).requires_grad_(), normal(2, 3, seed=1)
    assert torch.autograd.gradcheck(lambda x: kernel(x, b), a)


def test_the_derivative_at_a_coincidence_is_finite() -> None:
    x = normal(3, 2).requires_grad_()
    Matern(1.0)(x, x.detach()).sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(SCALES), Matern(SCALES, 0.5), Matern(1.4), Matern(2.0, 2.5), Periodic(3.0, 1.2), Linear(2.0),
        0.3 * Constant(), RBF(2.0) + 0.5 * Matern(1.0), RBF(2.0) * Matern(SCALES), RationalQuadratic(SCALES, 0.6),
        Columns(Matern(0.8), (1,)) * Columns(RBF((2.0, 1.0)), (2, 0)), Hamming(SCALES),
    ],
    ids=str,
)  # fmt: skip
def test_inner_products_of_random_features_come_to_the_kernel(kernel: Kernel) -> None:
    x = normal(4, 3)
    count = 200_000
    phi = kernel.features(count, x, torch.Generator().manual_seed(0))(x)
    torch.testing.assert_close(phi @ phi.mT, kernel(x, x), rtol=0, atol=5 * 4 / count**0.5)


def test_random_features_of_tanimoto_come_to_the_kernel() -> None:
    x = torch.tensor([[1.0, 0.0, 3.0, 2.0], [1.0, 1.0, 0.0, 2.0], [0.0, 4.0, 1.0, 0.0]])
    phi = Tanimoto().features(20_000, x, torch.Generator().manual_seed(0))(x)
    torch.testing.assert_close(phi @ phi.mT, Tanimoto()(x, x), rtol=0, atol=0.04)


def test_random_features_know_inputs_many_length_scales_away() -> None:
    x = torch.tensor([[3e7], [3e7 + 2], [3e7 + 4], [0.0]])
    phi = RBF(3.0).features(50_000, x, torch.Generator().manual_seed(0))(x)
    torch.testing.assert_close(phi @ phi.mT, RBF(3.0)(x, x), rtol=0, atol=0.03)


def test_a_periodic_kernel_is_the_same_many_periods_away() -> None:
    a, b = torch.tensor([[0.125], [1.75]], dtype=torch.float64), normal(3, 1)
    kernel = Periodic(3.0, 0.4)
    torch.testing.assert_close(kernel(a + 3 * 2.0**40, b), kernel(a, b), rtol=1e-13, atol=0)


def test_a_kernel_of_the_user_has_features_only_if_given() -> None:
    kernel = Custom(lambda a, b: torch.exp(-torch.cdist(a, b)))
    x = normal(3, 2)
    torch.testing.assert_close(kernel(x, x), Matern(1.0, 0.5)(x, x))
    torch.testing.assert_close(kernel.diagonal(x), torch.ones(3).double())
    with pytest.raises(UnsupportedError, match="random features"):
        kernel.features(10, x, torch.Generator())


@pytest.mark.parametrize("value", [np.array([1.0, 2.0]), torch.tensor([1.0, 2.0]), [np.float32(1.0), 2], (1, 2)])
def test_arrays_of_numbers_are_numbers(value: Any) -> None:
    with unchecked():
        assert RBF(value) == RBF((1.0, 2.0)) and RBF(value[0]) == RBF(1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), (1.0, 0.0), "long", (), torch.tensor(float("nan"))])
def test_what_is_not_positive_is_refused(value: object) -> None:
    with unchecked(), pytest.raises(ConfigError, match="positive lengthscale"):
        RBF(value)  # type: ignore[arg-type]


def test_a_kernel_without_values_is_refused() -> None:
    class Empty(Kernel):
        def diagonal(self, x: Tensor) -> Tensor:
            return x[:, 0]

    with pytest.raises(ConfigError, match="__call__ or between"):
        Empty()(normal(3, 1), normal(3, 1))


def test_length_scales_of_another_dimension_are_refused() -> None:
    with pytest.raises(ShapeError, match="2 columns"):
        Matern((1.0, 2.0))(normal(3, 3), normal(3, 3))
    with unchecked(), pytest.raises(ConfigError, match="smoothness"):
        Matern(1.0, 3.5)  # type: ignore[arg-type]
    with unchecked(), pytest.raises(ConfigError, match="to add or multiply"):
        RBF() + 1.0  # type: ignore[operator]
