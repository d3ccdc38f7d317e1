"""What an entry of a comparison holds that its words do not tell: weights, and code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from lapwing.ground.files.records import checksum
from lapwing.jacobian.network.snapshot import digest_of
from lapwing.jacobian.network.unwrapping import unwrapped


def checksum_of_entry(entry: object) -> int:
    """A number that tells an entry from others: its words, its tensors, the weights of the networks in it, and code.

    Of a function what it is written as counts, its defaults, and what it has from the function around it; not what it
    reads from its module, or calls. Those count that a network holds. Of a loader nothing counts.

    Example:
        >>> from lapwing.evaluation.plain_network import PlainNetwork
        >>> one, other = PlainNetwork(nn.Linear(2, 3)), PlainNetwork(nn.Linear(2, 3))
        >>> checksum_of_entry(one) == checksum_of_entry(one), checksum_of_entry(one) == checksum_of_entry(other)
        (True, False)
    """
    found = list(told_in(entry, set()))
    return checksum((entry, *found))


def told_in(value: object, seen: set[int]) -> Iterator[object]:
    """What a record does not tell in words: the weights of networks, the code of functions and what those hold.

    Args:
        value: The record.
        seen: Networks and functions that were looked into; a network may hold its own methods.
    """
    parts: Iterable[Any] = ()
    if isinstance(value, nn.Module):
        network = unwrapped(value)
        yield digest_of(network)
        yield from code_in(network, seen)
    elif isinstance(value, MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, FunctionType):
        yield written(value.__code__)
        if id(value) in seen:
            return
        seen.add(id(value))
        parts = [value.__defaults__, value.__kwdefaults__, enclosed(value)]
        yield parts
    elif isinstance(value, BuiltinFunctionType):
        yield value
    elif isinstance(value, partial):
        parts = [value.func, value.args, value.keywords]
        yield parts
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, each.name) for each in dataclasses.fields(value) if each.init]
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, tuple | list):
        parts = value
    elif is_function_object(value) and id(value) not in seen:
        seen.add(id(value))
        parts = [value.__dict__]
        yield parts
    for part in parts:
        yield from told_in(part, seen)


def code_in(network: nn.Module, seen: set[int]) -> Iterator[object]:
    """What is told of the functions that the modules of a network hold: activations, views of the input.

    Args:
        network: The network.
        seen: As of ``told_in``.
    """
    for module in network.modules():
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, value in module.__dict__.items():
            if not name.startswith("_") and (callable(value) or isinstance(value, Mapping | tuple | list)):
                yield from told_in(value, seen)


def is_function_object(value: object) -> bool:
    """Whether it is an object of a class of its own that is called as a function is."""
    return callable(value) and not isinstance(value, type) and hasattr(value, "__dict__")


def enclosed(function: FunctionType) -> list[object]:
    """What a function has from the one around it, as far as that is known yet."""
    found = list[object]()
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


def written(code: CodeType) -> tuple[object, ...]:
    """What a function is written as, and those inside it."""
    constants = [written(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return (code.co_code, code.co_names, constants)
