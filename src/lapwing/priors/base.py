"""What every Gaussian prior over the weights answers."""

from __future__ import annotations

import abc
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lapwing.ground.data.checks import check_finite
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError, precisions_of, shortly
from lapwing.ground.layout import Layout, Params
from lapwing.ground.moving import Mover
from lapwing.ground.precision import wide
from lapwing.linalg.operators.base import Structured
from lapwing.linalg.operators.diagonal import Diagonal

P = TypeVar("P", bound="Prior")


@dataclass(frozen=True, eq=False, repr=False)
class Prior(abc.ABC):
    """p(θ) = N(μ, (A + G₀)⁻¹) with a diagonal precision A that takes one value on each group of weights.

    Whoever chooses precisions sees every prior alike: ``groups`` says which weights share one,
    ``precisions`` lists them, ``with_precisions`` makes the prior that has others. The mean μ and what earlier data
    said, G₀, are most often 0; ``Posterior.as_prior`` makes a prior that has both.

    Args:
        precision: Of all weights, or one a group, in 1 / (units of a weight)².
        mean: μ by parameter, such as ``dict(model.named_parameters())``; of all that are uncertain. ``None`` for 0.
        earlier: G₀, the curvature of data that were seen before; ``None`` for 0. Tuning changes A beside it.
    """

    precision: float | tuple[float, ...] | Tensor = 1.0
    mean: Mapping[str, Tensor] | None = field(default=None, kw_only=True, repr=False)
    earlier: Structured | None = field(default=None, kw_only=True, repr=False)

    @abc.abstractmethod
    def __post_init__(self) -> None:
        """Refuse precisions that are not positive finite numbers, and a mean that is not finite."""
        if self.mean is None:
            return
        if not isinstance(self.mean, Mapping) or not all(isinstance(value, Tensor) for value in self.mean.values()):
            got = f"{type(self.mean).__name__}"
            raise ConfigError("a mean by parameter", got, "mean=dict(model.named_parameters())")
        mean = {name: value.detach().clone() for name, value in self.mean.items()}
        for name, value in mean.items():
            check_finite(value, f"the prior mean of {name!r}", "the weights of a checkpoint before that")
        object.__setattr__(self, "mean", mean)

    def __repr__(self) -> str:
        """Its choices, numbers to six digits."""
        choices = [f"{each.name}={shortly(getattr(self, each.name))}" for each in fields(self) if each.repr]
        if self.mean is not None:
            choices.append(f"mean of {len(self.mean)} parameters")
        if self.earlier is not None:
            choices.append(f"earlier {self.earlier}")
        return f"{type(self).__name__}({', '.join(choices)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prior) or type(self) is not type(other):
            return NotImplemented
        return all(equal_options(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __hash__(self) -> int:
        values = [getattr(self, each.name) for each in fields(self)]
        plain = [value for value in values if not isinstance(value, Tensor | Mapping)]
        return hash((type(self).__name__, *plain))

    def moved_by(self, mover: Mover) -> Prior:
        """See ``Movable``: precisions stay on the CPU, and are asked for on any device; a mean goes along."""
        if self.mean is None and self.earlier is None:
            return self
        return replace(self, mean=mover(self.mean), earlier=mover(self.earlier))

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
        for name in self.mean or ():
            if name not in names:
                near = get_close_matches(name, names, 3) or sorted(names)[:5]
                raise ConfigError(f"a mean of the network's {len(names)} parameters", f"{name!r}", f"one of {near}")

    def check_layout(self, layout: Layout) -> None:
        """Refuse weights of another number than precisions, mean and earlier curvature are for.

        Args:
            layout: Names and shapes of the uncertain weights.

        Raises:
            ShapeError: If it is another.
        """
        self.precisions(layout)
        self.mean_of(layout, torch.zeros((), device="cpu"))
        if self.earlier is not None and self.earlier.shape[0] != layout.size:
            raise ShapeError(
                f"an earlier curvature of {layout.size} weights", f"{self.earlier!r}", "as_prior() of the same weights"
            )

    def check_centred(self, who: str) -> None:
        """Refuse a mean, or earlier data, where they are not known.

        Args:
            who: Does not know them.

        Raises:
            UnsupportedError: If there is one.
        """
        if self.mean is not None or self.earlier is not None:
            raise UnsupportedError(
                f"a prior with mean 0 for {who}", f"{self}", "EvidenceGradient(), MacKay() or held-out data to tune"
            )

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
        alike = groups == many and torch.equal(group, theirs) and self.earlier is other.earlier
        centred_alike = self.mean is other.mean or equal_options(self.mean, other.mean)
        return alike and centred_alike and equal_options(self.relative(layout), other.relative(layout))

    def mean_of(self, layout: Layout, like: Tensor) -> Float[Tensor, " d"] | None:
        """μ as a vector; ``None`` for 0.

        Args:
            layout: Names and shapes of the weights.
            like: Tensor whose device and dtype the result takes.

        Raises:
            ShapeError: If there is none of a parameter, or one of another size.
        """
        if self.mean is None:
            return None
        for name, size in zip(layout.names, layout.sizes, strict=True):
            if name not in self.mean or self.mean[name].numel() != size:
                got = f"{list(self.mean[name].shape)}" if name in self.mean else f"one of {list(self.mean)[:5]}"
                raise ShapeError(f"a prior mean for the {size} weights of {name!r}", got, "as_prior() of these weights")
        return layout.flatten({name: self.mean[name].to(like) for name in layout.names})

    def deviation(self, vector: Float[Tensor, " d"], layout: Layout) -> Float[Tensor, " d"]:
        """``θ - μ``, differentiable in θ.

        Args:
            vector: Weights θ.
            layout: Their names and shapes.
        """
        mean = self.mean_of(layout, vector.detach())
        return vector if mean is None else vector - mean

    def earlier_gradient(self, vector: Float[Tensor, " d"], layout: Layout) -> Float[Tensor, " d"] | None:
        """``G₀ (θ - μ)``, by which earlier data pull the weights back; ``None`` where there are none.

        Args:
            vector: Weights θ.
            layout: Their names and shapes.
        """
        if self.earlier is None:
            return None
        earlier: Structured = Mover(vector.device)(self.earlier)
        deviation = self.deviation(vector, layout)
        return (earlier @ deviation.to(earlier.dtype)).to(vector)

    def energy(self, vector: Float[Tensor, " d"], layout: Layout) -> Float[Tensor, ""]:
        """``½ (θ - μ)ᵀ (A + G₀) (θ - μ)``, nats, float64, differentiable in θ.

        Args:
            vector: Weights θ.
            layout: Their names and shapes.
        """
        norms = self.square_norms(vector, layout)
        own = 0.5 * (self.precisions(layout).to(norms) * norms).sum()
        pull = self.earlier_gradient(wide(vector), layout)
        if pull is None:
            return own
        return own + 0.5 * (self.deviation(wide(vector), layout) * pull).sum()

    def penalty(self, module: nn.Module) -> Float[Tensor, ""]:
        """What the prior charges for the weights of a network, to be added to the loss it is trained with.

            ½ (θ - μ)ᵀ (A + G₀) (θ - μ)

        which is ``-log p(θ)`` but for a constant. Beside the *sum* of the losses of all examples it gives the maximum
        of likelihood × prior; beside their mean over n examples, divide it by n. With ``posterior.as_prior()`` what
        was learned of earlier data is not forgotten (Kirkpatrick et al. 2017; Ritter et al. 2018, arXiv:1805.07810).

        Args:
            module: The network: all its parameters that have a mean here; without any, those that require a gradient.

        Returns:
            A scalar, nats, with its graph to the weights.

        Raises:
            ShapeError: If the prior is for other weights.

        Cost:
            A product with G₀.

        Example:
            >>> import lapwing as lw
            >>> model = nn.Linear(2, 1, bias=False)
            >>> model.weight.data = torch.ones(1, 2)
            >>> prior = lw.Isotropic(2.0, mean={"weight": torch.zeros(1, 2)})
            >>> prior.penalty(model).item()
            2.0
        """
        named: Params = dict(module.named_parameters())
        if self.mean is None:
            names = [name for name, value in named.items() if value.requires_grad]
        else:
            self.check_names(named)
            names = [name for name in named if name in self.mean]
        params = {name: named[name] for name in names}
        layout = Layout.of(params)
        self.check_layout(layout)
        return self.energy(layout.flatten(params), layout)

    def square_norms(self, vector: Float[Tensor, " d"], layout: Layout) -> Float[Tensor, " g"]:
        """``|θ_g - μ_g|²`` of each group, in which every weight counts by its relative precision; float64.

        Args:
            vector: Weights θ.
            layout: Their names and shapes.
        """
        index, groups = self.groups(layout)
        squares = self.deviation(wide(vector), layout).square()
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
        """The log density log N(θ; μ, (A + G₀)⁻¹), in nats; without G₀ ``½ Σ_i log(A_ii / 2π) - A_ii (θ_i - μ_i)²``.

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
        log_det = diagonal.log().sum()
        if self.earlier is not None:
            log_det = self.earlier.plus_diagonal(diagonal.to(self.earlier.device, self.earlier.dtype)).logdet()
        constant = 0.5 * (log_det - layout.size * math.log(2 * math.pi))
        return (constant.to(vector.device) - self.energy(vector, layout)).to(vector)


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
    """Whether two options are equal, tensors by their numbers, curvatures by being one."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(equal_options(a[name], b[name]) for name in a)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b
