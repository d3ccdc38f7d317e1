"""Tuning that Ctrl-C ends keeps what it has."""

from __future__ import annotations

import pytest

import lapwing as lw
from lapwing.ground.errors import ConvergenceWarning
from lapwing.ground.progress import Bar
from tests.pairwise import in_turn
from tests.posterior_cases import problem

METHODS = {
    "EM": lw.EM(tolerance=1e-12),
    "ELBO": lw.ELBO(),
    "MacKay": lw.MacKay(),  # of an exact evidence, which draws have not
    "mixup": lw.Mixup(),
}


STRUCTURES = {"exact": lw.KFAC(), "solved": lw.Sampled(4, lw.solvers.CG())}


@pytest.mark.parametrize(("name", "structure"), in_turn(METHODS, ("exact", "solved"), whole=("EM",)))
def test_what_was_tried_is_kept(name: str, structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure]))
    update, moves = Bar.update, [0]

    def third(bar: Bar, units: int = 1, said: str | None = None) -> None:
        update(bar, units, said)
        if bar.what == name and units:
            moves[0] += 1
            if moves[0] == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "update", third)
    with pytest.warns(ConvergenceWarning, match="interrupted after"):
        tuned = lw.tune(posterior, METHODS[name])
    assert len(tuned.trace) in (3, 4) and tuned.prior != posterior.prior


def test_a_solve_that_was_interrupted_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(4, lw.solvers.CG())))
    update, solves = Bar.update, set[int]()

    def tenth(bar: Bar, units: int = 1, said: str | None = None) -> None:
        update(bar, units, said)
        if bar.what == "conjugate gradients":
            solves.add(id(bar))
            if len(solves) == 10:
                solves.add(-1)
                raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "update", tenth)
    with pytest.warns(ConvergenceWarning, match="interrupted after"):
        tuned = lw.tune(posterior, lw.EM(tolerance=1e-12))
    monkeypatch.undo()
    whole = lw.tune(posterior, lw.EM(tolerance=1e-12))
    assert tuned.trace == whole.trace[: len(tuned.trace)] and len(tuned.trace) < len(whole.trace)
