"""Bit for bit as it was: a module before and after whatever is done with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def state_of(module: nn.Module) -> dict[str, Any]:
    """Everything a user could see change: values, identities, modes, gradients, hooks, plain attributes."""
    state: dict[str, Any] = {}
    for path, part in module.named_modules():
        state[f"{path}:training"] = part.training
        state[f"{path}:hooks"] = tuple(tuple(getattr(part, name)) for name in HOOKS)
        state[f"{path}:attributes"] = {
            key: value for key, value in vars(part).items() if isinstance(value, int | float | str | bool | None)
        }
        state[f"{path}:tensors"] = [
            id(value) for value in vars(part).get("_flat_weights", []) if isinstance(value, Tensor)
        ]
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        grad = None if value.grad is None else value.grad.clone()
        state[name] = (id(value), value.data_ptr(), value.requires_grad, value._version, value.detach().clone(), grad)
    return state


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """The module in a mixture of modes, with gradients and a hook, must leave the block as it entered it."""
    module.train()
    for number, part in enumerate(module.modules()):
        part.training = number % 2 == 0
    for value in module.parameters():
        value.grad = torch.full_like(value, 0.25)
    handle = module.register_forward_hook(lambda *_: None)
    try:
        before = state_of(module)
        yield
        after = state_of(module)
        assert before.keys() == after.keys()
        assert [name for name in before if not same(before[name], after[name])] == []
    finally:
        handle.remove()
        module.zero_grad()
    copy.deepcopy(module)
