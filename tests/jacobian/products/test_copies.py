"""Copies of a network against the network at each of their weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.data.sources import Batch
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.copies import Copies
from tests.cases import build
from tests.curvature.naive import surveyed
from tests.posterior_cases import normal


def copies(name: str, count: int = 3) -> tuple[Copies, Batch, Tensor]:
    case = build(name)
    network = Network.of(case.model)
    weights = network.weights + 0.1 * normal(count, network.size)
    return (
        Copies(surveyed(network, case.likelihood, case.inputs)),
        Batch(case.inputs, case.targets),
        weights,
    )


@pytest.mark.parametrize("name", ["mlp", "lenet", "unet", "tagger", "branching", "batch_norm", "tied"])
def test_copies_are_the_network_at_their_weights(name: str) -> None:
    found, batch, weights = copies(name)
    network, likelihood = found.model.network, found.model.likelihood
    outputs = found.outputs(weights, batch.inputs)
    along = normal(*outputs.shape, seed=3)
    gradients, pulled = found.gradients(weights, batch, along=along), found.pull(weights, batch.inputs, along)
    for i, row in enumerate(weights):
        live = row.clone().requires_grad_()
        f = likelihood.canonical(network(batch.inputs, network.with_weights(live)))
        torch.testing.assert_close(outputs[i], f.detach())
        loss = likelihood.nll(f, likelihood.canonical_targets(f, batch.targets)).sum()
        reward = (along[i] * f).sum()
        (one,) = torch.autograd.grad(reward, live, retain_graph=True)
        torch.testing.assert_close(pulled[i], one)
        torch.testing.assert_close(gradients[i], torch.autograd.grad(loss, live)[0] - one)


@pytest.mark.parametrize("name", ["mlp", "unet"])
def test_pieces_of_copies_and_examples_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, batch, weights = copies(name)
    along = normal(*found.outputs(weights, batch.inputs).shape, seed=3)
    seen = list[int]()

    def everything(found: Copies) -> list[Tensor]:
        seen.clear()
        return [
            found.outputs(weights, batch.inputs),
            found.gradients(weights, batch, along=along),
            found.pull(weights, batch.inputs, along),
        ]

    whole, forward = everything(found), Network.__call__

    def watched(self: Network, inputs: Tensor, *rest: object) -> Tensor:
        seen.append(len(inputs))
        return forward(self, inputs, *rest)

    monkeypatch.setattr(Network, "__call__", watched)
    example = sum(found.model.survey.floats) * found.model.network.like.element_size()
    for room in (2 * example, 1):
        for one, other in zip(everything(Copies(found.model, room)), whole, strict=True):
            torch.testing.assert_close(one, other)
        assert max(seen) == min(len(batch), max(1, room // example))


def test_the_module_is_not_written_to() -> None:
    found, batch, weights = copies("batch_norm")
    own = found.model.network.module
    before = {name: value.clone() for name, value in own.state_dict().items()}
    found.gradients(weights, batch)
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
