"""Which networks are refused before their curvature is computed, and which are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.errors import DataError, ShapeError, UnsupportedError
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers
from tests.modules import Upcast
from tests.posterior_cases import refused


class Function(nn.Module):
    """A linear layer and then a function."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))  # type: ignore[operator]


def survey_of(model: nn.Module, inputs: Inputs) -> Survey:
    return find_layers(Network.of(model), inputs)


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
    with pytest.raises(ShapeError, match=r"shape \[n, \.\.\., c\]"):
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
        survey = survey_of(Function(lambda x, scale=scale: x * scale), torch.randn(8, 2))
        assert survey.output == (2,)


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
    assert survey.without_factors == () and len(survey.layers) == 7


@pytest.mark.parametrize("head", [torch.bfloat16, torch.float32])
def test_weights_and_outputs_of_several_types_are_refused(head: torch.dtype) -> None:
    with refused(UnsupportedError, "of one type"):
        find_layers(Network.of(Upcast(head)), torch.zeros(4, 3))


def test_a_frozen_body_may_have_another_type() -> None:
    model = Upcast(torch.float32)
    model.body.requires_grad_(False)
    assert find_layers(Network.of(model), torch.zeros(4, 3)).without_factors == ()
