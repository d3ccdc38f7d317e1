"""Measurements: linear operators T from images to what is observed of them, and their adjoints."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lapwing.ct.geometry import check_real
from lapwing.ground import probes
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError, check_kind
from lapwing.ground.moving import Mover
from lapwing.ground.precision import wide
from lapwing.linalg import Operator
from lapwing.linalg.operators.base import on_columns

ADJOINT_PROBES = 3
"""Random images, and single pixels, by which an adjoint is looked at."""

ADJOINT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""By how much the two sides of an adjoint may differ, over the larger; what rounding makes is a hundredth of it."""

Product: TypeAlias = Callable[[Tensor], Tensor]
"""From a block of columns to a block of columns."""


class ForwardOperator(abc.ABC):
    """A ``Measurement`` with operands that are checked, and differentiable: the derivative of T x is T.

    Images are flat, row by row, and so are observations; several at once are the columns of a block.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows, which are observed, and pixels."""

    @property
    @abc.abstractmethod
    def like(self) -> Tensor:
        """A tensor whose dtype and device are the operator's."""

    @abc.abstractmethod
    def _forward(self, block: Float[Tensor, "pixels k"]) -> Float[Tensor, "rows k"]: ...

    @abc.abstractmethod
    def _adjoint(self, block: Float[Tensor, "rows k"]) -> Float[Tensor, "pixels k"]: ...

    def push(self, v: Float[Tensor, "pixels *k"]) -> Float[Tensor, "rows *k"]:
        """``T V``.

        Args:
            v: An image ``[pixels]``, or a block of images ``[pixels, k]``.

        Raises:
            ShapeError: If it has other pixels.
            UnsupportedError: If it has another dtype.
        """
        return self._product(self._forward, self._adjoint, v, self.shape[1], "pixels")

    def pull(self, u: Float[Tensor, "rows *k"]) -> Float[Tensor, "pixels *k"]:
        """``Tᵀ U``.

        Args:
            u: Observations ``[rows]``, or a block of them ``[rows, k]``.

        Raises:
            ShapeError: If it has other rows.
            UnsupportedError: If it has another dtype.
        """
        return self._product(self._adjoint, self._forward, u, self.shape[0], "rows")

    def _product(self, product: Product, adjoint: Product, block: Tensor, size: int, what: str) -> Tensor:
        if block.ndim not in (1, 2) or len(block) != size:
            raise ShapeError(f"[{what}] or [{what}, k] with {size} {what}", f"{list(block.shape)}", ".reshape(-1)")
        if block.dtype != self.like.dtype:
            raise UnsupportedError(f"dtype {self.like.dtype}", f"{block.dtype}", "the dtype of the measurement")
        return on_columns(lambda columns: _Product.apply(columns, product, adjoint), block)


@final
@dataclass(frozen=True, eq=False)
class FunctionMeasurement(ForwardOperator):
    """A measurement of your own, by two functions.

    Args:
        forward: ``T V`` of a block ``[pixels, k]``.
        adjoint: ``Tᵀ U`` of a block ``[rows, k]``.
        size: Rows and pixels.
        of: A tensor whose dtype and device images have; float32 on the CPU if not given.

    Raises:
        ConfigError: If the functions are not each other's adjoint, seen by a random image and observation.

    Example:
        >>> blur = FunctionMeasurement(lambda v: v + v.roll(1, 0), lambda u: u + u.roll(-1, 0), size=(3, 3))
        >>> blur.push(torch.tensor([1.0, 0.0, 0.0])).tolist()
        [1.0, 1.0, 0.0]
    """

    forward: Product
    adjoint: Product
    size: tuple[int, int]
    of: Tensor | None = None

    def moved_by(self, mover: Mover) -> FunctionMeasurement:
        """See ``Movable``.

        Raises:
            UnsupportedError: If it were to go elsewhere.
        """
        if self.like.device == mover.device:
            return self
        raise UnsupportedError(
            f"a measurement that can go to {mover.device}, such as a Projector",
            f"functions of your own for tensors on {self.like.device}",
            "fitting again there, with functions for that device",
        )

    def __post_init__(self) -> None:
        check_adjoint(self, "forward=", "adjoint=", "the transposed matrix", "size=(rows, pixels)")

    @property
    def shape(self) -> tuple[int, int]:
        """See ``ForwardOperator``."""
        return self.size

    @property
    def like(self) -> Tensor:
        """See ``ForwardOperator``."""
        return torch.empty(0) if self.of is None else self.of

    def _forward(self, block: Float[Tensor, "pixels k"]) -> Tensor:
        return self.forward(block)

    def _adjoint(self, block: Float[Tensor, "rows k"]) -> Tensor:
        return self.adjoint(block)


def check_adjoint(operator: ForwardOperator, forward: str, adjoint: str, hint: str, shape_hint: str) -> None:
    """Refuses an operator whose pull S is not the adjoint of its push T, seen by a few images and observations.

        <u, T v> = <S u, v>

    Images v are random ones, single pixels, and S u of such observations u, for which nothing cancels: S = (1 + ε) Tᵀ
    makes the two sides differ by ε of themselves. Sums are in float64. An error unlike T, such as independent ones of
    its entries, is averaged out by all but the single pixels.

    Args:
        operator: T.
        forward: What makes ``T V``, for the message.
        adjoint: What makes ``Tᵀ U``, for the message.
        hint: What to try.
        shape_hint: What to try where a product has another shape.

    Raises:
        ConfigError: If the sides differ by more than ``ADJOINT_TOLERANCE`` of the larger, with by how much.
        ShapeError: If a product has another shape.

    Cost:
        Two products with T and two with S, of ``2 ADJOINT_PROBES`` columns each.
    """
    generator = torch.Generator().manual_seed(0)
    u, v = (adjoint_probes(side, operator.like, generator) for side in operator.shape)
    pushed = operator.push(v)
    pulled = operator.pull(u)
    for name, came, fits in ((forward, pushed, u), (adjoint, pulled, v)):
        if came.shape != fits.shape:
            raise ShapeError(f"{name} to give {list(fits.shape)}", f"{list(came.shape)}", shape_hint)
    sides = [
        (u, pushed, pulled, v),  # of unrelated images and observations
        (u, operator.push(pulled), pulled, pulled),
        (pushed, pushed, operator.pull(pushed), v),
    ]
    here = torch.cat([(wide(left) * wide(right)).sum(0) for left, right, _, _ in sides])
    there = torch.cat([(wide(left) * wide(right)).sum(0) for _, _, left, right in sides])
    scale = torch.cat([wide(left).norm(dim=0) * wide(right).norm(dim=0) for left, right, _, _ in sides])
    differences = (here - there).abs()
    relative = torch.where(differences > 0, differences / scale, differences)
    worst = int(relative.nan_to_num(torch.inf).argmax())
    dtype = operator.like.dtype
    tolerance = ADJOINT_TOLERANCE[dtype] if dtype in ADJOINT_TOLERANCE else math.sqrt(torch.finfo(dtype).eps)
    if not float(relative[worst]) <= tolerance:
        raise ConfigError(
            f"{adjoint} to be the adjoint of {forward}, <u, T v> = <Tᵀ u, v>",
            f"{float(here[worst]):.6g} and {float(there[worst]):.6g} for one of a few u and v, which differ by "
            f"{float(relative[worst]):.2g} of |u| |T v|, where rounding makes {tolerance:.0e} at most",
            f"{hint}, not an inverse such as filtered back-projection",
        )


def adjoint_probes(side: int, like: Tensor, generator: torch.Generator) -> Float[Tensor, "side k"]:
    """Random columns, and as many that are zero but for one entry.

    Args:
        side: Length of a column.
        like: A tensor whose dtype and device they have.
        generator: Source of randomness.
    """
    dense = probes.gaussian([side, ADJOINT_PROBES], like=like, generator=generator)
    places = torch.randint(side, [ADJOINT_PROBES], generator=generator)
    single = torch.zeros(side, ADJOINT_PROBES, dtype=like.dtype, device=like.device)
    single[places, torch.arange(ADJOINT_PROBES)] = 1.0
    return torch.cat([dense, single], 1)


def measurement(matrix: Any) -> FunctionMeasurement:
    """The measurement by a matrix: a tensor, dense or sparse, an ``Operator``, or what SciPy takes for an operator.

    Args:
        matrix: ``[rows, pixels]``. SciPy's, and arrays of NumPy, multiply images on the CPU, in float32 where that is
            their dtype, else in float64.

    Returns:
        T with its adjoint.

    Raises:
        ConfigError: If it is none of these.
        ShapeError: If it has not two axes.
        UnsupportedError: If its numbers are not real.

    Example:
        >>> measurement(torch.tensor([[1.0, 2.0]])).pull(torch.ones(1)).tolist()
        [1.0, 2.0]
    """
    if isinstance(matrix, Tensor | np.ndarray) and matrix.ndim != 2:
        raise ShapeError("a matrix [rows, pixels]", f"{list(matrix.shape)}", "matrix[None] if it is one row")
    if isinstance(matrix, Tensor):
        check_real(matrix, "matrix")
    if isinstance(matrix, Tensor | Operator):
        turned: Any = matrix.t() if isinstance(matrix, Tensor) else matrix.T  # of rows that are compressed .T is none
        if getattr(matrix, "layout", None) == torch.sparse_csr:
            turned = turned.to_sparse_csr()
        like = torch.empty(0, dtype=matrix.dtype, device=matrix.device)
        return FunctionMeasurement(lambda v: matrix @ v, lambda u: turned @ u, (matrix.shape[0], matrix.shape[1]), like)
    from scipy.sparse.linalg import aslinearoperator

    try:
        operator = aslinearoperator(matrix)
    except TypeError as error:
        hint = "FunctionMeasurement(forward, adjoint, size) for a pair of functions"
        raise ConfigError("a matrix, or an operator of SciPy", f"a {type(matrix).__name__}", hint) from error

    kind = np.dtype(operator.dtype)
    if kind.kind not in "fiub":
        hint = "its real and imaginary parts on top of each other" if kind.kind == "c" else "matrix.astype(float)"
        raise UnsupportedError("a matrix of real numbers", f"{kind}", hint)
    dtype = torch.float32 if kind == np.float32 else torch.float64

    def product(by: Any) -> Product:
        return lambda block: torch.as_tensor(by.matmat(block.cpu().numpy()), dtype=block.dtype, device=block.device)

    rows, pixels = operator.shape
    return FunctionMeasurement(product(operator), product(operator.H), (rows, pixels), torch.empty(0, dtype=dtype))


@final
@dataclass(frozen=True, eq=False)
class Fourier(ForwardOperator):
    """Some frequencies of an image, as magnetic resonance measures them.

    ``T x = (Re z, Im z)`` with z the entries of the unitary Fourier transform of x that a mask lets through.

    Args:
        mask: Frequencies that are measured, ``[height, width]``, in the order of ``torch.fft.fft2``: zero comes first.
            ``torch.fft.ifftshift`` makes that of a mask with zero in the middle.
        dtype: Of images and observations.
        device: Where they are.

    Example:
        >>> mask = torch.zeros(4, 4, dtype=torch.bool)
        >>> mask[0, 0] = True
        >>> Fourier(mask).push(torch.ones(16)).tolist()
        [4.0, 0.0]
    """

    mask: Bool[Tensor, "height width"]
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    def moved_by(self, mover: Mover) -> Fourier:
        """See ``Movable``."""
        return replace(self, mask=mover(self.mask), device=mover.device)

    def __post_init__(self) -> None:
        check_kind("mask", self.mask, (Tensor,), "a boolean tensor [height, width]")
        if self.mask.ndim != 2 or self.mask.dtype != torch.bool or not bool(self.mask.any()):
            got = f"{self.mask.dtype} {list(self.mask.shape)}, {int(self.mask.count_nonzero())} of it not zero"
            raise ShapeError("a boolean mask [height, width] that lets a frequency through", got, "weights > 0")
        object.__setattr__(self, "mask", self.mask.to(self.device))

    @property
    def shape(self) -> tuple[int, int]:
        """See ``ForwardOperator``."""
        return 2 * int(self.mask.sum()), self.mask.numel()

    @property
    def like(self) -> Tensor:
        """See ``ForwardOperator``."""
        return torch.empty(0, dtype=self.dtype, device=self.device)

    def _forward(self, block: Float[Tensor, "pixels k"]) -> Float[Tensor, "rows k"]:
        z = torch.fft.fft2(block.mT.unflatten(1, self.mask.shape), norm="ortho")[:, self.mask]
        return torch.cat([z.real, z.imag], 1).mT

    def _adjoint(self, block: Float[Tensor, "rows k"]) -> Float[Tensor, "pixels k"]:
        real, imaginary = block.mT.chunk(2, 1)
        z = torch.zeros(block.shape[1], *self.mask.shape, dtype=self.dtype.to_complex(), device=self.mask.device)
        z[:, self.mask] = torch.complex(real, imaginary)
        return torch.fft.ifft2(z, norm="ortho").real.flatten(1).mT


class _Product(torch.autograd.Function):
    """A product whose derivative is known: its own forwards, its adjoint backwards."""

    @staticmethod
    def forward(block: Tensor, product: Product, adjoint: Product) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return product(block.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.product, ctx.adjoint = inputs

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Product.apply(cotangent, ctx.adjoint, ctx.product), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Product.apply(tangent, ctx.product, ctx.adjoint)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        block, product, adjoint = args
        columns = block.movedim(in_dims[0], -1)
        return _Product.apply(columns.flatten(1), product, adjoint).unflatten(1, columns.shape[1:]), 2
