"""What can be asked of a Hessian-free posterior: predictions, and how far to trust them."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, InputsLike, count, tensors
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import Records
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.live import live
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.methods.hessian_free.probed import ProbedCovariance, Variances, absolute
from lapwing.methods.hessian_free.refit import Refit, Tally
from lapwing.methods.hessian_free.responses import Linearity, Responses
from lapwing.posteriors.predictor import NetworkPredictor
from lapwing.posteriors.record import check_part_shape, check_survey
from lapwing.predictive import JointMoments, Link, Moments, Outputs
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


class OutputCovariances(abc.ABC):
    """Covariances of the outputs, as the fits tell them."""

    @abc.abstractmethod
    def on(self, inputs: Inputs) -> ProbedCovariance:
        """That of the outputs of some inputs."""


@final
@dataclass(frozen=True, eq=False)
class PointCovariances(OutputCovariances):
    """Covariances at the evaluation points alone: within each, or from random probes between them too.

    Args:
        points: The points.
        covariance: Over all of them.
    """

    points: Points
    covariance: ProbedCovariance

    def on(self, inputs: Inputs) -> ProbedCovariance:
        """See ``OutputCovariances.on``."""
        return self.covariance.take(self.points.find(inputs).to(self.covariance.factor.device))


@final
@dataclass(frozen=True, eq=False)
class AmortisedCovariances(OutputCovariances):
    """Covariances with mean outputs, for any input: the refitted networks are asked again.

    Args:
        responses: One for each output.
    """

    responses: Responses

    def on(self, inputs: Inputs) -> ProbedCovariance:
        """See ``OutputCovariances.on``."""
        return ProbedCovariance.exact(absolute(self.responses.outputs(inputs).movedim(0, -1)))


@final
@dataclass(frozen=True, eq=False, repr=False)
class HessianFreePosterior(NetworkPredictor):
    """Outputs with variances from refits: it predicts, and has neither weights to sample nor an evidence.

    Args:
        refit: The network and what it was fitted to.
        prior: p(θ).
        covariances: Covariances of the outputs.
        linearity: How much of the responses is not linear in λ, and what the fits took.
    """

    refit: Refit
    prior: Prior
    covariances: OutputCovariances
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

    def recorded_network(self) -> Network:
        """The network, without which a file cannot be loaded."""
        return self.network

    def shared_by_processes(self) -> bool:
        """Whether several processes hold the posterior, each with a part of the training data."""
        data = self.refit.model.source
        return data is not None and data.shared

    def record(self, records: Records, *, training_inputs: bool = False) -> Json:
        """What a file holds of the posterior, its network and its data aside; see ``Posterior.record``."""
        refit = {
            "survey": records.state(self.refit.model.survey, "refit.survey"),
            "likelihood": records.state(self.refit.model.likelihood, "refit.likelihood"),
            **records.giving({Model: None, Tally: None}).state(self.refit, "refit"),
        }
        return {"refit": refit, **records.giving({Refit: None}).state(self)}

    @classmethod
    def of_record(cls, record: Json, records: Records, network: Network, data: Data | None) -> HessianFreePosterior:
        """The posterior of a record, around the network it was fitted to; see ``Posterior.of_record``."""
        fields = records.read(dict[str, Any], record.get("refit"), "refit")
        survey = records.read(Survey, fields.get("survey"), "refit.survey")
        likelihood = records.read(Likelihood, fields.get("likelihood"), "refit.likelihood")
        model = Model(network, survey, likelihood, data)
        refit = records.giving({Model: model, Tally: Tally()}).read(Refit, fields, "refit")
        return records.giving({Refit: refit}).read(cls, record, "")

    def check_record(self) -> None:
        """Refuses parts that do not belong together; see ``Posterior.check_record``."""
        check_survey(self.refit.model.survey, self.network, self.likelihood)
        check_part_shape("the prior", self.refit.prior.shape, (self.network.size,))

    def with_checked_data(self) -> HessianFreePosterior:
        """The posterior: its covariances are at hand, and no data are asked."""
        return self

    def variances(self, x: InputsLike) -> Variances:
        """Variances of the outputs, unbiased where they come from probes, with their standard errors.

        Args:
            x: As in ``predict``.
        """
        with torch.no_grad():
            return self.covariances.on(self._inputs(x)).variances

    def _linearised(self, inputs: Inputs, link: Link, joint: bool, samples: int) -> Outputs:
        """A forward pass; of ``PreTrained`` fits one for each of them more."""
        if live(inputs):
            raise UnsupportedError(
                "inputs that ask for no gradient: refits know their evaluation points alone",
                "inputs that require one",
                "torch.no_grad(), or a posterior of Laplace(...).fit, which is differentiable in them",
            )
        mean = self.refit.trained_outputs(inputs).to(self.network.like)
        covariance = self.covariances.on(inputs)
        return JointMoments(mean, covariance.joint.to(mean)) if joint else Moments(mean, covariance.blocks.to(mean))
