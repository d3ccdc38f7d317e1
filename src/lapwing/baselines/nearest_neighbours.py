"""The distance of features from the nearest of the training examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.baselines.out_of_distribution import ScoredNetwork, outputs_and_features, training_features
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.evaluation.task import Task
from lapwing.ground.data.inputs import InputsLike
from lapwing.ground.errors import ConfigError, check_bytes, check_count
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed

MAX_BYTES = 2**31
"""Bytes that the features of the training examples may take (2 GiB)."""

HELD = 2**24
"""Distances that are held at a time."""


@final
@dataclass(frozen=True)
class NearestNeighbours:
    """The distance of an input's features from the k-th nearest training example, both of unit length.

        N(x) = ‖φ(x)/|φ(x)| - φ_(k)/|φ_(k)|‖

    Features φ are what the last linear layer takes.

    Args:
        neighbours: k.
        max_bytes: Memory that the features of the training examples may take.

    Raises:
        ConfigError: If there is no neighbour.

    Cost:
        To fit, a forward pass over the training data, whose features are kept; to predict, a forward pass and a
        distance from each of them.

    Example:
        >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> NearestNeighbours().fit(Task(model, (x, y))).predict(x).strangeness.shape
        torch.Size([20])

    Source: Y. Sun, Y. Ming, X. Zhu and Y. Li, Out-of-Distribution Detection with Deep Nearest Neighbors, 2022, section
        3.
    """

    neighbours: int = 10
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        check_count("neighbours", self.neighbours, usual=10)

    @undisturbed()
    @working("nearest neighbours")
    def fit(self, task: Task) -> ScoredNetwork:
        """The network of a task with this score.

        Args:
            task: The network and its training data.

        Raises:
            ConfigError: If there are fewer training examples than neighbours.
            DataError: If the data are empty or not finite, or do not fit the likelihood.
            TooLargeError: If the features take more than ``max_bytes``.
            UnsupportedError: If targets are no classes, or no linear layer is called.
        """
        kept: list[Tensor] = []
        held = 0
        for features, _ in training_features(task):
            held += features.numel() * features.element_size()
            check_bytes(
                "features of the training examples", held, self.max_bytes, "those of some, which take", "a part"
            )
            kept.append(torch.nn.functional.normalize(features, dim=-1))
        known = torch.cat(kept)
        if len(known) < self.neighbours:
            raise ConfigError(f"{self.neighbours} training examples", f"{len(known)}", f"neighbours={len(known)}")
        return ScoredNetwork(task.network, NeighbourScore(known, self.neighbours))


@final
@dataclass(frozen=True, eq=False)
class NeighbourScore:
    """Features of training examples, of unit length.

    Args:
        known: Those.
        neighbours: k.
    """

    known: Float[Tensor, "n k"]
    neighbours: int

    def of(self, network: PlainNetwork, x: InputsLike) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch"]]:
        """See ``Score.of``."""
        outputs, features = outputs_and_features(network, x)
        return outputs, self.distances(features.flatten(0, -2)).view(outputs.shape[:-1])

    def distances(self, features: Float[Tensor, "m k"], held: int = HELD) -> Float[Tensor, " m"]:
        """N of features.

        Args:
            features: φ, float64.
            held: Distances that are held at a time.
        """
        unit = torch.nn.functional.normalize(features, dim=-1)
        found = [
            torch.cdist(some, self.known).topk(self.neighbours, largest=False).values[:, -1]
            for some in unit.split(max(1, held // len(self.known)))
        ]
        return torch.cat(found)
