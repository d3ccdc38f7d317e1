"""Posteriors whose evidence is a closed function of prior and noise."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from lapwing.ground.errors import UnsupportedError
from lapwing.likelihoods import Likelihood
from lapwing.linear.evidence import Complexity, Evidence
from lapwing.posteriors.base import Posterior
from lapwing.posteriors.step import Step
from lapwing.priors import Prior

P = TypeVar("P", bound="ExactPosterior")


@dataclass(frozen=True, eq=False, repr=False)
class ExactPosterior(Posterior):
    """A Gaussian whose log determinant is exact, so that its prior and noise can be tuned by the evidence."""

    def log_marginal(self) -> float:
        """Log evidence, nats; see ``Posterior.log_marginal``.

        Cost:
            One factorisation of the curvature, kept for the next call. No data.
        """
        return float(self.evidence.log_marginal(self.prior_precisions, self.scale))

    def effective_dimension(self) -> float:
        """Directions of weight space that the data determined, ``γ = d - tr(A Λ⁻¹)`` (MacKay 1992)."""
        return float(self.evidence.effective_dimensions(self.prior_precisions, self.scale).sum())

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence as a function of prior precision and noise."""
        return self._evidence(self._complexity())

    def with_choices(self: P, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()) -> P:
        """See ``Posterior.with_choices``; the factorisation behind the evidence is shared."""
        changed = super().with_choices(prior, likelihood, steps)
        if "evidence" in self.__dict__ and prior.shares(self.prior, self.network.uncertain):
            object.__setattr__(changed, "evidence", self.evidence)
        return changed

    @abc.abstractmethod
    def _complexity(self) -> Complexity: ...


def with_evidence(posterior: Posterior) -> ExactPosterior:
    """The same posterior, if its evidence is exact.

    Raises:
        UnsupportedError: If it is not.
    """
    if not isinstance(posterior, ExactPosterior):
        raise UnsupportedError(
            "a posterior whose evidence is exact",
            f"a {type(posterior).__name__}, whose evidence is an estimate",
            "EM(), or tuning a LowRank(...) or KFAC() posterior, and its tuned prior and likelihood for this structure",
        )
    return posterior
