"""The finished rows of a run: found again in its file, and written to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from lapwing.comparison.contents import checksum_of_entry
from lapwing.comparison.cost import NO_LIMITS, Limits
from lapwing.comparison.examples import Examples
from lapwing.comparison.journal import Journal, Json
from lapwing.comparison.table import Row
from lapwing.ground.errors import DataError

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
