"""The finished rows of a run: found again in its file, and written to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, final

from torch import nn

from lapwing.comparison.cost import NO_LIMITS, Limits
from lapwing.comparison.examples import Examples
from lapwing.comparison.journal import Journal, Json
from lapwing.comparison.table import Row
from lapwing.ground.errors import DataError
from lapwing.ground.files.records import checksum
from lapwing.jacobian.network.snapshot import digest_of
from lapwing.jacobian.network.unwrapping import unwrapped

CHANGING = ("entry", "scored_by")
"""Parts of a key that do not make it another run of the method."""


@final
@dataclass(frozen=True, eq=False)
class Ledger:
    """The rows of one seed on the same data.

    A row is that of an entry, as it is written out, and of what tuned it. One that was stopped is tried again where it
    may take more than it could.

    Args:
        journal: The file; ``None`` where nothing is kept.
        fingerprint: Of network and data.
        seed: The seed.
        limits: What each method may take.
        about: What the numbers depend on beside that.
        scored_by: Fingerprint of what methods are tuned and scored by beside network and data.
    """

    journal: Journal | None = None
    fingerprint: str = ""
    seed: int = 0
    limits: Limits = NO_LIMITS
    about: Mapping[str, Any] | None = None
    scored_by: str = ""

    def row(self, name: str, tuned_by: str, entry: object) -> Row | None:
        """The row of an entry, if it is finished."""
        if self.journal is None:
            return None
        key = self._key(name, tuned_by, entry)
        for line in reversed(self.journal.read(key["entry"])):
            if line.get("key") == key and not self._allows_more(line):
                return row_of(line, f"'{self.journal.path}'")
        return None

    def kept(self, row: Row, entry: object) -> Row:
        """The same row, which is in the file from now on."""
        if self.journal is not None:
            key = self._key(row.method, row.tuned_by, entry)
            bounds = {"seconds": self.limits.seconds, "bytes": self.limits.bytes}
            line = {"key": key, **line_of(row), "limits": bounds, "about": dict(self.about or {})}
            self.journal.append(line)
        return row

    def _key(self, name: str, tuned_by: str, entry: object) -> Json:
        return {
            "method": name,
            "tuned_by": tuned_by,
            "entry": f"{checksum_of_entry(entry):08x}",
            "data": self.fingerprint,
            "scored_by": self.scored_by,
            "seed": self.seed,
        }

    def _allows_more(self, line: Mapping[str, Any]) -> bool:
        """Whether a method that failed may now take more than it could then."""
        if line.get("numbers"):
            return False
        then = line.get("limits") or {}
        return more(self.limits.seconds, then.get("seconds")) or more(self.limits.bytes, then.get("bytes"))


def checksum_of_entry(entry: object) -> int:
    """A number that tells an entry from others: its words, its tensors, the weights of the networks in it, and code.

    Of a function what it is written as counts, its defaults, and what it has from the function around it; not what it
    reads from its module, or calls. Of a network those count that it holds. Of a loader nothing counts.

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
        seen: Functions that were looked into.
    """
    parts: Iterable[Any] = ()
    if isinstance(value, nn.Module):
        network = unwrapped(value)
        yield digest_of(network)
        parts = functions_of(network)
    elif isinstance(value, MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, FunctionType):
        if id(value) in seen:
            return
        seen.add(id(value))
        parts = [value.__defaults__, value.__kwdefaults__, enclosed(value)]
        yield written(value.__code__)
        yield parts
    elif isinstance(value, partial):
        parts = [value.func, value.args, value.keywords]
        yield parts
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, each.name) for each in dataclasses.fields(value) if each.init]
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, tuple | list):
        parts = value
    for part in parts:
        yield from told_in(part, seen)


def functions_of(network: nn.Module) -> list[object]:
    """What the modules of a network hold by names of their own, functions among it: activations, views of the input."""
    held = [value for part in network.modules() for name, value in part.__dict__.items() if not name.startswith("_")]
    return [value for value in held if isinstance(value, FunctionType | MethodType | partial | tuple | list)]


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


def more(now: float | int | None, then: float | int | None) -> bool:
    """Whether a bound is wider; ``None`` is the widest.

    Example:
        >>> more(2.0, 1.0), more(None, 1.0), more(None, None), more(1.0, None)
        (True, True, False, False)
    """
    if then is None:
        return False
    return now is None or now > then


def line_of(row: Row) -> Json:
    """A row of one run as a line of the file has it, without its key."""
    return {
        "numbers": dict(row.runs[0]) if row.runs else {},
        "note": row.note,
        "certain": row.certain,
        "examples": row.examples[0].state() if row.examples else None,
    }


def row_of(line: Mapping[str, Any], where: str) -> Row:
    """The row of a line.

    Raises:
        DataError: If the line is not one that ``Ledger.kept`` wrote.
    """
    try:
        key = line["key"]
        numbers = {str(name): float(value) for name, value in line["numbers"].items() if value is not None}
        kept = line["examples"]
        examples = () if kept is None else (Examples.read(kept, where),)
        runs = (numbers,) if numbers else ()
        note = str(line["note"])
        return Row(key["method"], key["tuned_by"], runs, note, bool(line["certain"]), examples=examples)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        hint = "another path, or the file without this line"
        raise DataError("a row that compare wrote", f"{where}: {error!r:.80}", hint) from error


def rows_of(lines: Iterable[Mapping[str, Any]], where: str) -> list[Row]:
    """The rows of all lines, the latest of each method, data and seed, however it was made and scored before."""
    latest = dict[str, Mapping[str, Any]]()
    for line in lines:
        key = line.get("key")
        said = {part: key[part] for part in key if part not in CHANGING} if isinstance(key, dict) else key
        latest[f"{said}"] = line
    return [row_of(line, where) for line in latest.values()]
