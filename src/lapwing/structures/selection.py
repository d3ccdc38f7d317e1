"""Which weights are uncertain; the rest stay fixed at their trained values."""

from __future__ import annotations

import abc
import fnmatch
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.kinds import GGN
from lapwing.curvature.sweep import sweep
from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, ShapeError, check_count, check_kind, check_option
from lapwing.jacobian.checks import examples_apart
from lapwing.jacobian.layers.capture import MOVES, captured, history, leaves, origin
from lapwing.jacobian.network.network import Network, differentiable
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.survey import probe, surveyed
from lapwing.likelihoods import Likelihood
from lapwing.priors import Prior

logger = logging.getLogger(__name__)

WRITES = ("torch::autograd::CopySlices", "SliceScatter")
"""What autograd records where a part of the outputs is written over in place, such as a logit that is masked."""

PAIRED = ("ViewAsReal", "ViewAsComplex")
"""What it records where outputs are paired to complex numbers, and back."""

By: TypeAlias = Literal["variance", "magnitude", "random"]
"""What makes a weight important."""


class Selection(abc.ABC):
    """Which weights are uncertain."""

    @abc.abstractmethod
    def choose(
        self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior, output: Output = None
    ) -> Network:
        """The network with these weights uncertain.

        Args:
            module: The network, out of its wrappers.
            data: The training data.
            likelihood: p(y | f).
            prior: p(θ).
            output: Which part of what the network returns is the output that the likelihood speaks of.
        """


@final
@dataclass(frozen=True)
class All(Selection):
    """Every parameter that requires a gradient.

    Example:
        >>> import lapwing as lw
        >>> lw.Laplace(lw.Categorical(), weights=All()).weights
        All()
    """

    def choose(
        self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior, output: Output = None
    ) -> Network:
        """See ``Selection.choose``."""
        return Network.of(module, output)


@final
@dataclass(frozen=True)
class LastLayer(Selection):
    """The weight and bias of the layer that makes the outputs: one forward pass through the rest is all it costs.

    A weight that is tied to another, such as a language model's head to its embedding, is uncertain as the head alone:
    it goes by the head's name, and its use as an embedding is not differentiated.

    Args:
        name: Name of the module, such as ``"classifier"``; ``None`` finds it by following the outputs back.

    Raises:
        ConfigError: If there is no such module, or the outputs do not come from one linear layer.

    Example:
        >>> import lapwing as lw
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), weights=LastLayer()).fit(model, (x, y)).network.names
        ('2.weight', '2.bias')
    """

    name: str | None = None

    def choose(
        self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior, output: Output = None
    ) -> Network:
        """See ``Selection.choose``."""
        own_name = own_names(module)
        if self.name is None:
            whole = Network(module, tuple(dict.fromkeys(own_name.values())), output=output)
            head = whole.with_uncertain(last_layer(whole, data))
            return next(untied(head, own_name, data), head)
        names = tuple(name for name in own_name if name.rpartition(".")[0] == self.name)
        if not names:
            owners = sorted({name.rpartition(".")[0] for name in own_name})
            raise ConfigError("the name of a module with parameters", repr(self.name), f"one of {owners}")
        return Network(module, names, output=output)


@final
@dataclass(frozen=True)
class Names(Selection):
    """Parameters whose names match a pattern, such as ``"layer4.*"`` or ``"*.bias"``, whether or not they are frozen.

    Frozen ones that the outputs do not depend on, such as the original beside the copy that an adapter trains, are left
    out, which is logged.

    Args:
        patterns: One shell-style pattern, or several; a parameter is uncertain if it matches any.

    Raises:
        ConfigError: If none matches, or the outputs depend on none that does.

    Example:
        >>> Names("layer4.*") == Names(("layer4.*",))
        True
    """

    patterns: str | tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            object.__setattr__(self, "patterns", (self.patterns,))

    def choose(
        self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior, output: Output = None
    ) -> Network:
        """See ``Selection.choose``."""
        own_name = own_names(module)
        matching = {own for name, own in own_name.items() if any(fnmatch.fnmatchcase(name, p) for p in self.patterns)}
        names = tuple(name for name in own_name if name in matching)
        if not names:
            raise ConfigError(
                f"patterns that match one of {len(own_name)} parameters",
                f"{self.patterns}",
                f"names such as {list(own_name)[:5]}",
            )
        network = Network(module, names, output=output)
        params = dict(module.named_parameters())
        if all(params[name].requires_grad for name in names):
            return network
        used = reached(network, data)
        idle = [name for name in names if name not in used and not params[name].requires_grad]
        if idle:
            logger.info("left out, frozen and without a part in the outputs: %s", ", ".join(idle))
        if len(idle) == len(names):
            raise ConfigError(
                "parameters that the outputs depend on", f"{idle[:5]}, which have no part in them", "other patterns"
            )
        return network.with_uncertain(tuple(name for name in names if name not in idle))


@final
@dataclass(frozen=True)
class Subnetwork(Selection):
    """Single weights, the most important ones: a full covariance on them costs little (Daxberger et al. 2021b).

    Args:
        count: How many weights.
        by: ``"variance"`` takes those with the largest marginal variance under the diagonal posterior, which minimises
            the Wasserstein distance to the full posterior; ``"magnitude"`` the largest in absolute value; ``"random"``
            a uniform draw.
        seed: Seed of the draw.

    Raises:
        ConfigError: If the network has fewer weights than ``count``, or ``by`` is none of these.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), weights=Subnetwork(4)).fit(model, (x, y)).sample(5).shape
        torch.Size([5, 4])
    """

    count: int
    by: By = "variance"
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("by", self.by, get_args(By))
        check_count("count", self.count)
        check_count("seed", self.seed, 0)

    def choose(
        self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior, output: Output = None
    ) -> Network:
        """See ``Selection.choose``."""
        network = Network.of(module, output)
        if self.count > network.size:
            raise ConfigError(f"a count from 1 to {network.size} weights", f"{self.count}", "All() for all of them")
        if self.by == "random":
            generator = torch.Generator().manual_seed(self.seed)
            index = torch.randperm(network.size, generator=generator)[: self.count]
        elif self.by == "magnitude":
            index = network.weights.abs().topk(self.count).indices
        else:
            total = DiagonalSum(network)
            sweep(surveyed(network, likelihood, data), GGN(), total)
            precision = total.result().operator.diagonal() + prior.diagonal(network.layout, network.like)
            index = precision.topk(self.count, largest=False).indices
        mask = torch.zeros(network.size, dtype=torch.bool, device=network.like.device)
        mask[index] = True
        return masked(network, mask)


@final
@dataclass(frozen=True, eq=False)
class Mask(Selection):
    """Single weights marked by hand.

    Args:
        mask: True where a weight is uncertain, one flat vector in the order of the parameters that require a gradient.

    Raises:
        ConfigError: If it is no tensor.
        ShapeError: If it has not one entry a weight.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = nn.Linear(1, 2, bias=False), torch.randn(9, 1), torch.arange(9) % 2
        >>> recipe = lw.Laplace(lw.Categorical(), weights=Mask(torch.tensor([True, False])))
        >>> recipe.fit(model, (x, y)).network.size
        1
    """

    mask: Bool[Tensor, " d"]

    @classmethod
    def of_largest(cls, values: Float[Tensor, " d"], count: int) -> Mask:
        """The weights for which some number is largest, such as their variances along SWAG's path of training.

        The largest variances are those whose subnetwork is the nearest in Wasserstein distance to independent weights
        with all of them (Daxberger et al. 2021b, section 4). ``Subnetwork`` takes those of the diagonal posterior.

        Args:
            values: One number a weight, in the order of the parameters that require a gradient.
            count: How many weights.

        Raises:
            ConfigError: If there are fewer.
            DataError: If a number is not finite.

        Example:
            >>> Mask.of_largest(torch.tensor([0.1, 3.0, 2.0]), 2).mask.tolist()
            [False, True, True]
        """
        check_count("count", count)
        if values.ndim != 1 or count > len(values):
            raise ConfigError(f"a vector of {count} numbers or more", f"{list(values.shape)}", "variances.flatten()")
        check_finite(values, "numbers of the weights", "variances of a path that did not run away")
        mask = torch.zeros(len(values), dtype=torch.bool, device=values.device)
        mask[values.topk(count).indices] = True
        return cls(mask)

    def __post_init__(self) -> None:
        check_kind("mask", self.mask, (Tensor,), "torch.tensor([True, False, ...])")

    def choose(
        self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior, output: Output = None
    ) -> Network:
        """See ``Selection.choose``."""
        network = Network.of(module, output)
        if self.mask.shape != (network.size,) or self.mask.dtype != torch.bool:
            raise ShapeError(
                f"a boolean mask [{network.size}]",
                f"{self.mask.dtype} {list(self.mask.shape)}",
                "one entry for each weight that requires a gradient",
            )
        return masked(network, self.mask.to(network.like.device))


def masked(network: Network, mask: Bool[Tensor, " d"]) -> Network:
    """The network in which only the marked weights are uncertain; parameters without any are dropped.

    Raises:
        ConfigError: If there are none.
    """
    marked = {name: mask[place] for name, place in network.layout.slices.items() if bool(mask[place].any())}
    return network.with_uncertain(tuple(marked), torch.cat([mask[:0], *marked.values()]).nonzero().squeeze(1))


def own_names(module: nn.Module) -> dict[str, str]:
    """Every name of every parameter, with the first of its names, by which it goes: tied weights have several.

    Whole numbers, such as weights in 8 bits, are left out: they have no derivative.

    Example:
        >>> pair = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        >>> pair[1].weight = pair[0].weight
        >>> own_names(pair)
        {'0.weight': '0.weight', '1.weight': '0.weight'}
    """
    first = {id(value): name for name, value in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(value)] for name, value in every if differentiable(value)}


def untied(head: Network, own_name: dict[str, str], data: Data) -> Iterator[Network]:
    """The network with the parameters of its last layer uncertain by a name that they have nowhere else."""
    for name, own in own_name.items():
        if name != own and own in head.names:
            network = head.with_uncertain(tuple(name if each == own else each for each in head.names))
            with suppress(ConfigError):
                last_layer(network, data)
                yield network


def reached(network: Network, data: Data) -> set[str]:
    """Uncertain parameters that the outputs of the first batch depend on."""
    watched = leaves(network)
    outputs, _ = captured(network, data.first(), watched)
    ends = {id(getattr(node, "variable", None)) for node in history(outputs)}
    return {name for name, value in watched.items() if id(value) in ends}


def last_layer(network: Network, data: Data) -> tuple[str, ...]:
    """Parameters of the linear layer whose output is the network's, moved about at most, or written over in part.

    Raises:
        ConfigError: If there is none.
    """
    inputs = data.first()
    with examples_apart(network, inputs):
        outputs, calls = captured(network, probe(inputs, 2), leaves(network))
    edges = {call.edge.node: call for call in calls if call.kind.affine}
    moves = {*MOVES, *WRITES, *PAIRED}
    moves -= {"Add", "ToCopy"}  # what is added may be a frozen layer; a cast is refused later
    node = origin(outputs, edges, moves)
    if node not in edges:
        raise ConfigError(
            "outputs that come straight from a linear layer",
            f"outputs made by {'no watched layer' if node is None else node.name()}",
            "LastLayer('name of the module')",
        )
    call = edges[node]
    return tuple(name for name in network.names if name in (call.weight, call.bias))
