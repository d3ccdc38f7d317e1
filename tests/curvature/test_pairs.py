"""Rows of single outputs are those of the dense Jacobian."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.curvature import pairs as module
from lapwing.curvature.pairs import Pairs, pair_rows
from lapwing.ground.data import take
from tests.posterior_cases import WEIGHTS, Linearised, labels, problem


@pytest.mark.parametrize(
    ("name", "weights"), [("images", "all"), ("images", "subnetwork"), ("tokens", "all"), ("pixels", "last-layer")]
)
def test_rows_are_those_of_the_dense_jacobian(name: str, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Diagonal(), weights=WEIGHTS[weights]))
    jacobian = Linearised(case, posterior.network).jacobian(case.x).flatten(1, -2)
    examples = labels(9, classes=len(case.x), seed=3)
    outputs = labels(9, classes=jacobian.shape[1], seed=4)
    chosen = Pairs(take(case.x, examples), examples, outputs)
    model = posterior.model
    expected = jacobian[examples, outputs]
    torch.testing.assert_close(pair_rows(model, chosen), expected)
    monkeypatch.setattr(module, "BUDGET", 1)
    torch.testing.assert_close(pair_rows(model, chosen), expected)
    part = torch.tensor([7, 2])
    assert len(chosen.at(part)) == 2
    torch.testing.assert_close(pair_rows(model, chosen.at(part)), expected[part])
