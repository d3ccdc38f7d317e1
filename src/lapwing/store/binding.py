"""A saved posterior and a network: whether they belong together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lapwing.ground.errors import DataError, MismatchError
from lapwing.ground.files.archive import Json, Tensors
from lapwing.ground.files.records import REPAIR
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.output import Output, name_of
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
class NetworkFields:
    """What is kept of a network, but for its class: its parameters' shapes, which are uncertain, and its output.

    Args:
        fingerprint: Of all its values.
        size: Uncertain weights.
        uncertain: Parameters that hold them.
        index: Their positions within those; ``None`` for all.
        parameters: Shape and dtype of each.
        output: The key or index of its output in what it returns.
        function: The name of the function that takes its output from what it returns, which no file holds.
    """

    fingerprint: str
    size: int
    uncertain: tuple[str, ...]
    index: Int[Tensor, " d"] | None
    parameters: dict[str, Shape]
    output: str | int | None
    function: str | None

    def check(self) -> None:
        """Refuse a file that holds something else.

        Raises:
            DataError: If the uncertain weights are not those of the parameters.
        """
        size = sum(math.prod(self.parameters[name].shape) for name in self.uncertain if name in self.parameters)
        if not self.uncertain or set(self.uncertain) - self.parameters.keys() or min(size, self.size) < 1:
            raise DataError("uncertain parameters of the network", f"{list(self.uncertain)[:5]}", REPAIR)
        wrong = size != self.size
        if (index := self.index) is not None:
            rising = index.dtype == torch.int64 and bool((index.diff() > 0).all())
            wrong = len(index) != self.size or not rising or not 0 <= int(index[0]) <= int(index[-1]) < size
        if wrong:
            raise DataError(f"{self.size} uncertain weights", f"others, of {size} in all", REPAIR)


def network_state(network: Network, tensors: Tensors) -> Json:
    """What is kept of a network: names, shapes and dtypes of its parameters, and the fingerprint of its values."""
    parameters = parameters_of(network.module, network.names)
    output = network.output
    kept = NetworkFields(
        fingerprint=network.fingerprint(),
        size=network.size,
        uncertain=network.names,
        index=network.index,
        parameters=parameters,
        output=None if callable(output) else output,
        function=name_of(output) if callable(output) else None,
    )
    return {"class": type(network.module).__name__} | records(tensors).state(kept, "network")


def parameters_of(module: nn.Module, names: Sequence[str]) -> dict[str, Shape]:
    """Shape and dtype of every parameter by the first of its names, and of the uncertain ones by theirs."""
    first = dict(module.named_parameters())
    every = dict(module.named_parameters(remove_duplicate=False))
    known = first | {name: every[name] for name in names if name in every}
    return {name: Shape(tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in known.items()}


def bound(state: Any, tensors: Tensors, module: nn.Module, output: Output = None) -> Network:
    """The network that gave a state, around a module with the same parameters and weights.

    Args:
        state: The state.
        tensors: The tensors it speaks of.
        module: The module.
        output: The function that takes its output from what it returns, where there was one.

    Raises:
        DataError: If it is the state of no network.
        MismatchError: If the output is another, a parameter differs in name, shape or dtype, or a parameter or buffer
            in its values.
    """
    device = next((value.device for value in module.parameters()), torch.device("cpu"))
    kept: NetworkFields = records(tensors, device).read(NetworkFields, state, "network")
    kept.check()
    _check_parameters(kept, module, f"{state.get('class', 'network')!s:.40}")
    network = Network(module, kept.uncertain, kept.index, _output(kept, output))
    came = network.fingerprint()
    if came != kept.fingerprint:
        raise MismatchError(
            f"the weights the posterior was fitted at (SHA-256 {kept.fingerprint[:12]}…)",
            f"a network of the same shapes with other weights or buffers (SHA-256 {came[:12]}…)",
            "loading the checkpoint the posterior was fitted to before lapwing.load",
        )
    return network


def _output(kept: NetworkFields, given: Output) -> Output:
    """The key or index of a file, or the function that was given where the file has but the name of one.

    Raises:
        MismatchError: If another was given, or none where one is needed.
    """
    if kept.function is not None and not callable(given):
        raise MismatchError(
            f"the function {kept.function:.40} by which the output was taken from what the network returns: a file "
            "holds no code",
            "none" if given is None else f"output={given!r:.40}",
            "load(path, model, output=function) with that function",
        )
    if kept.function is None and given is not None and given != kept.output:
        raise MismatchError(
            f"the output the posterior was fitted to, output={kept.output!r:.40}",
            f"output={given!r:.40}",
            "load(path, model), which knows it",
        )
    return kept.output if kept.function is None else given


def _check_parameters(kept: NetworkFields, module: nn.Module, kind: str) -> None:
    """Refuses a network that differs from the saved one in a parameter; uncertain ones are named first."""
    saved, here = kept.parameters, parameters_of(module, kept.uncertain)
    names = dict.fromkeys([*kept.uncertain, *saved, *here])
    found = [difference for name in names if (difference := _compared(name, saved, here))]
    if not found:
        return
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    shapes = [{name: value.shape for name, value in each.items()} for each in (saved, here)]
    dtype = saved[kept.uncertain[0]].dtype
    raise MismatchError(
        f"the network the posterior was fitted to, a {kind} of {len(saved)} parameters",
        f"a {type(module).__name__} of {len(here)}: {'; '.join(found[:NAMED])}{more}",
        f"model.to(torch.{dtype})" if shapes[0] == shapes[1] else "a model built with the same options",
    )


def _compared(name: str, saved: Mapping[str, Shape], here: Mapping[str, Shape]) -> str | None:
    """How one parameter differs, in words; ``None`` where it does not."""
    if name not in saved:
        return f"{name!r} {list(here[name].shape)} is in the model and not in the file"
    if name not in here:
        return f"{name!r} {list(saved[name].shape)} is in the file and not in the model"
    then, now = saved[name], here[name]
    if then.shape != now.shape:
        return f"{name!r} has shape {list(now.shape)}, saved with {list(then.shape)}"
    return None if then.dtype == now.dtype else f"{name!r} has dtype {now.dtype}, saved with {then.dtype}"
