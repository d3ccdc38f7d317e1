"""Priors with several numbers: one a layer or part, one a weight, or what the data say about the scale of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, check_count, check_fraction, precisions_of
from lapwing.ground.layout import Layout
from lapwing.priors.base import Prior, check_length, checked_one


@final
@dataclass(frozen=True, eq=False)
class Layerwise(Prior):
    """One precision a layer, in the order of ``Layout.layers``, or one for each part of the network that you name.

    Args:
        precision: One number for every part, or one a part, in 1 / (units of a weight)².
        parts: Names of the parameters in each part; all parameters that are in none share the last precision.
            ``None`` takes the layers. ``normalised`` finds the parts whose scale has no effect.

    Raises:
        ConfigError: If a precision is not a positive finite number, or a parameter is in two parts.

    Example:
        >>> layout = Layout(("fc.weight", "fc.bias", "out.weight"), ((2,), (1,), (2,)))
        >>> Layerwise((1.0, 4.0)).diagonal(layout, torch.zeros(1))
        tensor([1., 1., 1., 4., 4.])
        >>> Layerwise((1.0, 4.0), parts=(("fc.weight",),)).diagonal(layout, torch.zeros(1))
        tensor([1., 1., 4., 4., 4.])
    """

    precision: float | tuple[float, ...] = 1.0
    parts: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        values = precisions_of("prior", self.precision, "Layerwise(1.0)").tolist()
        object.__setattr__(self, "precision", tuple(values) if isinstance(values, list) else values)
        if self.parts is None:
            return
        given: Any = self.parts
        if isinstance(given, str) or any(isinstance(part, str) for part in given):
            raise ConfigError("parts that are lists of names", f"{given!r:.60}", "parts=(('0.weight', '0.bias'),)")
        object.__setattr__(self, "parts", tuple(tuple(part) for part in given))
        names = [name for part in given for name in part]
        if len(set(names)) < len(names) or not (given and all(given)):
            raise ConfigError("parts that are not empty and share no parameter", f"{given}", "each name once")

    def check_names(self, names: Collection[str]) -> None:
        """See ``Prior.check_names``."""
        for name in (name for part in self.parts or () for name in part):
            if name not in names:
                near = get_close_matches(name, names, 3) or sorted(names)[:5]
                raise ConfigError(f"parts of the network's {len(names)} parameters", f"{name!r}", f"one of {near}")

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Weights grouped by part; see ``Prior.groups``. Parts that have no uncertain weight are left out."""
        if self.parts is None:
            return layout.layer_index, len(layout.layers)
        named = {name: number for number, part in enumerate(self.parts) for name in part}
        numbers = [named.get(name, len(self.parts)) for name in layout.names]
        present = {number: place for place, number in enumerate(sorted(set(numbers)))}
        places = torch.tensor([present[number] for number in numbers], device="cpu")
        return places.repeat_interleave(torch.tensor(layout.sizes, device="cpu")), len(present)

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> Layerwise:
        """The prior with these precisions, one a part; see ``Prior.with_precisions``."""
        return replace(self, precision=tuple(precisions.tolist()))

    @property
    def grouped(self) -> str:
        """See ``Prior.grouped``."""
        return "layers" if self.parts is None else "parts"


@final
@dataclass(frozen=True, eq=False)
class DiagonalPrior(Prior):
    """One precision a weight.

    Args:
        precision: One number for every weight, or one a weight ``[d]``, in 1 / (units of a weight)²; kept as
            float64 on the CPU. Two such priors are equal when their numbers are.

    Raises:
        ConfigError: If one is not a positive finite number.

    Example:
        >>> DiagonalPrior(torch.tensor([1.0, 4.0])) == DiagonalPrior(torch.tensor([1.0, 4.0]))
        True
    """

    precision: float | Float[Tensor, " d"] = 1.0

    def __post_init__(self) -> None:
        values = precisions_of("prior", self.precision, "DiagonalPrior(1.0)")
        object.__setattr__(self, "precision", values if values.ndim else float(values))

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Every weight a group of its own; see ``Prior.groups``."""
        return torch.arange(layout.size, device="cpu"), layout.size

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> DiagonalPrior:
        """The prior with these precisions, one a weight; see ``Prior.with_precisions``."""
        return replace(self, precision=precisions)


@final
@dataclass(frozen=True, eq=False)
class GPrior(Prior):
    """The diagonal g-prior ``A = a diag(M)`` with M the generalised Gauss-Newton matrix (Antorán 2024, equation 6.12).

    Weights before a normalisation layer have no scale of their own: this prior takes theirs from the data, so that
    what the posterior predicts does not depend on it, whatever a (proposition 8). It acts as a Jacobi preconditioner.
    Before a fit it says how to find diag(M); ``Laplace.fit`` finds it, and the prior of the posterior holds it.

    Args:
        precision: a, a pure number: the one that tuning changes.
        samples: Draws an example from which diag(M) is estimated, without bias; ``None`` computes it exactly from layer
            factors, with a backward pass for each output. 16 and more: few draws make single scales far too small.
        floor: Entries of diag(M) below this fraction of their parameter's mean (of all weights', where a parameter
            has no curvature at all) are raised to it: the data say nothing about such a weight. Where an input never
            varied in training, its weights are that free: predictions where it does vary are next to ignorant.
        scale: diag(M), where it is known; see ``scaled_by``.

    Raises:
        ConfigError: If a number is not positive and finite.

    Example:
        >>> layout = Layout(("w",), ((3,),))
        >>> GPrior(2.0).scaled_by(torch.tensor([1.0, 5.0, 0.0]), layout).diagonal(layout, torch.zeros(1)).tolist()
        [2.0, 10.0, 3.999999989900971e-06]
    """

    precision: float = 1.0
    samples: int | None = None
    floor: float = 1e-6
    scale: Float[Tensor, " d"] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", checked_one(self.precision, "GPrior(1.0)"))
        check_fraction("floor", self.floor, "GPrior(floor=1e-6)")
        if self.samples is not None:
            check_count("samples", self.samples, usual=16)
        if self.scale is not None:
            scale = precisions_of("prior", self.scale, "GPrior(1.0).scaled_by(diagonal, layout)")
            object.__setattr__(self, "scale", scale)

    def scaled_by(self, diagonal: Float[Tensor, " d"], layout: Layout) -> GPrior:
        """The prior that knows its scale.

        Args:
            diagonal: diag(M).
            layout: Names and shapes of the weights.

        Raises:
            NumericalError: If an entry is negative or not finite, or all are 0.
            ShapeError: If there are not d entries.
        """
        if diagonal.shape != (layout.size,):
            raise ShapeError(f"one entry for each of {layout.size} weights", f"{list(diagonal.shape)}", "diag(M)")
        values = diagonal.detach().to("cpu", torch.float64, copy=True)
        if not bool((values.isfinite() & (values >= 0)).all() and values.any()):
            raise NumericalError(
                "a diagonal of the curvature that is finite, not negative, and not 0 throughout",
                f"entries from {values.min().item():.3g} to {values.max().item():.3g}",
                "checking that the outputs depend on the weights",
            )
        everywhere = float(values.mean())
        for place in layout.slices.values():
            own = float(values[place].mean()) if place.stop > place.start else 0.0
            values[place] = values[place].clamp_min(self.floor * (own or everywhere))
        return replace(self, scale=values)

    def relative(self, layout: Layout) -> Float[Tensor, " d"]:
        """diag(M); see ``Prior.relative``.

        Raises:
            ConfigError: If it is not known yet.
            ShapeError: If it is that of another layout.
        """
        if self.scale is None:
            raise ConfigError(
                "a g-prior that knows the curvature it scales with",
                f"{self}, which was not fitted",
                "Laplace(..., prior=GPrior()).fit(model, data).prior, or GPrior().scaled_by(diagonal, layout)",
            )
        check_length(self.scale, layout.size, f"a g-prior for {layout.size} weights")
        return self.scale
