"""A module called as it will be served: in eval mode, uncompiled, alone, and left as it was found."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import functional_call

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import UNPACK, is_pair
from lapwing.ground.device import users_default_device
from lapwing.ground.errors import DataError, UnsupportedError, describe, reason_of
from lapwing.ground.layout import Params
from lapwing.jacobian.network.checkpoints import without_checkpoints
from lapwing.jacobian.network.output import Output, output_of

ALONE = threading.RLock()
"""Held while a module is called or looked at, or columns are pushed forward: `functional_call` exchanges the module's
tensors meanwhile, and `jvp` and `sdpa_kernel` count and choose for the whole process, so that threads take turns."""

RECOMPUTED = "this network computes or fetches what its backward pass needs again, by saved_tensors_hooks"
"""What PyTorch says of a network in training mode whose derivatives would be those of another function."""

REFUSALS = (IndexError, RuntimeError, TypeError, ValueError)
"""Errors, of these very classes, by which a network says that its inputs are not what it takes."""


def call(module: nn.Module, tensors: Params, inputs: Inputs, *, tied: bool = True, output: Output = None) -> Tensor:
    """Raw outputs of a module that computes with these parameters and buffers in place of its own, tied weights tied.

    Args:
        module: The module.
        tensors: Parameters and buffers by name; those that are missing are its own.
        inputs: What it is called with.
        tied: Whether tied weights stay so.
        output: Which part of what it returns is its output.

    Raises:
        DataError: If it fails on these inputs.
        UnsupportedError: If it is a TorchScript module, whose tensors cannot be replaced; if it is in training mode and
            its backward pass would not be that of what was computed.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError("an nn.Module", "a TorchScript module", "the nn.Module that it was made from")
    named = isinstance(inputs, Mapping)
    positional = () if named else inputs
    keywords = dict(inputs) if named else {}
    try:
        with users_default_device():
            returned = functional_call(module, tensors, positional, keywords, tie_weights=tied)
    except REFUSALS as error:
        if str(error) == RECOMPUTED:
            raise UnsupportedError(
                "a network in eval mode, or one that keeps what its backward pass needs",
                "one in training mode that computes or fetches it again, by torch.autograd.graph.saved_tensors_hooks",
                "model.eval() before the fit",
            ) from error
        if type(error) not in REFUSALS or transformed():
            raise
        raise _refused(error, inputs) from error
    return output_of(returned, output)


def transformed() -> bool:
    """Whether a transform of ``torch.func`` runs: where it refuses an operation, its caller has another way."""
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore


def _refused(error: Exception, inputs: Inputs) -> DataError:
    """What is said of a network that fails on its inputs."""
    cure = f"inputs for which model(x) works, and targets after them, as in fit(model, (x, y)); or {UNPACK}"
    if isinstance(error, TypeError) and is_pair(inputs):
        cure = "x alone, of (x, y)"
    return DataError(
        "inputs that the network takes",
        f"{describe(inputs)}, for which it raises {type(error).__name__}: {reason_of(error):.160}",
        cure,
    )


@contextmanager
def serving(module: nn.Module) -> Generator[None]:
    """The module in eval mode, uncompiled, without the autocast of ``accelerate``, checkpoints and backward hooks.

    Derivatives are in the type of its weights, those of embeddings neither sparse nor scaled by frequency. Modes, hooks
    and all that a forward pass assigns are restored, always.
    """
    compiler_loaded = "torch._dynamo" in sys.modules
    in_training = any(part.training for part in module.modules())
    with (
        ALONE,  # first, for the compiler's stance changes as soon as it is made
        torch.compiler.set_stance("force_eager") if compiler_loaded else nullcontext(),
        without_checkpoints(),
        disable_saved_tensors_hooks(RECOMPUTED) if in_training else nullcontext(),
    ):
        before = [(part, part.training, dict(part.__dict__)) for part in module.modules()]
        try:
            for part, training, attributes in before:
                if training:
                    part.training = False
                if "_original_forward" in attributes:  # accelerate put its own in front, which casts
                    part.__dict__["forward"] = attributes["_original_forward"]
                if isinstance(part, nn.Embedding | nn.EmbeddingBag):  # how training wants its gradient, no derivative
                    part.__dict__.update(sparse=False, scale_grad_by_freq=False)
                part.__dict__["_backward_hooks"] = OrderedDict()
                part.__dict__["_backward_pre_hooks"] = OrderedDict()
            yield
        finally:
            for part, training, attributes in before:
                _restore(part, training, attributes)


def _restore(part: nn.Module, training: bool, attributes: dict[str, object]) -> None:
    """A module's attributes as they were; past ``__setattr__``, which would register what it is given."""
    for name in part.__dict__.keys() - attributes.keys():
        del part.__dict__[name]
    part.__dict__.update(attributes)
    if part.training != training:  # a module may make a property of it
        part.training = training
