"""Layer factors of every network against its Jacobian, one output at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import take
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.layers.base import Factor, Layer, by_example, jacobian_rows
from lapwing.jacobian.layers.capture import FEW, STRETCH, Survey
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers
from lapwing.likelihoods.base import identity_cotangents
from tests.cases import CASES, build
from tests.curvature import naive
from tests.curvature.naive import Known, known
from tests.curvature.unchanged import unchanged


def cotangents(case: Known) -> Tensor:
    """Three canonical directions, different for every example."""
    return torch.randn(3, *case.outputs.shape, dtype=torch.float64)


def factors(case: Known, directions: Tensor) -> list[Factor]:
    forward = case.model.forward(case.case.inputs)
    return list(forward.factors(directions))


def places(case: Known, factor: Factor) -> Tensor:
    """Where the weights of a factor lie in the flat vector."""
    slices = case.network.layout.slices
    return torch.cat([torch.arange(case.network.size)[slices[name]] for name in factor.names])


@pytest.mark.parametrize("name", CASES)
def test_rows_are_the_jacobian(name: str) -> None:
    case = known(name)
    forward = case.model.forward(case.case.inputs)
    torch.testing.assert_close(forward.outputs, case.outputs)
    blocks = [jacobian_rows(case.network, forward.factors(block)) for block in identity_cotangents(case.outputs)]
    rows = torch.stack(blocks, dim=1).view(case.jacobian.shape)
    torch.testing.assert_close(rows, case.jacobian, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_every_factor_answers_as_its_rows_do(name: str) -> None:
    case = known(name)
    directions = cotangents(case)
    rows = naive.pulled_back(case, directions)
    variance = torch.rand(case.network.size, dtype=torch.float64)
    covered = []
    for factor in factors(case, directions):
        place = places(case, factor)
        covered.append(place)
        own = rows[..., place]
        torch.testing.assert_close(factor.rows(), own, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(factor.square_sum(), own.square().sum((0, 1)), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(
            factor.covariance(variance[place]), (own * variance[place]) @ own.mT, rtol=1e-9, atol=1e-10
        )
    assert torch.equal(torch.cat(covered).sort().values, torch.arange(case.network.size))


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_sum_over_examples(name: str) -> None:
    case = known(name)
    direction = cotangents(case)[:1]
    forward = case.model.forward(case.case.inputs)
    expected = naive.pulled_back(case, direction).sum((0, 1))
    found = forward.gradient(direction[0])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_the_module_is_left_bit_for_bit_as_it_was(name: str) -> None:
    case = known(name)
    with unchanged(case.case.model):
        find_layers(case.network, case.case.inputs)
        factors(case, cotangents(case))


@pytest.mark.parametrize("name", CASES)
def test_an_interruption_leaves_the_module_as_it_was(name: str) -> None:
    case = known(name)
    calls = 0

    def interrupt(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    with unchanged(case.case.model):
        handle = case.case.model.register_forward_hook(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                for _ in range(2):
                    factors(case, cotangents(case))
        finally:
            handle.remove()


@pytest.mark.parametrize("names", [("0.weight",), ("0.bias",), ("0.bias", "2.weight"), ("2.weight", "2.bias")])
def test_parts_of_layers_can_be_uncertain(names: tuple[str, ...]) -> None:
    case = known("mlp")
    network = Network(case.case.model, names)
    places = torch.cat([torch.arange(case.network.size)[case.network.layout.slices[name]] for name in names])
    survey = find_layers(network, case.case.inputs)
    assert not survey.without_factors
    (block,) = identity_cotangents(case.outputs)
    forward = Pass.of(network, survey, case.case.inputs)
    torch.testing.assert_close(jacobian_rows(network, forward.factors(block)), case.jacobian[..., places])
    torch.testing.assert_close(forward.gradient(block[0]), case.jacobian[:, 0, places].sum(0))


def test_single_weights_can_be_uncertain() -> None:
    case = known("mlp")
    index = torch.tensor([2, 5, 17])
    network = Network(case.case.model, ("0.weight", "0.bias"), index)
    forward = Pass.of(network, find_layers(network, case.case.inputs), case.case.inputs)
    (block,) = identity_cotangents(case.outputs)
    torch.testing.assert_close(jacobian_rows(network, forward.factors(block)), case.jacobian[..., index])
    torch.testing.assert_close(forward.gradient(block[0]), case.jacobian[:, 0, index].sum(0))


@pytest.mark.parametrize("name", ["mlp", "lenet", "transformer_batch_first", "folded", "lstm"])
def test_gradients_can_be_turned_off_outside(name: str) -> None:
    case = known(name)
    directions = cotangents(case)
    expected = jacobian_rows(case.network, factors(case, directions))
    with torch.no_grad():
        torch.testing.assert_close(jacobian_rows(case.network, factors(case, directions)), expected)
    with torch.inference_mode():
        torch.testing.assert_close(jacobian_rows(case.network, factors(case, directions.clone())), expected)


def test_inputs_made_in_inference_mode_are_welcome() -> None:
    case = known("mlp")
    with torch.inference_mode():
        inputs = torch.randn(4, 4, dtype=torch.float64)
        forward = case.model.forward(inputs)
        rows = jacobian_rows(case.network, forward.factors(torch.ones(1, 4, 3, dtype=torch.float64)))
    _, expected = naive.jacobian(case.case.model, inputs.clone())
    torch.testing.assert_close(rows[:, 0], expected.sum(1))


def test_a_layer_that_does_not_reach_the_outputs_contributes_nothing() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            self.unused(x)
            return self.used(x)

    network, x = Network.of(Unused().double()), torch.randn(3, 2, dtype=torch.float64)
    survey = find_layers(network, x)
    rows = jacobian_rows(network, Pass.of(network, survey, x).factors(torch.ones(1, 3, 1, dtype=torch.float64)))
    torch.testing.assert_close(rows, torch.cat([x, torch.ones(3, 1), torch.zeros(3, 3)], dim=1).double().unsqueeze(1))


def test_a_layer_that_some_batches_skip_is_refused() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.often, self.seldom = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.often(x)
            return self.seldom(h) if bool((x > 0).all()) else h

    network, x = Network.of(Skips()), torch.ones(3, 2)
    survey = find_layers(network, x)
    with pytest.raises(UnsupportedError, match=r"seldom\.weight"):
        list(Pass.of(network, survey, -x).factors(torch.ones(1, 3, 2)))


def test_without_layers_there_are_no_layer_factors() -> None:
    case = known("bare_parameter")
    network = Network(case.case.model, ("scale",))
    survey = find_layers(network, case.case.inputs)
    assert survey.layers == () and survey.without_factors == ("scale",)
    forward = Pass.of(network, survey, case.case.inputs)
    assert list(forward.layer_factors(torch.ones(1, 4, 2, dtype=torch.float64))) == []


def test_a_layer_owns_the_calls_on_its_parameters() -> None:
    case = known("called_twice")
    assert case.survey.without_factors == ()
    calls = case.model.forward(case.case.inputs).calls
    assert [sum(layer.owns(call) for call in calls) for layer in case.survey.layers] == [2, 2, 2, 1]
    assert Layer("Linear", "w", None, 0).names == ("w",) and Layer("Linear", None, "b", 0).names == ("b",)


def test_chunks_shrink_with_what_an_example_needs() -> None:
    survey = Survey((), (), torch.Size([3]), (10, 20))
    assert survey.chunk(cotangents=2, itemsize=8, budget=6400) == 20
    assert survey.chunk(cotangents=2, itemsize=8, budget=6400, extra=30) == FEW
    assert survey.chunk(cotangents=2, itemsize=8, budget=6400, extra=620) == STRETCH * 6400 // (8 * (2 * 630 + 20))
    assert survey.chunk(cotangents=2, itemsize=8, budget=1) == 1
    assert Survey((), (), torch.Size([3]), (0, 0)).chunk(2, 8, 10**9) == 4096


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_examples_come_first_wherever_they_were(axis: int) -> None:
    """With n = 2 examples that each fill m = 3 places of the axis, and k = 4 cotangents on axis 1."""
    x = torch.randn(2, 3, 4, 5, 7, 6)  # n, m, k, two axes of positions, features
    expected = x.transpose(1, 2).reshape(2, 4, -1, 6)
    moved = x.permute(2, 0, 1, 3, 4, 5).flatten(1, 2)  # k, n m, positions, features
    moved = moved.movedim(1, 1 + axis)  # the axis of examples among the positions
    found = by_example(moved.movedim(0, 1), axis, 2)
    assert sorted(found[0, 0].flatten().tolist()) == sorted(expected[0, 0].flatten().tolist())
    assert found.shape == expected.shape
    for example in range(2):
        for direction in range(4):
            torch.testing.assert_close(found[example, direction].sum(0), expected[example, direction].sum(0))


def test_batches_of_another_size_need_no_new_survey() -> None:
    case = known("transformer_sequence_first")
    single = take(case.case.inputs, slice(1, 2))
    (block,) = identity_cotangents(case.outputs[1:2])
    rows = jacobian_rows(case.network, case.model.forward(single).factors(block))
    torch.testing.assert_close(rows, case.jacobian[1:2])


def test_building_a_case_twice_gives_the_same_case() -> None:
    first, second = build("lenet"), build("lenet")
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
