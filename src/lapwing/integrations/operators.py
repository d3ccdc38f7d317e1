"""Operators of other libraries where a projector does: deepinv's ``LinearPhysics``, PyLops's ``TorchOperator``."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.operators import ForwardOperator, Product, check_adjoint
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError, check_positive, reason_of
from lapwing.ground.moving import Mover

logger = logging.getLogger(__name__)

TOGETHER = 64
"""Images that an operator is given at once."""


@final
@dataclass(frozen=True, eq=False)
class OperatorMeasurement(ForwardOperator):
    """A measurement by an operator of another library; ``measurement`` makes one.

    Args:
        forward: A of images ``[k, *image]``.
        adjoint: Its adjoint, of observations ``[k, *observation]``.
        image: Shape of an image, as the operator takes it.
        observation: Shape of what is observed of one.
        of: A tensor whose dtype and device images have.
        unit: Number by which the operator divides what a detector sees; 1 where it does not.
    """

    forward: Product
    adjoint: Product
    image: tuple[int, ...]
    observation: tuple[int, ...]
    of: Tensor
    unit: float = 1.0

    def moved_by(self, mover: Mover) -> OperatorMeasurement:
        """See ``Movable``.

        Raises:
            UnsupportedError: If it were to go elsewhere.
        """
        if self.like.device == mover.device:
            return self
        raise UnsupportedError(
            f"a measurement that can go to {mover.device}, such as a Projector",
            f"an operator of another library for tensors on {self.like.device}",
            "fitting again there, with an operator made for that device",
        )

    @property
    def shape(self) -> tuple[int, int]:
        """See ``ForwardOperator``."""
        return math.prod(self.observation), math.prod(self.image)

    @property
    def like(self) -> Tensor:
        """See ``ForwardOperator``."""
        return self.of

    def in_unit(
        self, measurements: Float[Tensor, "*shape"] | Array | list[Any], noise_std: float | Tensor | Array | list[Any]
    ) -> tuple[Float[Tensor, " rows"], float | Float[Tensor, " rows"]]:
        """What a detector saw, and its noise, in the unit of an operator that divides by its norm: both over ``unit``.

        What the operator itself made, such as ``physics(x)``, is in that unit already.

        Args:
            measurements: In the unit of the detector, as many as there are rows.
            noise_std: Standard deviation of their noise, in the same unit; one number, or one a measurement.

        Returns:
            Both as ``DeepImagePrior().fit`` and ``ImagePosterior.of`` take them, the measurements flat.
        """
        measured = as_tensor(measurements, like=self.of).flatten() / self.unit
        if isinstance(noise_std, int | float | np.floating):
            check_positive("noise_std", noise_std, "0.05")
            return measured, float(noise_std) / self.unit
        return measured, as_tensor(noise_std, like=self.of).flatten() / self.unit

    def _forward(self, block: Float[Tensor, "pixels k"]) -> Float[Tensor, "rows k"]:
        return _each(self.forward, block, self.image)

    def _adjoint(self, block: Float[Tensor, "rows k"]) -> Float[Tensor, "pixels k"]:
        return _each(self.adjoint, block, self.observation)


def measurement(
    operator: Any,
    image: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> OperatorMeasurement:
    """The measurement by an operator with ``A`` and ``A_adjoint``, or by a ``TorchOperator`` of PyLops.

    Nothing is differentiated through the operator: the derivative of its product is the product, that of its adjoint
    the adjoint. Where it divides by its norm, as ``Tomography(normalize=True)`` does, a warning in the log says so, and
    ``in_unit`` puts measurements and their noise into its unit.

    Args:
        operator: deepinv's ``LinearPhysics``, or anything whose ``A`` takes images ``[k, *image]`` and whose
            ``A_adjoint`` gives them back, k at a time; ``pylops.TorchOperator(..., batch=True)``.
        image: Shape of one image as it takes it, with the channels: ``(1, 64, 64)``. Not for PyLops, which knows.
        dtype: Of images; ``None`` for the operator's ``dtype`` where it has one, else float32.
        device: Where it takes them.

    Raises:
        ConfigError: If it is no such operator, does not take several images, is not linear, or its adjoint is not its
            adjoint, seen by a few images and observations; the message says by how much.
        ShapeError: If it does not give one observation for an image.
        UnsupportedError: If what it gives is not real.

    Cost:
        Two products with it and two with its adjoint, of six images, and one of two images.

    Example:
        >>> class Sums:
        ...     def A(self, x): return x.sum(-1)
        ...     def A_adjoint(self, y): return y[..., None].expand(*y.shape, 3)
        >>> sums = measurement(Sums(), image=(1, 2, 3))
        >>> sums.push(torch.arange(6.0)).tolist(), sums.pull(torch.ones(2)).tolist()
        ([3.0, 12.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """
    forward, adjoint, shape = _products(operator, image)
    of = torch.empty(0, dtype=dtype or _dtype_of(operator), device=device)
    with torch.no_grad():
        try:
            came: Any = forward(of.new_zeros(2, *shape))
        except Exception as error:
            raise ConfigError(
                f"an operator that takes images {[2, *shape]}, two at once",
                f"{type(error).__name__} of {type(operator).__name__}: {reason_of(error)}",
                "image=(channels, height, width), dtype= as the operator has them; TorchOperator(..., batch=True)",
            ) from error
    if not isinstance(came, Tensor) or came.ndim < 2 or len(came) != 2:
        got = f"{list(came.shape)}" if isinstance(came, Tensor) else f"a {type(came).__name__}"
        raise ShapeError(
            "two observations [2, ...] for two images",
            got,
            "image= without the axis of the batch, and an A of one part",
        )
    if not came.is_floating_point():
        hint = "an operator that gives real and imaginary parts, as lw.ct.Fourier does"
        raise UnsupportedError("an operator whose observations are real", f"{came.dtype}", hint)
    if bool(came.count_nonzero()):
        got = f"up to {float(came.abs().max()):.2g} for images of zeros, an offset or noise"
        raise ConfigError("a linear operator, whose A makes zeros of zeros", got, "physics.A in place of physics")
    unit = _norm_of(operator)
    made = OperatorMeasurement(forward, adjoint, shape, tuple(came.shape[1:]), of, unit)
    hint = "its exact adjoint, such as deepinv's Tomography(adjoint_via_backprop=True)"
    shape_hint = "image= and A_adjoint whose results have the same shape"
    check_adjoint(made, "the product", "the adjoint", hint, shape_hint)
    if unit != 1.0:
        logger.warning(
            "%s divides by its norm, %.4g: in_unit(measurements, noise_std) puts what a detector saw into its unit",
            type(operator).__name__,
            unit,
        )
    return made


def _products(operator: Any, image: Sequence[int] | None) -> tuple[Product, Product, tuple[int, ...]]:
    """Product, adjoint, and the shape of an image.

    Raises:
        ConfigError: If there are none, or it is not known which shape.
    """
    if hasattr(operator, "A") and hasattr(operator, "A_adjoint"):
        if image is None:
            hint = "image=(1, 64, 64), channels and then space"
            raise ConfigError("the shape of an image that A takes", "image=None", hint)
        return operator.A, operator.A_adjoint, tuple(image)
    if hasattr(operator, "apply") and hasattr(operator, "adjoint") and hasattr(operator, "dims"):
        dims = tuple(int(side) for side in operator.dims)
        flat = len(operator.transpf) == 2  # one axis beside that of the batch
        return operator.apply, operator.adjoint, (math.prod(dims),) if flat else dims
    raise ConfigError(
        "an operator with A and A_adjoint, or a TorchOperator of PyLops",
        f"a {type(operator).__name__}",
        "a class of two lines that has them, or lw.ct.measurement for a matrix or a linear operator of SciPy",
    )


def _dtype_of(operator: Any) -> torch.dtype:
    """The operator's own, where it says so."""
    dtype = getattr(operator, "dtype", None)
    if isinstance(dtype, torch.dtype):
        return dtype
    if isinstance(dtype, np.dtype):
        return torch.from_numpy(np.empty(0, dtype)).dtype
    return torch.float32


def _norm_of(operator: Any) -> float:
    """That by which deepinv's operators divide where they normalise themselves, else 1."""
    norm = getattr(operator, "operator_norm", None)
    return float(norm) if norm is not None and getattr(operator, "normalize", False) else 1.0


def _each(product: Product, block: Float[Tensor, "m k"], shape: tuple[int, ...]) -> Float[Tensor, "n k"]:
    """A product with each column of a block, some at a time, in its dtype."""
    parts = [product(part.reshape(-1, *shape)).flatten(1) for part in block.mT.split(TOGETHER)]
    return torch.cat(parts).mT.to(block)
