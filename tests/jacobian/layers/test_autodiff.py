"""Jacobian rows by automatic differentiation: vectorised, or one example at a time."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.data.inputs import Inputs
from lapwing.jacobian.layers.autodiff import autodiff_rows
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers
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
    rows = autodiff_rows(case.network, case.network.names, case.case.inputs, directions)
    assert tuple(rows) == case.network.names
    torch.testing.assert_close(torch.cat(list(rows.values()), dim=-1), naive.pulled_back(case, canonical))


@pytest.mark.parametrize("name", ["branching", "lstm"])
def test_what_cannot_be_vectorised_goes_one_by_one_and_says_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = known(name)
    with caplog.at_level(logging.INFO, "lapwing"):
        autodiff_rows(
            case.network, case.survey.without_factors, case.case.inputs, torch.ones(1, 4, 2, dtype=torch.float64)
        )
    assert "one by one" in caplog.text


@pytest.mark.parametrize(
    "name", ["transformer_batch_first", "transformer_sequence_first", "cross_attention", "bare_parameter", "folded"]
)
def test_the_usual_is_vectorised_at_full_speed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = known(name)
    directions = torch.ones(2, *case.outputs.shape, dtype=torch.float64)
    with caplog.at_level(logging.INFO, "lapwing"), warnings.catch_warnings():
        warnings.simplefilter("error")
        autodiff_rows(case.network, case.survey.without_factors, case.case.inputs, directions)
    assert caplog.text == ""


def test_nothing_asked_is_nothing_done() -> None:
    case = known("mlp")
    assert autodiff_rows(case.network, (), case.case.inputs, torch.ones(1, 4, 3, dtype=torch.float64)) == {}


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
    rows = autodiff_rows(Network.of(module), ("scale",), inputs, torch.ones(1, examples, 3, dtype=torch.float64))
    expected = torch.diag_embed(2 * x.square() * module.scale.detach() * factor + matrix.sum(0)).sum(1)
    torch.testing.assert_close(rows["scale"][:, 0], expected)


class Activated(nn.Module):
    """A layer without a rule, before an activation."""

    def __init__(self, activation: nn.Module, outputs: int) -> None:
        super().__init__()
        self.activation, self.weight = activation, nn.Parameter(normal(3, 6))
        self.head = nn.Parameter(normal(3 if isinstance(activation, nn.GLU) else 6, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x @ self.weight) @ self.head


def activations() -> dict[str, nn.Module]:
    """Those of torch.nn, PReLU with one slope and with several."""
    options = {"Threshold": (0.1, 0.2), "GLU": (-1,), "Softmax": (-1,), "Softmin": (-1,), "LogSoftmax": (-1,)}
    names = [name for name in nn.modules.activation.__all__ if name not in ("MultiheadAttention", "Softmax2d")]
    found = {name: getattr(nn, name)(*options.get(name, ())) for name in names}
    return {**found, "PReLU of each": nn.PReLU(6)}


def test_rows_are_right_behind_every_activation_where_examples_are_as_many_as_outputs() -> None:
    x, directions = normal(4, 3), torch.eye(4, dtype=torch.float64)[:, None].expand(4, 4, 4)
    for name, activation in activations().items():
        model = Activated(activation.double(), 4)
        network = Network.of(model)
        survey = find_layers(network, x)
        rows = autodiff_rows(network, network.names, x, directions, survey.way)
        expected = naive.jacobian(model, x)[1]
        torch.testing.assert_close(
            torch.cat(list(rows.values()), -1), expected, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("outputs", [4, 1])
def test_posteriors_of_a_network_with_prelu_are_those_of_its_jacobian(
    outputs: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.PReLU(), nn.Linear(5, outputs)).double()
    x, y = normal(7, 3), normal(7, outputs)
    jacobian = naive.jacobian(model, x)[1]
    flat = jacobian.flatten(0, 1)
    covariance = torch.linalg.inv(flat.mT @ flat + torch.eye(flat.shape[1], dtype=torch.float64))
    with caplog.at_level(logging.INFO, "lapwing"):
        posterior = lw.Laplace(lw.Gaussian(), structure=lw.Full(view="weights")).fit(model, (x, y))
    assert "at once: a rule of vectorised differentiation is wrong for '1.weight'" in caplog.text
    for n in (4, 7):
        variance = posterior.predict(x[:n]).outputs.variance
        torch.testing.assert_close(variance, (jacobian[:n] @ covariance @ jacobian[:n].mT).diagonal(dim1=1, dim2=2))


def test_a_parameter_without_axes_has_rows() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.scale = nn.Parameter(torch.tensor(0.7))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.layer(x).tanh()

    model = Scaled().double()
    x, y = normal(5, 3), normal(5, 2)
    jacobian = naive.jacobian(model, x)[1]
    posterior = lw.Laplace(lw.Gaussian(), structure=lw.Diagonal()).fit(model, (x, y))
    torch.testing.assert_close(posterior.precision_operator.diagonal(), jacobian.square().sum((0, 1)) + 1.0)


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
        autodiff_rows(Network.of(Broken()), ("scale",), torch.ones(2, 1), torch.ones(1, 2, 1))
