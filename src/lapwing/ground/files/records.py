"""JSON as the records it stands for: every value is held against the type of its field, and nothing else is built."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, final, get_args, get_origin, get_type_hints
from zlib import crc32

import torch
from jaxtyping import jaxtyped
from torch import Tensor

from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Inputs, bits
from lapwing.ground.data.inputs import tensors as tensors_of
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.ground.files.archive import Json, Tensors
from lapwing.ground.precision import moved

INLINE = 256
"""Most numbers of one vector that stay in the JSON, where people can read them; longer ones become tensors."""

DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64)}
"""What numbers may be by name."""

LARGEST = 2**62
"""The largest whole number."""

UNRECORDED = {"recorded": False}
"""The metadata of a field that no file holds: what is computed again, or written by its class in another way."""

Families: TypeAlias = Mapping[type, Mapping[str, type[Any]]]
"""The members of abstract classes by name, which are told apart by their ``"kind"``."""


@final
@dataclass(frozen=True)
class Records:
    """Frozen records as JSON and back. Tensors lie beside it, and what a file does not hold is given.

    Args:
        tensors: The tensors that the JSON speaks of.
        device: Where they come back.
        families: The classes there may be where a field names an abstract one.
        given: Values of fields by their type, which are not in the JSON.

    Example:
        >>> from lapwing.ground.results import Estimate
        >>> Records().read(Estimate, Records().state(Estimate(2.0, 0.5, 8)), "error")
        Estimate(value=2.0, stderr=0.5, samples=8)
        >>> Records().read(Estimate, {"value": 2.0, "stderr": None}, "error")
        Traceback (most recent call last):
        ...
        lapwing.ground.errors.DataError: Expected error.stderr as float. Got None. Try saving it again: ...
    """

    tensors: Tensors = field(default_factory=Tensors)
    device: torch.device | str = "cpu"
    families: Families = field(default_factory=dict[type, Mapping[str, "type[Any]"]])
    given: Mapping[Any, Any] = field(default_factory=dict[Any, Any])

    def giving(self, given: Mapping[Any, Any]) -> Records:
        """The same with more fields, by their type, that are given and not in the JSON."""
        return dataclasses.replace(self, given={**self.given, **given})

    def on(self, device: torch.device | str) -> Records:
        """The same on another device."""
        return dataclasses.replace(self, device=device)

    def state(self, value: Any, at: str = "") -> Any:
        """The JSON of a value; its tensors go to ``tensors`` under names that start with ``at``.

        Raises:
            UnsupportedError: If there is anything in it that no file holds.
        """
        if isinstance(value, Tensor):
            short = value.ndim == 1 and len(value) <= INLINE and value.dtype == torch.float64
            return value.tolist() if short and bool(value.isfinite().all()) else self.tensors.put(at, value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, torch.dtype):
            return str(value)
        if isinstance(value, tuple | list):
            if len(value) > INLINE and all(isinstance(part, float) for part in value):
                return self.tensors.put(at, torch.tensor(value, dtype=torch.float64))
            return [self.state(part, f"{at}.{i}") for i, part in enumerate(value)]
        if isinstance(value, Mapping):
            return {name: self.state(part, f"{at}.{name}") for name, part in value.items()}
        kind = self._kind(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return kind | self._fields(value, at)
        raise UnsupportedError(
            "records, tensors, numbers and strings to save", f"a {type(value).__name__} as {at}", "another choice"
        )

    def _kind(self, value: Any) -> dict[str, Any]:
        """The name of a member of a family."""
        name = type(value).__name__
        found = [members for family, members in self.families.items() if isinstance(value, family)]
        for members in found:
            if members.get(name) is not type(value):
                raise UnsupportedError(f"one of {', '.join(members)}", name, "one of lapwing's to save a posterior")
        return {"kind": name} if found else {}

    def _fields(self, value: Any, at: str) -> dict[str, Any]:
        hints = get_type_hints(type(value))
        state = dict[str, Any]()
        for each in dataclasses.fields(value):
            hint = hints[each.name]
            place = within(at, each.name)
            if not recorded(each) or hint in self.given:
                continue
            part = getattr(value, each.name)
            of_network = hint in (Inputs, Inputs | None)
            state[each.name] = inputs_state(part, place, self.tensors) if of_network else self.state(part, place)
        return state

    def read(self, kind: Any, state: Any, at: str) -> Any:
        """The value that gave a state.

        Args:
            kind: What it must be: a frozen dataclass, or what the field of one may be annotated with.
            state: The JSON.
            at: Where in the file it stands, for messages.

        Raises:
            DataError: If it is anything else.
            ConfigError: If it has a value that its class refuses.
        """
        if kind is Any:
            return state
        if kind in (Inputs, Inputs | None):
            inputs = inputs_from(state, self.tensors, self.device)
            for part in tensors_of(inputs):
                check_finite(part, at, REPAIR)
            return inputs
        if kind in self.families:
            return self._member(kind, state, at)
        if get_origin(kind) in (Union, UnionType):
            return self._either(get_args(kind), state, at)
        if kind is Tensor or hasattr(kind, "dim_str"):  # a shape of jaxtyping
            return self._tensor(kind, state, at)
        if dataclasses.is_dataclass(kind):
            return self._record(kind, state, at)
        if get_origin(kind) is tuple or kind is torch.Size:
            return self._sequence(kind, state, at)
        if get_origin(kind) in (dict, Mapping):
            if not isinstance(state, dict):
                raise unlike(at, "names with values", state)
            part = get_args(kind)[1]
            return {name: self.read(part, value, f"{at}.{name}") for name, value in state.items()}
        return _scalar(kind, state, at)

    def _record(self, kind: Any, state: Any, at: str) -> Any:
        if not isinstance(state, dict):
            raise unlike(at, f"the fields of a {kind.__name__}", state)
        hints = get_type_hints(kind)
        values = dict[str, Any]()
        for each in dataclasses.fields(kind):
            hint = hints[each.name]
            if not recorded(each):
                continue
            if hint in self.given:
                values[each.name] = self.given[hint]
            elif each.name in state:
                values[each.name] = self.read(hint, state[each.name], within(at, each.name))
            elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
                raise DataError(f"{within(at, each.name)} in the file", f"fields {sorted(state)[:9]} alone", REPAIR)
        _check_shapes(hints, values, at)
        return kind(**values)

    def _member(self, family: type, state: Any, at: str) -> Any:
        members = self.families[family]
        name = state.get("kind") if isinstance(state, dict) else None
        if isinstance(name, str) and name not in members:
            raise DataError(f"one of {', '.join(members)} as {at}", f"'{name:.40}'", "the lapwing that wrote the file")
        if not isinstance(name, str):
            raise unlike(at, f"one of {', '.join(members)}", state)
        return self._record(members[name], state, at)

    def _either(self, kinds: tuple[Any, ...], state: Any, at: str) -> Any:
        try:
            return self.read(kinds[0], state, at)
        except DataError:
            for kind in kinds[1:]:
                with suppress(DataError):
                    return self.read(kind, state, at)
            raise

    def _sequence(self, kind: Any, state: Any, at: str) -> Any:
        parts = get_args(kind) or (int, ...)
        if isinstance(state, dict):
            state = self.tensors.get(state).tolist()
        if not isinstance(state, list) or (parts[-1] is not ... and len(state) != len(parts)):
            raise unlike(at, "a list" if parts[-1] is ... else f"a list of {len(parts)}", state)
        kinds = parts[:1] * len(state) if parts[-1] is ... else parts
        values = tuple(self.read(kinds[i], value, f"{at}.{i}") for i, value in enumerate(state))
        return torch.Size(values) if kind is torch.Size else values

    def _tensor(self, kind: Any, state: Any, at: str) -> Tensor:
        if isinstance(state, list):
            value = moved(
                torch.tensor([_scalar(float, number, at) for number in state], dtype=torch.float64), self.device
            )
        else:
            value = self.tensors.get(state, self.device)
            check_finite(value, at, REPAIR)
        if not isinstance(value, kind):
            shape = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            raise DataError(f"{at} as {kind.__name__}", f"a tensor {shape}", REPAIR)
        return value


def recorded(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is part of a record."""
    return field.init and field.metadata.get("recorded", True)


def within(at: str, name: str) -> str:
    """Where a field stands."""
    return f"{at}.{name}" if at else name


REPAIR = "saving it again: the file is not as lapwing wrote it"
"""What to do about a file that holds something else."""


def _check_shapes(hints: Mapping[str, Any], values: Mapping[str, Any], at: str) -> None:
    """Refuses tensors of one record of which an axis of one name has two lengths."""
    with jaxtyped("context"):  # type: ignore[no-untyped-call]
        for name, value in values.items():
            kinds = [part for part in (get_args(hints[name]) or (hints[name],)) if hasattr(part, "dim_str")]
            if isinstance(value, Tensor) and kinds and not any(isinstance(value, part) for part in kinds):
                raise DataError(f"{at}.{name} of a shape that fits the rest", f"{list(value.shape)}", REPAIR)


def _scalar(kind: Any, state: Any, at: str) -> Any:
    """A string, a number, a truth value, nothing, or one of a few words."""
    whole = type(state) is int and abs(state) <= LARGEST
    expected = getattr(kind, "__name__", str(kind))
    if get_origin(kind) is Literal:
        fits = state in get_args(kind)
        expected = f"one of {', '.join(map(str, get_args(kind)))}"
    elif kind is torch.dtype:
        fits = isinstance(state, str) and state in DTYPES
    elif kind is float:
        fits = whole or (isinstance(state, float) and not math.isnan(state))
    else:
        fits = whole if kind is int else type(state) is (kind or NoneType)
    if not fits:
        raise unlike(at, expected, state)
    if kind is torch.dtype:
        return DTYPES[str(state)]
    return float(state) if kind is float else state


def unlike(at: str, expected: str, state: Any) -> DataError:
    """The error for a value that is not what its field must hold."""
    shown = f"{type(state).__name__} of {len(state)}" if isinstance(state, list | dict) else f"{state!r:.40}"
    return DataError(f"{at:.80} as {expected}", shown, REPAIR)


def checksum(value: object, so_far: int = 0) -> int:
    """One number that says whether two processes hold the same: the bits of tensors, and the words of all else.

    Functions and objects that are no records go by their names.

    Args:
        value: A record, tensors, plain values, or tuples, lists and mappings of these.
        so_far: That of what came before.

    Example:
        >>> checksum({"a": torch.ones(2)}) == checksum({"a": torch.ones(2)}) != checksum({"a": torch.zeros(2)})
        True
    """
    if isinstance(value, Tensor):
        return crc32(bits(value), crc32(f"{value.dtype} {list(value.shape)}".encode(), so_far))
    parts: Sequence[Any]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, each.name) for each in dataclasses.fields(value) if each.init]
    elif isinstance(value, Mapping):
        parts = list(chain.from_iterable(value.items()))
    elif isinstance(value, tuple | list):
        parts = value
    elif isinstance(value, set | frozenset):
        parts = sorted(value, key=repr)
    else:
        words = re.sub(" at 0x[0-9a-f]+", "", f"{value!r}")
        return crc32(f"{len(words)} {words}".encode(), so_far)
    opened = crc32(f"{type(value).__name__} of {len(parts)}: ".encode(), so_far)
    return reduce(lambda total, part: checksum(part, total), parts, opened)


def inputs_state(inputs: Any, name: str, tensors: Tensors) -> Json:
    """A network's inputs: tensors, and plain values beside them, in tuples, lists and dicts.

    Raises:
        UnsupportedError: If there is anything else among them; it would take pickle to keep it.
    """
    if isinstance(inputs, Tensor):
        return tensors.put(name, inputs)
    if isinstance(inputs, Mapping) and all(type(key) is str for key in inputs):
        parts = {key: inputs_state(part, f"{name}.{i}", tensors) for i, (key, part) in enumerate(inputs.items())}
        return {"mapping": parts}
    if type(inputs) in (tuple, list):
        return {type(inputs).__name__: [inputs_state(part, f"{name}.{i}", tensors) for i, part in enumerate(inputs)]}
    if type(inputs) in (type(None), bool, int, float, str):
        return {"value": inputs}
    raise UnsupportedError(
        "training inputs made of tensors, numbers, strings, None, and tuples, lists and dicts of these",
        f"a {type(inputs).__name__} at {name}",
        "Full(view='weights'), KFAC() or Diagonal(), which keep no inputs",
    )


def inputs_from(spec: Any, tensors: Tensors, device: torch.device | str) -> Any:
    """The inputs that gave a spec.

    Raises:
        DataError: If there are none that give it.
    """
    match spec:
        case {"mapping": dict() as parts}:
            return {key: inputs_from(part, tensors, device) for key, part in parts.items()}
        case {"tuple": list() as parts} | {"list": list() as parts}:
            values = [inputs_from(part, tensors, device) for part in parts]
            return tuple(values) if "tuple" in spec else values
        case {"value": None | bool() | int() | float() | str() as value}:
            return value
        case _:
            return tensors.get(spec, device)
