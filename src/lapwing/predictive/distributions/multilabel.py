"""Several yes-or-no labels at each position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import UnsupportedError
from lapwing.ground.precision import wide
from lapwing.metrics.score_table import Scores
from lapwing.moments.outputs import Averaged, Moments
from lapwing.moments.wide import WideMoments
from lapwing.predictive.distributions.base import log_of_probability
from lapwing.predictive.distributions.probabilities import ProbabilitiesOfLogits
from lapwing.predictive.information import KNOWLEDGE, expected_label_entropy, label_information
from lapwing.predictive.links import Link, monte_carlo, probit_binary
from lapwing.predictive.quadrature import expected_sigmoid


@final
@dataclass(frozen=True, eq=False, repr=False)
class MultiLabel(ProbabilitiesOfLogits):
    """Probabilities of c independent yes-or-no labels at each position.

    Args:
        logits: What is known of the logits.
        probs: Predictive probabilities of yes ``[n, *event, c]``.
        stderr: Standard error of ``probs`` where they came from Monte Carlo, same shape.

    Example:
        >>> MultiLabel(Moments.certain(torch.zeros(1, 2)), torch.tensor([[0.25, 0.75]])).labels
        tensor([[0, 1]])
    """

    epistemic_unit = "nats"
    uncertainty_unit = "nats"

    @property
    def labels(self) -> Int[Tensor, "*batch c"]:
        """1 where yes is more probable than no, else 0, ``[n, *event, c]``."""
        return (self.probs > 0.5).long()

    @property
    def confidence(self) -> Float[Tensor, "*batch c"]:
        """Probability of the more probable answer, ``[n, *event, c]``."""
        return torch.maximum(self.probs, 1 - self.probs)

    @property
    def entropy(self) -> Float[Tensor, "*batch c"]:
        """Entropy of each label in nats, ``[n, *event, c]``."""
        return torch.special.entr(self.probs) + torch.special.entr(1 - self.probs)

    @property
    def aleatoric(self) -> Float[Tensor, "*batch c"]:
        """Entropy of each label that would be left if the weights were known, in nats, ``[n, *event, c]``."""
        return expected_label_entropy(self.logits)

    @property
    def epistemic(self) -> Float[Tensor, "*batch"]:
        """Mean mutual information of the labels and the weights in nats, ``[n, *event]``; see ``Classification``."""
        return label_information(self.known, temperature=KNOWLEDGE).mean(-1)

    @property
    def most_epistemic(self) -> float:
        """All of a label, log 2 nats."""
        return math.log(2)

    @property
    def uncertainty(self) -> Float[Tensor, "*batch"]:
        """Mean entropy of the labels in nats, ``[n, *event]``."""
        return self.entropy.mean(-1)

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance p (1 - p) of each label, ``[n, *event, c]``."""
        return self.probs * (1 - self.probs)

    def log_prob(
        self, targets: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, " m"]:
        """See ``Predictive.log_prob``: the sum over the labels."""
        right = torch.where(targets > 0.5, self.probs, 1 - self.probs)
        return log_of_probability(right).sum(-1).flatten()

    def cross_entropy(
        self, probs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, " m"]:
        """See ``ProbabilitiesOfLogits.cross_entropy``: the sum over the labels."""
        yes = probs * log_of_probability(self.probs)
        no = (1 - probs) * log_of_probability(1 - self.probs)
        return -(yes + no).sum(-1).flatten()

    def score_terms(
        self, targets: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """See ``Predictive.score_terms``."""
        return {"log_prob": self.log_prob(targets)}

    @classmethod
    def scores_of(cls, terms: Mapping[str, Tensor]) -> Scores:
        """NLL, of all labels of a position together."""
        return Scores({"nll": float(-wide(terms["log_prob"]).mean())})

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Probabilities σ(f) of drawn logits f, ``[k, n, *event, c]``; see ``Classification.sample``."""
        return torch.sigmoid(self.logits.sample(k, generator=generator))

    @staticmethod
    def of_certain(logits: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """See ``ProbabilitiesOfLogits.of_certain``."""
        return torch.sigmoid(logits)

    @staticmethod
    def linked(
        moments: Moments | WideMoments, *, link: Link, samples: int, generator: torch.Generator | None
    ) -> Averaged:
        """Probabilities of yes of Gaussian logits by a link, with their standard error by ``"mc"``."""
        match link:
            case "mc":
                return monte_carlo(moments, samples, link=torch.sigmoid, generator=generator)
            case "bridge":
                raise UnsupportedError(
                    "link 'qmc', 'probit', 'pairwise' or 'mc' for Bernoulli",
                    "link 'bridge', which for a single logit is the sigmoid of its mean",
                    "'qmc', which for a single logit is exact",
                )
            case "qmc":
                return expected_sigmoid(moments.mean, moments.variance), None
            case "probit" | "pairwise":  # a single logit has no pairs
                return probit_binary(moments), None
