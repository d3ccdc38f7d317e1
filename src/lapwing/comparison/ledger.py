"""The finished rows of a run: found again in its file, and written to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    """

    journal: Journal | None = None
    fingerprint: str = ""
    seed: int = 0
    limits: Limits = NO_LIMITS
    about: Mapping[str, Any] | None = None

    def row(self, name: str, tuned_by: str, entry: object) -> Row | None:
        """The row of an entry, if it is finished."""
        if self.journal is None:
            return None
        key = self._key(name, tuned_by, entry)
        for line in reversed(self.journal.read()):
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
            "seed": self.seed,
        }

    def _allows_more(self, line: Mapping[str, Any]) -> bool:
        """Whether a method that failed may now take more than it could then."""
        if line.get("numbers"):
            return False
        then = line.get("limits") or {}
        return more(self.limits.seconds, then.get("seconds")) or more(self.limits.bytes, then.get("bytes"))


def checksum_of_entry(entry: object) -> int:
    """A number that tells an entry from others: its words, its tensors, and the weights of the networks in it.

    A function goes by its name alone.

    Example:
        >>> from lapwing.evaluation.plain_network import PlainNetwork
        >>> one, other = PlainNetwork(nn.Linear(2, 3)), PlainNetwork(nn.Linear(2, 3))
        >>> checksum_of_entry(one) == checksum_of_entry(one), checksum_of_entry(one) == checksum_of_entry(other)
        (True, False)
    """
    digests = [digest_of(unwrapped(module)) for module in modules_in(entry)]
    return checksum((entry, digests))


def modules_in(value: object) -> Iterator[nn.Module]:
    """The networks in a record, wherever they are."""
    parts: Iterable[Any] = ()
    if isinstance(value, nn.Module):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, each.name) for each in dataclasses.fields(value) if each.init]
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, tuple | list):
        parts = value
    for part in parts:
        yield from modules_in(part)


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
    """The rows of all lines, the latest of each method, data and seed, however its entry was changed since."""
    latest = dict[str, Mapping[str, Any]]()
    for line in lines:
        key = line.get("key")
        said = {part: key[part] for part in key if part != "entry"} if isinstance(key, dict) else key
        latest[f"{said}"] = line
    return [row_of(line, where) for line in latest.values()]
