"""Bars, when they appear, and what they say is left: by a clock and a terminal of the test's own."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from lapwing.ground import progress
from lapwing.ground.progress import LONG, QUIET, Bar, Display, track, working


class Terminal(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        """It is one."""
        return True

    @property
    def lines(self) -> list[str]:
        """What was written to it, line by line."""
        return [line.strip() for line in self.getvalue().replace("\n", "\r").split("\r") if line.strip()]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        """Some seconds pass."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all bars; nobody looks after them but the test."""
    found = Clock()
    monkeypatch.setattr(progress, "clock", found)
    monkeypatch.setattr(progress.Watcher, "start", lambda watcher: None)
    return found


@pytest.fixture
def terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error, where somebody looks."""
    found = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found, modules=sys.modules))
    return found


def here() -> Display:
    """What is seen of the call in progress."""
    found = progress._DISPLAY.get()
    assert found is not None
    return found


class TestWhen:
    def test_a_bar_appears_after_two_seconds_and_moves_with_its_units(self, clock: Clock, terminal: Terminal) -> None:
        with working("fit"), Bar("data", 8, unit="batches") as bar:
            for done in range(1, 5):
                clock.passes(0.3 * QUIET)
                bar.update()
                assert bool(terminal.lines) == (done >= 4)
        assert "4/8 batches" in terminal.getvalue()

    def test_a_unit_that_takes_long_is_seen_to_be_under_way(self, clock: Clock, terminal: Terminal) -> None:
        with working("fit"), Bar("eigendecompositions", 3, unit="layers"):
            here().look()
            assert not terminal.lines
            clock.passes(QUIET)
            here().look()
            clock.passes(5)
            here().look()
        assert "0/3 layers [00:02]" in terminal.getvalue() and "0/3 layers [00:07]" in terminal.getvalue()

    def test_a_call_without_units_has_its_name_and_seconds(self, clock: Clock, terminal: Terminal) -> None:
        with working("predict"):
            clock.passes(9)
            here().look()
            with Bar("inputs", 2):
                here().look()
        assert "predict [00:09]" in terminal.lines and "inputs:   0%" in terminal.getvalue()

    def test_what_encloses_a_bar_is_shown_above_it_and_what_moves_is_enough(
        self, clock: Clock, terminal: Terminal
    ) -> None:
        with working("tune"), Bar("EM", 20) as outer:
            for seconds in (0.5, 0.4, 0.4):
                with Bar("conjugate gradients") as inner:
                    for _ in range(4):
                        clock.passes(seconds)
                        inner.update(said="residual 1e-02")
                clock.passes(0.2)
                outer.update()
        said = terminal.getvalue()
        assert said.index("EM:   0%") < said.index("conjugate gradients: 4 steps") < said.index("3/20 steps")
        assert said.count("conjugate gradients:") == 1  # the second and third began as the first line moved

    def test_a_quick_call_is_silent(self, clock: Clock, terminal: Terminal) -> None:
        with working("fit"):
            for _ in range(5):
                clock.passes(0.3)
                assert list(track(range(9), "data")) == [*range(9)]
        assert not terminal.getvalue()

    def test_a_stream_that_is_no_terminal_stays_silent_unless_asked(
        self, clock: Clock, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(terminal, "isatty", lambda: False)
        for asked in (None, False, True):
            with working("fit", asked):
                for _ in track(range(3), "data", unit="batches"):
                    clock.passes(30)
                    here().look()
            assert ("3/3 batches" in terminal.getvalue()) == bool(asked)

    def test_a_notebook_is_a_place_where_somebody_looks(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(terminal, "isatty", lambda: False)
        for shell, seen in ((None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=1), True)):
            monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
            assert progress.visible(None) == seen

    def test_of_several_processes_the_first_alone_shows_bars(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for rank in range(3):
            group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda r=rank: r)
            monkeypatch.setattr(progress, "dist", group)
            assert [progress.visible(asked) for asked in (None, True, False)] == [rank == 0, rank == 0, False]

    def test_what_a_call_asks_for_holds_for_all_within_that_do_not_ask(self, clock: Clock, terminal: Terminal) -> None:
        with working("tune", False):
            with working("predict"), Bar("inputs", 2) as bar:
                clock.passes(9)
                bar.update()
            assert not terminal.getvalue()
            with Bar("neighbourhoods", 2, unit="places", progress=True):
                assert "0/2 places" in terminal.getvalue()


class TestForecast:
    @pytest.mark.parametrize("warm_up", [0.0, 0.5, 40.0])
    def test_is_by_what_was_measured_after_the_first_unit_and_right_to_a_factor_of_two(
        self, warm_up: float, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        units, begun = 60, clock.now
        told: list[tuple[float, float]] = []
        with Bar("data", units, unit="batches") as bar:
            clock.passes(warm_up)
            for number in range(units):
                clock.passes(0.4 + 0.2 * (number % 2))
                bar.update()
                assert (bar.remaining is None) == (number == 0)
                if number == 2:
                    told.append((clock.now, float(caplog.messages[0].split("about ")[1].split(" s")[0])))
        assert caplog.messages[0].endswith(f" of {units} batches")
        ((said_at, said),) = told
        assert 0.5 < said / (clock.now - said_at) < 2
        assert len(caplog.messages) == 1 and begun + LONG < clock.now

    def test_says_what_would_take_less_where_much_is_left_alone(
        self, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        for seconds in (0.01, 7.0):
            for _ in track(range(9), "predictions", unit="inputs", cheaper="weights=LastLayer() takes one pass"):
                clock.passes(seconds)
        assert caplog.messages == [
            "predictions: about 49 s more, for 7 of 9 inputs. weights=LastLayer() takes one pass"
        ]

    def test_is_logged_by_the_outermost_that_can_tell(self, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        with working("tune"), Bar("examples", 40, unit="examples") as whole:
            for _ in range(4):
                with Bar("parts of one", 30, unit="parts") as parts:
                    for _ in range(30):
                        clock.passes(1.0)
                        parts.update()
                whole.update()
        lines = [message.split(":")[0] for message in caplog.messages]
        assert lines == ["parts of one", "parts of one", "examples"]

    def test_is_none_where_work_ends_when_it_has_converged(self, clock: Clock, terminal: Terminal) -> None:
        with Bar("conjugate gradients", most=1000, progress=True) as bar:
            for _ in range(40):
                clock.passes(5)
                bar.update(said="residual 1e-02, done at 1e-03")
            assert bar.remaining is None
        assert "40 of at most 1,000 steps [03:20, residual 1e-02, done at 1e-03]" in terminal.getvalue()

    def test_is_none_where_units_are_not_alike(self, clock: Clock) -> None:
        with Bar("comparing", 9, alike=False) as bar:
            for seconds in range(5):
                clock.passes(seconds)
                bar.update()
            assert bar.remaining is None

    def test_does_not_count_what_was_done_before(self, clock: Clock) -> None:
        with Bar("deep image prior", 100, done=90) as bar:
            for _ in range(3):
                clock.passes(2)
                bar.update()
            assert bar.remaining == pytest.approx(14)


def test_an_interruption_closes_every_bar(clock: Clock, terminal: Terminal) -> None:
    display = Display("none")
    with pytest.raises(KeyboardInterrupt), working("fit", True):
        display = here()
        for _ in track(range(3), "data"):
            with Bar("inner"):
                raise KeyboardInterrupt
    assert not display.bars and progress._DISPLAY.get() is None


def test_an_interruption_that_something_within_survives_ends_what_encloses_it_at_its_next_unit(clock: Clock) -> None:
    steps = 0
    with pytest.raises(KeyboardInterrupt), working("tune"), Bar("EM") as outer:
        for steps in range(9):
            with suppress(KeyboardInterrupt), Bar("conjugate gradients") as inner:
                inner.update()
                if steps == 3:
                    raise KeyboardInterrupt
            with Bar("the next"):
                pass
            outer.update()
    assert steps == 3
