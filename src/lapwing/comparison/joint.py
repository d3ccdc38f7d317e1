"""The log-likelihood of many test labels at once, in groups of examples whose functions are drawn together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.evaluate import Predictor
from lapwing.ground.data.inputs import Inputs, InputsLike, concatenated, take
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.precision import wide
from lapwing.metrics import DyadicValues, dyadic_members, dyadic_values
from lapwing.moments import Draws
from lapwing.predictive.distributions.base import log_of_probability

ANCHORS = 5
"""Distinct examples κ of a batch of labels."""

LABELS = 40
"""Labels τ of a batch, 10 (κ - 1)."""

SHUFFLES = 10
"""Times that the examples are split into batches."""

GROUP_BYTES = 2**25
"""Bytes that the covariance of all outputs of a group may take."""


@runtime_checkable
class DrawsFunctions(Protocol):
    """A predictor whose outputs are known by functions, drawn jointly over inputs."""

    def sample_functions(
        self, x: InputsLike, samples: int = 1, *, generator: torch.Generator | int | None = None
    ) -> Float[Tensor, "s n *event c"]:
        """Draws of the outputs at ``x``."""
        ...


def joint_values(
    predictor: Predictor,
    data: Source,
    draws: int,
    *,
    unpack: Unpack | None = None,
    generator: torch.Generator | None = None,
) -> DyadicValues | None:
    """The joint log-likelihood of each batch of labels, the same batches for every predictor of the same outputs.

    Args:
        predictor: What predicts.
        data: Held-out data.
        draws: Functions drawn of each group of examples.
        unpack: Splits one element of a loader.
        generator: Source of randomness of the draws.

    Returns:
        Nats a batch of ``LABELS`` labels; ``None`` for a predictor that says nothing of many targets at once.

    Cost:
        Of a posterior the draws of all outputs of a group: their covariance, ``GROUP_BYTES`` at most, and its root.

    Example:
        >>> from lapwing.evaluation.plain_network import PlainNetwork
        >>> plain = PlainNetwork(torch.nn.Linear(2, 3))
        >>> joint_values(plain, (torch.randn(20, 2), torch.arange(20) % 3), draws=8).values.shape
        torch.Size([40])
    """
    batches = list(Data(data, unpack=unpack))
    inputs = concatenated([batch.inputs for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    found = list[DyadicValues]()
    outputs_of_one = predictor.predict(take(inputs, slice(0, 1))).location.numel()
    for number, place in enumerate(groups(len(targets), outputs_of_one)):
        outputs = drawn(predictor, take(inputs, place), draws, generator)
        if outputs is None:
            return None
        options: dict[str, Any] = {"anchors": ANCHORS, "labels": LABELS, "shuffles": SHUFFLES}
        labels = targets[place].cpu()
        functions = wide(outputs.cpu())
        found.append(dyadic_values(predictor.likelihood, functions, labels, generator=of_group(number), **options))
    return DyadicValues.together(found)


def groups(n: int, outputs: int) -> list[slice]:
    """Examples that are drawn together, as evenly as can be.

    Args:
        n: Examples.
        outputs: Of each.

    Example:
        >>> groups(400, 10)
        [slice(0, 200, None), slice(200, 400, None)]
    """
    size = max(2 * ANCHORS, math.isqrt(GROUP_BYTES // 8) // outputs)
    sizes = [len(part) for part in torch.arange(n).tensor_split(-(-n // size))]
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def drawn(predictor: Predictor, inputs: Inputs, draws: int, generator: torch.Generator | None) -> Tensor | None:
    """Draws of the outputs ``[s, n, *event, c]``, as the likelihood takes them; ``None`` where nothing is drawn.

    A mixture of networks has these for its draws. Probabilities of classes alone are taken for independent of one
    example to another, and so is a network that is certain of its outputs.
    """
    if isinstance(predictor, DrawsFunctions):
        functions = predictor.sample_functions(inputs, draws, generator=generator)
        temperature = getattr(predictor, "temperature", None)
        return functions / temperature if isinstance(temperature, float) else functions
    prediction = predictor.predict(inputs)
    if isinstance(prediction.latent, Draws):
        return prediction.latent.values
    probs = getattr(prediction, "probs", None)
    if predictor.likelihood.classes and probs is not None:
        return log_of_probability(probs)[None]
    certain = float(prediction.latent.variance.max()) == 0
    return prediction.location[None] if certain else None


def of_group(number: int) -> torch.Generator:
    """The source of the batches of a group, the same for every method."""
    return torch.Generator().manual_seed(number)


def values_of(values: Float[Tensor, " b"], examples: Sequence[int]) -> DyadicValues:
    """Values that were kept, a label each, with the batches they are of.

    Args:
        values: Nats a label, of each batch.
        examples: Of each group.
    """
    like = wide(torch.zeros(()))
    found = list[DyadicValues]()
    start = 0
    for number, n in enumerate(examples):
        members = dyadic_members(n, ANCHORS, SHUFFLES, like=like, generator=of_group(number))
        part = wide(values[start : start + len(members)])
        found.append(DyadicValues(part, members, n, SHUFFLES, 1))
        start += len(members)
    return DyadicValues.together(found)
