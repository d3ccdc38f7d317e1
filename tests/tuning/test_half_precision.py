"""Tuning in half precision: as in single precision, for layers whose kernels are particular about their types."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.tuning import Method
from tests.posterior_cases import normal, seeded


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.inputs, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.inputs(x)).mean(1))


def weight_normed() -> nn.Module:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(12, 5))
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(5, 3))


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated", "ignore::lapwing.ConvergenceWarning")


@pytest.mark.parametrize(
    ("make", "structure", "method"),
    [
        (weight_normed, lw.KFAC(), lw.ELBO(steps=2)),
        (Recurrent, lw.MatrixFree(), lw.EM(steps=1)),
        (Attending, lw.KFAC(), lw.ELBO(steps=1)),
    ],
    ids=["weight-norm", "gru", "transformer"],
)
def test_predictions_are_those_of_single_precision(make: Any, structure: Any, method: Method) -> None:
    torch.manual_seed(0)
    model = make().half()
    x, y = normal(9, 4, 3).half(), torch.arange(9) % 3
    tuned = []
    for dtype in (torch.float16, torch.float32):
        network, inputs = copy.deepcopy(model).to(dtype), x.to(dtype)
        posterior = lw.Laplace(lw.Categorical(), structure=structure).fit(network, (inputs, y))
        tuned.append(lw.tune(posterior, method).predict(inputs).probs)
    torch.testing.assert_close(tuned[0], tuned[1], rtol=0.0, atol=3e-3)


@pytest.mark.parametrize("weights", [lw.All(), lw.LastLayer()], ids=["all", "last-layer"])
def test_held_out_data_choose_as_in_single_precision(weights: Any) -> None:
    """Under the weakest priors that are tried covariances overflow; rounding does little beside the error."""
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))).half()
    x = normal(50, 3).half()
    y = torch.where(torch.rand(50, generator=torch.Generator().manual_seed(0)) < 0.6, model(x).argmax(1), 0)
    steps = []
    for dtype in (torch.float16, torch.float32):
        posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=weights)
        fitted = posterior.fit(copy.deepcopy(model).to(dtype), (x[:30].to(dtype), y[:30]))
        steps.append(lw.tune(fitted, (x[30:].to(dtype), y[30:])).trace[-1])
    half, single = steps
    assert half.prior_precision == single.prior_precision
    assert half.link == single.link
    assert half.validation_nll == pytest.approx(single.validation_nll, abs=single.validation_error / 8)
