"""The network inside what a user passed as the model: out of its wrappers, and refused where its weights are none."""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.distributed import several
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.jacobian.network.network import like_of


def opened(model: nn.Module, data: Source, call: str, *, unpack: Unpack | None = None) -> tuple[nn.Module, Data]:
    """The network inside ``model``, and the data as tensors of its kind.

    Args:
        model: What the user passed as the model.
        data: What the user passed as the data.
        call: How it is passed, for the message.
        unpack: Makes ``(inputs, targets)`` of a batch.

    Raises:
        ConfigError: If the model is no module, or its weights have no values yet.
        UnsupportedError: If its forward pass writes to them.
    """
    module = unwrapped(model, call)
    like = like_of(module)
    like = torch.zeros(()) if like is None else like
    return module, Data(data, like=like, unpack=unpack, shared=several())


def unwrapped(model: nn.Module, call: str = "the trained nn.Module") -> nn.Module:
    """The network inside ``DataParallel``, ``DistributedDataParallel``, ``checkpoint_wrapper`` and ``torch.compile``.

    They may be around each other in any order.

    Raises:
        ConfigError: If the model is no module; see ``check_usable`` too.
    """
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ConfigError("a network that is an nn.Module", got, call)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module, call)
    for name in ("_orig_mod", "_checkpoint_wrapped_module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return unwrapped(inner, call)
    check_usable(model)
    return model


def check_usable(module: nn.Module) -> None:
    """Refuses a module whose weights have no values yet, or that writes to them.

    Raises:
        ConfigError: If a tensor is uninitialised or on the meta device.
        UnsupportedError: If an embedding rescales its rows as they are looked up.
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
