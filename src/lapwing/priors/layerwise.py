"""One precision a layer, or one a part of the network."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import ConfigError, precisions_of
from lapwing.ground.layout import Layout
from lapwing.priors.base import Prior


@final
@dataclass(frozen=True, eq=False, repr=False)
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
        super().__post_init__()
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
        super().check_names(names)
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

    def split_off(self, names: Collection[str], layout: Layout) -> Layerwise | None:
        """See ``Prior.split_off``: itself, where it has them in parts of their own."""
        group = self.groups(layout)[0]
        own = set[int]()
        others = set[int]()
        for name in layout.names:
            found = group[layout.slices[name]].unique().tolist()
            (own if name in names else others).update(found)
        return None if own & others else self

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> Layerwise:
        """The prior with these precisions, one a part; see ``Prior.with_precisions``."""
        return replace(self, precision=tuple(precisions.tolist()))

    @property
    def grouped(self) -> str:
        """See ``Prior.grouped``."""
        return "layers" if self.parts is None else "parts"
