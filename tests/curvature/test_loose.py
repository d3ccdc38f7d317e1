"""Jacobian rows by automatic differentiation: vectorised, or one example at a time."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import Tensor, nn

from lapwing.curvature.loose import loose_rows
from lapwing.curvature.network import Network
from lapwing.types import Inputs
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import known


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", CASES)
def test_any_parameter_of_any_network_will_do(name: str) -> None:
    case = known(name)
    outputs = case.network(case.case.inputs)
    directions = torch.randn(2, *outputs.shape, dtype=torch.float64)
    canonical = torch.stack([case.case.likelihood.canonical(u) for u in directions])
    rows = loose_rows(case.network, case.network.names, case.case.inputs, directions)
    assert tuple(rows) == case.network.names
    torch.testing.assert_close(torch.cat(list(rows.values()), dim=-1), naive.pulled_back(case, canonical))


@pytest.mark.parametrize("name", ["branching", "lstm"])
def test_what_cannot_be_vectorised_goes_one_by_one_and_says_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = known(name)
    with caplog.at_level(logging.INFO, "lapwing"):
        loose_rows(case.network, case.survey.loose, case.case.inputs, torch.ones(1, 4, 2, dtype=torch.float64))
    assert "one by one" in caplog.text


@pytest.mark.parametrize(
    "name", ["transformer_batch_first", "transformer_sequence_first", "cross_attention", "bare_parameter", "folded"]
)
def test_the_usual_is_vectorised_at_full_speed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = known(name)
    directions = torch.ones(2, *case.outputs.shape, dtype=torch.float64)
    with caplog.at_level(logging.INFO, "lapwing"), warnings.catch_warnings():
        warnings.simplefilter("error")
        loose_rows(case.network, case.survey.loose, case.case.inputs, directions)
    assert caplog.text == ""


def test_nothing_asked_is_nothing_done() -> None:
    case = known("mlp")
    assert loose_rows(case.network, (), case.case.inputs, torch.ones(1, 4, 3, dtype=torch.float64)) == {}


class Shared(nn.Module):
    """What all examples share comes as an input of its own, without their axis."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(normal(3))

    def forward(self, x: Tensor, matrix: Tensor, factor: Tensor, power: int = 1) -> Tensor:
        return (x * self.scale) ** power * factor + matrix.sum(0) * self.scale


@pytest.mark.parametrize("form", ["positional", "keywords"])
@pytest.mark.parametrize("examples", [1, 4])
def test_inputs_that_all_examples_share_stay_as_they_are(form: str, examples: int) -> None:
    x, matrix, factor = normal(examples, 3), normal(2, 3), torch.tensor(0.5, dtype=torch.float64)
    keywords = {"x": x, "factor": factor, "power": 2, "matrix": matrix}
    inputs: Inputs = keywords if form == "keywords" else (x, matrix, factor, 2)
    module = Shared()
    rows = loose_rows(Network.of(module), ("scale",), inputs, torch.ones(1, examples, 3, dtype=torch.float64))
    expected = torch.diag_embed(2 * x.square() * module.scale.detach() * factor + matrix.sum(0)).sum(1)
    torch.testing.assert_close(rows["scale"][:, 0], expected)


def test_errors_of_the_network_itself_are_not_hidden() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            if len(x):
                raise ValueError("a network that fails")
            return x

    with pytest.raises(ValueError, match="a network that fails"):
        loose_rows(Network.of(Broken()), ("scale",), torch.ones(2, 1), torch.ones(1, 2, 1))
