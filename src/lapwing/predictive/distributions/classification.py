"""One of c classes at each position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing import metrics
from lapwing.ground.labels import IGNORED
from lapwing.metrics.score_table import Scores
from lapwing.moments.outputs import Averaged, Moments
from lapwing.moments.wide import WideMoments, at_least_single
from lapwing.predictive.distributions.base import log_of_probability
from lapwing.predictive.distributions.probabilities import ProbabilitiesOfLogits
from lapwing.predictive.information import KNOWLEDGE, expected_entropy, mutual_information
from lapwing.predictive.links import Link, laplace_bridge, monte_carlo, pairwise, probit, softmax
from lapwing.predictive.quadrature import quasi_monte_carlo


@final
@dataclass(frozen=True, eq=False, repr=False)
class Classification(ProbabilitiesOfLogits):
    """Probabilities of c classes at each position.

    Args:
        logits: What is known of the logits.
        probs: Predictive probabilities ``[n, *event, c]``, the uncertainty of the logits averaged out; in float32 at
            least, since those of half precision do not add up to 1.
        stderr: Standard error of ``probs`` where they came from Monte Carlo, same shape.

    Example:
        >>> p = Classification(Moments.certain(torch.zeros(1, 2)), torch.tensor([[0.25, 0.75]]))
        >>> p.labels, p.confidence, p.entropy
        (tensor([1]), tensor([0.7500]), tensor([0.5623]))
        >>> print(p.scores(torch.tensor([1])))
        accuracy      1.0000  share of examples, tokens or pixels, higher is better
        nll           0.2877  nats an example, token or pixel, lower is better
        ece           0.2500  calibration error of the confidence, lower is better
        ece_floor     0.3500  what a calibrated predictor would have as ece
        adaptive_ece  0.2500  calibration error, bins of equally many, lower is better
        brier         0.1250  squared distance from 0 to 2, lower is better
        aurc          0.0000  share of errors among the surest, averaged over how many are kept, lower is better
        augrc         0.0000  share of all examples that are kept and wrong, averaged likewise, lower is better
        coverage_5    1.0000  share of examples that can be kept, the surest first, at 5 % errors, higher is better
    """

    epistemic_unit = "nats"
    uncertainty_unit = "1 − confidence"

    @property
    def labels(self) -> Int[Tensor, "*batch"]:
        """Most probable class, ``[n, *event]``."""
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Float[Tensor, "*batch"]:
        """Probability of the most probable class, ``[n, *event]``."""
        return self.probs.amax(-1)

    @property
    def uncertainty(self) -> Float[Tensor, "*batch"]:
        """One minus the confidence, ``[n, *event]``."""
        return 1 - self.confidence

    @property
    def entropy(self) -> Float[Tensor, "*batch"]:
        """Entropy -Σ_k p_k log p_k in nats, ``[n, *event]``."""
        return -torch.xlogy(self.probs, self.probs).sum(-1)

    @property
    def margin(self) -> Float[Tensor, "*batch"]:
        """By how much the most probable class is ahead of the next, from 0 to 1, ``[n, *event]``."""
        first_two = self.probs.topk(min(2, self.probs.shape[-1]), -1).values
        return first_two[..., 0] - first_two[..., 1:].sum(-1)

    @property
    def aleatoric(self) -> Float[Tensor, "*batch"]:
        """Entropy that would be left if the weights were known, E H(softmax(f)) in nats, ``[n, *event]``.

        At the scale that predicts, as ``entropy``; see ``expected_entropy``.
        """
        return expected_entropy(at_least_single(self.logits))

    @property
    def epistemic(self) -> Float[Tensor, "*batch"]:
        """Mutual information of the class and the weights in nats, ``[n, *event]``: what more data would tell.

            I = H(E softmax(f / T)) - E H(softmax(f / T)),    T = 1/2

        At the scale of knowledge, which tuning for good probabilities does not switch off; by it inputs from elsewhere
        are told, errors better by ``entropy``. See ``mutual_information``, also for its cost.
        """
        return mutual_information(at_least_single(self.known), temperature=KNOWLEDGE)

    @property
    def most_epistemic(self) -> float:
        """All of the label, log c nats: nothing is known of the class, and the weights would tell it."""
        return math.log(self.probs.shape[-1])

    @property
    def covariance(self) -> Float[Tensor, "*batch c c"]:
        """Covariance diag(p) - p pᵀ of the one-hot label, ``[n, *event, c, c]``."""
        return torch.diag_embed(self.probs) - self.probs[..., :, None] * self.probs[..., None, :]

    def log_prob(
        self, targets: Int[Tensor, "*batch"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, " m"]:
        """See ``Predictive.log_prob``: log p_y of the labels that are not -100.

        Example:
            >>> Classification.of(Moments.certain(torch.zeros(1, 2))).log_prob(torch.tensor([0]))
            tensor([-0.6931])
        """
        kept = targets != IGNORED
        return log_of_probability(self.probs)[kept].gather(-1, targets[kept].unsqueeze(-1)).squeeze(-1)

    def cross_entropy(self, probs: Float[Tensor, "*batch c"], targets: Int[Tensor, "*batch"]) -> Float[Tensor, " m"]:
        """See ``ProbabilitiesOfLogits.cross_entropy``.

        Example:
            >>> p = Classification.of(Moments.certain(torch.zeros(1, 2)))
            >>> p.cross_entropy(torch.tensor([[0.3, 0.7]]), torch.tensor([1]))
            tensor([0.6931])
        """
        kept = targets != IGNORED
        return -(probs * log_of_probability(self.probs)).sum(-1)[kept]

    def score_terms(
        self, targets: Int[Tensor, "*batch"], *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """See ``Predictive.score_terms``."""
        return {"targets": targets, "probs": self.probs}

    @classmethod
    def scores_of(cls, terms: Mapping[str, Tensor]) -> Scores:
        """Accuracy, NLL, calibration errors, Brier score, and the risk of what is kept when the unsure are rejected."""
        probs = terms["probs"]
        targets = terms["targets"]
        rejection = metrics.rejection_curve(probs, targets)
        return Scores(
            {
                "accuracy": metrics.accuracy(probs, targets),
                "nll": metrics.nll(probs, targets),
                "ece": metrics.ece(probs, targets),
                "ece_floor": metrics.ece_floor(probs, targets),
                "adaptive_ece": metrics.adaptive_ece(probs, targets),
                "brier": metrics.brier(probs, targets),
                "aurc": rejection.aurc,
                "augrc": rejection.augrc,
                "coverage_5": rejection.coverage_at(0.05),
            }
        )

    @classmethod
    def losses_of(cls, terms: Mapping[str, Tensor]) -> Float[Tensor, " m"]:
        """See ``Predictive.losses_of``.

        Example:
            >>> Classification.losses_of({"probs": torch.tensor([[0.5, 0.5]]), "targets": torch.tensor([1])})
            tensor([0.6931], dtype=torch.float64)
        """
        return metrics.losses(terms["probs"], terms["targets"])

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Probabilities softmax(f) of drawn logits f, ``[k, n, *event, c]``: answers that might have been.

        Args:
            k: Number of draws; coherent over the batch where ``logits`` are joint.
            generator: Source of randomness; ``None`` draws from PyTorch's global one. The same seed on another batch
                draws other functions.
        """
        logits = self.logits.sample(k, generator=generator)
        return torch.softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)

    @staticmethod
    def of_certain(logits: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """See ``ProbabilitiesOfLogits.of_certain``."""
        return softmax(logits)

    @staticmethod
    def linked(
        moments: Moments | WideMoments, *, link: Link, samples: int, generator: torch.Generator | None
    ) -> Averaged:
        """Class probabilities of Gaussian logits by a link, with their standard error by ``"mc"``."""
        match link:
            case "mc":
                return monte_carlo(moments, samples, link=softmax, generator=generator)
            case "bridge":
                return laplace_bridge(moments), None
            case "pairwise":
                return pairwise(moments), None
            case "qmc":
                return quasi_monte_carlo(moments), None
            case "probit":
                return probit(moments), None
