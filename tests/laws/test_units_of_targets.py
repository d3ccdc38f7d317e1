"""Targets have units that nobody asked for: tuned predictions of targets s times as large are s times as large."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from tests.pairwise import in_turn

SCALES = (1000.0, 0.001)
STRUCTURES: dict[str, Callable[[], Any]] = {
    "full-weights": lambda: lw.Full(view="weights"),
    "full-functions": lambda: lw.Full(view="functions"),
    "kfac": lw.KFAC,
    "diagonal": lw.Diagonal,
    "low-rank": lambda: lw.LowRank(rank=6),
    "nystrom": lambda: lw.Nystrom(rank=6),
}
OUTPUTS = {"one output": (1, False), "own noises": (2, False), "one noise": (2, True)}
NOISE = (0.2, 0.4)
FOUND = 0.06
"""How near held-out data find standard deviations: losses that rounding alone tells apart are the same."""

pytestmark = pytest.mark.filterwarnings("ignore::lapwing.ConvergenceWarning")


@cache
def trained(outputs: int) -> tuple[nn.Sequential, list[Tensor], list[Tensor]]:
    """A network near the least squares of its targets; inputs and targets for training and held out."""
    generator = torch.Generator().manual_seed(outputs)
    inputs = [torch.randn(size, 2, generator=generator, dtype=torch.float64) for size in (80, 60)]
    targets = list[Tensor]()
    for x in inputs:
        truth = torch.stack([1.4 * x[:, 0].sin(), 1.5 * x.prod(-1).tanh()], -1)
        errors = torch.tensor(NOISE, dtype=torch.float64) * torch.randn(truth.shape, generator=generator).double()
        targets.append((truth + errors)[:, :outputs])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, outputs)).double()
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        decay = sum(value.square().sum() for value in model.parameters())
        value = (model(inputs[0]) - targets[0]).square().mean() + 1e-3 * decay
        value.backward()
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    return model, inputs, targets


def deviations(
    case: str, scale: float, structure: str, tune: Callable[[lw.Posterior, Any], lw.Posterior], **recipe: Any
) -> tuple[Tensor, Tensor]:
    """Standard deviations of new targets near and far, and of outputs at the scale of knowledge, over the scale."""
    outputs, shared = OUTPUTS[case]
    model, inputs, targets = trained(outputs)
    model = copy.deepcopy(model)
    with torch.no_grad():
        model[-1].weight *= scale
        model[-1].bias *= scale
    fit = lw.Laplace(lw.Gaussian(shared=shared), structure=STRUCTURES[structure](), **recipe)
    posterior = fit.fit(model, (inputs[0], scale * targets[0]))
    tuned = tune(posterior, (inputs[1], scale * targets[1]))
    predicted = tuned.predict(torch.linspace(-6, 6, 14, dtype=torch.float64).view(7, 2))
    return predicted.std / scale, predicted.epistemic / scale  # type: ignore[attr-defined]


def by_default(posterior: lw.Posterior, held_out: Any) -> lw.Posterior:
    return lw.tune(posterior)


def by_held_out_data(posterior: lw.Posterior, held_out: Any) -> lw.Posterior:
    return lw.tune(posterior, held_out)


def one_after_the_other(posterior: lw.Posterior, held_out: Any) -> lw.Posterior:
    return lw.tune(lw.tune(posterior), held_out)


def check(tolerance: float, *args: Any, **recipe: Any) -> None:
    case, *rest = args
    expected = deviations(case, 1.0, *rest, **recipe)
    for scale in SCALES:
        found = deviations(case, scale, *rest, **recipe)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=0.0)


@pytest.mark.parametrize(("structure", "case"), in_turn(STRUCTURES, OUTPUTS))
def test_of_last_layers_tuned_by_held_out_data(structure: str, case: str) -> None:
    check(FOUND, case, structure, by_held_out_data, weights=lw.LastLayer())


@pytest.mark.parametrize(("structure", "case"), in_turn(STRUCTURES, OUTPUTS))
def test_of_last_layers_tuned_by_default(structure: str, case: str) -> None:
    check(1e-6, case, structure, by_default, weights=lw.LastLayer())


@pytest.mark.parametrize(
    ("structure", "case"), [("full-weights", "one output"), ("kfac", "own noises"), ("diagonal", "one noise")]
)
def test_of_all_layers_where_each_has_a_precision_of_its_own(structure: str, case: str) -> None:
    check(1e-5, case, structure, by_default, prior=lw.Layerwise())
    check(FOUND, case, structure, one_after_the_other, prior=lw.Layerwise())


def test_but_not_where_all_weights_share_a_precision() -> None:
    """Which says that those of the last layer, in units of the targets, are as large as the others."""
    expected, _ = deviations("one output", 1.0, "kfac", by_default)
    found, _ = deviations("one output", 1000.0, "kfac", by_default)
    assert float((found / expected).max()) > 1.5
