"""Posteriors whose evidence is a closed function of prior and noise."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import finite_evidence
from lapwing.ground.files.records import UNRECORDED
from lapwing.ground.progress import within, working
from lapwing.ground.shared import Shared
from lapwing.likelihoods import Likelihood
from lapwing.linear.evidence import Complexity, LogEvidence
from lapwing.posteriors.base import Posterior
from lapwing.posteriors.step import Step
from lapwing.priors import Prior

P = TypeVar("P", bound="ExactPosterior")


@dataclass(frozen=True, eq=False, repr=False)
class ExactPosterior(Posterior):
    """A Gaussian whose log determinant is exact, so that its prior and noise can be tuned by the evidence.

    Args:
        shared_evidence: The evidence as a function of prior and noise, once it was asked for: that of every posterior
            with the same curvature and groups of weights.
    """

    shared_evidence: Shared[LogEvidence] = field(default_factory=Shared[LogEvidence], kw_only=True, metadata=UNRECORDED)

    @property
    def exact(self) -> bool:
        """See ``Capabilities.exact``."""
        return True

    @working("evidence")
    def log_marginal(self) -> float:
        """Log evidence, nats; see ``Posterior.log_marginal``.

        Raises:
            NumericalError: If it is not finite.

        Cost:
            One factorisation of the curvature, kept for the next call. Of a matrix by Cholesky for the first prior that
            asks, by eigenvalues, which serve all priors, from the second on. No data.
        """
        ratio = self._log_det_ratio_at_first()
        if ratio is None:
            found = self.evidence.log_marginal(self.prior_precisions, self.scale)
        else:
            found = self.joint_evidence.log_joint(self.prior_precisions, self.scale) - 0.5 * ratio
        return finite_evidence(float(found))

    @working("effective dimension")
    def effective_dimension(self) -> float:
        """Directions of weight space that the data determined, ``γ = d - tr(A Λ⁻¹)`` (MacKay 1992)."""
        return float(self.evidence.effective_dimensions(self.prior_precisions, self.scale).sum())

    @property
    def evidence(self) -> LogEvidence:
        """The evidence as a function of prior precision and noise."""
        return self.shared_evidence.of(*self._evidence_sources, make=lambda: self._evidence(self._complexity()))

    @property
    def _known_evidence(self) -> LogEvidence | None:
        """The same where it was asked for before."""
        return self.shared_evidence.known(*self._evidence_sources)

    @property
    def _evidence_sources(self) -> tuple[object, ...]:
        """What the evidence as a function of prior and noise is made from."""
        return self.model, self.totals, self._curvature

    def with_hyperparameters(self: P, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()) -> P:
        """See ``Posterior.with_hyperparameters``; the factorisation behind the evidence is shared."""
        changed = super().with_hyperparameters(prior, likelihood, steps)
        if not prior.shares(self.prior, self.network.uncertain):
            changed = replace(changed, shared_evidence=Shared[LogEvidence]())
        if not within():  # a search tries many, and warns of the last
            changed.warn_of_precision()
        return changed

    def _log_det_ratio_at_first(self) -> Float[Tensor, ""] | None:
        """``log det Λ / det A`` of the first prior that asks, where at one it takes less than as a function of it."""
        return None

    @property
    @abc.abstractmethod
    def _curvature(self) -> object:
        """What the posterior holds of the data."""

    @abc.abstractmethod
    def _complexity(self) -> Complexity:
        """``log det Λ / det A`` as a function of prior precision and noise."""


def distinct(variances: list[Float[Tensor, " d"]]) -> tuple[tuple[Float[Tensor, " d"], ...], list[tuple[int, float]]]:
    """Those that are not multiples of one another; for each variance, which of them it is and how many times it.

    Example:
        >>> import torch
        >>> distinct([torch.ones(2), 3 * torch.ones(2)])[1]
        [(0, 1.0), (0, 3.0)]
    """
    found: list[Tensor] = []
    places: list[tuple[int, float]] = []
    for variance in variances:
        for i, other in enumerate(found):
            ratio = variance / other
            if bool(ratio.max() <= (1 + 1e-12) * ratio.min()):
                places.append((i, float(ratio[0])))
                break
        else:
            places.append((len(found), 1.0))
            found.append(variance)
    return tuple(found), places
