"""A saved posterior and a network: whether they belong together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lapwing.ground.archive import REPAIR, Json, Tensors
from lapwing.ground.errors import DataError, MismatchError
from lapwing.jacobian.network.network import Network
from lapwing.store.fits import records

NAMED = 4
"""Differences an error message lists; the rest it counts."""


@final
@dataclass(frozen=True)
class Shape:
    """Shape and dtype of a parameter."""

    shape: tuple[int, ...]
    dtype: str


@final
@dataclass(frozen=True, eq=False)
class Bound:
    """What is kept of a network, but for its class: see ``network_state``."""

    fingerprint: str
    size: int
    uncertain: tuple[str, ...]
    index: Int[Tensor, " d"] | None
    parameters: dict[str, Shape]


def bound_from(state: Any, tensors: Tensors | None = None, device: torch.device | str = "cpu") -> Bound:
    """What was kept of a network.

    Raises:
        DataError: If it is not that.
    """
    index = state.get("index") if isinstance(state, dict) else None
    if isinstance(state, dict) and tensors is None:  # not read yet
        state = state | {"index": None}
    found: Bound = records(tensors, device).read(Bound, state, "network")
    size = sum(math.prod(found.parameters[name].shape) for name in found.uncertain if name in found.parameters)
    if not found.uncertain or set(found.uncertain) - found.parameters.keys() or min(size, found.size) < 1:
        raise DataError("uncertain parameters of the network", f"{list(found.uncertain)[:5]}", REPAIR)
    if tensors is None or found.index is None:
        wrong = index is None and size != found.size
    else:
        kept = found.index
        rising = kept.dtype == torch.int64 and bool((kept.diff() > 0).all())
        wrong = len(kept) != found.size or not rising or not 0 <= int(kept[0]) <= int(kept[-1]) < size
    if wrong:
        raise DataError(f"{found.size} uncertain weights", f"others, of {size} in all", REPAIR)
    return found


def network_state(network: Network, tensors: Tensors) -> Json:
    """What is kept of a network: names, shapes and dtypes of its parameters, and the fingerprint of its values."""
    return {
        "class": type(network.module).__name__,
        "fingerprint": network.fingerprint(),
        "size": network.size,
        "uncertain": network.names,
        "index": records(tensors).state(network.index, "network.index"),
        "parameters": parameters_of(network.module),
    }


def parameters_of(module: nn.Module) -> Json:
    """Shape and dtype of every parameter by name."""
    return {
        name: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        for name, value in module.named_parameters()
    }


def check_parameters(state: Any, module: nn.Module) -> None:
    """Refuses a network that differs from the saved one in the name, shape or dtype of a parameter.

    Args:
        state: What ``network_state`` gave.
        module: The network at hand.

    Raises:
        MismatchError: Naming the parameters, what was saved and what came; uncertain ones first.
    """
    kept, saved, here = bound_from(state), state["parameters"], parameters_of(module)
    names = dict.fromkeys([*kept.uncertain, *saved, *here])
    found = [difference for name in names if (difference := compared(name, saved.get(name), here.get(name)))]
    if not found:
        return
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    shapes = [{name: value["shape"] for name, value in each.items()} for each in (saved, here)]
    dtype = saved[kept.uncertain[0]]["dtype"]
    raise MismatchError(
        f"the network the posterior was fitted to, a {state.get('class', 'network')!s:.40} of {len(saved)} parameters",
        f"a {type(module).__name__} of {len(here)}: {'; '.join(found[:NAMED])}{more}",
        f"model.to(torch.{dtype})" if shapes[0] == shapes[1] else "a model built with the same options",
    )


def compared(name: str, saved: Json | None, here: Json | None) -> str | None:
    """How one parameter differs, in words; ``None`` where it does not."""
    if here == saved:
        return None
    if saved is None or here is None:
        have, lacks = ("the model", "the file") if saved is None else ("the file", "the model")
        shape = (here or saved or {})["shape"]
        return f"{name!r} {shape} is in {have} and not in {lacks}"
    kind = "shape" if saved["shape"] != here["shape"] else "dtype"
    return f"{name!r} has {kind} {here[kind]}, saved with {saved[kind]}"


def bound(state: Json, tensors: Tensors, module: nn.Module) -> Network:
    """The network that gave a state, around a module with the same weights.

    Raises:
        MismatchError: If a parameter or buffer has other values.
    """
    kept = bound_from(state, tensors, next(module.parameters()).device)
    network = Network(module, kept.uncertain, kept.index)
    came = network.fingerprint()
    if came != kept.fingerprint:
        raise MismatchError(
            f"the weights the posterior was fitted at (SHA-256 {kept.fingerprint[:12]}…)",
            f"a network of the same shapes with other weights or buffers (SHA-256 {came[:12]}…)",
            "loading the checkpoint the posterior was fitted to before lapwing.load",
        )
    return network
