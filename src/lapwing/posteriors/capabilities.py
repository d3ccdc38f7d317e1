"""What a posterior can do beyond predicting: who tunes it asks, and never names its class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Source, Unpack
from lapwing.ground.errors import UnsupportedError
from lapwing.linalg import Operator, Structured
from lapwing.linear.evidence import LogEvidence, NewtonStep
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver


@final
@dataclass(frozen=True, eq=False)
class LinearSystem:
    """The equations ``Λ x = b`` of a posterior that solves with its precision, and what solves them.

    Args:
        problem: Λ = s G + A, by products.
        solver: What solves with it.
    """

    problem: Problem
    solver: Solver


@final
@dataclass(frozen=True, eq=False)
class TargetDeviations:
    """Targets drawn from a posterior, less their mean, and the precision they should have.

    Args:
        drawn: One draw a row, float64.
        precision: The inverse of their covariance.
    """

    drawn: Float[Tensor, "s m"]
    precision: Operator


@runtime_checkable
class DrawsTargets(Protocol):
    """A posterior without weights, whose draws are told by the targets they give at some inputs."""

    def target_deviations(
        self, samples: int, inputs: Tensor | None = None, *, generator: torch.Generator | int | None = None
    ) -> TargetDeviations:
        """Targets that drawn functions give, less their mean; at the training inputs where none are given."""
        ...


class Capabilities:
    """The answers of a posterior that can do none of it; who can overrides them."""

    @property
    def exact(self) -> bool:
        """Whether evidence and outputs under any prior and noise are closed functions: nothing is solved or drawn."""
        return False

    @property
    def evidence(self) -> LogEvidence | None:
        """The evidence at the trained weights as a function of prior and noise; ``None`` unless it is ``exact``."""
        return None

    @cached_property
    def mode_shift(self) -> NewtonStep | None:
        """How the mode of the linear model moves with prior and noise; ``None`` where it takes a search."""
        return None

    def mode_step(self) -> Float[Tensor, " d"] | None:
        """The way from the trained weights to the mode under Gaussian noise; ``None`` where it takes a search."""
        return None

    @property
    def stored_curvature(self) -> Structured | None:
        """The curvature G over the weights; ``None`` where it is known otherwise than as a matrix."""
        return None

    @property
    def leaves_out_correlations(self) -> bool:
        """Whether G leaves out what weights of different blocks have in common: more seems determined than was."""
        return False

    @property
    def separate_places(self) -> bool:
        """Whether ``outputs_at`` has outputs at some event positions, the others at no cost."""
        return False

    @property
    def predicts_by_draws(self) -> bool:
        """Whether outputs like those of its data are too many to be pulled back, and drawn anew for each prior."""
        return False

    def by_draws(self, inputs: Inputs) -> bool:
        """The same of outputs at some inputs; no data are read."""
        return False

    @property
    def system(self) -> LinearSystem | None:
        """What solves with the precision Λ; ``None`` where nothing is solved."""
        return None

    @property
    def draw_noise(self) -> Perturbation | None:
        """The noise of the draws that the posterior consists of; ``None`` where it is no set of draws."""
        return None

    @property
    def unpack(self) -> Unpack | None:
        """How the elements of the loader were split that it was fitted by; ``None`` where that is not known."""
        return None

    @property
    def stored_draws(self) -> int | None:
        """Draws of the weights that there are; ``None`` where as many can be made as are asked for."""
        return None if self.draw_noise is None else self.draw_noise.prior.shape[1]

    def starting_from(self, draws: Float[Tensor, "d m"]) -> Any:
        """The posterior whose solves start at draws with its noise, in units in which the prior is standard normal."""
        return self

    def with_training_data(self, source: Source, unpack: Unpack | None = None) -> Any:
        """The posterior with training data that were given later.

        Raises:
            UnsupportedError: If it keeps its data itself.
        """
        raise UnsupportedError(
            "a posterior of a network, to be given its training data",
            f"a {type(self).__name__}, which has its own",
            "leaving out data=",
        )

    def warn_of_precision(self) -> None:
        """Warn, by a ``PrecisionWarning``, where the prior is weaker than the products behind the curvature resolve."""

    def check_noise_free(self) -> None:
        """Refuse to change the noise where the curvature would not follow."""
