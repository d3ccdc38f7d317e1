"""A body in 8 bits under a head of floating-point numbers: error bars of the head, exact ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import ConfigError
from tests.posterior_cases import labels, normal, refused, seeded

X, Y = normal(9, 3), labels(9, classes=3)


class Packed(nn.Module):
    """A linear layer whose weight is held in 8 bits, as a parameter that is frozen."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        whole = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
        self.weight = nn.Parameter(whole, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(x.dtype) / 127).mT


class Plain(Packed):
    """The same weight in floating point."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight = nn.Parameter(self.weight.double() / 127, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT


def network(kind: type[Packed]) -> nn.Module:
    return seeded(lambda: nn.Sequential(kind(3, 5), nn.Tanh(), kind(5, 4), nn.Tanh(), nn.Linear(4, 3)))


@pytest.mark.parametrize("structure", [lw.Full(), lw.Full(view="functions"), lw.KFAC(), lw.MatrixFree()], ids=repr)
@pytest.mark.parametrize("weights", [lw.LastLayer(), lw.LastLayer("4"), lw.All(), lw.Names("*")], ids=repr)
def test_the_head_has_the_variances_that_it_has_over_a_body_of_plain_numbers(weights: Any, structure: Any) -> None:
    recipe = lw.Laplace(lw.Categorical(), structure=structure, weights=weights)
    if isinstance(weights, lw.Names):  # the plain body would be uncertain too
        weights = lw.LastLayer()
    expected = lw.Laplace(lw.Categorical(), structure=structure, weights=weights).fit(network(Plain), (X, Y))
    found = recipe.fit(network(Packed), (X, Y)).predict(X).logits.variance
    torch.testing.assert_close(found, expected.predict(X).logits.variance, rtol=1e-9, atol=1e-12)


def test_it_is_tuned_scored_and_kept_like_others(tmp_path: Path) -> None:
    model, plain = network(Packed), network(Plain)
    recipe = lw.Laplace(lw.Categorical(), weights=lw.LastLayer())
    posterior = lw.tune(recipe.fit(model, (X, Y)), lw.EvidenceGradient())
    lw.save(posterior, tmp_path / "file")
    loaded: Any = lw.load(tmp_path / "file", model, (X, Y))
    expected = lw.tune(recipe.fit(plain, (X, Y)), lw.EvidenceGradient())
    torch.testing.assert_close(loaded.predict(X).probs, expected.predict(X).probs, rtol=1e-8, atol=0.0)
    calibrated = [
        lw.baselines.PlainNetwork(each, lw.Gaussian()).calibrated((X, normal(9, 3, seed=4))) for each in (model, plain)
    ]
    assert calibrated[0].likelihood.noise == pytest.approx(calibrated[1].likelihood.noise, rel=1e-9)


def test_weights_in_eight_bits_cannot_be_uncertain() -> None:
    with refused(ConfigError, "patterns that match one of 2 parameters"):
        lw.Laplace(lw.Categorical(), weights=lw.Names("0.*")).fit(network(Packed), (X, Y))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_body_that_rounds_by_the_largest_of_the_batch_may_do_so() -> None:
    """The third example is six times as large as the others, and so is what they are rounded to beside it."""
    body = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 4))).float().eval()
    body = torch.ao.quantization.quantize_dynamic(body, {nn.Linear}, dtype=torch.qint8)
    model = nn.Sequential(body, seeded(lambda: nn.Linear(4, 3)).float())
    x = X.float()
    x[2] *= 6.0
    assert float((model(x[:2]) - model(x[:3])[:2]).abs().max()) > 0.01
    variance = lw.Laplace(lw.Categorical(), weights=lw.LastLayer()).fit(model, (x, Y)).predict(x).logits.variance
    features = torch.cat([body(x), torch.ones(9, 1)], 1)
    jacobian = torch.einsum("ij,nk->nijk", torch.eye(3), features).flatten(2)
    probs = model(x).softmax(-1).detach()
    hessian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None]
    precision = torch.einsum("nci,ncd,ndj->ij", jacobian, hessian, jacobian) + torch.eye(15)
    expected = torch.einsum("nci,ij,ncj->nc", jacobian, precision.inverse(), jacobian)
    torch.testing.assert_close(variance, expected, rtol=1e-3, atol=1e-5)
