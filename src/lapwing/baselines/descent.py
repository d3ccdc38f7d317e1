"""What the methods that train on share: a copy of the network, mini-batches in random order, the loss of one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.evaluation.task import Task
from lapwing.ground.data.inputs import Inputs, InputsLike, Values, as_inputs, as_tensor, count, take
from lapwing.ground.data.sources import Batch, Data, is_pair
from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.ground.layout import Params
from lapwing.jacobian.network.network import like_of
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.serving import ALONE, call
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.likelihoods import Likelihood

BATCH = 128
"""Examples of a mini-batch, where the data are a pair of tensors; a loader has its own."""


def copied(model: nn.Module) -> nn.Module:
    """A copy of the network, to be trained on."""
    with ALONE, torch.inference_mode(False):
        module = copy.deepcopy(unwrapped(model))
        module.zero_grad()
        return module


def trainable(module: nn.Module) -> Params:
    """The parameters that require a gradient, by name.

    Raises:
        ConfigError: If none does.
    """
    found = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if not found:
        raise ConfigError(
            "a network with at least one parameter that requires a gradient",
            "a frozen network, or one without parameters",
            "requires_grad_(True) on what should be trained",
        )
    return cast(Params, found)


def mini_batches(task: Task, batch: int, generator: torch.Generator) -> Data:
    """The training data: of a pair of tensors mini-batches in another order at every pass, a loader as it is.

    Args:
        task: Has them.
        batch: Examples of a mini-batch of a pair.
        generator: Source of the orders.
    """
    like = like_of(task.model)
    like = torch.zeros(()) if like is None else like
    if not is_pair(task.train):
        return Data(task.train, like, task.unpack)
    x, y = cast("tuple[InputsLike, Values]", task.train)
    return Data(Shuffled(as_inputs(x), as_tensor(y), batch, generator), like, task.unpack)


@final
@dataclass(frozen=True, eq=False)
class Shuffled:
    """A loader of inputs and targets held in memory, in another order at every pass.

    Args:
        inputs: All inputs.
        targets: All targets.
        batch: Examples of a mini-batch, at most; all have as many but for one.
        generator: Source of the orders.
    """

    inputs: Inputs
    targets: Tensor
    batch: int
    generator: torch.Generator

    def __len__(self) -> int:
        return -(-count(self.inputs) // self.batch)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        order = torch.randperm(count(self.inputs), generator=self.generator, device=self.generator.device)
        for some in order.tensor_split(len(self)):
            yield take(self.inputs, some), self.targets[some]


def mean_nll(module: nn.Module, batch: Batch, likelihood: Likelihood, output: Output) -> Float[Tensor, ""]:
    """Negative log likelihood of a batch in the module's own mode, nats an example, with its graph.

    Args:
        module: The network.
        batch: Inputs and targets.
        likelihood: What its outputs mean; its weight plays no part.
        output: Which part of what it returns is its output.
    """
    outputs = likelihood.canonical(call(module, {}, batch.inputs, output=output))
    targets = likelihood.canonical_targets(outputs, batch.targets)
    likelihood.check(outputs.detach(), targets)
    return likelihood.unweighted.nll(outputs, targets).sum() / len(batch)


def check_descent(weights: Tensor, name: str) -> None:
    """Refuses weights that ran away.

    Raises:
        NumericalError: If one is not finite.
    """
    if not bool(torch.isfinite(weights).all()):
        bad = int((~torch.isfinite(weights)).sum())
        raise NumericalError(f"finite weights in {name}", f"{bad} NaN or infinite of {weights.numel()}", "a lower rate")
