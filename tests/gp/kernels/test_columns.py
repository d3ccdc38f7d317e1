"""Kernels of some columns: what they see, their hyper-parameters, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lapwing.gp import RBF, Columns, Hamming, Linear, Tanimoto
from lapwing.ground.errors import ConfigError
from tests.checker import unchecked
from tests.posterior_cases import normal, refused


def test_functions_do_not_vary_along_other_columns() -> None:
    kernel = Columns(RBF(1.3), active=(0, 2))
    x = normal(6, 4)
    moved = x.clone()
    moved[:, [1, 3]] += normal(6, 2, seed=1)
    torch.testing.assert_close(kernel(x, moved), kernel(x, x), rtol=1e-12, atol=0)
    features = kernel.features(50, x, torch.Generator().manual_seed(0))
    assert torch.equal(features(moved), features(x))


def test_hyper_parameters_are_those_of_the_kernels_within() -> None:
    kernel = Columns(RBF((0.7, 2.0)), (3, 0)) * Columns(Hamming(1.5), (1,)) + Columns(Linear(3.0), (2,))
    assert kernel.labels() == [
        "first.first.lengthscale[0]", "first.first.lengthscale[1]", "first.second.lengthscale", "second.lengthscale",
    ]  # fmt: skip
    moved = kernel.with_hyper(kernel.hyper + 1.0)
    torch.testing.assert_close(moved.hyper, kernel.hyper + 1.0)


def test_a_kernel_without_pieces_sees_columns_too() -> None:
    counts = torch.tensor([[1.0, -5.0, 2.0], [3.0, -1.0, 0.0]])
    torch.testing.assert_close(
        Columns(Tanimoto(), (0, 2))(counts, counts), Tanimoto()(counts[:, [0, 2]], counts[:, [0, 2]])
    )


def test_columns_of_a_table_may_be_found_by_numpy() -> None:
    with unchecked():
        assert Columns(RBF(), np.flatnonzero([True, False, True])) == Columns(RBF(), (0, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("active", [(), (0, 0), (-1,), (0.5,), ("age",), 0, 0.5])
def test_what_are_no_columns_is_refused(active: Any) -> None:
    with unchecked(), refused(ConfigError, "different columns, counted from 0"):
        Columns(RBF(), active)


def test_what_is_no_kernel_is_refused() -> None:
    with unchecked(), refused(ConfigError, "kernel to be of type Kernel"):
        Columns(1.0, (0,))  # type: ignore[arg-type]
