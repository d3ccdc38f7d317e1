"""Eigenvalues put right are the diagonal of the exact curvature in the basis of the factors."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.ekfac import EigenvalueSum
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.kinds import GGN
from lapwing.curvature.sweep import sweep
from lapwing.linalg import BlockDiagonal, Kronecker
from tests.curvature import naive
from tests.curvature.naive import known
from tests.posterior_cases import problem

CASES = [
    ("mlp", "expand"),
    ("lenet", "expand"),
    ("lenet", "reduce"),
    ("depthwise", "expand"),
    ("conv_transpose2d", "expand"),
    ("batch_norm", "expand"),
    ("called_twice", "reduce"),
    ("tagger", "expand"),
    ("tied", "expand"),
    ("transformer_sequence_first", "expand"),
]


def both(
    name: str, sharing: Literal["expand", "reduce"] = "expand", bias: Literal["joint", "separate"] = "joint"
) -> tuple[BlockedCurvature, BlockedCurvature]:
    """The curvature by KFAC, and with its eigenvalues put right."""
    case = known(name)
    factors = KroneckerSum(case.network, sharing, bias)
    sweep(case.model, GGN(), factors)
    held = factors.result()
    total = EigenvalueSum(case.network, held, bias)
    sweep(case.model, GGN(), total)
    return held, total.result()


def check_nearest(held: BlockedCurvature, found: BlockedCurvature, exact: Tensor) -> int:
    """The diagonal is exact in the basis, and the block never further away; how many blocks are products."""
    assert isinstance(held.operator, BlockDiagonal) and isinstance(found.operator, BlockDiagonal)
    products = 0
    triples = zip(held.operator.indexed_blocks, found.operator.indexed_blocks, strict=True)
    for (before, index), (after, same) in triples:
        assert torch.equal(index, same)
        block = exact[index[:, None], index]
        if not isinstance(after, Kronecker):
            assert after is before
            continue
        products += 1
        size = after.shape[0]
        basis = after._from_basis(torch.eye(size, dtype=torch.float64))
        torch.testing.assert_close(basis @ basis.mT, torch.eye(size, dtype=torch.float64))
        expected = (basis.mT @ block @ basis).diagonal()
        torch.testing.assert_close(after.eigenvalues(), expected, rtol=1e-8, atol=1e-10)
        apart = [float((each.dense() - block).norm()) for each in (after, before)]
        assert apart[0] <= apart[1] + 1e-12 * float(block.norm())
        torch.testing.assert_close(after.trace(), block.trace())
    return products


@pytest.mark.parametrize(("name", "sharing"), CASES)
def test_the_diagonal_is_exact_in_the_basis_and_the_block_never_further(
    name: str, sharing: Literal["expand", "reduce"]
) -> None:
    assert check_nearest(*both(name, sharing), naive.ggn(known(name))) >= 1


@pytest.mark.parametrize("name", ["mlp", "tagger"])
def test_a_bias_can_have_a_block_of_its_own(name: str) -> None:
    assert check_nearest(*both(name, bias="separate"), naive.ggn(known(name))) >= 2


@pytest.mark.parametrize("bias", ["joint", "separate"])
@pytest.mark.parametrize("together", [3, 2])
def test_of_a_head_some_outputs_may_be_kept_apart(together: int, bias: Literal["joint", "separate"]) -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, weights=lw.LastLayer(), structure=lw.Full(view="weights")))
    model = posterior.model
    factors = KroneckerSum(model.network, bias=bias, together=together)
    sweep(model, GGN(), factors)
    held = factors.result()
    total = EigenvalueSum(model.network, held, bias)
    sweep(model, GGN(), total)
    exact = posterior.curvature.operator.dense()  # type: ignore[attr-defined]
    products = check_nearest(held, total.result(), exact)
    assert products == (1 if together == 3 else 2) * (1 if bias == "joint" else 2)
