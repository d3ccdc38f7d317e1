"""Functions drawn from a Gaussian process: its prior by random features, corrected where there are data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import FeatureMap, Kernels, each_of
from lapwing.gp.kernels.matrix import KernelMatrix, cross_product
from lapwing.gp.observations import checked_inputs
from lapwing.gp.trend import Trend
from lapwing.ground import probes
from lapwing.ground.data.inputs import Array
from lapwing.ground.errors import NumericalError
from lapwing.ground.precision import moved, wide
from lapwing.ground.progress import working
from lapwing.ground.results import Solution

ROOM = 2**25
"""Random features of inputs that are held at once."""

JITTER = 100.0
"""What is added to the diagonal of a kernel matrix for its factor, in roundings of its trace; the next is so many times
as much, where entries are rounded more than float64 does."""


@final
@dataclass(frozen=True, eq=False)
class PriorFunctions:
    """``f(x) = φ(x) W`` with random features φ and standard normal W: draws from GP(0, k) (Antorán 2024, 2.2.4).

    Args:
        features: φ: one for all outputs, or one an output.
        weights: W of each: ``[D, s c]``, all outputs of one draw together, or ``[D, s]`` of one output.
        count: Features D that were asked for.
        seed: Of features and weights, which can be drawn again.
    """

    features: tuple[FeatureMap, ...]
    weights: tuple[Float[Tensor, "_ s"], ...]
    count: int
    seed: int

    @classmethod
    def drawn(
        cls, kernel: Kernels, inputs: Float[Tensor, "n p"], samples: int, features: int, generator: torch.Generator
    ) -> PriorFunctions:
        """So many functions.

        Args:
            kernel: k; of several each has as many of the functions.
            inputs: Some inputs, for their dimension, dtype and device.
            samples: Functions.
            features: Random features D.
            generator: Source of randomness, not used yet.
        """
        kernels = each_of(kernel)
        seed = generator.initial_seed()
        found = list[FeatureMap]()
        weights = list[Tensor]()
        for each in kernels:
            phi = each.features(features, inputs, generator)
            width = phi(inputs[:1]).shape[1]
            found.append(phi)
            weights.append(probes.gaussian([width, samples // len(kernels)], like=inputs, generator=generator))
        return cls(tuple(found), tuple(weights), features, seed)

    def __call__(self, inputs: Float[Tensor, "n p"]) -> Float[Tensor, "n k"]:
        """All functions at some inputs, all outputs of one draw together."""
        pairs = list(zip(self.features, self.weights, strict=True))
        rows = max(1, ROOM // max(len(weights) for weights in self.weights))
        parts = [torch.stack([phi(some) @ weights for phi, weights in pairs], 2) for some in inputs.split(rows)]
        return torch.cat(parts).flatten(1)

    def each_at(self, places: Float[Tensor, "s a p"]) -> Float[Tensor, "s a"]:
        """Each function of a single output at places of its own.

        Args:
            places: For each function as many.
        """
        phi = self.features[0](places.flatten(0, 1)).view(*places.shape[:2], -1)
        return (phi @ self.weights[0].mT[:, :, None])[..., 0]

    def select(self, part: slice) -> PriorFunctions:
        """A few of the functions of a single output.

        Args:
            part: Which.
        """
        return replace(self, weights=(self.weights[0][:, part],))


def exact_law_at(
    kernel: Kernels, inputs: Float[Tensor, "n p"], values: Float[Tensor, "n k"], generator: torch.Generator
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """Coefficients δ that give drawn functions the exact law of the prior at some inputs, and their values there.

        f(·) + K_{(·)X} δ,   δ = L⁻ᵀ (u - L⁻¹ f(X)),   L Lᵀ = K + jitter,   u standard normal

    so that the values are ``L u`` along eigenvectors whose eigenvalues are above the jitter, and f below. What random
    features are left to say is what values at X leave unknown elsewhere.

    Args:
        kernel: k; of several each has the columns of its output.
        inputs: X.
        values: f(X), all outputs of one draw together.
        generator: Source of randomness.

    Raises:
        NumericalError: If K has negative eigenvalues beyond rounding.

    Cost:
        ``n³ / 3`` multiplications for each kernel.
    """
    if isinstance(kernel, tuple):
        parts = [exact_law_at(each, inputs, values[:, i :: len(kernel)], generator) for i, each in enumerate(kernel)]
        coefficients = torch.stack([each for each, _ in parts], 2).flatten(1)
        found = torch.stack([each for _, each in parts], 2).flatten(1)
        return coefficients, found
    whole = KernelMatrix(kernel, wide(inputs)).dense()
    root = _jittered_root(whole)
    normal = probes.gaussian(list(values.shape), like=whole, generator=generator)
    rest = normal - torch.linalg.solve_triangular(root, wide(values), upper=False)
    coefficients = torch.linalg.solve_triangular(root.mT, rest, upper=True)
    return coefficients.to(values), (wide(values) + whole @ coefficients).to(values)


def _jittered_root(whole: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """A Cholesky factor of a kernel matrix and as little on its diagonal as it takes."""
    trace = float(whole.diagonal().sum())
    jitter = JITTER * torch.finfo(torch.float64).eps
    while jitter < 1:
        root, failed = torch.linalg.cholesky_ex(whole + jitter * trace * torch.eye(len(whole)).to(whole))
        if not bool(failed):
            return root
        jitter *= JITTER
    hint = "a function that is symmetric and positive definite"
    raise NumericalError("a kernel matrix without negative eigenvalues", "one with some", hint)


@final
@dataclass(frozen=True, eq=False, repr=False)
class FunctionSamples:
    """Functions drawn from a posterior; they can be called anywhere and differentiated.

        (f | y)(·) = μ(·) + f(·) - h(·) β_f - K_{(·)X} α_f,   α_f = (K + N)⁻¹ (f(X) + ε - H β_f)

    with f from the prior, ε from the noise, and μ the posterior mean (Antorán 2024, equation 2.29).

    Where X are few, f has the exact law of the prior there, by coefficients δ; see ``exact_law_at``.

    Args:
        kernel: k, or one an output.
        inputs: X, ``[n, p]``.
        trend: h, the mean before data.
        prior: f, without δ.
        representers: ``α + δ - α_f``, one a column, ``[n, s c]``, in the dtype of the solves.
        slopes: ``β - β_f``, ``[q, s c]``.
        outputs: c; columns of one draw stand together.
        solution: The solve behind them, ``(K + N)⁻¹ (f(X) + ε)``.
    """

    kernel: Kernels
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

    @working("predict")
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
        x = checked_inputs(x, self.inputs)
        exact = x.to(self.representers)
        data = cross_product(self.kernel, exact, self.inputs.to(exact), self.representers)
        found = self.prior(exact) + self.trend(exact) @ self.slopes + data
        return found.to(x).view(len(x), len(self), self.outputs).movedim(1, 0)

    def to(self, device: torch.device | str) -> FunctionSamples:
        """The functions on another device; their random features are drawn again.

        Args:
            device: Where to.
        """
        representers = moved(self.representers, device)
        inputs = moved(self.inputs, device)
        generator = torch.Generator().manual_seed(self.prior.seed)
        columns = representers.shape[1]
        prior = PriorFunctions.drawn(self.kernel, inputs.to(representers), columns, self.prior.count, generator)
        return replace(
            self,
            inputs=inputs,
            prior=prior,
            representers=representers,
            slopes=moved(self.slopes, device),
            solution=self.solution.to(device),
        )

    def each_at(self, places: Float[Tensor, "s a p"]) -> Float[Tensor, "s a"]:
        """Each function, of a single output, at places of its own; the gradient in them is kept.

        Args:
            places: For each function as many.

        Cost:
            ``s a`` rows of the kernel and of the features, held at once.
        """
        exact = places.to(self.representers)
        flat = exact.flatten(0, 1)
        kernel = each_of(self.kernel)[0]
        rows = torch.cat([kernel(flat, self.inputs.to(flat)), self.trend(flat)], 1).view(*exact.shape[:2], -1)
        weights = torch.cat([self.representers, self.slopes])
        return (self.prior.each_at(exact) + (rows @ weights.mT[:, :, None])[..., 0]).to(places)

    def select(self, part: slice) -> FunctionSamples:
        """A few of the functions of a single output.

        Args:
            part: Which.
        """
        return replace(
            self,
            prior=self.prior.select(part),
            representers=self.representers[:, part],
            slopes=self.slopes[:, part],
        )
