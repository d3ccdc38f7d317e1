"""Covariances of the outputs against J Λ⁻¹ Jᵀ with the naive Jacobian and the dense inverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.dense import DenseSum
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.kinds import GGN
from lapwing.curvature.propagation import LARGE, Propagation
from lapwing.curvature.sweep import Accumulator, sweep
from lapwing.curvature.tangent_kernel import joint as joint_of
from lapwing.ground.data.inputs import take
from lapwing.jacobian.layers.shifted_spectra import SPACING
from lapwing.jacobian.limits import Limits
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers
from tests.cases import CASES
from tests.curvature.naive import Known, known
from tests.curvature.unchanged import unchanged
from tests.pairwise import in_turn

STRUCTURES: dict[str, Callable[[Network], Accumulator]] = {
    "diagonal": DiagonalSum,
    "dense": DenseSum,
    "kfac": KroneckerSum,
    "kfac-separate": lambda network: KroneckerSum(network, "reduce", "separate"),
}


def carried(case: Known, structure: str, large: int = LARGE, total: Accumulator | None = None) -> Propagation:
    total = total or STRUCTURES[structure](case.network)
    sweep(case.model, GGN(), total)
    held = total.result()
    operators = (held.operator.shifted(0.5), held.operator.scaled(2.0).shifted(3.0))
    precisions = tuple(BlockedCurvature(operator, held.partition) for operator in operators)
    return Propagation(case.model, precisions, large)


def expected(case: Known, given: Propagation, number: int = 0) -> Tensor:
    """Covariance of all outputs of all examples under one of the precisions."""
    rows = case.jacobian.flatten(0, -2)
    return rows @ torch.linalg.solve(given.precisions[number].operator.dense(), rows.mT)


def blocks(case: Known, joint: Tensor) -> Tensor:
    """The diagonal blocks ``[n, *event, c, c]`` of a joint covariance."""
    c = case.outputs.shape[-1]
    size = len(joint) // c
    own = joint.view(size, c, size, c)[torch.arange(size), :, torch.arange(size)]
    return own.view(*case.outputs.shape, c)


@pytest.mark.parametrize(
    ("name", "structure"),
    in_turn(CASES, ("kfac", "kfac-separate"), whole=("mlp", "lenet", "tagger", "tied", "cross_attention", "unet")),
)
def test_of_large_layers_each_prior_as_alone(name: str, structure: str) -> None:
    """Where no layer is small: without the variances of weights, by nodes where positions are few."""
    case = known(name)
    mean, found = carried(case, structure, large=1).moments(case.case.inputs)
    known_mean, alone = carried(case, structure).moments(case.case.inputs)
    assert torch.equal(mean, known_mean)
    for ours, theirs in zip(found, alone, strict=True):
        scale = float(theirs.diagonal(dim1=-2, dim2=-1).amax())
        torch.testing.assert_close(ours, theirs, rtol=SPACING**2 / 8, atol=1e-3 * scale)


@pytest.mark.parametrize(
    ("name", "structure"),
    [*in_turn(CASES, ("diagonal", "dense")), *in_turn(CASES, ("kfac", "kfac-separate"), whole=("mlp", "tagger"))],
)
def test_moments_of_each_position_and_of_all_together(name: str, structure: str) -> None:
    case = known(name)
    given = carried(case, structure)
    together = expected(case, given)
    with unchanged(case.case.model):
        mean, (covariance, other) = given.moments(case.case.inputs)
        joint_mean, joint = joint_of(given, case.case.inputs)
    torch.testing.assert_close(mean, case.outputs)
    torch.testing.assert_close(joint_mean, case.outputs)
    torch.testing.assert_close(covariance, blocks(case, together), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(other, blocks(case, expected(case, given, 1)), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(joint, together, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["mlp", "lenet", "tagger", "bare_parameter"])
def test_chunks_do_not_matter(name: str, structure: str) -> None:
    case = known(name)
    whole = carried(case, structure)
    given = replace(whole, model=replace(whole.model, limits=Limits(training=1, prediction=1)))
    joint = expected(case, given)
    torch.testing.assert_close(given.moments(case.case.inputs)[1][0], blocks(case, joint), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(joint_of(given, case.case.inputs)[1], joint, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_one_example_is_as_good_as_many(structure: str) -> None:
    case = known("transformer_batch_first")
    given = carried(case, structure)
    _, (covariance, _) = given.moments(take(case.case.inputs, slice(2, 3)))
    torch.testing.assert_close(covariance, given.moments(case.case.inputs)[1][0][2:3])


@pytest.mark.parametrize("structure", ["diagonal", "dense"])
def test_single_weights_can_be_uncertain(structure: str) -> None:
    case = known("lenet")
    index = torch.tensor([1, 2, 30, 100])
    network = Network(case.case.model, case.network.names, index)
    part = case._replace(
        network=network, survey=find_layers(network, case.case.inputs), jacobian=case.jacobian[..., index]
    )
    given = carried(part, structure)
    joint = expected(part, given)
    torch.testing.assert_close(given.moments(case.case.inputs)[1][0], blocks(part, joint))
    torch.testing.assert_close(joint_of(given, case.case.inputs)[1], joint)


def test_blocks_with_only_a_diagonal_are_independent_weights() -> None:
    case = known("bare_parameter")
    given = carried(case, "kfac", total=KroneckerSum(case.network, exact=3))
    joint = expected(case, given)
    torch.testing.assert_close(given.moments(case.case.inputs)[1][0], blocks(case, joint))
    torch.testing.assert_close(joint_of(given, case.case.inputs)[1], joint)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["lenet", "tagger"])
def test_several_precisions_share_one_pass(name: str, structure: str) -> None:
    case = known(name)
    given = carried(case, structure)
    others = tuple(
        BlockedCurvature(given.precisions[0].operator.shifted(s), given.precisions[0].partition) for s in (0.1, 7.0)
    )
    together = Propagation(given.model, given.precisions + others)
    for one, covariance in zip(together.precisions, together.moments(case.case.inputs)[1], strict=True):
        alone = Propagation(given.model, (one,))
        torch.testing.assert_close(covariance, alone.moments(case.case.inputs)[1][0])
        torch.testing.assert_close(covariance, blocks(case, expected(case, alone)), rtol=1e-8, atol=1e-10)
