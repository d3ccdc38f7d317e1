"""In which dtype products are made, in which they are added up, and where matrices are decomposed.

Sums over the data and decompositions are in float64: a curvature's eigenvalues span more digits than float32 has. The
products that are added up may be in float32, which is what consumer GPUs are made for. A device without float64 keeps
the network and its products; sums and decompositions are then on the CPU. Nothing but this module makes a tensor wide.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from lapwing.ground.errors import check_option

Words: TypeAlias = Literal["double", "single"]

WIDE = torch.float64
"""What sums and decompositions are in."""

WITHOUT_DOUBLE = frozenset({"mps"})
"""Types of devices that have no float64."""

HOST = torch.device("cpu")
"""Where sums and decompositions are for such a device."""

DATA_CENTRE = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities of GPUs whose float64 runs at half of float32 or not far below; others' is at a sixty-fourth."""


@final
@dataclass(frozen=True)
class Precision:
    """In which dtype the large products are made; they are added up in float64.

    Args:
        products: float64, or float32.
    """

    products: torch.dtype = WIDE

    @classmethod
    def of(cls, word: str | None, device: torch.device) -> Precision:
        """What a word means on a device.

        Args:
            word: ``"double"``, ``"single"``, or ``None``: double on CPUs and data-centre GPUs, else single.
            device: Where the network is.

        Raises:
            ConfigError: If it is another word.

        Example:
            >>> Precision.of(None, torch.device("cpu")), Precision.of("single", torch.device("cpu"))
            (Precision(products=torch.float64), Precision(products=torch.float32))
        """
        if word is not None:
            check_option("precision", word, ("double", "single"))
        if word == "single" or (word is None and not fast_double(device)):
            return cls(torch.float32)
        return cls(WIDE)

    @property
    def word(self) -> Words:
        """The word for it."""
        return "double" if self.products == WIDE else "single"

    @property
    def epsilon(self) -> float:
        """Relative rounding of one product."""
        return torch.finfo(self.products).eps

    def operand(self, x: Tensor) -> Tensor:
        """A tensor as it is multiplied: in float64 where ``wide`` puts it, or in float32 where it is.

        Example:
            >>> Precision.of("single", torch.device("cpu")).operand(torch.ones(1).double())
            tensor([1.])
        """
        return wide(x) if self.products == WIDE else x.to(self.products)


DOUBLE = Precision()
"""Products in float64."""


def has_double(device: torch.device) -> bool:
    """Whether a device has float64 at all."""
    return device.type not in WITHOUT_DOUBLE


def fast_double(device: torch.device) -> bool:
    """Whether float64 is not much slower than float32: on CPUs and on GPUs of data centres."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) in DATA_CENTRE
    return has_double(device)


def wide_device(device: torch.device) -> torch.device:
    """Where tensors of float64 are kept for a device: there, or on the CPU where it has none."""
    return device if has_double(device) else HOST


def wide(x: Tensor, *, copy: bool = False) -> Tensor:
    """A tensor in float64, on its device or, where that has none, on the CPU; itself where it is.

    Args:
        x: The tensor.
        copy: Whether it is a copy also where it is float64 already, to be written to.

    Example:
        >>> wide(torch.ones(1))
        tensor([1.], dtype=torch.float64)
    """
    return x.to(wide_device(x.device), WIDE, copy=copy)


def at_least_single(x: Tensor) -> Tensor:
    """A tensor in float32 where it has fewer digits, itself otherwise.

    Example:
        >>> at_least_single(torch.ones(1, dtype=torch.bfloat16)).dtype, at_least_single(torch.ones(1).double()).dtype
        (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def moved(x: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on a device; one of float64 on the CPU, where the device has none."""
    place = torch.device(device)
    return x.to(wide_device(place) if x.dtype == WIDE else place)


def wide_like(like: Tensor | torch.device) -> dict[str, Any]:
    """The options with which a tensor beside the wide form of another is made, or for one on a device.

    Example:
        >>> torch.zeros(2, **wide_like(torch.ones(1)))
        tensor([0., 0.], dtype=torch.float64)
    """
    device = like.device if isinstance(like, Tensor) else like
    return {"device": wide_device(device), "dtype": WIDE}


@contextmanager
def without_tf32() -> Generator[None]:
    """Products of float32 with all of its digits, whatever the user chose for those of the network.

    Example:
        >>> with without_tf32():
        ...     product = torch.ones(2, 2) @ torch.ones(2, 2)
    """
    known = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    backends: list[Any] = [each for each in known if hasattr(each, "fp32_precision")]
    if not backends:  # before PyTorch 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    chosen = [each.fp32_precision for each in backends]
    try:
        for each in backends:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, before in zip(backends, chosen, strict=True):
            each.fp32_precision = before
