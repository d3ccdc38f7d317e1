"""Functions drawn from a Gaussian process: its prior by random features, corrected where there are data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import Array
from lapwing.ground.results import Solution
from lapwing.methods.gp.kernels import Features, Kernel
from lapwing.methods.gp.matrix import cross_product
from lapwing.methods.gp.observations import checked
from lapwing.methods.gp.trend import Trend

ROWS = 4096
"""Inputs whose random features are held at once."""


@final
@dataclass(frozen=True, eq=False)
class PriorFunctions:
    """``f(x) = φ(x) W`` with random features φ and standard normal W: draws from GP(0, k) (Antorán 2024, 2.2.4).

    Args:
        features: φ.
        weights: W, ``[D, s c]``.
        count: Features that were asked for.
        seed: Of features and weights, which can be drawn again.
    """

    features: Features
    weights: Float[Tensor, "D s"]
    count: int
    seed: int

    @classmethod
    def drawn(
        cls, kernel: Kernel, inputs: Float[Tensor, "n p"], samples: int, features: int, generator: torch.Generator
    ) -> PriorFunctions:
        """So many functions.

        Args:
            kernel: k.
            inputs: Some inputs, for their dimension, dtype and device.
            samples: Functions s.
            features: Random features D.
            generator: Source of randomness, not used yet.
        """
        phi = kernel.features(features, inputs, generator)
        width = phi(inputs[:1]).shape[1]
        weights = probes.gaussian([width, samples], like=inputs, generator=generator)
        return cls(phi, weights, features, generator.initial_seed())

    def __call__(self, inputs: Float[Tensor, "n p"]) -> Float[Tensor, "n s"]:
        """All functions at some inputs."""
        return torch.cat([self.features(rows) @ self.weights for rows in inputs.split(ROWS)])

    def own(self, places: Float[Tensor, "s a p"]) -> Float[Tensor, "s a"]:
        """Each function at places of its own.

        Args:
            places: For each function as many.
        """
        phi = self.features(places.flatten(0, 1)).view(*places.shape[:2], -1)
        return (phi @ self.weights.mT[:, :, None])[..., 0]


@final
@dataclass(frozen=True, eq=False, repr=False)
class FunctionSamples:
    """Functions drawn from a posterior; they can be called anywhere and differentiated.

        (f | y)(·) = μ(·) + f(·) - h(·) β_f - K_{(·)X} α_f,   α_f = (K + N)⁻¹ (f(X) + ε - H β_f)

    with f from the prior, ε from the noise, and μ the posterior mean (Antorán 2024, equation 2.29).

    Args:
        kernel: k.
        inputs: X, ``[n, p]``.
        trend: h, the mean before data.
        prior: f.
        representers: ``α - α_f``, one a column, ``[n, s c]``.
        slopes: ``β - β_f``, ``[q, s c]``.
        outputs: c; columns of one draw stand together.
        solution: The solve behind them, ``(K + N)⁻¹ (f(X) + ε)``.
    """

    kernel: Kernel
    inputs: Float[Tensor, "n p"]
    trend: Trend
    prior: PriorFunctions
    representers: Float[Tensor, "n k"]
    slopes: Float[Tensor, "q k"]
    outputs: int
    solution: Solution

    def __repr__(self) -> str:
        return (
            f"FunctionSamples({len(self)} of {self.inputs.shape[1]} inputs and {self.outputs} outputs, {self.kernel})"
        )

    def __len__(self) -> int:
        """Draws s."""
        return self.representers.shape[1] // self.outputs

    def __call__(self, x: Float[Tensor, "m p"] | Array | list[Any]) -> Float[Tensor, "s m c"]:
        """The functions at some inputs; the gradient in them is kept.

        Args:
            x: Inputs, ``[m, p]``.

        Raises:
            DataError: If there are no inputs, or they are not finite.
            ShapeError: If they have another shape.

        Cost:
            ``m`` rows of the kernel and of the features.
        """
        x = checked(x, self.inputs)
        data = cross_product(self.kernel, x, self.inputs, self.representers)
        found = self.prior(x) + self.trend(x) @ self.slopes + data
        return found.view(len(x), len(self), self.outputs).movedim(1, 0)

    def own(self, places: Float[Tensor, "s a p"]) -> Float[Tensor, "s a"]:
        """Each function, of a single output, at places of its own; the gradient in them is kept.

        Args:
            places: For each function as many.

        Cost:
            ``s a`` rows of the kernel and of the features, held at once.
        """
        (s, a), flat = places.shape[:2], places.flatten(0, 1)
        rows = torch.cat([self.kernel(flat, self.inputs), self.trend(flat)], 1).view(s, a, -1)
        weights = torch.cat([self.representers, self.slopes])
        return self.prior.own(places) + (rows @ weights.mT[:, :, None])[..., 0]

    def some(self, part: slice) -> FunctionSamples:
        """A few of the functions of a single output.

        Args:
            part: Which.
        """
        prior = replace(self.prior, weights=self.prior.weights[:, part])
        return replace(self, prior=prior, representers=self.representers[:, part], slopes=self.slopes[:, part])
