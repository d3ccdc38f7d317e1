"""Checkpointed parts are called as they are: their weights have the Jacobian that they would have without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import lapwing as lw
from lapwing.ground.errors import DataError
from lapwing.jacobian.network.network import Network
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import labels, normal, refused, seeded

X, Y = normal(9, 3), labels(9, classes=3)


class Body(nn.Module):
    """A body that may be checkpointed, and a head."""

    def __init__(self, way: Any = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 4), nn.Tanh())
        self.head, self.way = nn.Linear(4, 3), way

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) if self.way is None else self.way(self.body, x))


def selective(body: nn.Module, x: Tensor) -> Any:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

    return checkpoint(body, x, use_reentrant=False, context_fn=contexts)


WAYS: dict[str, Any] = {
    "reentrant": lambda body, x: checkpoint(body, x, use_reentrant=True),
    "in parts": lambda body, x: checkpoint_sequential(body, 2, x, use_reentrant=True),
    "not reentrant": lambda body, x: checkpoint(body, x, use_reentrant=False),
    "selective": selective,
}

STRUCTURES = [
    lw.Full(),
    lw.Full(view="functions"),
    lw.Diagonal(),
    lw.KFAC(),
    lw.LowRank(4),
    lw.MatrixFree(),
    lw.Sampled(samples=4),
    lw.Nystrom(),
]


def found(model: nn.Module, structure: Any, weights: Any = None) -> Tensor:
    """Variances of the logits."""
    recipe = lw.Laplace(lw.Categorical(), structure=structure, weights=weights or lw.All())
    generator = torch.Generator().manual_seed(0)
    return recipe.fit(model, (X, Y), generator=generator).predict(X[:2]).logits.variance


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_a_reentrant_checkpoint_hides_no_weight_from_a_structure(structure: Any) -> None:
    model = seeded(lambda: Body(WAYS["reentrant"]))
    with unchanged(model):
        variance = found(model, structure)
    assert torch.equal(variance, found(seeded(Body), structure))


@pytest.mark.parametrize("weights", [lw.LastLayer(), lw.Names("body.0.*"), lw.Subnetwork(7)], ids=repr)
def test_nor_from_a_choice_of_weights(weights: Any) -> None:
    variance = found(seeded(lambda: Body(WAYS["reentrant"])), lw.Auto(), weights)
    assert torch.equal(variance, found(seeded(Body), lw.Auto(), weights))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("way", list(WAYS))
def test_a_gradient_is_taken_at_the_weights_that_are_asked_for(way: str, training: bool) -> None:
    """A checkpoint that is not reentrant computes again with the weights that the module holds by then: others."""
    gradients: list[Tensor] = []
    for model in (seeded(lambda: Body(WAYS[way])), seeded(Body)):
        network = Network.of(model.train(training))
        weights = (1.5 * network.weights).requires_grad_()
        outputs = network(X, network.with_weights(weights))
        gradients += torch.autograd.grad(outputs.square().sum(), weights)
    assert torch.equal(*gradients)


def wrapped(part: nn.Module) -> nn.Module:
    return checkpoint_wrapper(part, checkpoint_impl=CheckpointImpl.REENTRANT)


@pytest.mark.parametrize("where", ["body", "layer", "network"])
def test_parts_wrapped_by_distributed_training(where: str) -> None:
    model: Any = seeded(Body)
    if where == "body":
        model.body = wrapped(model.body)
    elif where == "layer":
        model.body[0] = wrapped(model.body[0])
    else:
        model = wrapped(model)
    assert torch.equal(found(model, lw.KFAC()), found(seeded(Body), lw.KFAC()))


def test_a_single_layer_that_is_wrapped() -> None:
    layer = seeded(lambda: nn.Linear(3, 3))
    assert torch.equal(found(wrapped(layer), lw.KFAC()), found(layer, lw.KFAC()))


def test_training_computes_again_as_before() -> None:
    """After a fit, and after one that failed, checkpoints are what they were."""
    model = seeded(lambda: Body(WAYS["reentrant"]))
    found(model, lw.Diagonal())
    with refused(DataError, "shapes cannot be multiplied"):
        lw.Laplace(lw.Categorical()).fit(model, (normal(9, 2), Y))
    runs: list[int] = []
    model.get_submodule("body").register_forward_hook(lambda *_: runs.append(1))
    model(X.clone().requires_grad_()).sum().backward()
    assert len(runs) == 2
