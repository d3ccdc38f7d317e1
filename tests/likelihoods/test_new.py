"""A likelihood is one class and one distribution: waiting times, which the library has not, go all the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.likelihoods.elementwise import Elementwise
from lapwing.metrics.score_table import Scores
from lapwing.moments import Outputs
from lapwing.predictive import Link, Predictive
from tests.posterior_cases import mlp, normal


@final
@dataclass(frozen=True, eq=False, repr=False)
class Durations(Predictive):
    """Exponential waiting times whose log mean f is uncertain."""

    log_means: Outputs

    @property
    def latent(self) -> Outputs:
        return self.log_means

    @property
    def uncertainty(self) -> Tensor:
        return self.log_means.std.sum(-1)

    def log_prob(self, targets: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        f = self.log_means.draws(200, generator=generator)
        return torch.logsumexp((-f - targets * (-f).exp()).sum(-1), 0).flatten() - math.log(len(f))

    def score_terms(self, targets: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        return {"log_prob": self.log_prob(targets, generator=generator)}

    @classmethod
    def scores_of(cls, terms: Mapping[str, Tensor]) -> Scores:
        return Scores({"nll": -float(terms["log_prob"].mean())})


@final
@dataclass(frozen=True, repr=False)
class Exponential(Elementwise):
    """p(y | f) = e^-f exp(-y e^-f); the Fisher information is 1."""

    hint: ClassVar[str] = "one waiting time an output"

    def _nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs + targets * (-outputs).exp()).sum(-1)

    def _score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return targets * (-outputs).exp() - 1

    def _diagonal(self, outputs: Tensor) -> Tensor:
        return torch.ones_like(outputs)

    def draw(self, outputs: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return -torch.rand(outputs.shape, generator=generator).to(outputs).log() * outputs.exp()

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.exp()

    def _predictive(self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None) -> Predictive:
        return Durations(outputs)


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.Diagonal(), lw.Full(view="functions")], ids=repr)
def test_it_is_fitted_tuned_predicted_scored_and_compared(structure: lw.structures.Structure) -> None:
    x, new = normal(12, 3), normal(4, 3, seed=2)
    model = mlp(1)
    y = normal(12, 1, seed=1).exp()
    recipe = lw.Laplace(Exponential(), structure=structure)
    posterior = lw.tune(recipe.fit(model, (x, y)))
    prediction = posterior.predict(new)
    assert isinstance(prediction, Durations) and prediction.location.shape == (4, 1)
    scores = lw.evaluate(posterior, (x, y), ood=9 * new)
    assert list(scores) == ["nll", "ood_auroc", "ood_aupr", "ood_fpr95", "ood_unfamiliar"]
    assert math.isfinite(scores["nll"])
    table = lw.compare(model, (x, y), (x, y), methods={"ours": recipe})
    assert math.isfinite(table.row("ours", "default").runs[0]["nll"])
    assert "Exponential()" in repr(posterior)


def test_its_scores_are_those_of_its_density() -> None:
    f = lw.predictive.Moments.certain(normal(5, 1))
    y = normal(5, 1, seed=1).exp()
    prediction = Exponential().predictive(f)
    assert prediction.scores(y)["nll"] == pytest.approx(float(Exponential().nll(f.mean, y).mean()))
