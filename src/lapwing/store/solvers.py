"""Solvers and their preconditioners as plain JSON, and back."""

from __future__ import annotations

from typing import Any

from lapwing.ground.archive import Json
from lapwing.linear.solvers import Solver
from lapwing.store.families import records


def solver_state(solver: Solver) -> Json:
    """A solver by its name and its options, those of its preconditioner inside.

    Raises:
        UnsupportedError: If one of the two is none of lapwing's.

    Example:
        >>> from lapwing.linear.solvers import CG
        >>> from lapwing.structures import Diagonal
        >>> solver_state(CG(preconditioner=Diagonal()))["preconditioner"]
        {'kind': 'Diagonal'}
    """
    return records().state(solver, "solver")


def solver_from(state: Any) -> Solver:
    """The solver that gave a state.

    Raises:
        DataError: If no solver and preconditioner of this lapwing give it.
    """
    return records().read(Solver, state, "solver")
