"""Long work: a bar where somebody looks, once two seconds went by in silence; what is left, by measured units.

Whoever is called from outside opens ``working``; whatever repeats something within, however deep, has a ``Bar``. So no
call is silent for long: where no bar is in progress, its name and its seconds are shown.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from operator import length_hint
from typing import Any, TypeVar, final

import torch.distributed as dist
from tqdm.auto import tqdm

logger = logging.getLogger(__name__)

T = TypeVar("T")

QUIET = 2.0
"""Seconds in which nothing was seen to move, after which bars are shown."""

LOOK = 0.5
"""Seconds between two looks at whether that is so."""

SMOOTH = 0.1
"""Seconds between two strokes of a bar, at least."""

MEASURED = 0.5
"""Seconds of work, after the first unit, by which the rest is told."""

LONG = 10.0
"""Seconds of it from which that is logged."""

LONG_AT_MOST = 60.0
"""Seconds from which that is logged where work may end before, as what has converged does."""

LARGE = 100_000
"""Units from which they are shown in thousands, millions, and so on."""

clock = time.monotonic
"""Tells the seconds."""


@final
class Display:
    """What somebody who waits for a call sees of it: the bars in progress, or its name where there is none.

    Args:
        name: Of the call.
        progress: Whether bars are shown at once; ``None`` for after ``QUIET`` seconds, where somebody looks.
    """

    def __init__(self, name: str, progress: bool | None = None) -> None:
        self.name = name
        self.progress = progress
        self.visible = visible(progress)
        self.lock = threading.RLock()
        """Of what is on the screen: the thread that works and the one that looks both write to it."""
        self.bars: list[Bar] = []
        """Those in progress, outermost first."""
        self._begun = self._seen = clock()
        self._line: Any = None
        self._watcher: Watcher | None = None

    def __enter__(self) -> Display:
        if self.visible:
            self._watcher = watcher()
            self._watcher.displays.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.displays.remove(self)
        with self.lock:
            self._close_line()
            for bar in self.bars:  # of work that an error ended
                bar.close()

    def look(self) -> None:
        """Show what is in progress, if nothing was seen to move for a while."""
        with self.lock:
            if not self.visible or clock() - self._seen < QUIET:
                return
            for bar in self.bars:
                bar.draw()
            if self.bars:
                self._close_line()
            else:
                self._draw_line()

    def moved(self, bar: Bar) -> None:
        """A bar moved: draw it, if it is on the screen or should be."""
        with self.lock:
            if self.visible and not bar.drawn:
                self.look()
            if bar.drawn:
                self._seen = clock()
                bar.draw()

    def begin(self, bar: Bar) -> None:
        """A bar is in progress from now on; where bars are asked for the outermost is shown at once."""
        with self.lock:
            self.bars.append(bar)
            asked = self.progress if bar.progress is None else bar.progress
            if asked and self.visible and len(self.bars) == 1:
                bar.draw()

    def around(self, bar: Bar) -> list[Bar]:
        """The bars of the work of which that of a bar is a part."""
        return self.bars[: self.bars.index(bar)] if bar in self.bars else []

    def end(self, bar: Bar) -> None:
        """A bar is done with."""
        with self.lock:
            self.bars.remove(bar)
            if bar.drawn:
                self._seen = clock()
            bar.close()

    def _draw_line(self) -> None:
        if self._line is None:
            self._line = line(self.name, None)
        self._line.bar_format = f"{{desc}} [{tqdm.format_interval(clock() - self._begun)}]"
        self._line.refresh()

    def _close_line(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


@final
class Bar:
    """How far some work is, in its units: batches, products, steps, draws, layers. Also a context, that of the work.

    The first unit may take longer than the others, which is when memory is found and kernels are chosen. What is left
    is told by those after it, and by none before: ``remaining``. Where that is long it is logged, once.

    Args:
        what: The work.
        total: Its units; ``None`` where that is not known, as for work that ends where something has converged.
        unit: What they are, in the plural.
        most: Units there may be at most, of which nothing follows for how many there will be.
        alike: Whether they take about as long as one another; else nothing is told of what is left.
        done: Those that were done earlier.
        progress: Whether it is shown; ``None`` for as the call has it.
        cheaper: What would take less, said where much is left.

    Example:
        >>> with Bar("eigendecompositions", 3, unit="layers") as bar:
        ...     for _ in range(3):
        ...         bar.update()
        >>> bar.done
        3
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        *,
        unit: str = "steps",
        most: int | None = None,
        alike: bool = True,
        done: int = 0,
        progress: bool | None = None,
        cheaper: str = "",
    ) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        self.progress = progress
        self.done = done
        self.interrupted = False
        """Whether Ctrl-C ended something within, which may have kept what it had."""
        self._most = most
        self._alike = alike
        self._cheaper = cheaper
        self._begun = clock()
        self._first: tuple[int, float] | None = None
        """Units that were done when the first was, and when."""
        self._last = self._begun
        """When one was done."""
        self._told = False
        self._said = ""
        self._line: Any = None
        self._drawn = -math.inf
        """When it was drawn."""
        self._display: Display | None = None
        self._alone: Display | None = None
        """That of this bar, where no call has one, or not such a one."""

    def __enter__(self) -> Bar:
        display = _DISPLAY.get()
        if display is None or self.progress not in (None, display.progress):
            display = self._alone = Display(self.what, self.progress).__enter__()
        self._display = display
        self._begun = self._last = clock()
        display.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if self._display is not None:
            self._display.end(self)
            if kind is KeyboardInterrupt:
                for enclosing in self._display.bars:
                    enclosing.interrupted = True
        if self._alone is not None:
            self._alone.__exit__()

    def close(self) -> None:
        """Take it from the screen."""
        if self._line is not None:
            self._line.close()

    def update(self, units: int = 1, said: str | None = None) -> None:
        """Some units are done.

        Args:
            units: How many; 0 where there is only something to say.
            said: What to say of them, such as a residual; ``None`` for the same as before.

        Raises:
            KeyboardInterrupt: As for ``check``.
        """
        self._said = self._said if said is None else said
        if units:
            self.done += units
            self._last = clock()
            self._first = self._first or (self.done, self._last)
            self._tell()
        if self._display is not None:
            self._display.moved(self)
        self.check()

    def check(self) -> None:
        """End this work too, where Ctrl-C ended what it had called for.

        Raises:
            KeyboardInterrupt: If something within was interrupted; what was found by it is not to be built on.
        """
        if self.interrupted:
            raise KeyboardInterrupt

    @property
    def remaining(self) -> float | None:
        """Seconds the rest will take, by the units after the first; ``None`` where nothing can be told."""
        return None if self.total is None else self._seconds_to(self.total)

    def _seconds_to(self, units: int) -> float | None:
        """Seconds until so many units are done, by those after the first; ``None`` where nothing can be told."""
        if self._first is None or not self._alike:
            return None
        done = self.done - self._first[0]
        seconds = self._last - self._first[1]
        return max(0, units - self.done) * seconds / done if done > 0 else None

    @property
    def drawn(self) -> bool:
        """Whether it is on the screen."""
        return self._line is not None

    def draw(self) -> None:
        """Put it on the screen as it is now."""
        now = clock()
        if now - self._drawn < SMOOTH and self.done != self.total:
            return
        self._drawn = now
        if self._line is None:
            self._line = line(self.what, self.total)
        self._line.total = self.total
        self._line.n = self.done
        self._line.postfix = self._said or None
        self._line.bar_format = self._format(now)
        self._line.refresh()

    def _format(self, now: float) -> str:
        taken = tqdm.format_interval(now - self._begun)
        if self.total is None:
            most = "" if self._most is None else f"of at most {self._most:,} "
            return f"{{desc}}: {{n_fmt}} {most}{self.unit} [{taken}{{postfix}}]"
        rest = "" if self.remaining is None else f"<{tqdm.format_interval(self.remaining)}"
        return f"{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} {self.unit} [{taken}{rest}{{postfix}}]"

    def _tell(self) -> None:
        """Log what the rest will take, once enough was measured to know, if it is much and no work around it tells."""
        if self._display is not None and any(bar.remaining is not None for bar in self._display.around(self)):
            return
        units = self._most if self.total is None else self.total
        rest = None if units is None else self._seconds_to(units)
        if self._told or rest is None or self._first is None or self._last - self._first[1] < MEASURED:
            return
        self._told = True
        if self.total is None:
            if rest >= LONG_AT_MOST:
                words = "%s: at most %.0f s more, for %d of %d %s"
                logger.info(words, self.what, rest, (units or 0) - self.done, units, self.unit)
            return
        if rest < LONG:
            return
        level = logging.WARNING if self._cheaper else logging.INFO
        words = "%s: about %.0f s more, for %d of %d %s%s"
        hint = f". {self._cheaper}" if self._cheaper else ""
        logger.log(level, words, self.what, rest, (self.total or 0) - self.done, self.total, self.unit, hint)


def track(
    items: Iterable[T],
    what: str,
    total: int | None = None,
    *,
    unit: str = "steps",
    alike: bool = True,
    progress: bool | None = None,
    cheaper: str = "",
) -> Iterator[T]:
    """The items one after the other, with a ``Bar`` of how many there were.

    Args:
        items: The items, each a unit of work.
        what: The work.
        total: How many there are; ``None`` for as many as their length says, if it does.
        unit: What they are, in the plural.
        alike: As for ``Bar``.
        progress: As for ``Bar``.
        cheaper: As for ``Bar``.

    Example:
        >>> list(track("abc", "letters", unit="letters"))
        ['a', 'b', 'c']
    """
    number = total or length_hint(items) or None
    with Bar(what, number, unit=unit, alike=alike, progress=progress, cheaper=cheaper) as bar:
        for item in items:
            yield item
            bar.update()


@contextmanager
def working(name: str, progress: bool | None = None) -> Generator[None]:
    """A call from outside, which is never silent for long where somebody looks; also a decorator.

    Within another such call, and where nothing else is asked for, it is part of that.

    Args:
        name: What is done, as it will be read.
        progress: ``True`` for a bar from the start, ``False`` for none; ``None`` for one after two seconds, in a
            terminal or a notebook. Of several processes the first alone shows any. What is called within may say
            otherwise for itself.
    """
    outer = _DISPLAY.get()
    if outer is not None and progress in (None, outer.progress):
        yield
        return
    with Display(name, progress) as display:
        before = _DISPLAY.set(display)
        try:
            yield
        finally:
            _DISPLAY.reset(before)


_DISPLAY: ContextVar[Display | None] = ContextVar("display", default=None)
"""Of the call that is in progress in this thread."""


def within() -> bool:
    """Whether a call from outside is in progress in this thread; see ``working``.

    Example:
        >>> with working("fit"):
        ...     within()
        True
    """
    return _DISPLAY.get() is not None


def visible(progress: bool | None) -> bool:
    """Whether a bar would be seen.

    Args:
        progress: What was asked for; ``None`` for where a terminal or a notebook is.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_rank() > 0:
        return False
    if progress is not None:
        return progress
    return (sys.stderr is not None and sys.stderr.isatty()) or in_notebook()


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, whose standard error is no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def line(what: str, total: int | None) -> Any:
    """A line on the screen, or a widget of a notebook, that vanishes when it is closed."""
    large = total is not None and total >= LARGE
    return tqdm(
        desc=what,
        total=total,
        leave=False,
        dynamic_ncols=True,
        file=sys.stderr,
        bar_format="{desc}",
        unit_scale=large,
    )


@final
class Watcher(threading.Thread):
    """Looks after displays: a single unit of work may take minutes, in which nothing else would say a word."""

    def __init__(self) -> None:
        super().__init__(name="lapwing progress", daemon=True)
        self.displays: list[Display] = []

    def run(self) -> None:
        """Look, now and then, as long as the process lives."""
        while True:
            time.sleep(LOOK)
            for display in tuple(self.displays):
                with suppress(OSError, ValueError):  # of a stream that was closed meanwhile
                    display.look()


_WATCHERS: list[Watcher] = []
"""The one of this process, once something may be seen."""


def watcher() -> Watcher:
    """The watcher; a process that was forked begins its own."""
    if not _WATCHERS or not _WATCHERS[-1].is_alive():
        _WATCHERS[:] = [Watcher()]
        _WATCHERS[-1].start()
    return _WATCHERS[-1]
