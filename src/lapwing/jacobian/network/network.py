"""A trained network as a function of its uncertain weights, evaluated as it will be served."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lapwing.ground.data import Data, Source, Unpack, over_tensors
from lapwing.ground.errors import ConfigError, DataError, MismatchError, check_kind
from lapwing.ground.tree import Layout
from lapwing.ground.types import Inputs, Params
from lapwing.jacobian.network.module import ALONE, call, digest_of, ordinary, serving, state_of, unwrapped


@final
@dataclass(frozen=True, eq=False)
class Network:
    """A module read as ``f(weights, inputs)``, in eval mode, its buffers frozen, the module itself never written to.

    Args:
        module: The trained network; referenced, not copied.
        names: Parameters that are uncertain, in the order of ``named_parameters``.
        index: Positions of the uncertain weights within those parameters' flat vector; ``None`` means all of them.
        noted: What was said of it in the log, once.

    Raises:
        ConfigError: If nothing is left to be uncertain.
        DataError: If a weight is not finite.

    Example:
        >>> network = Network.of(nn.Linear(2, 1))
        >>> network.size, network(torch.zeros(4, 2)).shape
        (3, torch.Size([4, 1]))
    """

    module: nn.Module
    names: tuple[str, ...]
    index: Tensor | None = None
    params: Params = field(init=False, repr=False)
    fixed: Params = field(init=False, repr=False)
    buffers: Params = field(init=False, repr=False)
    state: tuple[int, ...] = field(init=False, repr=False)
    digest: int = field(init=False, repr=False)
    noted: set[str] = field(default_factory=set[str], init=False, repr=False)

    def __post_init__(self) -> None:
        with ALONE:
            self._capture()

    def _capture(self) -> None:
        """Takes the module's tensors as they are now."""
        known = dict(self.module.named_parameters())
        chosen = set(self.names)
        if not self.names or (self.index is not None and not len(self.index)):
            raise ConfigError("at least one uncertain weight", "none", "All() or a wider selection")
        for name, value in known.items():
            if not bool(torch.isfinite(value).all()):
                raise DataError("finite weights", f"NaN or infinite values in {name!r}", "the checkpoint before that")
        object.__setattr__(self, "params", {name: known[name].detach() for name in self.names})
        fixed = {name: value.detach() for name, value in known.items() if name not in chosen}
        object.__setattr__(self, "fixed", fixed)
        buffers = {name: value.detach().clone() for name, value in self.module.named_buffers()}
        object.__setattr__(self, "buffers", buffers)
        object.__setattr__(self, "state", state_of(self.module))
        object.__setattr__(self, "digest", digest_of(self.module))

    @classmethod
    def of(cls, module: nn.Module) -> Network:
        """All parameters that require a gradient, uncertain.

        Raises:
            ConfigError: If no parameter requires a gradient.
        """
        with ALONE:
            names = tuple(name for name, value in module.named_parameters() if value.requires_grad)
        if not names:
            raise ConfigError(
                "a network with at least one parameter that requires a gradient",
                "a frozen network",
                "weights=LastLayer(), or requires_grad_(True) on what should be uncertain",
            )
        return cls(module, names)

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of the parameters that hold uncertain weights."""
        return Layout.of(self.params)

    @cached_property
    def uncertain(self) -> Layout:
        """Names of the parameters and how many of their weights are uncertain, in the order of the flat vector."""
        if self.index is None:
            return self.layout
        kept = torch.zeros(self.layout.size, dtype=torch.bool)
        kept[self.index.cpu()] = True
        sizes = [(name, int(kept[place].sum())) for name, place in self.layout.slices.items()]
        return Layout(tuple(name for name, size in sizes if size), tuple((size,) for _, size in sizes if size))

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
        self.check_unchanged()
        return self.chosen(self.layout.flatten(self.params))

    def with_weights(self, weights: Float[Tensor, " d"]) -> Params:
        """Parameters with the uncertain weights replaced."""
        if self.index is not None:
            flat = self.layout.flatten(self.params)
            weights = flat.index_copy(0, self.index, weights)
        return self.layout.unflatten(weights)

    def chosen(self, flat: Float[Tensor, " all"], dim: int = -1) -> Float[Tensor, " d"]:
        """The uncertain of all weights of the parameters, on some axis."""
        return flat if self.index is None else flat.index_select(dim, self.index)

    def spread(self, block: Float[Tensor, "d *k"], certain: float = 0.0) -> Float[Tensor, "all *k"]:
        """Values of the uncertain weights among all weights of their parameters, with ``certain`` for the others."""
        if self.index is None:
            return block
        return block.new_full((self.layout.size, *block.shape[1:]), certain).index_copy(0, self.index, block)

    def part(self, names: tuple[str, ...], flat: Shaped[Tensor, "all *k"]) -> Shaped[Tensor, "part *k"]:
        """Those of all weights that belong to some parameters."""
        return torch.cat([flat[self.layout.slices[name]] for name in names])

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
            return call(self.module, values, over_tensors(ordinary, inputs))

    def check_unchanged(self, *, values: bool = True) -> None:
        """Refuses to go on when the module's tensors were written to after they were captured here.

        Args:
            values: Whether their bits are looked at too, once a call; else, at every product, only where they lie and
                how often autograd saw them written to.

        Raises:
            MismatchError: If a parameter or buffer has changed since.
        """
        if state_of(self.module) != self.state or (values and digest_of(self.module) != self.digest):
            raise MismatchError(
                "the network as it was when the posterior was fitted",
                "weights or buffers that were written to since",
                "fitting again, or fitting a copy.deepcopy of the network before training on",
            )

    def fingerprint(self) -> str:
        """SHA-256 of all parameters and buffers, names, shapes, dtypes and values included."""
        digest = hashlib.sha256()
        with ALONE:
            tensors = {name: value for name, value in self.module.state_dict().items() if isinstance(value, Tensor)}
        for name, value in sorted(tensors.items()):
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[type[Network], tuple[nn.Module, tuple[str, ...], Tensor | None]]:
        self.check_unchanged()
        return (Network, (self.module, self.names, self.index))


def opened(
    model: nn.Module, data: Source, call: str, *, unpack: Unpack | None = None, progress: bool = False
) -> tuple[nn.Module, Data]:
    """The network inside ``model``, and the data as tensors of its kind.

    Args:
        model: What the user passed as the model.
        data: What the user passed as the data.
        call: How it is passed, for the message.
        unpack: Makes ``(inputs, targets)`` of a batch.
        progress: Whether passes over the data show a progress bar.

    Raises:
        ConfigError: If the model is no module, or its weights have no values yet.
        UnsupportedError: If its forward pass writes to them.
    """
    check_kind("the model", model, (nn.Module,), call)
    module = unwrapped(model)
    like = next(module.parameters(), torch.zeros(())).detach()
    return module, Data(data, like=like, unpack=unpack, progress=progress)
