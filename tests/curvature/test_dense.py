"""The curvature as a dense matrix against the naive Jacobian."""

from __future__ import annotations

import pytest
import torch

from lapwing.curvature.dense import DenseSum
from lapwing.curvature.kinds import GGN, EmpiricalFisher
from lapwing.curvature.sweep import sweep
from lapwing.jacobian.layers.base import Explicit, jacobian_rows
from lapwing.jacobian.network.network import Network
from lapwing.linalg import Dense
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import known


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_gauss_newton_matrix(name: str) -> None:
    case = known(name)
    total = DenseSum(case.network)
    sweep(case.model, GGN(), total)
    held = total.result()
    assert isinstance(held.operator, Dense) and held.partition == ()
    torch.testing.assert_close(held.operator.dense(), naive.ggn(case), rtol=1e-9, atol=1e-10)


def test_it_is_the_gram_matrix_of_the_gradients_for_the_empirical_fisher() -> None:
    case = known("unet")
    total = DenseSum(case.network)
    sweep(case.model, EmpiricalFisher(), total)
    score = case.case.likelihood.score(case.outputs, case.case.targets)
    gradients = torch.einsum("nc,ncd->nd", score.flatten(1), case.jacobian.flatten(1, -2))
    torch.testing.assert_close(total.result().operator.dense(), gradients.mT @ gradients)


def test_rows_follow_the_order_of_the_parameters() -> None:
    network = known("mlp").network
    sizes = dict(zip(network.names, network.layout.sizes, strict=True))
    whole = torch.arange(float(network.size)).double().expand(1, 1, -1)
    parts = [Explicit(name, None, whole[..., network.layout.slices[name]]) for name in reversed(network.names)]
    assert [part.g.shape[-1] for part in parts] == [sizes[name] for name in reversed(network.names)]
    assert torch.equal(jacobian_rows(network, parts), whole)
    masked = Network(network.module, network.names, torch.tensor([4, 7]))
    assert jacobian_rows(masked, parts).tolist() == [[[4.0, 7.0]]]
    assert DenseSum(masked).floats == network.size
