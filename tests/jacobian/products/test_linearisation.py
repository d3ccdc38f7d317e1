"""What the forms of the linearised network take of the memory they are given."""

from __future__ import annotations

import torch
from torch import nn

from lapwing.ground.data import Data
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.likelihoods import Gaussian
from tests.meter import Meter


def test_the_plain_form_cuts_batches_and_columns_to_the_memory(generator: torch.Generator) -> None:
    """The sum over a batch of 90 examples with 40 columns: whole, and with memory for few of either."""
    model = nn.Sequential(nn.Linear(3, 60), nn.Tanh(), nn.Linear(60, 2)).double()
    network, x = Network.of(model), torch.randn(90, 3, generator=generator, dtype=torch.float64)
    given = Model.of(network, Gaussian(), Data((x, x[:, :2]), like=network.like))
    block = torch.randn(network.size, 40, generator=generator, dtype=torch.float64)
    found, most = [], []
    for memory in (2**31, 2**19):
        linear = Linearisation(given, memory, "plain")
        total = torch.zeros_like(block)
        with Meter() as meter:
            for chunk in linear.visit(40):
                assert memory == 2**31 or chunk.examples < 90
                total += chunk.product(lambda u: 2.0 * u, block)
        found.append(total)
        most.append(meter.most)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
    assert most[1] < 0.3 * most[0]
