"""What the log says of a network that PyTorch cannot vectorise: what stopped it, and no request to tell others."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from tests.posterior_cases import labels, normal, seeded

X, Y = normal(5, 3), labels(5, classes=3)


class Comparing(nn.Module):
    """A network that compares numbers as it goes, which has no rule of vectorised differentiation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x) * self.scale
        return z if torch.allclose(z, z) else -z


def by_fit(structure: Any) -> Any:
    return lambda: lw.Laplace(lw.Categorical(), structure=structure).fit(seeded(Comparing), (X, Y)).predict(X)


def by_refits() -> Any:
    recipe = lw.HessianFree(lw.Categorical(), prior=lw.Isotropic(50.0), fits=lw.hessian_free.PerPoint())
    return recipe.fit(seeded(Comparing), (X, Y), X[:1])


@pytest.mark.parametrize("call", [by_fit(lw.Diagonal()), by_fit(lw.MatrixFree()), by_refits])
def test_nobody_is_asked_to_file_an_issue(call: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lapwing"):
        call()
    assert "allclose isn't supported yet" in caplog.text and "issue" not in caplog.text


class Recurrent(nn.Module):
    """An LSTM in float32, whose fused kernel PyTorch vectorises by a loop, and warns of it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize("tuned", [False, True])
def test_a_fused_kernel_is_no_warning_of_pytorchs(tuned: bool, recwarn: pytest.WarningsRecorder) -> None:
    torch.manual_seed(0)
    posterior = lw.Laplace(lw.Categorical()).fit(Recurrent().eval(), (torch.randn(5, 2, 3), Y))
    if tuned:
        lw.tune(posterior, lw.ELBO())
    posterior.predict(torch.randn(2, 2, 3))
    assert not [str(each.message) for each in recwarn if "performance drop" in str(each.message)]
