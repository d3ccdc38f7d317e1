"""A module as it is served and as it was found: usable, in eval mode, alone while it is called, and unchanged since."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from lapwing.ground.data import describe
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError
from lapwing.ground.types import Inputs, Params

ALONE = threading.RLock()
"""Held while a module is called or looked at, or columns are pushed forward: `functional_call` exchanges the module's
tensors meanwhile, and `jvp` and `sdpa_kernel` count and choose for the whole process, so that threads take turns."""


WORDS = {1: torch.int8, 2: torch.int16}
"""Integers of one number's size; larger numbers are read as several of four bytes."""


PIECE = 2**16
"""Words that are weighted together: they stay in the cache."""


def state_of(module: nn.Module) -> tuple[int, ...]:
    """Where a module's tensors lie, and how often they were written to.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> before = state_of(layer)
        >>> _ = nn.init.zeros_(layer.bias)
        >>> state_of(layer) == before
        False
    """
    with ALONE:
        held = list(chain(module.parameters(), module.buffers()))
        versions = [0 if value.is_inference() else value._version for value in held]
        return (*(value.data_ptr() for value in held), *versions)


def digest_of(module: nn.Module) -> int:
    """One number of all bits of a module's tensors: a sum of whole numbers, the same in any order of summation.

    It sees what was written past autograd, such as ``weight.data.neg_()``, which leaves norms as they are.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> before = digest_of(layer)
        >>> _ = layer.weight.data.neg_()
        >>> digest_of(layer) == before
        False

    Cost:
        The tensors are read once.
    """
    with ALONE:
        pieces = [piece for words in _words(module) for piece in words.split(PIECE)]
        if not pieces:
            return 0
        weights = _weights(max(map(len, pieces)))
        on = {device: weights.to(device) for device in {piece.device for piece in pieces}}
        sums = [(piece * on[piece.device][: len(piece)]).sum().to(pieces[0].device) for piece in pieces]
        return int((torch.stack(sums) * _weights(len(sums)).to(sums[0])).sum())


def _words(module: nn.Module) -> Iterator[Int[Tensor, " w"]]:
    """The bits of a module's tensors as whole numbers, those of small tensors together."""
    small: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for value in chain(module.parameters(), module.buffers()):
        words = value.detach().reshape(-1).contiguous().view(WORDS.get(value.itemsize, torch.int32))
        if len(words) >= PIECE:
            yield words
        elif len(words):
            small.setdefault((words.device, words.dtype), []).append(words)
    yield from map(torch.cat, small.values())


def _weights(number: int) -> Int[Tensor, " w"]:
    """The same random numbers every time; PyTorch's own are refused where a function is being vectorised."""
    return torch.from_numpy(np.random.default_rng(0).integers(-(2**62), 2**62, number))


def check_usable(module: nn.Module) -> None:
    """Refuses a module whose weights have no values yet, or that writes to them.

    Raises:
        ConfigError: If a tensor is uninitialised or on the meta device.
        UnsupportedError: If an embedding rescales its rows as they are looked up.

    Example:
        >>> check_usable(nn.Linear(2, 1))
    """
    for name, value in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(value):
            raise ConfigError(
                "weights that have a shape",
                f"{name!r} of a lazy module that has seen no input",
                "model(x) once on some inputs, and training, before the fit",
            )
        if value.is_meta:
            raise ConfigError(
                "weights that have values",
                f"{name!r} on the meta device",
                "model.to_empty(device=...) with load_state_dict, or loading the network without device='meta'",
            )
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            own = f"model.{name}" if name else "model"
            raise UnsupportedError(
                "a network whose forward pass leaves its weights alone",
                f"{name!r} with max_norm={part.max_norm}, which rescales the rows it looks up where they are",
                f"{own}.weight.data.renorm_({part.norm_type}, 0, {part.max_norm}) and {own}.max_norm = None, after "
                "which the outputs are the same",
            )


def call(module: nn.Module, tensors: Params, inputs: Inputs) -> Tensor:
    """Raw outputs of a module that computes with these parameters and buffers in place of its own.

    An error of the module stays its own, with a note on what it was given.

    Raises:
        UnsupportedError: If it is a TorchScript module, whose tensors cannot be replaced.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError("an nn.Module", "a TorchScript module", "the nn.Module that it was made from")
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (inputs, {})
    try:
        result = functional_call(module, tensors, args if isinstance(args, tuple) else (args,), kwargs)
    except (RuntimeError, ValueError) as error:
        error.add_note(f"lapwing gave it {describe(inputs)}: the first axis counts examples, and one alone is x[None]")
        raise
    return outputs_of(result)


def outputs_of(result: Any) -> Tensor:
    """The output tensor of a network call: a tensor, the first of a tuple, or ``.logits``.

    Raises:
        ShapeError: If there is no such tensor.
    """
    if isinstance(result, Tensor):
        return result
    logits = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(result, list | tuple) and result and isinstance(result[0], Tensor):
        return result[0]
    raise ShapeError(
        "a network that returns a tensor, a tuple that starts with one, or an object with .logits",
        describe(result),
        "a small module that wraps yours and returns the tensor",
    )


@contextmanager
def serving(module: nn.Module) -> Generator[None]:
    """The module in eval mode, without backward hooks: its outputs' derivatives are those of its operations.

    Modes, hooks and all that a forward pass assigns to it are restored, whatever happens.
    """
    with ALONE:
        before = [(part, part.training, dict(vars(part))) for part in module.modules()]
        try:
            for part, training, _ in before:
                if training:
                    part.training = False
                vars(part).update(_backward_hooks=OrderedDict(), _backward_pre_hooks=OrderedDict())
            yield
        finally:
            for part, training, attributes in before:
                for name in vars(part).keys() - attributes.keys():
                    del vars(part)[name]
                vars(part).update(attributes)
                if part.training != training:
                    part.training = training


def ordinary(value: Any) -> Any:
    """The same value; a tensor made in inference mode, which autograd would refuse, is copied out of it."""
    inference = isinstance(value, Tensor) and value.is_inference() and not torch.is_inference_mode_enabled()
    return value.clone() if inference else value


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile``, in any order.

    Raises:
        ConfigError: If its weights have no values yet.
        UnsupportedError: If its forward pass writes to them.
    """
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = model.module if parallel else getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return unwrapped(inner)
    check_usable(model)
    return model
