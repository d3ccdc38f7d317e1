"""A measurement in units of each ray's own noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.observed import Measurement
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import DataError, ShapeError, check_positive


@final
@dataclass(frozen=True, eq=False)
class Whitened:
    """``diag(1/σ) T``: what it measures, over σ, has noise of standard deviation 1.

    Args:
        operator: T.
        std: σ of each ray, in the units of a measurement, with the dtype and device of the operator.

    Raises:
        DataError: If one is not positive and finite.
        ShapeError: If there is not one a ray.

    Example:
        >>> import torch
        >>> from lapwing.ct.operators import measurement
        >>> Whitened(measurement(torch.eye(2)), torch.tensor([0.5, 2.0])).push(torch.ones(2)).tolist()
        [2.0, 0.5]
    """

    operator: Measurement
    std: Float[Tensor, " rows"]

    def __post_init__(self) -> None:
        rows = self.operator.shape[0]
        if self.std.shape != (rows,):
            expected = f"one standard deviation of the noise, or one for each of {rows} rays"
            raise ShapeError(expected, f"{list(self.std.shape)}", "variance.sqrt().flatten()")
        if not bool(((self.std > 0) & self.std.isfinite()).all()):
            got = f"from {float(self.std.min()):.3g} to {float(self.std.max()):.3g}"
            raise DataError("positive finite standard deviations of the rays", got, "leaving out rays without one")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and pixels."""
        return self.operator.shape

    @property
    def like(self) -> Tensor:
        """A tensor whose dtype and device are the operator's."""
        return self.std

    def push(self, v: Float[Tensor, "pixels *k"]) -> Float[Tensor, "rows *k"]:
        """``T V / σ``.

        Args:
            v: An image, or a block of images.
        """
        return self.operator.push(v) / (self.std if v.ndim == 1 else self.std[:, None])

    def pull(self, u: Float[Tensor, "rows *k"]) -> Float[Tensor, "pixels *k"]:
        """``Tᵀ (U / σ)``.

        Args:
            u: Observations, or a block of them.
        """
        return self.operator.pull(u / (self.std if u.ndim == 1 else self.std[:, None]))


def whitened(
    operator: Measurement,
    sinogram: Float[Tensor, " rows"],
    noise_std: float | Tensor | Array | list[Any] | tuple[Any, ...],
) -> tuple[Measurement, Float[Tensor, " rows"], float]:
    """Operator, sinogram and noise as they came, or in units of each ray's noise where every ray has its own.

    Args:
        operator: T.
        sinogram: y, flat.
        noise_std: σ, one number, or one a ray in the sinogram's order.

    Raises:
        ConfigError: If one number is not positive.
        DataError: If one of a ray is not.
        ShapeError: If there is not one a ray.
    """
    number: Any = noise_std
    if isinstance(noise_std, Tensor | np.ndarray) and noise_std.ndim == 0:
        number = float(noise_std)
    if not isinstance(number, Tensor | np.ndarray | list | tuple):
        check_positive("noise_std", number, "0.05")
        return operator, sinogram, float(number)
    each: Any = list(number) if isinstance(number, tuple) else number
    std = as_tensor(each, like=sinogram).to(sinogram).flatten()
    return Whitened(operator, std), sinogram / std, 1.0


def unwhitened(operator: Measurement) -> tuple[Measurement, Float[Tensor, " rows"] | None]:
    """T, and the noise of each ray in whose units it is; ``None`` where it is in none.

    Args:
        operator: A measurement, whitened or not.
    """
    if isinstance(operator, Whitened):
        return operator.operator, operator.std
    return operator, None
