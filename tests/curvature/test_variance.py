"""Covariances of the outputs against J Λ⁻¹ Jᵀ with the naive Jacobian and the dense inverse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lapwing.curvature import variance
from lapwing.curvature.dense import DenseSum
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.ggn import GGN
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.network import Network
from lapwing.curvature.sums import Held, Sum, sweep
from lapwing.curvature.survey import find_layers
from lapwing.curvature.variance import Propagation, sum_of
from lapwing.data import take
from tests.cases import CASES
from tests.curvature.naive import Known, known
from tests.curvature.unchanged import unchanged

STRUCTURES: dict[str, Callable[[Network], Sum]] = {
    "diagonal": DiagonalSum,
    "dense": DenseSum,
    "kfac": KroneckerSum,
    "kfac-separate": lambda network: KroneckerSum(network, "reduce", "separate"),
}


def propagation(case: Known, structure: str) -> Propagation:
    total = STRUCTURES[structure](case.network)
    sweep(case.network, case.survey, case.data, case.case.likelihood, GGN(), total)
    held = total.result()
    precision = Held(held.operator.shifted(0.5), held.partition)
    return Propagation(case.network, case.survey, case.case.likelihood, precision)


def expected(case: Known, given: Propagation) -> Tensor:
    """Covariance of all outputs of all examples."""
    rows = case.jacobian.flatten(0, -2)
    return rows @ torch.linalg.solve(given.held.operator.dense(), rows.mT)


def blocks(case: Known, joint: Tensor) -> Tensor:
    """The diagonal blocks ``[n, *event, c, c]`` of a joint covariance."""
    c = case.outputs.shape[-1]
    size = len(joint) // c
    own = joint.view(size, c, size, c)[torch.arange(size), :, torch.arange(size)]
    return own.view(*case.outputs.shape, c)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", CASES)
def test_moments_of_each_position(name: str, structure: str) -> None:
    case = known(name)
    given = propagation(case, structure)
    with unchanged(case.case.model):
        mean, covariance = given.moments(case.case.inputs)
    torch.testing.assert_close(mean, case.outputs)
    torch.testing.assert_close(covariance, blocks(case, expected(case, given)), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", CASES)
def test_joint_moments_of_all_examples(name: str, structure: str) -> None:
    case = known(name)
    given = propagation(case, structure)
    mean, covariance = given.joint(case.case.inputs)
    torch.testing.assert_close(mean, case.outputs)
    torch.testing.assert_close(covariance, expected(case, given), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["mlp", "lenet", "unet", "tagger", "lstm"])
def test_chunks_do_not_matter(name: str, structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = known(name)
    given = propagation(case, structure)
    monkeypatch.setattr(variance, "BUDGET", 1)
    joint = expected(case, given)
    torch.testing.assert_close(given.moments(case.case.inputs)[1], blocks(case, joint), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(given.joint(case.case.inputs)[1], joint, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_one_example_is_as_good_as_many(structure: str) -> None:
    case = known("transformer_batch_first")
    given = propagation(case, structure)
    _, covariance = given.moments(take(case.case.inputs, slice(2, 3)))
    torch.testing.assert_close(covariance, given.moments(case.case.inputs)[1][2:3])


@pytest.mark.parametrize("structure", ["diagonal", "dense"])
def test_single_weights_can_be_uncertain(structure: str) -> None:
    case = known("lenet")
    index = torch.tensor([1, 2, 30, 100])
    network = Network(case.case.model, case.network.names, index)
    part = case._replace(
        network=network, survey=find_layers(network, case.case.inputs), jacobian=case.jacobian[..., index]
    )
    given = propagation(part, structure)
    joint = expected(part, given)
    torch.testing.assert_close(given.moments(case.case.inputs)[1], blocks(part, joint))
    torch.testing.assert_close(given.joint(case.case.inputs)[1], joint)


def test_whichever_side_is_smaller_is_rotated() -> None:
    """A convolution with few and one with many positions for its size, both through the same block."""
    for name in ("lenet", "conv1d_same", "depthwise", "conv3d"):
        case = known(name)
        given = propagation(case, "kfac")
        root = given.whitened(list(next(iter(given._passes(case.case.inputs))).factors(eye(case))))
        torch.testing.assert_close(root @ root.mT, blocks(case, expected(case, given)), rtol=1e-8, atol=1e-10)


def eye(case: Known) -> Tensor:
    c = case.outputs.shape[-1]
    return torch.eye(c, dtype=torch.float64).unsqueeze(1).expand(c, *case.outputs.shape)


def test_parts_are_added_up() -> None:
    part = torch.ones(2)
    assert sum_of([part]) is part
    assert sum_of([part, part, part]).tolist() == [3.0, 3.0]
