"""The outer product of the gradient against the dense one."""

from __future__ import annotations

import torch

import lapwing as lw
from tests.linear.preconditioners.cases import close, setting


def test_the_gradient_is_that_of_the_log_likelihood() -> None:
    products, dense = setting()
    case = dense.case
    f = dense.outputs(case.x)
    score = case.likelihood.score(f, case.likelihood.canonical_targets(f, case.y))
    gradient = torch.einsum("nc,ncd->d", score, dense.jacobian(case.x))
    expected = torch.outer(gradient, gradient) + 0.7 * torch.eye(products.size).double()
    close(lw.preconditioners.RankOne().approximate(products).dense(), expected)
