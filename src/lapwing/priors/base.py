"""What every zero-mean Gaussian prior over the weights answers."""

from __future__ import annotations

import abc
import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import ConfigError, ShapeError, precisions_of, shortly
from lapwing.ground.layout import Layout
from lapwing.ground.moving import Mover
from lapwing.ground.precision import wide
from lapwing.linalg.operators.diagonal import Diagonal

P = TypeVar("P", bound="Prior")


@dataclass(frozen=True, eq=False, repr=False)
class Prior(abc.ABC):
    """p(θ) = N(0, A⁻¹) with a diagonal precision A that takes one value on each group of weights.

    Whoever chooses precisions sees every prior alike: ``groups`` says which weights share one,
    ``precisions`` lists them, ``with_precisions`` makes the prior that has others.

    Args:
        precision: Of all weights, or one a group, in 1 / (units of a weight)².
    """

    precision: float | tuple[float, ...] | Tensor = 1.0

    @abc.abstractmethod
    def __post_init__(self) -> None:
        """Refuse precisions that are not positive finite numbers."""

    def __repr__(self) -> str:
        """Its choices, numbers to six digits."""
        choices = [f"{each.name}={shortly(getattr(self, each.name))}" for each in fields(self) if each.repr]
        return f"{type(self).__name__}({', '.join(choices)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prior) or type(self) is not type(other):
            return NotImplemented
        return all(equal_options(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __hash__(self) -> int:
        values = [getattr(self, each.name) for each in fields(self)]
        return hash((type(self).__name__, *(value for value in values if not isinstance(value, Tensor))))

    def moved_by(self, mover: Mover) -> Prior:
        """See ``Movable``: a prior stays on the CPU, and is asked for its precisions on any device."""
        return self

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Group number of each weight, ``[d]`` on the CPU, and the number of groups; here one of all weights.

        Args:
            layout: Names and shapes of the weights.
        """
        return torch.zeros((), dtype=torch.long, device="cpu").expand(layout.size), 1

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """Precision of each group, ``[g]`` float64 on the CPU.

        Args:
            layout: Names and shapes of the weights.

        Raises:
            ShapeError: If this prior has another number of precisions than the layout has groups.
        """
        values = torch.as_tensor(self.precision, dtype=torch.float64, device="cpu")
        groups = self.groups(layout)[1]
        if values.ndim == 0:
            return values.repeat(groups)
        check_length(values, groups, f"one precision for each of {groups} {self.grouped}")
        return values

    def with_precisions(self: P, precisions: Float[Tensor, " g"]) -> P:
        """The same kind of prior with these precisions ``[g]``, one a group.

        Raises:
            ConfigError: If one is not a positive finite number, or there are several where all weights share one.
        """
        return replace(self, precision=checked_one(precisions, f"{type(self).__name__}(1.0)"))

    @property
    def grouped(self) -> str:
        """What has a precision, in words."""
        return "weights"

    def check_names(self, names: Collection[str]) -> None:
        """Refuse names of parameters that the network has not.

        Args:
            names: Names of all its parameters.

        Raises:
            ConfigError: Naming one.
        """
        return

    def relative(self, layout: Layout) -> Float[Tensor, " d"] | None:
        """Precision of each weight relative to that of its group, float64 on the CPU; ``None`` where all have it.

        Args:
            layout: Names and shapes of the weights.
        """
        return None

    def split_off(self, names: Collection[str], layout: Layout) -> Prior | None:
        """The same prior, in which the weights of some parameters share no precision with others.

        Args:
            names: Of the parameters.
            layout: Names and shapes of the weights.

        Returns:
            ``None`` where this kind of prior cannot be.
        """
        return None

    def shares(self, other: Prior, layout: Layout) -> bool:
        """Whether another prior differs in nothing but its precisions.

        Args:
            other: The other prior.
            layout: Names and shapes of the weights.
        """
        (group, groups) = self.groups(layout)
        (theirs, many) = other.groups(layout)
        alike = groups == many and torch.equal(group, theirs)
        return alike and equal_options(self.relative(layout), other.relative(layout))

    def square_norms(self, vector: Float[Tensor, " d"], layout: Layout) -> Float[Tensor, " g"]:
        """``|θ_g|²`` of each group, in which every weight counts by its relative precision; float64.

        Args:
            vector: Weights θ.
            layout: Their names and shapes.
        """
        index, groups = self.groups(layout)
        squares = wide(vector).square()
        relative = self.relative(layout)
        squares = squares if relative is None else squares * relative.to(squares)
        return squares.new_zeros(groups).index_add(0, index.to(squares.device), squares)

    def diagonal(self, layout: Layout, like: Tensor) -> Float[Tensor, " d"]:
        """Diagonal of A, the precision of each weight ``[d]``.

        Args:
            layout: Names and shapes of the weights.
            like: Tensor whose device and dtype the result takes.
        """
        index, _ = self.groups(layout)
        values = self.precisions(layout)
        relative = self.relative(layout)
        if relative is None:
            return values.to(like)[index.to(like.device)]
        return (values[index] * relative).to(like)

    def operator(self, layout: Layout, like: Tensor) -> Diagonal:
        """The precision A as an operator; arguments as in ``diagonal``."""
        return Diagonal(self.diagonal(layout, like))

    def log_density(self, vector: Float[Tensor, " d"], layout: Layout) -> Float[Tensor, ""]:
        """The log density log N(θ; 0, A⁻¹) = ½ Σ_i log(A_ii / 2π) - A_ii θ_i², in nats.

        Args:
            vector: Weights θ, ``[d]``.
            layout: Their names and shapes.

        Returns:
            A scalar, differentiable in θ.

        Raises:
            ShapeError: If there are not ``d`` weights.

        Example:
            >>> from lapwing.priors import Isotropic
            >>> Isotropic(2 * math.pi).log_density(torch.zeros(3), Layout(("w",), ((3,),)))
            tensor(0.)
        """
        if vector.shape != (layout.size,):
            raise ShapeError(f"a flat vector [{layout.size}]", f"shape {list(vector.shape)}", "layout.flatten(params)")
        diagonal = self.diagonal(layout, torch.zeros((), dtype=torch.float64, device="cpu"))
        constant = 0.5 * torch.log(diagonal / (2 * math.pi)).sum()
        return constant.to(vector) - 0.5 * (diagonal.to(vector) * vector.square()).sum()


def checked_one(precision: object, hint: str) -> float:
    """The one precision of all weights.

    Raises:
        ConfigError: If it is not one positive finite number.
    """
    values = precisions_of("prior", precision, hint)
    if values.numel() != 1:
        raise ConfigError("one prior precision for all weights", f"{values.numel()} of them", f"{hint}, or Layerwise()")
    return float(values)


def check_length(values: Tensor, groups: int, expected: str) -> None:
    """Refuse another number of precisions than there are groups.

    Raises:
        ShapeError: If it is another.
    """
    if tuple(values.shape) != (groups,):
        raise ShapeError(expected, f"{list(values.shape)}", "a single number, which fits every layout")


def equal_options(a: object, b: object) -> bool:
    """Whether two options are equal, tensors by their numbers."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b
