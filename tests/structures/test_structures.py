"""What every structure refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

import lapwing as lw
from lapwing.ground.errors import ConfigError, ShapeError
from lapwing.methods.hessian_free import HessianFree
from lapwing.structures import Structure
from tests.checker import unchecked
from tests.posterior_cases import problem, refused
from tests.structures.cases import fit


@pytest.mark.parametrize(
    "structure", [lw.Full(view="weights"), lw.KFAC(), lw.Diagonal(), lw.MatrixFree(), lw.Sampled()]
)
def test_another_number_of_precisions_is_refused_at_the_fit(structure: Structure) -> None:
    with refused(ShapeError, "one precision for each of 2 layers"):
        fit(problem("categorical"), structure, prior=lw.Layerwise((1.0, 2.0, 3.0)))


SEEDED: dict[str, Callable[..., object]] = {
    "Sampled": lw.Sampled,
    "LowRank": lw.LowRank,
    "Nystrom": lw.Nystrom,
    "SGD": lw.solvers.SGD,
    "Subnetwork": functools.partial(lw.Subnetwork, 3),
    "PivotedCholesky": functools.partial(lw.preconditioners.PivotedCholesky, 3),
    "HessianFree": functools.partial(HessianFree, lw.Gaussian()),
}


@pytest.mark.parametrize("bad", ["a", 1.5, None, -1])
@pytest.mark.parametrize("name", SEEDED)
def test_seeds_are_whole_numbers(name: str, bad: object) -> None:
    with unchecked(), refused(ConfigError, "seed=0"):
        SEEDED[name](seed=bad)
