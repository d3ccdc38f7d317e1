"""The laws of operators find what is broken, and say by how much."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.linalg import Dense, Diagonal, FunctionOperator
from tests import operators
from tests.linalg.cases import normal, spd

SYMMETRIC = spd(4, 10.0)


def of(forward: Tensor, adjoint: Tensor) -> FunctionOperator:
    return FunctionOperator(lambda v: forward @ v, lambda u: adjoint @ u, size=(4, 4), like=forward)


def test_good_operators_pass_in_silence() -> None:
    good = of(SYMMETRIC, SYMMETRIC)
    operators.check_linear(good)
    operators.check_adjoint(good)
    operators.check_symmetric(good)
    operators.check_matches_dense(good, SYMMETRIC)
    operators.check_structured(Dense(SYMMETRIC))
    operators.check_structured(Dense(SYMMETRIC.float()))


def test_a_generator_makes_a_check_repeatable() -> None:
    seen: list[Tensor] = []
    watching = FunctionOperator(lambda v: (seen.append(v), v)[1], lambda u: u, size=(4, 4), like=SYMMETRIC)
    for _ in range(2):
        operators.check_linear(watching, generator=torch.Generator().manual_seed(3))
    assert torch.equal(seen[0], seen[len(seen) // 2])


def test_a_function_that_is_not_linear() -> None:
    shifted = FunctionOperator(lambda v: v + 1, lambda u: u, size=(4, 4), like=SYMMETRIC)
    with pytest.raises(AssertionError, match=r"A\(2u - 3v\) = 2Au - 3Av: error .* on a size of .*, limit 1.5e-08"):
        operators.check_linear(shifted)


def test_a_product_that_mixes_columns() -> None:
    mixing = FunctionOperator(lambda v: v.flip(1), lambda u: u, size=(4, 4), like=SYMMETRIC)
    with pytest.raises(AssertionError, match=r"A\[u, v\] = \[Au, Av\]"):
        operators.check_linear(mixing)


def test_a_wrong_adjoint() -> None:
    with pytest.raises(AssertionError, match="<u, Av> = <Aᵀu, v>"):
        operators.check_adjoint(of(SYMMETRIC, 1.001 * SYMMETRIC))


def test_what_is_not_symmetric() -> None:
    skewed = SYMMETRIC + 1e-3 * normal(4, 4)
    with pytest.raises(AssertionError, match="<u, Av> = <Au, v>"):
        operators.check_symmetric(of(skewed, skewed.mT))
    with pytest.raises(AssertionError, match="Aᵀv = Av"):
        operators.check_symmetric(of(SYMMETRIC, skewed))
    wide = FunctionOperator(lambda v: v[:2], lambda u: torch.cat([u, 0 * u]), size=(2, 4), like=SYMMETRIC)
    with pytest.raises(AssertionError, match=r"FunctionOperator\(2 x 4.* is not square"):
        operators.check_symmetric(wide)


def test_another_matrix() -> None:
    with pytest.raises(AssertionError, match="AV = dense V"):
        operators.check_matches_dense(of(SYMMETRIC, SYMMETRIC), 1.01 * SYMMETRIC)
    with pytest.raises(AssertionError, match="AᵀU = denseᵀ U"):
        operators.check_matches_dense(of(SYMMETRIC, 1.01 * SYMMETRIC), SYMMETRIC)
    with pytest.raises(AssertionError, match="shape"):
        operators.check_matches_dense(of(SYMMETRIC, SYMMETRIC), torch.ones(3, 4).double())
    operators.check_matches_dense(of(SYMMETRIC, SYMMETRIC), 1.01 * SYMMETRIC, tolerance=0.02)


def test_not_a_number_is_not_within_tolerance() -> None:
    with pytest.raises(AssertionError, match="error nan"):
        operators.check_linear(of(SYMMETRIC * torch.nan, SYMMETRIC))


WRONG = {
    "_solve": lambda dense, block: 1.01 * torch.linalg.solve(dense.matrix, block),
    "root": lambda dense: Diagonal(dense.diagonal().sqrt()),
    "inverse_root": lambda dense: dense.root(),
    "logdet": lambda dense: dense.eigenvalues().sum(),
    "trace": lambda dense: 1.01 * dense.diagonal().sum(),
    "diagonal": lambda dense: dense.eigenvalues(),
    "eigenvalues": lambda dense: dense.diagonal(),
    "scaled": lambda dense, c: dense,
    "shifted": lambda dense, s: dense,
    "T": property(lambda dense: Diagonal(dense.diagonal())),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_promise_of_a_structured_operator_is_checked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dense, name, WRONG[name])
    with pytest.raises(AssertionError, match=r"error .* limit 1.5e-08"):
        operators.check_structured(Dense(SYMMETRIC))
