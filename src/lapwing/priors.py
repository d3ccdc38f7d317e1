"""Zero-mean Gaussian priors over the weights, told apart by how many precisions they have."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.errors import ConfigError, ShapeError
from lapwing.linalg.structured import Diagonal
from lapwing.tree import Layout


@dataclass(frozen=True)
class Prior(abc.ABC):
    """p(θ) = N(0, A⁻¹) with a diagonal precision A that takes one value on each group of weights.

    Whoever chooses precisions sees every prior alike: ``groups`` says which weights share one,
    ``precisions`` lists them, ``with_precisions`` makes the prior that has others.
    """

    @abc.abstractmethod
    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Group number of each weight, ``[d]`` on the CPU, and the number of groups.

        Args:
            layout: Names and shapes of the weights.
        """

    @abc.abstractmethod
    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """Precision of each group, ``[g]`` float64 on the CPU.

        Args:
            layout: Names and shapes of the weights.

        Raises:
            ShapeError: If this prior has another number of precisions than the layout has groups.
        """

    @abc.abstractmethod
    def with_precisions(self, precisions: Float[Tensor, " g"]) -> Prior:
        """The same kind of prior with these precisions ``[g]``, one a group.

        Raises:
            ConfigError: If one is not a positive finite number.
        """

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """What ``prior_from_state`` needs to make this prior again, as JSON knows it."""

    def diagonal(self, layout: Layout, like: Tensor) -> Float[Tensor, " d"]:
        """Diagonal of A, the precision of each weight ``[d]``.

        Args:
            layout: Names and shapes of the weights.
            like: Tensor whose device and dtype the result takes.
        """
        index, _ = self.groups(layout)
        return self.precisions(layout).to(like)[index.to(like.device)]

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
            >>> Isotropic(2 * math.pi).log_density(torch.zeros(3), Layout(("w",), ((3,),)))
            tensor(0.)
        """
        if vector.shape != (layout.size,):
            raise ShapeError(f"a flat vector [{layout.size}]", f"shape {list(vector.shape)}", "layout.flatten(params)")
        index, _ = self.groups(layout)
        precisions = self.precisions(layout)
        constant = 0.5 * torch.log(precisions / (2 * math.pi))[index].sum()
        return constant.to(vector) - 0.5 * (precisions.to(vector)[index.to(vector.device)] * vector.square()).sum()


@final
@dataclass(frozen=True)
class Isotropic(Prior):
    """One precision for all weights, A = λ I.

    Args:
        precision: λ = 1 / prior variance, in 1 / (units of a weight)².

    Raises:
        ConfigError: If it is not a positive finite number.

    Example:
        >>> Isotropic.from_weight_decay(5e-4, n=50_000)
        Isotropic(precision=25.0)
    """

    precision: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", float(_checked(self.precision, "Isotropic(1.0)")))

    @classmethod
    def from_weight_decay(cls, weight_decay: float, n: int) -> Isotropic:
        """The prior that a weight decay stands for: λ = n · weight_decay.

        For a training loss (1/n) Σ_i nll_i + (weight_decay / 2) |θ|², the mean over n examples: its minimum
        is then the maximum of likelihood × prior. ``torch.optim.SGD(weight_decay=)`` adds this gradient.

        Args:
            weight_decay: Coefficient of |θ|² / 2 beside the mean loss; positive.
            n: Number of training examples.

        Raises:
            ConfigError: If either is not positive.
        """
        if not (weight_decay > 0 and math.isfinite(weight_decay) and n > 0):
            raise ConfigError(
                "a positive weight_decay and a positive number of examples n",
                f"weight_decay={weight_decay}, n={n}",
                "Isotropic(1.0) and lapwing.tune for a network trained without weight decay",
            )
        return cls(weight_decay * n)

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """All weights in group 0; see ``Prior.groups``."""
        return torch.zeros(layout.size, dtype=torch.long), 1

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """The one precision; see ``Prior.precisions``."""
        return torch.tensor([self.precision], dtype=torch.float64)

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> Isotropic:
        """The prior with another precision ``[1]``; see ``Prior.with_precisions``."""
        _check_count(precisions, 1, "one precision for all weights")
        return Isotropic(float(precisions))

    def state(self) -> dict[str, Any]:
        """See ``Prior.state``."""
        return {"kind": "Isotropic", "precision": self.precision}


@final
@dataclass(frozen=True)
class Layerwise(Prior):
    """One precision a layer, in the order of ``Layout.layers``.

    Args:
        precision: One number for every layer, or one a layer, in 1 / (units of a weight)².

    Raises:
        ConfigError: If one is not a positive finite number.

    Example:
        >>> layout = Layout(("fc.weight", "fc.bias", "out.weight"), ((2,), (1,), (2,)))
        >>> Layerwise((1.0, 4.0)).diagonal(layout, torch.zeros(1))
        tensor([1., 1., 1., 4., 4.])
    """

    precision: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        values = _checked(self.precision, "Layerwise(1.0)").tolist()
        object.__setattr__(self, "precision", tuple(values) if isinstance(values, list) else values)

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Weights grouped by layer; see ``Prior.groups``."""
        return layout.layer_index, len(layout.layers)

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """One precision a layer; see ``Prior.precisions``."""
        values = torch.tensor(self.precision, dtype=torch.float64)
        return _expanded(values, len(layout.layers), f"one precision for each of {len(layout.layers)} layers")

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> Layerwise:
        """The prior with these precisions, one a layer; see ``Prior.with_precisions``."""
        return Layerwise(tuple(precisions.tolist()))

    def state(self) -> dict[str, Any]:
        """See ``Prior.state``."""
        precision = list(self.precision) if isinstance(self.precision, tuple) else self.precision
        return {"kind": "Layerwise", "precision": precision}


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
        values = _checked(self.precision, "DiagonalPrior(1.0)")
        object.__setattr__(self, "precision", values if values.ndim else float(values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DiagonalPrior):
            return NotImplemented
        return torch.equal(torch.as_tensor(self.precision), torch.as_tensor(other.precision))

    def __hash__(self) -> int:
        return hash(tuple(torch.as_tensor(self.precision).reshape(-1).tolist()))

    def groups(self, layout: Layout) -> tuple[Int[Tensor, " d"], int]:
        """Every weight a group of its own; see ``Prior.groups``."""
        return torch.arange(layout.size), layout.size

    def precisions(self, layout: Layout) -> Float[Tensor, " g"]:
        """One precision a weight; see ``Prior.precisions``."""
        values = torch.as_tensor(self.precision, dtype=torch.float64)
        return _expanded(values, layout.size, f"one precision for each of {layout.size} weights")

    def with_precisions(self, precisions: Float[Tensor, " g"]) -> DiagonalPrior:
        """The prior with these precisions, one a weight; see ``Prior.with_precisions``."""
        return DiagonalPrior(precisions)

    def state(self) -> dict[str, Any]:
        """See ``Prior.state``; d numbers, so keep ``precisions`` as a tensor where d is large."""
        precision = self.precision.tolist() if isinstance(self.precision, Tensor) else self.precision
        return {"kind": "DiagonalPrior", "precision": precision}


def prior_from_state(state: Mapping[str, Any]) -> Prior:
    """The prior that gave a ``state``.

    Args:
        state: What ``Prior.state`` returned, directly or through JSON.

    Raises:
        ConfigError: If it names no prior of this module.

    Example:
        >>> prior_from_state(Layerwise((1.0, 2.0)).state())
        Layerwise(precision=(1.0, 2.0))
    """
    kinds: dict[str, Callable[[Any], Prior]] = {
        "Isotropic": Isotropic,
        "Layerwise": lambda value: Layerwise(tuple(value) if isinstance(value, list) else value),
        "DiagonalPrior": lambda value: DiagonalPrior(
            torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
        ),
    }
    if state.get("kind") not in kinds or "precision" not in state:
        raise ConfigError(f"the state of one of {', '.join(kinds)}", f"{dict(state)}", "prior.state()")
    return kinds[state["kind"]](state["precision"])


def _checked(precision: float | tuple[float, ...] | Tensor, hint: str) -> Tensor:
    values = torch.as_tensor(precision, dtype=torch.float64, device="cpu").detach().clone()
    bad = values[~((values > 0) & torch.isfinite(values))]
    if bad.numel() or not values.numel() or values.ndim > 1:
        what = f"{bad[0].item():g}" if bad.numel() else f"shape {list(values.shape)}"
        raise ConfigError("positive finite prior precisions, one number or a vector", what, hint)
    return values


def _expanded(values: Tensor, groups: int, expected: str) -> Tensor:
    if values.ndim == 0:
        return values.repeat(groups)
    _check_count(values, groups, expected)
    return values


def _check_count(values: Tensor, groups: int, expected: str) -> None:
    if tuple(values.shape) != (groups,):
        raise ShapeError(expected, f"{list(values.shape)}", "a single number, which fits every layout")
