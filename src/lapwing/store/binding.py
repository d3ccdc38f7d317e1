"""A saved posterior and a network: whether they belong together."""

from __future__ import annotations

from torch import nn

from lapwing.curvature.network import Network
from lapwing.errors import MismatchError
from lapwing.store.archive import Json, Tensors
from lapwing.store.operators import index_from, index_state

NAMED = 4
"""Differences an error message lists; the rest it counts."""


def network_state(network: Network, tensors: Tensors) -> Json:
    """What is kept of a network: names, shapes and dtypes of its parameters, and the fingerprint of its values."""
    return {
        "class": type(network.module).__name__,
        "fingerprint": network.fingerprint(),
        "size": network.size,
        "uncertain": network.names,
        "index": None if network.index is None else index_state(network.index, "network.index", tensors),
        "parameters": parameters_of(network.module),
    }


def parameters_of(module: nn.Module) -> Json:
    """Shape and dtype of every parameter by name."""
    return {
        name: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        for name, value in module.named_parameters()
    }


def check_parameters(state: Json, module: nn.Module) -> None:
    """Refuses a network that differs from the saved one in the name, shape or dtype of a parameter.

    Args:
        state: What ``network_state`` gave.
        module: The network at hand.

    Raises:
        MismatchError: Naming the parameters, what was saved and what came; uncertain ones first.
    """
    saved, here = state["parameters"], parameters_of(module)
    names = dict.fromkeys([*state["uncertain"], *saved, *here])
    found = [difference for name in names if (difference := compared(name, saved.get(name), here.get(name)))]
    if not found:
        return
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    shapes = [{name: value["shape"] for name, value in each.items()} for each in (saved, here)]
    dtype = saved[state["uncertain"][0]]["dtype"]
    raise MismatchError(
        f"the network the posterior was fitted to, a {state['class']} of {len(saved)} parameters",
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
    device = next(module.parameters()).device
    index = None if state["index"] is None else index_from(state["index"], tensors, device)
    network = Network(module, tuple(state["uncertain"]), index)
    came = network.fingerprint()
    if came != state["fingerprint"]:
        raise MismatchError(
            f"the weights the posterior was fitted at (SHA-256 {state['fingerprint'][:12]}…)",
            f"a network of the same shapes with other weights or buffers (SHA-256 {came[:12]}…)",
            "loading the checkpoint the posterior was fitted to before lapwing.load",
        )
    return network
