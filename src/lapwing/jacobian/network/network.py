"""A trained network as a function of its uncertain weights, as it will be served and as it was found.

The module is in eval mode, alone while it is called, and known to be unchanged since.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Literal, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Inputs, bits, ordinary, over_tensors
from lapwing.ground.errors import ConfigError, MismatchError
from lapwing.ground.layout import Layout, Params, together
from lapwing.ground.moving import Mover
from lapwing.jacobian.network.output import Output, check_output
from lapwing.jacobian.network.serving import ALONE, call, serving
from lapwing.jacobian.network.snapshot import Snapshot


@final
class Network:
    """A module read as ``f(weights, inputs)``, in eval mode, its buffers frozen, the module itself never written to.

    Args:
        module: The trained network; referenced, not copied, but for tensors that were made in inference mode.
        names: Parameters that are uncertain, in the order of ``named_parameters``. A tied weight is meant wherever it
            is used; by another than the first of its names it is meant where it has that name alone.
        index: Positions of the uncertain weights within those parameters' flat vector; ``None`` means all of them.
        output: Which part of what the module returns is its output; see ``output_of``.
        params: Values of the uncertain parameters in place of the module's own, such as tensors with a graph.

    Raises:
        ConfigError: If nothing is left to be uncertain.
        DataError: If a weight is not finite.

    Example:
        >>> network = Network.of(nn.Linear(2, 1))
        >>> network.size, network(torch.zeros(4, 2)).shape
        (3, torch.Size([4, 1]))
    """

    def __init__(
        self,
        module: nn.Module,
        names: tuple[str, ...],
        index: Tensor | None = None,
        output: Output = None,
        params: Params | None = None,
    ) -> None:
        check_output(output)
        with ALONE, torch.inference_mode(False):
            tied = set(names) <= dict(module.named_parameters()).keys()
            known = dict(module.named_parameters(remove_duplicate=tied))
            if not names or (index is not None and not len(index)):
                raise ConfigError("at least one uncertain weight", "none", "All() or a wider selection")
            for name, value in known.items():
                check_finite(value, f"weights in {name!r}", "the checkpoint before that")
            trained = {name: ordinary(value.detach()) for name, value in known.items()}
            self.module = module
            self.names = names
            self.index = index
            self.output: Output = output
            self.tied = tied
            """Whether tied weights stay so: all go by the first of their names."""
            self.params: Params = {name: trained[name] for name in names} if params is None else params
            """Values of the parameters that hold uncertain weights, by name."""
            self.fixed: Params = {name: value for name, value in trained.items() if name not in names}
            """Values of all other parameters."""
            self.buffers: Params = {name: value.detach().clone() for name, value in module.named_buffers()}
            self.snapshot = Snapshot(module)
            self.noted = set[str]()
            """What was said of it in the log, once."""
            self.vectorised: Literal["at once", "by cotangent", "one by one"] | None = None
            """How rows of the Jacobian are made of all examples, once it was looked for."""

    @classmethod
    def of(cls, module: nn.Module, output: Output = None) -> Network:
        """All parameters that require a gradient, uncertain.

        Args:
            module: The trained network.
            output: Which part of what it returns is its output.

        Raises:
            ConfigError: If no parameter requires a gradient.
        """
        with ALONE:
            requires_grad = {name: value.requires_grad for name, value in module.named_parameters() if value.numel()}
        names = tuple(name for name, required in requires_grad.items() if required)
        expected = "a network with at least one parameter that requires a gradient"
        if not requires_grad:
            raise ConfigError(expected, "a network without parameters", "the module that holds the trained weights")
        if not names:
            cure = "weights=LastLayer(), or requires_grad_(True) on what should be uncertain"
            raise ConfigError(expected, "a frozen network", cure)
        return cls(module, names, output=output)

    def with_uncertain(self, names: tuple[str, ...], index: Tensor | None = None) -> Network:
        """The same network with other uncertain weights.

        Args:
            names: Parameters that hold them.
            index: Their positions within those; ``None`` means all.
        """
        return Network(self.module, names, index, self.output)

    @property
    def whole(self) -> Network:
        """The same network with every parameter uncertain that can be, frozen ones too."""
        named = self.module.named_parameters()
        return self.with_uncertain(tuple(name for name, value in named if differentiable(value)))

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of the parameters that hold uncertain weights."""
        return Layout.of(self.params)

    @cached_property
    def uncertain(self) -> Layout:
        """Names of the parameters and how many of their weights are uncertain, in the order of the flat vector."""
        if self.index is None:
            return self.layout
        uncertain = torch.zeros(self.layout.size, dtype=torch.bool)
        uncertain[self.index.cpu()] = True
        counts = {name: int(uncertain[place].sum()) for name, place in self.layout.slices.items()}
        names = tuple(name for name, size in counts.items() if size)
        return Layout(names, tuple((counts[name],) for name in names))

    @property
    def size(self) -> int:
        """Uncertain weights, d."""
        return self.layout.size if self.index is None else self.index.numel()

    @property
    def like(self) -> Tensor:
        """A tensor with the device and dtype of the weights."""
        return self.params[self.names[0]]

    @cached_property
    def padded(self) -> bool:
        """Whether an embedding has a row without a gradient: forward-mode differentiation would give it one."""
        return any(getattr(part, "padding_idx", None) is not None for part in self.module.modules())

    @cached_property
    def weights(self) -> Float[Tensor, " d"]:
        """The trained values of the uncertain weights."""
        self.check_unchanged(whole=True)
        return self.chosen(self.layout.flatten(self.params))

    def with_weights(self, weights: Float[Tensor, " d"]) -> Params:
        """Parameters with the uncertain weights replaced."""
        if self.index is not None:
            weights = self.layout.flatten(self.params).index_copy(0, self.index, weights)
        return self.layout.unflatten(weights)

    def chosen(self, flat: Float[Tensor, "*all"], dim: int = -1) -> Float[Tensor, "*d"]:
        """The uncertain of all weights of the parameters, on some axis."""
        return flat if self.index is None else flat.index_select(dim, self.index.to(flat.device))

    def spread(self, block: Float[Tensor, "d *k"], certain: float = 0.0) -> Float[Tensor, "all *k"]:
        """Values of the uncertain weights among all weights of their parameters, with ``certain`` for the others."""
        if self.index is None:
            return block
        return block.new_full((self.layout.size, *block.shape[1:]), certain).index_copy(
            0, self.index.to(block.device), block
        )

    def part(self, names: tuple[str, ...], flat: Shaped[Tensor, "all *k"]) -> Shaped[Tensor, "part *k"]:
        """Those of all weights that belong to some parameters."""
        return together(flat[self.layout.slices[name]] for name in names)

    def joined(self, parts: Iterable[tuple[tuple[str, ...], Tensor]], dim: int = -1) -> Tensor:
        """What belongs to some parameters, one after the other on an axis, as that of the uncertain weights.

        Args:
            parts: Names of parameters, and what is theirs; together all of them, in any order.
            dim: The axis.
        """
        found: dict[str, Tensor] = {}
        for names, values in parts:
            sizes = [self.params[name].numel() for name in names]
            found.update(zip(names, values.split(sizes, dim), strict=True))
        return self.chosen(torch.cat([found[name] for name in self.names], dim), dim)

    def __call__(self, inputs: Inputs, params: Params | None = None) -> Tensor:
        """Raw outputs of the network for a batch of inputs."""
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        values = {**self.fixed, **buffers, **(self.params if params is None else params)}
        with serving(self.module):
            return call(self.module, values, over_tensors(ordinary, inputs), tied=self.tied, output=self.output)

    def check_unchanged(self, *, whole: bool = False) -> None:
        """Refuses to go on when the module's tensors were written to after they were captured here.

        Args:
            whole: Whether all their bits are looked at, as before they are written to a file; else what ``Snapshot``
                looks at at every call.

        Raises:
            MismatchError: If a parameter or buffer has changed since.
        """
        with ALONE:
            unchanged = self.snapshot.holds(whole=whole)
        if not unchanged:
            raise MismatchError(
                "the network as it was when the posterior was fitted",
                "weights or buffers that were written to since",
                "fitting again, or fitting a copy.deepcopy of the network before training on",
            )

    def moved_by(self, mover: Mover) -> Network:
        """See ``Movable``: a copy of the module on the mover's device.

        Raises:
            MismatchError: If the module was written to since.
        """
        if self.like.device == mover.device and not mover.copy:
            return self
        self.check_unchanged(whole=True)
        with ALONE:
            module = copy.deepcopy(self.module).to(mover.device)
        return Network(module, self.names, mover(self.index), self.output)

    def fingerprint(self) -> str:
        """SHA-256 of all parameters and buffers, names, shapes, dtypes and values included."""
        digest = hashlib.sha256()
        with ALONE:
            tensors = {name: value for name, value in self.module.state_dict().items() if isinstance(value, Tensor)}
        for name, value in sorted(tensors.items()):
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            digest.update(bits(value))
        return digest.hexdigest()

    def __reduce__(self) -> tuple[type[Network], tuple[nn.Module, tuple[str, ...], Tensor | None, Output]]:
        self.check_unchanged(whole=True)
        return (Network, (self.module, self.names, self.index, self.output))


def like_of(module: nn.Module) -> Tensor | None:
    """A parameter whose device and type the inputs take: the first that is no whole number, as 8-bit weights are.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> layer.weight = nn.Parameter(torch.ones(1, 2, dtype=torch.int8), requires_grad=False)
        >>> like_of(layer).dtype
        torch.float32
    """
    return next((value.detach() for value in module.parameters() if differentiable(value)), None)


def differentiable(value: Tensor) -> bool:
    """Whether its type is one that has derivatives."""
    return value.is_floating_point() or value.is_complex()
