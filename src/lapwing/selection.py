"""Which weights are uncertain; the rest stay fixed at their trained values."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.ggn import GGN
from lapwing.curvature.layers import captured, leaves
from lapwing.curvature.network import Network
from lapwing.curvature.sums import sweep
from lapwing.curvature.survey import find_layers, probe
from lapwing.data import Data
from lapwing.errors import ConfigError, ShapeError, check_count, check_option
from lapwing.likelihoods import Likelihood
from lapwing.priors import Prior

By: TypeAlias = Literal["variance", "magnitude", "random"]
"""What makes a weight important."""


@final
@dataclass(frozen=True)
class All:
    """Every parameter that requires a gradient.

    Example:
        >>> import lapwing as lw
        >>> lw.Laplace(lw.Categorical(), weights=All()).weights
        All()
    """

    def choose(self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior) -> Network:
        """The network with these weights uncertain."""
        return Network.of(module)


@final
@dataclass(frozen=True)
class LastLayer:
    """The weight and bias of the layer that makes the outputs: one forward pass through the rest is all it costs.

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

    def choose(self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior) -> Network:
        """The network with these weights uncertain."""
        everything = dict(module.named_parameters())
        if self.name is None:
            return Network(module, last_layer(Network(module, tuple(everything)), data))
        names = tuple(name for name in everything if name.rpartition(".")[0] == self.name)
        if not names:
            owners = sorted({name.rpartition(".")[0] for name in everything})
            raise ConfigError("the name of a module with parameters", repr(self.name), f"one of {owners}")
        return Network(module, names)


@final
@dataclass(frozen=True)
class Names:
    """Parameters whose names match a pattern, such as ``"layer4.*"`` or ``"*.bias"``.

    Args:
        patterns: One shell-style pattern, or several; a parameter is uncertain if it matches any.

    Raises:
        ConfigError: If none matches.

    Example:
        >>> Names("layer4.*") == Names(("layer4.*",))
        True
    """

    patterns: str | tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            object.__setattr__(self, "patterns", (self.patterns,))

    def choose(self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior) -> Network:
        """The network with these weights uncertain."""
        known = [name for name, _ in module.named_parameters()]
        names = tuple(name for name in known if any(fnmatch.fnmatchcase(name, p) for p in self.patterns))
        if not names:
            raise ConfigError(
                f"patterns that match one of {len(known)} parameters", f"{self.patterns}", f"names such as {known[:5]}"
            )
        return Network(module, names)


@final
@dataclass(frozen=True)
class Subnetwork:
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
        check_count("seed", self.seed, 0)

    def choose(self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior) -> Network:
        """The network with these weights uncertain."""
        network = Network.of(module)
        if not 0 < self.count <= network.size:
            raise ConfigError(f"a count from 1 to {network.size} weights", f"{self.count}", "All() for all of them")
        if self.by == "random":
            generator = torch.Generator().manual_seed(self.seed)
            index = torch.randperm(network.size, generator=generator)[: self.count].to(network.like.device)
        elif self.by == "magnitude":
            index = network.weights.abs().topk(self.count).indices
        else:
            total = DiagonalSum(network)
            sweep(network, find_layers(network, data.first()), data, likelihood, GGN(), total)
            precision = total.result().operator.diagonal() + prior.diagonal(network.layout, network.like)
            index = precision.topk(self.count, largest=False).indices
        return masked(module, network, index)


@final
@dataclass(frozen=True, eq=False)
class Mask:
    """Single weights marked by hand.

    Args:
        mask: True where a weight is uncertain, one flat vector in the order of the parameters that require a gradient.

    Raises:
        ShapeError: If it has not one entry a weight.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = nn.Linear(1, 2, bias=False), torch.randn(9, 1), torch.arange(9) % 2
        >>> recipe = lw.Laplace(lw.Categorical(), weights=Mask(torch.tensor([True, False])))
        >>> recipe.fit(model, (x, y)).network.size
        1
    """

    mask: Bool[Tensor, " d"]

    def choose(self, module: nn.Module, data: Data, likelihood: Likelihood, prior: Prior) -> Network:
        """The network with these weights uncertain."""
        network = Network.of(module)
        if self.mask.shape != (network.size,) or self.mask.dtype != torch.bool:
            raise ShapeError(
                f"a boolean mask [{network.size}]",
                f"{self.mask.dtype} {list(self.mask.shape)}",
                "one entry for each weight that requires a gradient",
            )
        return masked(module, network, self.mask.nonzero().squeeze(1).to(network.like.device))


Selection: TypeAlias = All | LastLayer | Names | Subnetwork | Mask
"""Which weights are uncertain."""


def masked(module: nn.Module, network: Network, index: Int[Tensor, " k"]) -> Network:
    """The network in which only the weights at ``index`` are uncertain; parameters without any are dropped.

    Raises:
        ConfigError: If there are none.
    """
    if not len(index):
        raise ConfigError("at least one uncertain weight", "none", "All() or a wider selection")
    index = index.sort().values
    kept = torch.zeros(network.size, dtype=torch.bool, device=index.device)
    kept[index] = True
    names = tuple(name for name, place in network.layout.slices.items() if bool(kept[place].any()))
    within = torch.cat([kept[network.layout.slices[name]] for name in names])
    return Network(module, names, within.nonzero().squeeze(1))


def last_layer(network: Network, data: Data) -> tuple[str, ...]:
    """Parameters of the linear layer whose output is the network's, up to a change of shape.

    Raises:
        ConfigError: If there is none.
    """
    outputs, calls = captured(network, probe(data.first(), 2), leaves(network))
    node, passed = outputs.grad_fn, []
    edges = {call.edge.node: call for call in calls if call.kind in ("linear", "conv")}
    while node is not None and node not in edges:
        passed.append(node.name())
        following = [parent for parent, _ in node.next_functions if parent is not None]
        reshapes = any(word in node.name() for word in ("View", "Reshape", "Squeeze", "Transpose", "Permute", "Slice"))
        node = following[0] if reshapes and len(following) == 1 else None
    if node is None:
        raise ConfigError(
            "outputs that come straight from a linear layer",
            f"outputs made by {passed[-1] if passed else 'no watched layer'}",
            "LastLayer('name of the module')",
        )
    call = edges[node]
    return tuple(name for name in network.names if name in (call.weight, call.bias))
