"""What is found out about a network before its curvature is computed, and which networks are refused."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs, count, take
from lapwing.ground.errors import DataError, ShapeError, UnsupportedError
from lapwing.jacobian.layers.factors import jacobian_rows
from lapwing.jacobian.model import Pass
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers, probe
from tests.curvature import naive
from tests.curvature.naive import known
from tests.modules import Upcast
from tests.posterior_cases import refused

KINDS = {
    "mlp": "linear linear",
    "lenet": "conv conv linear",
    "conv3d": "conv linear",
    "batch_norm": "conv channel_norm channel_norm linear",
    "layer_norm": "linear layer_norm layer_norm linear",
    "transformer_batch_first": "embedding linear linear layer_norm linear linear layer_norm linear",
    "called_twice": "conv linear layer_norm linear",
    "frozen_backbone": "linear linear",
    "tagger": "embedding linear linear",
}


LOOSE = {
    "transformer_batch_first": {"positions", "token"},
    "transformer_sequence_first": {"positions"},
    "cross_attention": {"attention.in_proj_bias", "attention.bias_k", "attention.bias_v"},
    "tied": {"embed.weight"},
    "bare_parameter": {"scale", "matrix"},
    "branching": {"scale"},
    "unet": {"up.weight", "up.bias"},
    "rms_norm": {"1.weight"},
    "folded": {"frames.weight", "frames.bias", "norm.weight", "norm.bias"},
    "reparametrised": {
        "inner.parametrizations.weight.original",
        "layer.weight",
        "layer.bias",
    },
}


class Function(nn.Module):
    """A linear layer and then a function."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))  # type: ignore[operator]


def survey_of(model: nn.Module, inputs: Inputs) -> object:
    return find_layers(Network.of(model), inputs)


@pytest.mark.parametrize("name", KINDS)
def test_layers_are_found_in_order_of_first_use(name: str) -> None:
    survey = known(name).survey
    assert " ".join(layer.kind for layer in survey.layers) == KINDS[name]
    assert survey.output == known(name).case.likelihood.canonical(known(name).outputs).shape[1:]


@pytest.mark.parametrize("name", LOOSE)
def test_what_no_rule_explains_is_left_to_automatic_differentiation(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = known(name)
    with caplog.at_level(logging.INFO, "lapwing"):
        survey = find_layers(case.network, case.case.inputs)
    assert set(survey.loose) == LOOSE[name]
    assert all(name in caplog.text for name in survey.loose)


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


@pytest.mark.parametrize(
    "function",
    [F.dropout, lambda x: x + torch.randn_like(x)],
    ids=["dropout", "noise"],
)
def test_random_outputs_are_refused(function: object) -> None:
    with pytest.raises(UnsupportedError, match="twice in eval mode"):
        survey_of(Function(function), torch.randn(8, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(0),
        lambda x: x @ (x.mT @ x),
        nn.BatchNorm1d(2, affine=False, track_running_stats=False),
    ],
    ids=["centred", "attention-over-examples", "batch-norm"],
)
def test_outputs_that_depend_on_other_examples_are_refused(function: object) -> None:
    with pytest.raises(UnsupportedError, match="one example each"):
        survey_of(Function(function), torch.randn(8, 2))


def test_a_batch_norm_without_running_statistics_is_refused_even_for_one_example() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(UnsupportedError, match="track_running_stats=True"):
        survey_of(model, torch.randn(1, 2))


@pytest.mark.parametrize(
    "function",
    [lambda x: x[:, 0], lambda x: x.sum(), lambda x: x.mT, lambda x: x.repeat(2, 1)],
    ids=["vector", "scalar", "transposed", "repeated"],
)
def test_outputs_without_an_axis_of_examples_and_one_of_outputs_are_refused(function: object) -> None:
    with pytest.raises(ShapeError, match=r"outputs of shape \[n, \.\.\., c\] for n inputs"):
        survey_of(Function(function), torch.randn(8, 2))


def test_something_else_than_a_tensor_is_refused() -> None:
    with pytest.raises(ShapeError, match="an object with logits"):
        survey_of(Function(lambda x: {"scores": x}), torch.randn(8, 2))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_outputs_that_are_not_finite_are_not_called_random(value: float) -> None:
    with pytest.raises(DataError, match="finite outputs"):
        survey_of(Function(lambda x: x * value), torch.randn(8, 2))


def test_large_and_constant_outputs_are_not_called_random() -> None:
    for scale in (0.0, 1e-20, 1e20):
        survey_of(Function(lambda x, scale=scale: x * scale), torch.randn(8, 2))


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
    assert survey.loose == ("outer.weight", "outer.bias")


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
    assert survey.layers == () and survey.loose == ("table", "bias")


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
    rows = jacobian_rows(network, Pass(network, survey, x).factors(torch.ones(1, 3, 2).double()))
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
    assert set(survey.loose) == {"seed", "layer.weight", "layer.bias", "even.weight", "even.bias"}


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
    assert survey.loose == ("layer.weight", "layer.bias")
    assert [layer.names for layer in survey.layers] == [("head.weight", "head.bias")]


@pytest.mark.parametrize("padded", ["first", "second", "none"])
def test_what_is_found_does_not_depend_on_which_example_has_padding(padded: str) -> None:
    tokens = torch.tensor([[1, 2], [3, 1], [2, 3]])
    if padded != "none":
        tokens[["first", "second"].index(padded), 1] = 0
    model = nn.Sequential(nn.Embedding(4, 2, padding_idx=-4), nn.Flatten(), nn.Linear(4, 1)).double()
    network = Network.of(model)
    survey = find_layers(network, tokens)
    assert not survey.loose
    every = torch.tensor([[1, 0], [0, 0], [3, 2]])
    rows = jacobian_rows(network, Pass(network, survey, every).factors(torch.ones(1, 3, 1).double()))
    torch.testing.assert_close(rows, naive.jacobian(model, every)[1])


def test_padding_masks_of_a_transformer_are_no_randomness() -> None:
    """In inference PyTorch drops masked tokens from the computation: the outputs there are not those of training."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
            return self.head(self.encoder(x, src_key_padding_mask=hidden))

    hidden = torch.tensor([[False, False, False], [False, False, True], [False, True, True]])
    model, x = Masked(), torch.randn(3, 3, 4)
    survey = find_layers(Network.of(model), (x, hidden))
    assert survey.loose == () and len(survey.layers) == 7


def test_one_layer_of_a_transformer_can_be_uncertain() -> None:
    case = known("transformer_batch_first")
    for names in [("head.weight", "head.bias"), ("layer.linear1.weight",), ("token",)]:
        network = Network(case.case.model, names)
        places = torch.cat([torch.arange(case.network.size)[case.network.layout.slices[name]] for name in names])
        forward = Pass(network, find_layers(network, case.case.inputs), case.case.inputs)
        rows = jacobian_rows(network, forward.factors(torch.ones(1, 4, 3, dtype=torch.float64)))
        torch.testing.assert_close(rows[:, 0], case.jacobian.sum(1)[:, places])


@pytest.mark.parametrize("head", [torch.bfloat16, torch.float32])
def test_weights_and_outputs_of_several_types_are_refused(head: torch.dtype) -> None:
    with refused(UnsupportedError, "of one type"):
        find_layers(Network.of(Upcast(head)), torch.zeros(4, 3))


def test_a_frozen_body_may_have_another_type() -> None:
    model = Upcast(torch.float32)
    model.body.requires_grad_(False)
    assert find_layers(Network.of(model), torch.zeros(4, 3)).loose == ()
