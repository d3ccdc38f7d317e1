"""A plain network with a score that tells inputs from elsewhere, by its logits or by the features of its last layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.evaluation.task import Task
from lapwing.ground.data.inputs import InputsLike
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.precision import wide
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import like_of
from lapwing.jacobian.network.serving import ALONE
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.likelihoods import Likelihood
from lapwing.metrics.elements import labelled
from lapwing.predictive import Moments, Predictive


@runtime_checkable
class Score(Protocol):
    """What tells inputs from elsewhere."""

    def of(self, network: PlainNetwork, x: InputsLike) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch"]]:
        """Outputs of a network, and its score of each position, larger for inputs unlike those of training."""
        ...


@final
@dataclass(frozen=True, eq=False)
class ScoredNetwork:
    """A plain network whose predictions carry ``strangeness``, by which ``lapwing.evaluate`` tells other inputs.

    Args:
        network: The network, whose probabilities stay what they are.
        score: What tells.
    """

    network: PlainNetwork
    score: Score

    @property
    def likelihood(self) -> Likelihood:
        """What the outputs mean."""
        return self.network.likelihood

    @undisturbed()
    def predict(self, x: InputsLike) -> Predictive:
        """The predictive distribution of a batch, with ``strangeness [n, *event]``; see ``PlainNetwork.predict``.

        Args:
            x: Inputs of the network.

        Raises:
            UnsupportedError: If the score is of features, and there are none.
        """
        outputs, strangeness = self.score.of(self.network, x)
        prediction = self.likelihood.predictive(Moments.certain(outputs), "probit")
        return replace(prediction, strangeness=strangeness)


def outputs_and_features(
    network: PlainNetwork, x: InputsLike
) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch k"]]:
    """Outputs of a network, and what its last linear layer takes, float64.

    Args:
        network: The network.
        x: Its inputs.

    Raises:
        UnsupportedError: If no linear layer is called.
    """
    module = unwrapped(network.model)
    taken: list[Tensor] = []
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    with ALONE:
        handles = [part.register_forward_pre_hook(lambda _, given: taken.append(given[0])) for part in linear]
        try:
            outputs = network.outputs(x)
        finally:
            for handle in handles:
                handle.remove()
    if not taken:
        raise UnsupportedError(
            "a network that ends with a linear layer, whose inputs are the features",
            f"a {type(module).__name__} that calls none",
            "Energy(), which takes the logits",
        )
    features = taken[-1].detach()
    if features.shape[:-1] != outputs.shape[:-1]:
        features = features.flatten(1)
    return outputs, wide(features)


def training_features(task: Task) -> Iterator[tuple[Float[Tensor, "m k"], Int[Tensor, " m"]]]:
    """Features and labels of the training examples that have one, batch by batch.

    Args:
        task: The network and its training data.

    Raises:
        UnsupportedError: If targets are no classes, or no linear layer is called.
    """
    likelihood = task.likelihood
    if not likelihood.classes:
        hint = "MonteCarloDropout() or DeepEnsemble(...), which take all likelihoods"
        raise UnsupportedError("the Categorical likelihood, whose classes have features", f"{likelihood}", hint)
    like = like_of(task.model)
    for batch in Data(task.train, torch.zeros(()) if like is None else like, task.unpack):
        outputs, features = outputs_and_features(task.network, batch.inputs)
        targets = likelihood.canonical_targets(outputs, batch.targets)
        likelihood.check(outputs, targets)
        if features.shape[:-1] == outputs.shape[:-1]:
            yield labelled(features, targets.to(features.device))
        else:
            hint = "Energy(), which takes the logits"
            raise UnsupportedError("features at every position of the outputs", f"{list(features.shape)}", hint)
