"""Which change to the evidence matters: its weights, the Hessian, or the biases (Antorán 2024, figure 5.7).

    log p(y | h(u)) - ½ a |u|² - ½ log det(I + H / a)    is largest where    a = γ / |u|²,  γ = tr(H (H + aI)⁻¹)

Its weights u are the trained weights or the mode w* of the tangent model for a; the output Hessian in H = JᵀBJ is that
of the outputs at the trained weights or of those of the tangent model at w*; J is at the trained weights, and has the
columns of the biases or not. A precision is found by MacKay's steps, with w* and H at each of them. The posterior of H
and a predicts the test images around the network's own outputs, and so does that of the Hessian at the trained weights
with the same precision, which shows how much of a change comes by the precision alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import final

import torch
from torch import nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair
from benchmarks.report import Row, grouped
from benchmarks.table import averaged
from benchmarks.tasks import probabilities, scored
from lapwing.curvature.blocked import BlockedCurvature
from lapwing.linalg import Dense
from lapwing.posteriors import WeightPosterior
from lapwing.tuning.em.expectation import Expectation, Expected
from lapwing.tuning.evidence import At, at_mode
from studies.sampled.networks import BIASED, KINDS, Kind
from studies.sampled.setting import START, Images, exact, trained

NETWORKS: Mapping[str, Kind] = {"CNN": KINDS["CNN"], "ResNet with biases": BIASED}
"""Both have biases in their convolutions."""

PLACES: tuple[At, ...] = ("weights", "mode")
BIASES = ("with", "without")
FACTORS: Mapping[str, tuple[str, str]] = {"evidence": PLACES, "hessian": PLACES, "biases": BIASES}
"""What is changed, from the first to the second."""

STEPS = 50
HURRIED = 1
NEAR = 1e-3
"""Most steps, in a hurry, and the last change of the logarithm of the precision."""

COLUMNS = ("precision", "nll", "nll_by_precision", "accuracy")


def rows(setting: Setting) -> Iterator[Row]:
    """Every combination on every network and seed."""
    for name in setting.among(NETWORKS):
        kind = NETWORKS[name]
        for seed in setting.repeats:
            images = Images.drawn(kind, seed, setting)
            model = trained(kind, images, seed, setting)
            for found in of_network(model, images, HURRIED if setting.quick else STEPS):
                yield {"part": name, "seed": seed} | found


def of_network(model: nn.Module, images: Images, steps: int = STEPS) -> Iterator[Row]:
    """The precision of every combination, and how well its posterior predicts.

    Args:
        model: The network.
        images: Of its seed.
        steps: Most steps.
    """
    x, labels = images.test
    for biases in BIASES:
        search = Search.of(model, images.train, biases=biases == "with")
        for evidence, hessian in product(PLACES, PLACES):
            found = search.largest(evidence, hessian, steps)
            row: Row = {"evidence": evidence, "hessian": hessian, "biases": biases}
            row |= {"weights": found.network.size, "precision": float(found.prior_precisions)}
            row |= scored(probabilities(found, x, link="probit"), labels, "nll", "accuracy")
            same = search.posterior.with_hyperparameters(found.prior, found.likelihood)
            row["nll_by_precision"] = scored(probabilities(same, x, link="probit"), labels, "nll")["nll"]
            yield row


@final
@dataclass(frozen=True, eq=False)
class Search:
    """A search for the largest evidence of a network.

    Args:
        posterior: Its posterior with the Hessian at the trained weights.
        expectation: Finds the mode of its tangent model.
    """

    posterior: WeightPosterior
    expectation: Expectation[WeightPosterior]

    @classmethod
    def of(cls, model: nn.Module, data: Pair, *, biases: bool) -> Search:
        """The search for a network.

        Args:
            model: The network.
            data: Its training data.
            biases: Whether the biases are uncertain.
        """
        posterior = exact(model, data, biases=biases)
        assert isinstance(posterior, WeightPosterior)
        return cls(posterior, Expectation(posterior, "affine", None, 1, "auto", 1e-5, 0))

    def largest(self, evidence: At, hessian: At, steps: int = STEPS) -> WeightPosterior:
        """The posterior at the precision of the largest evidence.

        Args:
            evidence: Which weights the evidence is of.
            hessian: At which the output Hessian is taken.
            steps: Most steps.
        """
        state = replace(self.expectation.first(), precisions=torch.tensor([START]).double())
        posterior = self.posterior
        for _ in range(steps):
            expected = self.expectation.expect(state)
            if hessian == "mode":
                posterior = self.at_mode(expected)
            known = posterior.evidence
            if evidence == "mode":
                known = at_mode(known, expected.norms, nll=expected.mode.nll, misfit=0.0)
            gamma = known.effective_dimensions(state.precisions, state.scale)
            precisions = gamma / known.square_norms
            distance = abs(math.log(float(precisions / state.precisions)))
            state = replace(expected.state, precisions=precisions)
            if distance < NEAR:
                break
        return posterior.with_hyperparameters(lw.Isotropic(float(state.precisions)), posterior.likelihood)

    def at_mode(self, expected: Expected) -> WeightPosterior:
        """The posterior with the output Hessian at the outputs of the tangent model for its mode."""
        prior = self.expectation.prior(expected.state)
        curvature = self.expectation.tangent.problem(expected.mode.weights, prior).curvature.dense()
        symmetric = (curvature + curvature.mT) / 2
        return replace(self.posterior, curvature=BlockedCurvature(Dense(symmetric)))


def changes(found: Sequence[Row]) -> Iterator[Row]:
    """What each change makes of the precision and of the test NLL, the others as they are: a row a network and change.

    Numbers are means over the seeds of a seed's mean over the combinations of the other two: ``log_ratio`` of the
    precisions, natural logarithm, and the difference in NLL of both kinds, nats.

    Args:
        found: The rows of the combinations.
    """
    for part, own in grouped(found, "part").items():
        for factor in FACTORS:
            of_seeds = [changed(of_seed, factor) for of_seed in grouped(own, "seed").values()]
            columns = {name: [row[name] for row in of_seeds] for name in of_seeds[0]}
            yield {"part": part, "change": factor} | averaged(columns)


def changed(found: Sequence[Row], factor: str) -> dict[str, float]:
    """What a change makes of the numbers of one network and seed, a mean over the combinations of the others.

    Args:
        found: Its rows.
        factor: What is changed.
    """
    before, after = FACTORS[factor]
    others = [name for name in FACTORS if name != factor]
    log_ratios: list[float] = []
    differences: list[float] = []
    by_precision: list[float] = []
    for pair in grouped(found, *others).values():
        row = {each[factor]: each for each in pair}
        log_ratios.append(math.log(row[after]["precision"] / row[before]["precision"]))
        differences.append(row[after]["nll"] - row[before]["nll"])
        by_precision.append(row[after]["nll_by_precision"] - row[before]["nll_by_precision"])
    return {
        "log_ratio": statistics.fmean(log_ratios),
        "nll": statistics.fmean(differences),
        "nll_by_precision": statistics.fmean(by_precision),
    }


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """The changes."""
    for row in changes([row for row in found if not row.get("summary")]):
        before, after = FACTORS[row["change"]]
        yield {"verdict": f"{row['part']}, {row['change']}: from {before} to {after}"} | row
