"""What a log-determinant is taken of: the posterior precision as one mini-batch sees it."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import count
from lapwing.ground.errors import DataError
from lapwing.jacobian.layers.layers import Survey
from lapwing.jacobian.network.differentiable import LiveBatch
from lapwing.methods.marginal.hyper import Hyperparameters


@final
@dataclass(frozen=True, eq=False)
class MiniBatch:
    """The posterior precision estimated from B of N examples, ``Λ̂ = s N/B Σ_i J_iᵀ B_i J_i + A`` (Brack 2023, 3.24).

    Args:
        live: The batch, differentiable in the weights.
        hyper: Precisions and noise.
        survey: What is known of the network's layers.
        total: N, examples in the training data.

    Raises:
        DataError: If the batch is larger than that.
    """

    live: LiveBatch
    hyper: Hyperparameters
    survey: Survey
    total: int

    def __post_init__(self) -> None:
        if self.examples > self.total:
            raise DataError(
                f"a batch of at most data_size={self.total} examples", f"{self.examples}", "data_size=len(dataset)"
            )

    @property
    def examples(self) -> int:
        """B, examples in the batch."""
        return count(self.live.inputs)

    @property
    def share(self) -> float:
        """N / B."""
        return self.total / self.examples

    def rows(self, mixing: Float[Tensor, "s k n"] | None = None) -> Float[Tensor, "n s d"]:
        """``Φ = s^½ Sᵀ J A^-½`` in float64, example by example, ``N/B`` left out; ``mixing`` as in ``LiveBatch.rows``.

        Its squared singular values are what the data add to each prior precision of one.
        """
        rows = self.live.rows(mixing)
        return (rows * self.hyper.deviations(rows)).double() * self.hyper.scale.sqrt()


@dataclass(frozen=True)
class LogDeterminant(abc.ABC):
    """A way to estimate ``log det Λ / det A`` from a mini-batch, differentiable in weights, precisions and noise."""

    @abc.abstractmethod
    def ratio(self, batch: MiniBatch, generator: torch.Generator | None) -> Float[Tensor, ""]:
        """The estimate of ``log det(I + A^-½ G A^-½)``, nats, float64.

        Args:
            batch: The mini-batch.
            generator: Source of randomness, where it needs one.
        """
