"""What every way to choose hyper-parameters answers, and what it asks of a posterior."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.fold import Totals
from lapwing.ground.data.sources import Source, Unpack
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Structured
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.model import LinearModel
from lapwing.linear.perturbation import Perturbation
from lapwing.posteriors import LinearSystem, Posterior, Step
from lapwing.priors import Prior

P = TypeVar("P", bound=Posterior)
Q = TypeVar("Q", bound="Posterior | LinearPosterior")


@runtime_checkable
class Method(Protocol):
    """A way to choose hyper-parameters."""

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior with the prior and noise it chose."""
        ...


@runtime_checkable
class LinearPosterior(Protocol):
    """What expectation maximisation asks of a posterior: that of a network, or of any Gaussian linear model."""

    @property
    def prior(self) -> Prior:
        """p(θ)."""
        ...

    @property
    def fitted(self) -> Likelihood:
        """The likelihood G was computed with."""
        ...

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood now."""
        ...

    @property
    def totals(self) -> Totals:
        """Sums over the data at the weights where the model was made linear."""
        ...

    @property
    def training(self) -> LinearModel:
        """The linear model with its data."""
        ...

    @property
    def prior_precisions(self) -> Float[Tensor, " g"]:
        """Prior precision of each group, float64."""
        ...

    @property
    def noise_scale(self) -> float:
        """Noise precision relative to the fitted one."""
        ...

    def with_hyperparameters(
        self, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()
    ) -> LinearPosterior:
        """The posterior with another prior and noise."""
        ...

    def weights_fingerprint(self) -> str:
        """What tells the weights where the model was made linear from others."""
        ...

    @property
    def evidence(self) -> LogEvidence | None:
        """See ``Capabilities``."""
        ...

    @property
    def stored_curvature(self) -> Structured | None:
        """See ``Capabilities``."""
        ...

    def mode_step(self) -> Float[Tensor, " d"] | None:
        """See ``Capabilities``."""
        ...

    @property
    def system(self) -> LinearSystem | None:
        """See ``Capabilities``."""
        ...

    @property
    def draw_noise(self) -> Perturbation | None:
        """See ``Capabilities``."""
        ...

    def starting_from(self, draws: Float[Tensor, "d m"]) -> LinearPosterior:
        """See ``Capabilities``."""
        ...

    def with_training_data(self, source: Source, unpack: Unpack | None = None) -> LinearPosterior:
        """See ``Capabilities``."""
        ...

    def warn_of_precision(self) -> None:
        """See ``Capabilities``."""
        ...

    def check_noise_free(self) -> None:
        """See ``Capabilities``."""
        ...
