"""Products are recorded once a shape of batch, hold for other data of that shape, and else are done plainly."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Batch
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.autodiff_jacobian import autodiff_chunk
from lapwing.jacobian.products.tracing.traced_jacobian import jacobian_tracer, traced_chunk
from lapwing.jacobian.products.tracing.tracer import Tracer, shape_of
from lapwing.likelihoods import Gaussian
from lapwing.linear.gauss_newton import ggn_product
from lapwing.linear.model import Chunk
from tests.curvature import naive
from tests.curvature.naive import known

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

ONE = torch.zeros(1, 3, dtype=torch.float64)


def tracer_of(model: nn.Module, inputs: Inputs = ONE) -> Tracer:
    made = naive.surveyed(Network.of(model), Gaussian(), inputs)
    return jacobian_tracer(made)


def prepared(tracer: Tracer, batch: Batch) -> Chunk:
    return traced_chunk(tracer, partial(autodiff_chunk, tracer.model, 100), batch)[0]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def check(tracer: Tracer, n: int, generator: torch.Generator) -> None:
    """A product of fresh data against the naive Jacobian."""
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    rows = naive.jacobian(tracer.model.network.module, x)[1].flatten(0, 1)
    v = torch.randn(rows.shape[1], 2, generator=generator, dtype=torch.float64)
    chunk = prepared(tracer, Batch(x, x[:, :2]))
    torch.testing.assert_close(chunk.outputs, tracer.model.network(x).detach())
    torch.testing.assert_close(chunk.push(v).flatten(1).mT, rows @ v)
    torch.testing.assert_close(ggn_product(chunk, lambda u: 2.0 * u, v), 2.0 * rows.mT @ rows @ v)


def test_a_shape_is_recorded_once_and_holds_for_other_data(generator: torch.Generator) -> None:
    tracer = tracer_of(model())
    for n in (5, 5, 4, 5, 4):
        check(tracer, n, generator)
    assert len(tracer.traces) == 2


def test_inputs_that_are_not_tensors_are_part_of_the_shape() -> None:
    x = torch.zeros(2, 3)
    same, other = Batch((x, 1.0), x), Batch((x, 2.0), x)
    assert shape_of(same) == shape_of(Batch((x + 1, 1.0), x)) != shape_of(other)
    assert shape_of(Batch({"a": x}, x)) != shape_of(Batch({"b": x}, x))
    assert shape_of(Batch(x, x)) != shape_of(Batch(x.double(), x))


def test_too_many_shapes_go_the_plain_way(generator: torch.Generator, caplog: pytest.LogCaptureFixture) -> None:
    tracer = replace(tracer_of(model()), shapes=2)
    with caplog.at_level(logging.INFO, "lapwing"):
        for n in (2, 3, 4, 5):
            check(tracer, n, generator)
    assert [halves is not None for halves in tracer.traces.values()] == [True, True, False, False]
    assert "2 shapes" in caplog.text


def test_what_cannot_be_recorded_is_said_once_and_done_plainly(caplog: pytest.LogCaptureFixture) -> None:
    case = known("branching")
    likelihood = case.case.likelihood
    tracer = jacobian_tracer(case.model)
    v = torch.randn(case.network.size, 2, dtype=torch.float64)
    with caplog.at_level(logging.INFO, "lapwing"):
        for _ in range(2):
            chunk = prepared(tracer, Batch(case.case.inputs, case.case.targets))
            product = ggn_product(chunk, likelihood.hessian_product(chunk.outputs, chunk.targets), v)
            torch.testing.assert_close(product, naive.ggn(case) @ v)
    assert len([record for record in caplog.records if "cannot record" in record.message]) == 1


class Selecting(nn.Module):
    """The number of rows kept depends on the data: what was recorded would not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, 0] > 0
        h = self.layer(x)
        return h.index_put((chosen,), torch.tanh(h[chosen]))


def test_shapes_that_depend_on_the_data_are_not_recorded(generator: torch.Generator) -> None:
    tracer = tracer_of(Selecting().double())
    for _ in range(3):
        check(tracer, 6, generator)
    assert list(tracer.traces.values()) == [None]


def test_the_same_tensor_twice_is_two_inputs(generator: torch.Generator) -> None:
    bilinear = nn.Bilinear(2, 3, 2).double()
    tracer = tracer_of(bilinear, (ONE[:, :2], ONE))
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    y = torch.zeros(4, 2, dtype=torch.float64)
    v = torch.randn(tracer.model.network.size, 1, generator=generator, dtype=torch.float64)
    for left in (x[:, :2], x[:, 1:]):
        rows = naive.jacobian(bilinear, (left, x))[1].flatten(0, 1)
        chunk = prepared(tracer, Batch((left, x), y))
        torch.testing.assert_close(ggn_product(chunk, lambda u: u, v), rows.mT @ rows @ v)


def test_batches_in_any_layout(generator: torch.Generator) -> None:
    tracer = tracer_of(model())
    check(tracer, 4, generator)
    x = torch.randn(3, 4, generator=generator, dtype=torch.float64).mT
    rows = naive.jacobian(tracer.model.network.module, x)[1].flatten(0, 1)
    v = torch.randn(rows.shape[1], 1, generator=generator, dtype=torch.float64)
    chunk = prepared(tracer, Batch(x, x[:, :2]))
    torch.testing.assert_close(ggn_product(chunk, lambda u: u, v), rows.mT @ rows @ v)
