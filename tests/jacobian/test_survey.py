"""What is found out about a network before its curvature is computed, and which networks are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.data.inputs import count, take
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.layers.base import jacobian_rows
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers, probe
from tests.curvature import naive
from tests.curvature.naive import known
from tests.posterior_cases import refused

KINDS = {
    "mlp": "Linear Linear",
    "lenet": "Convolution Convolution Linear",
    "conv3d": "Convolution Linear",
    "batch_norm": "Convolution Norm Norm Linear",
    "layer_norm": "Linear Norm Norm Linear",
    "transformer_batch_first": "Embedding Broadcast Linear Linear Norm Linear Linear Norm Linear",
    "called_twice": "Convolution Linear Norm Linear",
    "merged_rows": "MatrixProduct MatrixProduct MatrixProduct",
    "frozen_backbone": "Linear Linear",
    "tagger": "Embedding Linear Linear",
    "tied": "TiedEmbedding Linear",
    "positions": "Embedding Embedding Broadcast Broadcast Linear Linear",
}


WITHOUT_FACTORS = {
    "transformer_batch_first": {"positions"},
    "transformer_sequence_first": {"positions"},
    "cross_attention": {"attention.in_proj_bias"},
    "bare_parameter": {"scale", "matrix"},
    "branching": {"scale"},
    "rms_norm": {"1.weight"},
    "folded": {"frames.weight", "frames.bias", "norm.weight", "norm.bias"},
    "reparametrised": {
        "inner.parametrizations.weight.original",
        "layer.weight",
        "layer.bias",
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_layers_are_found_in_order_of_first_use(name: str) -> None:
    survey = known(name).survey
    assert " ".join(layer.kind for layer in survey.layers) == KINDS[name]
    assert survey.output == known(name).case.likelihood.canonical(known(name).outputs).shape[1:]


@pytest.mark.parametrize("name", WITHOUT_FACTORS)
def test_what_no_rule_explains_is_left_to_automatic_differentiation(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = known(name)
    with caplog.at_level(logging.INFO, "lapwing"):
        survey = find_layers(case.network, case.case.inputs)
    assert set(survey.without_factors) == WITHOUT_FACTORS[name]
    assert all(name in caplog.text for name in survey.without_factors)


def test_parameters_of_fewer_axes_than_a_layer_has_are_left_to_automatic_differentiation() -> None:
    """``F.linear`` takes a weight without outputs, and a bias that is repeated."""

    class Broadcast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vector = nn.Parameter(torch.randn(3))
            self.matrix = nn.Parameter(torch.randn(5, 7))
            self.bias = nn.Parameter(torch.randn(1))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(F.linear(x, self.vector), self.matrix.mT, self.bias)

    network = Network.of(Broadcast())
    survey = find_layers(network, (torch.randn(4, 5, 3),))
    assert set(survey.without_factors) == {"vector", "matrix", "bias"}


@pytest.mark.parametrize("examples", [1, 2, 3, 5])
def test_any_number_of_examples_is_enough(examples: int) -> None:
    case = known("transformer_batch_first")
    inputs = take(case.case.inputs, torch.arange(examples) % 4)
    assert find_layers(case.network, inputs) == case.survey


def test_a_probe_repeats_what_there_is() -> None:
    assert probe(torch.arange(2), 3).tolist() == [0, 1, 0]
    same = torch.arange(3)
    assert probe(same, 3) is same
    assert count(probe({"x": torch.zeros(7, 2)}, 3)) == 3


def test_numbers_of_an_example_bound_what_it_occupies() -> None:
    each, beside = known("lenet").survey.floats
    assert each >= 4 * 4 * 4 + 4 * 3 * 2 + 3
    assert beside >= 2 * 3 * 3 * 4 * 4
    assert known("bare_parameter").survey.floats[0] >= 3 + 4


def test_a_layer_used_outside_its_function_too_is_caught_by_comparing() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.inner(x))
            return self.outer(h) + self.outer.bias * h

    model = Both()
    survey = find_layers(Network.of(model), torch.randn(3, 2))
    assert survey.without_factors == ("outer.weight", "outer.bias")


def test_a_weight_shared_by_layers_of_two_kinds_is_left_out_of_both() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

        def forward(self, tokens: Tensor) -> Tensor:
            h = F.embedding(tokens, self.table).sum(1)
            h = F.linear(h, self.table)
            return F.linear(h, self.table, self.bias)

    survey = find_layers(Network.of(Shared()), torch.randint(0, 4, (3, 2)))
    assert survey.layers == () and survey.without_factors == ("table", "bias")


def test_what_is_looked_up_for_all_examples_and_not_only_added_is_left_to_automatic_differentiation() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.positions, self.head = nn.Embedding(5, 3), nn.Embedding(2, 3), nn.Linear(3, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            where = self.positions(torch.arange(2))
            return self.head(torch.tanh(self.embed(tokens) + where) * where).sum(1)

    survey = find_layers(Network.of(Scaled()), torch.randint(0, 5, (3, 2)))
    assert survey.without_factors == ("positions.weight",)


class Reordered(nn.Module):
    """The examples in another order inside, from so many on."""

    def __init__(self, order: Callable[[Tensor], Tensor], least: int = 1) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 2)
        self.order, self.least = order, least

    def forward(self, x: Tensor) -> Tensor:
        order = self.order(x) if len(x) >= self.least else torch.arange(len(x))
        return self.last(torch.tanh(self.first(x[order])))[order.argsort()]


def reverse(x: Tensor) -> Tensor:
    return torch.arange(len(x)).flip(0)


def by_first(x: Tensor) -> Tensor:
    return x[:, 0].argsort()


@pytest.mark.parametrize("order", [reverse, by_first])
def test_layers_that_see_the_examples_in_another_order_are_left_to_automatic_differentiation(
    order: Callable[[Tensor], Tensor],
) -> None:
    """Also where the first three are in order already."""
    x = torch.arange(6.0).view(3, 2)
    survey = find_layers(Network.of(Reordered(order)), x)
    assert survey.without_factors == ("first.weight", "first.bias", "last.weight", "last.bias")


@pytest.mark.parametrize("structure", [lw.Full(view="weights"), lw.KFAC(), lw.Diagonal()])
def test_a_batch_whose_examples_are_in_another_order_is_refused(structure: Any) -> None:
    model = Reordered(reverse, least=4)
    x, y = torch.randn(6, 2), torch.arange(6) % 2
    recipe = lw.Laplace(lw.Categorical(), structure=structure)
    with refused(UnsupportedError, "one after the other in first.weight"):
        recipe.fit(model, (x, y))
    recipe.fit(model, [(x[:3], y[:3]), (x[3:], y[3:])])


def test_a_batch_in_another_order_is_refused_where_the_first_output_does_not_tell() -> None:
    class Beside(Reordered):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x[:, :1], super().forward(x)], 1)

    x, y = torch.randn(6, 2), torch.randn(6, 3)
    with refused(UnsupportedError, "one after the other in first.weight"):
        lw.Laplace(lw.Gaussian(), structure=lw.Diagonal()).fit(Beside(reverse, least=4), (x, y))


def test_a_batch_that_sends_examples_unevenly_through_a_layer_is_refused() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            rows = torch.cat([x, x[:1]]) if len(x) > 3 else x
            return self.last(torch.tanh(self.first(rows)))[: len(x)]

    x, y = torch.randn(6, 2), torch.arange(6) % 2
    with refused(UnsupportedError, "7 rows"):
        lw.Laplace(lw.Categorical()).fit(Padded(), (x, y))


def test_a_layer_whose_examples_lie_on_another_axis_each_time_is_left_out() -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.layer(x))
            return self.layer(h.transpose(0, 1)).transpose(0, 1).sum(1)

    model, x = Turning().double(), torch.randn(3, 4, 2, dtype=torch.float64)
    network = Network.of(model)
    survey = find_layers(network, x)
    assert survey.layers == ()
    rows = jacobian_rows(network, Pass.of(network, survey, x).factors(torch.ones(1, 3, 2).double()))
    torch.testing.assert_close(rows.squeeze(1), naive.jacobian(model, x)[1].sum(1))


def test_a_layer_whose_size_does_not_follow_the_examples_is_left_out() -> None:
    class Constant(nn.Module):
        """The same for all examples: a layer on a learned input, and one on a batch that is always even."""

        def __init__(self) -> None:
            super().__init__()
            self.seed, self.layer, self.even = nn.Parameter(torch.randn(2)), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            padded = F.pad(x, (0, 0, 0, len(x) % 2)).flatten().view(-1, 2)
            return self.even(padded)[: len(x)] + self.layer(self.seed)

    survey = find_layers(Network.of(Constant()), torch.randn(3, 2))
    assert set(survey.without_factors) == {"seed", "layer.weight", "layer.bias", "even.weight", "even.bias"}


def test_a_layer_whose_rank_follows_the_examples_is_left_out() -> None:
    class Ranked(nn.Module):
        """Two examples are one pair."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x.unsqueeze(0)).squeeze(0) if len(x) == 2 else self.layer(x)
            return self.head(torch.tanh(h))

    survey = find_layers(Network.of(Ranked()), torch.randn(3, 2))
    assert survey.without_factors == ("layer.weight", "layer.bias")
    assert [layer.names for layer in survey.layers] == [("head.weight", "head.bias")]


@pytest.mark.parametrize("padded", ["first", "second", "none"])
def test_what_is_found_does_not_depend_on_which_example_has_padding(padded: str) -> None:
    tokens = torch.tensor([[1, 2], [3, 1], [2, 3]])
    if padded != "none":
        tokens[["first", "second"].index(padded), 1] = 0
    model = nn.Sequential(nn.Embedding(4, 2, padding_idx=-4), nn.Flatten(), nn.Linear(4, 1)).double()
    network = Network.of(model)
    survey = find_layers(network, tokens)
    assert not survey.without_factors
    every = torch.tensor([[1, 0], [0, 0], [3, 2]])
    rows = jacobian_rows(network, Pass.of(network, survey, every).factors(torch.ones(1, 3, 1).double()))
    torch.testing.assert_close(rows, naive.jacobian(model, every)[1])


def test_one_layer_of_a_transformer_can_be_uncertain() -> None:
    case = known("transformer_batch_first")
    for names in [("head.weight", "head.bias"), ("layer.linear1.weight",), ("token",)]:
        network = Network(case.case.model, names)
        places = torch.cat([torch.arange(case.network.size)[case.network.layout.slices[name]] for name in names])
        forward = Pass.of(network, find_layers(network, case.case.inputs), case.case.inputs)
        rows = jacobian_rows(network, forward.factors(torch.ones(1, 4, 3, dtype=torch.float64)))
        torch.testing.assert_close(rows[:, 0], case.jacobian.sum(1)[:, places])
