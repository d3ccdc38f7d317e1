"""What is passed together: a trained network, what is known of its layers, its likelihood, and the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.precision import DOUBLE, Precision
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.limits import LIMITS, Limits
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood


@final
@dataclass(frozen=True, eq=False)
class Model:
    """A trained network under its likelihood, with the data it was trained on.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: p(y | f); says where the outputs' axes are.
        source: The data; ``None`` where there are none, as for a posterior loaded from a file.
        precision: In what the large products over the data are made.
        limits: What passes over the data may take.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    source: Data | None = None
    precision: Precision = DOUBLE
    limits: Limits = LIMITS

    @property
    def data(self) -> Data:
        """The data.

        Raises:
            UnsupportedError: If there are none.
        """
        if self.source is None:
            raise UnsupportedError(
                "a posterior that has its training data",
                "one from a file, which holds none",
                "load(path, model, data) with the training data",
            )
        return self.source

    @property
    def event(self) -> torch.Size:
        """Shape of the canonical outputs of one example."""
        returned = torch.empty(1, *self.survey.output, device="meta")
        return self.likelihood.canonical(returned).shape[1:]

    @property
    def width(self) -> int:
        """Outputs of one example, over all positions of an event."""
        return self.survey.output.numel()

    @property
    def many(self) -> bool:
        """Whether one layer makes the outputs, and makes more than ``Limits.joint_outputs``."""
        return self.survey.head and self.event[-1] > self.limits.joint_outputs

    def chunk(self, cotangents: int, extra: int = 0, roots: int = 0, *, budget: int | None = None) -> int:
        """Examples whose factors fit a byte budget, that of training by default; see ``Survey.bytes``."""
        room = self.limits.training if budget is None else budget
        return self.survey.chunk(cotangents, self.network.like.itemsize, room, extra, roots)

    def outputs(self, inputs: Inputs) -> Float[Tensor, "n *event c"]:
        """Canonical outputs of some examples, without a graph."""
        with torch.no_grad():
            return self.likelihood.canonical(self.network(inputs))

    def forward(self, inputs: Inputs) -> Pass:
        """The forward pass of a chunk of examples, ready to be pulled back."""
        return Pass.of(self.network, self.survey, inputs, self.likelihood)
