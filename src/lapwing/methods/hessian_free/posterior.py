"""What can be asked of a Hessian-free posterior: predictions, and how far to trust them."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, InputsLike, count, tensors
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.network.network import Network
from lapwing.methods.hessian_free.probed import ProbedCovariance, Variances, absolute
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.responses import Linearity, Responses
from lapwing.predictive import JointMoments, Link, Moments, NetworkPredictor, Outputs
from lapwing.priors import Prior


@final
@dataclass(frozen=True, eq=False)
class Points:
    """The inputs at which a posterior can answer.

    Args:
        inputs: The points.

    Example:
        >>> Points(torch.tensor([[1.0], [2.0]])).find(torch.tensor([[2.0]]))
        tensor([1])
    """

    inputs: Inputs

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {key: place for place, key in enumerate(keys(self.inputs))}

    def find(self, inputs: Inputs) -> Int[Tensor, " n"]:
        """Where each example stands among the points.

        Args:
            inputs: Examples, in the dtype of the points.

        Raises:
            UnsupportedError: If one is not among them.
        """
        found = [self._places.get(key, -1) for key in keys(inputs)]
        missing = sum(place < 0 for place in found)
        if missing:
            raise UnsupportedError(
                f"inputs among the {count(self.inputs)} evaluation points of the fit",
                f"{missing} others of {len(found)}",
                "fit(model, data, points) with all inputs to be predicted, or fits=PreTrained(), which knows any",
            )
        return torch.tensor(found, dtype=torch.long)


def keys(inputs: Inputs) -> list[bytes]:
    """A name for each example: its numbers."""
    n = count(inputs)
    rows = [value for value in tensors(inputs) if value.ndim and len(value) == n]
    flat = [value.detach().cpu().reshape(n, -1).contiguous().view(torch.uint8).numpy() for value in rows]
    return [b"|".join(part[i].tobytes() for part in flat) for i in range(n)]


class Answers(abc.ABC):
    """Covariances of the outputs, as the fits tell them."""

    @abc.abstractmethod
    def at(self, inputs: Inputs) -> ProbedCovariance:
        """That of the outputs of some inputs."""


@final
@dataclass(frozen=True, eq=False)
class Table(Answers):
    """Covariances at the evaluation points alone: within each, or from random probes between them too.

    Args:
        points: The points.
        covariance: Over all of them.
    """

    points: Points
    covariance: ProbedCovariance

    def at(self, inputs: Inputs) -> ProbedCovariance:
        """See ``Answers.at``."""
        return self.covariance.take(self.points.find(inputs).to(self.covariance.factor.device))


@final
@dataclass(frozen=True, eq=False)
class Amortised(Answers):
    """Covariances with mean outputs, for any input: the refitted networks are asked again.

    Args:
        responses: One for each output.
    """

    responses: Responses

    def at(self, inputs: Inputs) -> ProbedCovariance:
        """See ``Answers.at``."""
        return ProbedCovariance.exact(absolute(self.responses.outputs(inputs).movedim(0, -1)))


@final
@dataclass(frozen=True, eq=False, repr=False)
class HessianFreePosterior(NetworkPredictor):
    """Outputs with variances from refits: it predicts, and has neither weights to sample nor an evidence.

    Args:
        refit: The network and what it was fitted to.
        prior: p(θ).
        answers: Covariances of the outputs.
        linearity: How much of the responses is not linear in λ, and what the fits took.
    """

    refit: Refit
    prior: Prior
    answers: Answers
    linearity: Linearity

    def __repr__(self) -> str:
        """Name, recipe and sizes; never the numbers."""
        return (
            f"HessianFreePosterior({self.prior}, {self.likelihood}, {self.shown_link()}"
            f"{self.network.size} weights, {self.linearity.fits} fits)"
        )

    @property
    def network(self) -> Network:
        """The network at its trained weights."""
        return self.refit.network

    def variances(self, x: InputsLike) -> Variances:
        """Variances of the outputs, unbiased where they come from probes, with their standard errors.

        Args:
            x: As in ``predict``.
        """
        with torch.no_grad():
            return self.answers.at(self._inputs(x)).variances

    def _linearised(self, inputs: Inputs, link: Link, joint: bool, samples: int) -> Outputs:
        """A forward pass; of ``PreTrained`` fits one for each of them more."""
        mean = self.refit.trained_outputs(inputs).to(self.network.like)
        covariance = self.answers.at(inputs)
        return JointMoments(mean, covariance.joint.to(mean)) if joint else Moments(mean, covariance.blocks.to(mean))
