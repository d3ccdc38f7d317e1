"""Solvers and their preconditioners in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import lapwing as lw
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.linear.solvers import Solver
from lapwing.store.families import records
from tests.posterior_cases import refused
from tests.store.test_families import through

SOLVERS = [
    lw.solvers.CG(),
    lw.solvers.CG(rtol=1e-3, max_iterations=7, max_bytes=2**20),
    lw.solvers.PrimalSGD(steps=9, features=7, inducing=0.8, step=0.5),
    lw.solvers.SGD(epochs=3, batch=17, rtol=0.2, step=0.5, momentum=0.8, clip=2.0, seed=4),
    *(
        lw.solvers.CG(preconditioner=preconditioner)
        for preconditioner in (
            lw.Diagonal(),
            lw.KFAC(sharing="reduce", bias="separate"),
            lw.LowRank(7, tolerance=0.1, method="lanczos", seed=3),
            lw.preconditioners.PivotedCholesky(9, pivots="random", block=3, seed=5),
            lw.preconditioners.RankOne(),
            lw.preconditioners.Subsample(11, scaled=False, max_bytes=2**21),
        )
    ),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_come_back_through_json(solver: Any) -> None:
    assert through(Solver, solver) == solver


@dataclass(frozen=True)
class Odd(Solver):
    """None of lapwing's."""

    def solve(self, problem: Any, b: Any, *, initial: Any = None) -> Any: ...


@pytest.mark.parametrize("inside", [False, True])
def test_those_of_others_are_refused(inside: bool) -> None:
    class LowRank:
        """Of the name, not of the kind."""

        def approximate(self, problem: Any) -> Any: ...

    solver = lw.solvers.CG(preconditioner=LowRank()) if inside else Odd()
    expected = "KFAC, LowRank" if inside else "PrimalSGD, SDD, SGD"
    with refused(UnsupportedError, expected):
        records().state(solver, "solver")


@pytest.mark.parametrize("state", [{"kind": "Jacobi"}, {"kind": "CG", "preconditioner": {"kind": "Jacobi"}}], ids=str)
def test_those_of_another_lapwing_are_refused(state: dict[str, Any]) -> None:
    with refused(DataError, "the lapwing that wrote"):
        records().read(Solver, state, "solver")
