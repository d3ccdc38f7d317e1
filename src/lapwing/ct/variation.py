"""Reconstruction with little total variation, by a primal-dual method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.geometry import check_real
from lapwing.ct.observed import Measurement, like_of_measurement
from lapwing.ct.projector import Projector
from lapwing.ground import probes
from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import ConfigError, ConvergenceWarning, ShapeError, check_count, check_positive, warn
from lapwing.ground.progress import Bar
from lapwing.ground.results import Solution

POWERS = 30
"""Steps of the power method, which finds the norm of T to a few per cent."""

FLAT = 1e-2
"""Differences of an image that are a smaller part of it are measured against this part: those of a flat one are 0."""

BALANCE = 0.1
"""Dual steps over those as long as the primal ones."""


def tv_reconstruction(
    sinogram: Float[Tensor, "*shape"] | Array | list[Any],
    operator: Measurement,
    weight: float,
    *,
    precision: float | Float[Tensor, "*shape"] = 1.0,
    nonnegative: bool = True,
    image: tuple[int, ...] | None = None,
    rtol: float = 1e-2,
    iterations: int = 2000,
    progress: bool | None = None,
) -> Solution:
    """The image that fits a sinogram and varies little, in two dimensions or three.

    ``min_x ½ Σ b_i (T x − y)_i² + λ TV(x)``, where TV is the sum of ``|x_i − x_j|`` over neighbouring pixels, by the
    primal-dual method of Chambolle and Pock (2011).

    Args:
        sinogram: y.
        operator: T: a ``Projector``, or any measurement.
        weight: λ, of the total variation.
        precision: b, of each ray or of all; with noise of standard deviation σ, ``σ**-2``.
        nonnegative: Whether x is kept from falling below 0.
        image: Shape of the image; a projector knows it.
        rtol: Where to stop: relative residuals of both optimality conditions.
        iterations: Most steps.
        progress: Whether to show a bar; ``None`` for after two seconds, in a terminal or notebook.

    Returns:
        The image as ``value``; ``residual`` is the larger of ``|Tᵀp + Dᵀq − z| / |Dᵀq|`` and of the error of p and q as
        derivatives of the two terms, and ``matvecs`` the products with T and with Tᵀ, a pair counted once.

    Raises:
        ConfigError: If an option makes no sense.
        DataError: If a ray is not finite.
        ShapeError: If operator, sinogram and image do not fit.
        UnsupportedError: If the sinogram is not of real numbers, or of another dtype than the operator's.

    Warns:
        ConvergenceWarning: If it ended before.

    Cost:
        A step: a product with T and one with Tᵀ. Memory: a few images and sinograms.

    Example:
        >>> from lapwing.ct.operators import measurement
        >>> y = torch.tensor([0.0, 0.0, 3.0, 3.0])
        >>> tv_reconstruction(y, measurement(torch.eye(4)), 0.5, image=(1, 4), rtol=1e-4).value.mul(100).round()
        tensor([[ 25.,  25., 275., 275.]])
    """
    check_positive("weight", weight, "0.1")
    check_positive("rtol", rtol, "1e-2")
    check_count("iterations", iterations)
    measured = as_tensor(sinogram, like=like_of_measurement(operator))
    saddle = _Saddle.of(measured, operator, weight, precision, nonnegative, image)
    state = saddle.start()
    steps = 0
    with Bar("total variation", most=iterations, progress=progress) as bar:
        while steps < iterations and state.residual > rtol:
            state = saddle.step(state)
            steps = steps + 1
            bar.update(said=f"residual {state.residual:.1e}, done at {rtol:.1e}")
    converged = state.residual <= rtol
    if not converged:
        said = f"total variation ended after {steps} steps at a residual of {state.residual:.2g}, above rtol={rtol:g}"
        warn(f"{said}. Try iterations={4 * iterations}", ConvergenceWarning)
    residual = torch.tensor(state.residual, dtype=torch.float64)
    return Solution(
        state.x.view(saddle.shape), residual, steps, steps + POWERS, "converged" if converged else "iterations"
    )


@final
@dataclass(frozen=True, eq=False)
class _State:
    """Image x and multipliers u = (p, q), with their products by K = (T, D)."""

    x: Tensor
    u: Tensor
    kx: Tensor
    ku: Tensor
    residual: float


@final
@dataclass(frozen=True, eq=False)
class _Saddle:
    """``min_x max_u <K x, u> + [x ≥ 0] − ½|p|²/b − <p, y> − [|q| ≤ λ]``."""

    operator: Measurement
    y: Float[Tensor, " rows"]
    b: Float[Tensor, " rows"]
    weight: float
    nonnegative: bool
    shape: tuple[int, ...]
    norm: float

    @classmethod
    def of(
        cls,
        sinogram: Tensor,
        operator: Measurement,
        weight: float,
        precision: float | Tensor,
        nonnegative: bool,
        image: tuple[int, ...] | None,
    ) -> _Saddle:
        """The problem, if all parts fit."""
        rows, pixels = operator.shape
        check_real(sinogram, "sinogram")
        if isinstance(operator, Projector):
            y = operator.geometry.check(sinogram)
            shape = operator.geometry.image if image is None else image
        else:
            check_finite(sinogram, "sinogram", "leaving out those rays, in the operator too")
            y = sinogram.reshape(-1)
            shape = image
        if shape is None or math.prod(shape) != pixels:
            raise ShapeError(f"image= to be the shape of {pixels} pixels", f"{image}", "image=(height, width)")
        if len(y) != rows:
            raise ShapeError(f"a sinogram of {rows} rays", f"{list(sinogram.shape)}", "the operator it was measured by")
        b = torch.as_tensor(precision).to(y)
        b = b.expand_as(y) if b.ndim == 0 else b.reshape(-1)
        if len(b) != rows or not bool((b > 0).all()):
            got = f"shape {list(torch.as_tensor(precision).shape)}, the smallest {float(b.min()):g}"
            raise ConfigError(f"one positive precision, or {rows}", got, "precision=1 / variance")
        v = probes.gaussian([pixels], like=y, generator=torch.Generator().manual_seed(0))
        for _ in range(POWERS):
            v = _column(operator.pull, _column(operator.push, v / v.norm()))
        return cls(operator, y, b, weight, nonnegative, shape, 1.05 * float(v.norm()))

    def start(self) -> _State:
        """Nothing."""
        x, ku = (self.y.new_zeros(self.operator.shape[1]) for _ in range(2))
        kx = self.push(x)
        return _State(x, torch.zeros_like(kx), kx, ku, math.inf)

    def push(self, x: Float[Tensor, " pixels"]) -> Float[Tensor, " duals"]:
        """``K x = (T x, D x)``."""
        space = x.view(self.shape)
        return torch.cat([_column(self.operator.push, x), *(space.diff(dim=a).flatten() for a in range(space.ndim))])

    def differences(self, q: Float[Tensor, " differences"]) -> Float[Tensor, " pixels"]:
        """``Dᵀ q``."""
        total = q.new_zeros(self.shape)
        start = 0
        for axis in range(len(self.shape)):
            fewer = [side - (a == axis) for a, side in enumerate(self.shape)]
            part = q[start : start + math.prod(fewer)].view(fewer)
            start += part.numel()
            total += undiffed(part, axis)
        return total.flatten()

    def step(self, at: _State) -> _State:
        """One step of each side, and how far the optimality conditions are from met."""
        rows = len(self.y)
        c = BALANCE * self.norm * float(self.b.mean())
        data = c / (2 * self.norm)  # |D|² ≤ 4 a dimension: (data |T|² + ...) / c = 1
        variation = c / (8 * len(self.shape))
        x = at.x - at.ku / c
        x = x.clamp(min=0) if self.nonnegative else x
        kx = self.push(x)
        ahead = 2 * kx - at.kx
        p = (at.u[:rows] + data * (ahead[:rows] - self.y)) / (1 + data / self.b)
        q = (at.u[rows:] + variation * ahead[rows:]).clamp(-self.weight, self.weight)
        u = torch.cat([p, q])
        back = self.differences(q)
        ku = _column(self.operator.pull, p) + back
        primal = float((c * (at.x - x) - (at.ku - ku)).norm() / back.norm().clamp(min=1e-30))
        moved = at.u - u
        change = at.kx - kx
        misfit = (moved[:rows] / data - change[:rows]).norm() / self.y.norm().clamp(min=1e-30)
        slope = torch.maximum(kx[rows:].norm(), FLAT * x.norm()).clamp(min=1e-30)
        rough = (moved[rows:] / variation - change[rows:]).norm() / slope
        return _State(x, u, kx, ku, max(primal, float(misfit), float(rough)))


def _column(product: Callable[[Tensor], Tensor], v: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
    return product(v[:, None])[:, 0]


def undiffed(differences: Float[Tensor, "*space"], axis: int) -> Float[Tensor, "*image"]:
    """``Dᵀ q`` for differences q along an axis; of their signs, what derives the total variation."""
    edge = differences.new_zeros([1 if a == axis else side for a, side in enumerate(differences.shape)])
    return -differences.diff(dim=axis, prepend=edge, append=edge)


def total_variation(image: Float[Tensor, "*space"]) -> Float[Tensor, ""]:
    """``Σ |x_ij - x_i+1,j| + Σ |x_ij - x_i,j+1|``, anisotropic, in any number of dimensions.

    Example:
        >>> total_variation(torch.tensor([[0.0, 1.0], [0.0, 3.0]]))
        tensor(6.)
    """
    return torch.stack([image.diff(dim=axis).abs().sum() for axis in range(image.ndim)]).sum()
