"""What a module must be before anything is asked of it: weights with values, which its forward pass leaves alone."""

from __future__ import annotations

from itertools import chain

from torch import nn
from torch.nn.parameter import is_lazy

from lapwing.ground.errors import ConfigError, UnsupportedError


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
