"""Solvers and their preconditioners as plain JSON, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lapwing.errors import DataError, UnsupportedError
from lapwing.precondition import PivotedCholesky, RankOne, Subsample, TopRows
from lapwing.solvers import CG, SGD, Solver
from lapwing.store.archive import Json
from lapwing.structures import KFAC, Diagonal, LowRank

SOLVERS: dict[str, type[Any]] = {"CG": CG, "SGD": SGD}

PRECONDITIONERS: dict[str, type[Any]] = {
    "Diagonal": Diagonal,
    "KFAC": KFAC,
    "LowRank": LowRank,
    "PivotedCholesky": PivotedCholesky,
    "RankOne": RankOne,
    "Subsample": Subsample,
    "TopRows": TopRows,
}


def solver_state(solver: Solver) -> Json:
    """A solver by its name and its options, those of its preconditioner inside.

    Raises:
        UnsupportedError: If one of the two is none of lapwing's.

    Example:
        >>> solver_state(CG(preconditioner=Diagonal()))["preconditioner"]
        {'kind': 'Diagonal'}
    """
    state = _state(solver, SOLVERS)
    if state.get("preconditioner") is not None:
        state["preconditioner"] = _state(state["preconditioner"], PRECONDITIONERS)
    return state


def solver_from(state: Json) -> Solver:
    """The solver that gave a state.

    Raises:
        DataError: If the state names a solver or preconditioner this lapwing does not have.
    """
    options = dict(state)
    if options.get("preconditioner") is not None:
        options["preconditioner"] = _made(options["preconditioner"], PRECONDITIONERS)
    return _made(options, SOLVERS)


def _state(recipe: Any, kinds: dict[str, type[Any]]) -> Json:
    kind = type(recipe).__name__
    if kinds.get(kind) is not type(recipe):
        raise UnsupportedError(f"one of {', '.join(kinds)}", kind, "one of lapwing's to save a posterior")
    return {"kind": kind, **{field.name: getattr(recipe, field.name) for field in fields(recipe)}}


def _made(state: Json, kinds: dict[str, type[Any]]) -> Any:
    if state["kind"] not in kinds:
        raise DataError(f"one of {', '.join(kinds)}", f"'{state['kind']}'", "the lapwing that wrote the file")
    return kinds[state["kind"]](**{name: value for name, value in state.items() if name != "kind"})
