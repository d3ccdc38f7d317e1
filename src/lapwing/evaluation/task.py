"""What a method of a comparison is given: a trained network, its data, and what its outputs mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

import torch
from torch import nn

from lapwing.evaluation.evaluate import Predictor
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.data.sources import Source, Unpack
from lapwing.ground.errors import ConfigError
from lapwing.jacobian.network.network import like_of
from lapwing.jacobian.network.output import Output
from lapwing.likelihoods import Categorical, Likelihood


@final
@dataclass(frozen=True, eq=False)
class Task:
    """A trained network with its data, for methods that make a predictor of it.

    Args:
        model: The trained network; a method leaves it exactly as it is.
        train: The data it was trained on: a loader that can be read again and again, or a pair of tensors.
        validation: Data it was not trained on, to tune by; not those it will be scored on. ``None`` where there are
            none.
        likelihood: What its outputs mean; for real targets with the noise of the training residuals.
        output: Which part of what the network returns is its output: a key, an index or a function of it.
        unpack: Splits one element of a loader into inputs and targets.
        generator: Source of randomness, of its own for each seed and method; ``None`` for PyTorch's global one.
        seed: Which seed of the comparison this is, from 0.

    Example:
        >>> x, y = torch.randn(20, 2), torch.randint(0, 3, (20,))
        >>> task = Task(nn.Linear(2, 3), (x, y))
        >>> task.network.predict(x).probs.shape, task.device.type
        (torch.Size([20, 3]), 'cpu')
    """

    model: nn.Module
    train: Source
    validation: Source | None = None
    likelihood: Likelihood = field(default_factory=Categorical)
    output: Output = None
    unpack: Unpack | None = None
    generator: torch.Generator | None = None
    seed: int = 0

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        like = like_of(self.model)
        return torch.device("cpu") if like is None else like.device

    @property
    def network(self) -> PlainNetwork:
        """The network taken at its word."""
        return PlainNetwork(self.model, self.likelihood, output=self.output)

    def held_out(self, who: str) -> Source:
        """The validation data, for a method that cannot do without.

        Args:
            who: The method, as a message names it.

        Raises:
            ConfigError: If there are none.
        """
        if self.validation is None:
            raise ConfigError(f"validation data for {who}", "none", "compare(..., validation=), or Task(validation=)")
        return self.validation


@runtime_checkable
class Entry(Protocol):
    """A method of a comparison that makes a predictor of a trained network: each baseline is one."""

    def fit(self, task: Task) -> Predictor:
        """The predictor.

        Args:
            task: The network and its data. Whatever is drawn comes from ``task.generator``.
        """
        ...
