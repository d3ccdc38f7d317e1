"""What tuning asks of a posterior: its hyper-parameters, its evidence with a gradient, and a part of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import Index
from lapwing.gp.observations import Observations

S = TypeVar("S")


@final
@dataclass(frozen=True)
class GPStep:
    """Hyper-parameters after a step of tuning.

    Args:
        values: By name, the noise variances last.
        log_marginal: Log evidence with them of the observations that were looked at, nats; ``None`` where the step did
            without.
    """

    values: dict[str, float]
    log_marginal: float | None = None


@final
@dataclass(frozen=True, eq=False)
class LeastNoise:
    """The noise variances below which rounding of solves would be taken for signal.

    Args:
        variances: One for each noise variance that is chosen.
        dtype: Of the solves.
    """

    variances: Float[Tensor, " k"]
    dtype: torch.dtype


@runtime_checkable
class Tunable(Protocol):
    """A posterior whose kernel and noise can be chosen by its evidence.

    Its hyper-parameters are one flat vector of logarithms: those of its kernels, and last those of its noise variances
    where it has any.
    """

    @property
    def data(self) -> Observations:
        """What it is conditioned on."""
        ...

    @property
    def trace(self) -> tuple[GPStep, ...]:
        """Steps of tuning so far."""
        ...

    def log_hyperparameters(self) -> Float[Tensor, " h"]:
        """Their logarithms, float64."""
        ...

    def hyperparameter_names(self) -> list[str]:
        """What each of them is."""
        ...

    def least_noise(self) -> LeastNoise:
        """What its noise variances stay above; there are as many as are chosen, of some likelihoods none."""
        ...

    def with_log_hyperparameters(self: S, logs: Float[Tensor, " h"]) -> S:
        """The posterior with others."""
        ...

    def with_trace(self: S, trace: tuple[GPStep, ...]) -> S:
        """The posterior with other steps of tuning."""
        ...

    def evidence_and_gradient(self) -> tuple[float, Float[Tensor, " h"]]:
        """The exact log evidence, nats, and its gradient in ``log_hyperparameters``."""
        ...

    def select(self: S, index: Index) -> S:
        """The posterior of some of the observations, in float64."""
        ...

    def first(self: S, size: int) -> S:
        """That of the first observations without copies, until they have so many distinct inputs."""
        ...


@runtime_checkable
class TunableByDraws(Tunable, Protocol):
    """A posterior whose evidence has a gradient by the functions it has drawn."""

    def estimated_gradient(self) -> Float[Tensor, " h"]:
        """That of the log evidence in ``log_hyperparameters``, unbiased over the draws."""
        ...


P = TypeVar("P", bound=Tunable)

D = TypeVar("D", bound=TunableByDraws)


def step_of(posterior: Tunable, log_marginal: float | None = None) -> GPStep:
    """What a step of tuning leaves in the trace."""
    values = posterior.log_hyperparameters().exp().tolist()
    return GPStep(dict(zip(posterior.hyperparameter_names(), values, strict=True)), log_marginal)
