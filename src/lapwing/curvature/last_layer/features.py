"""The rows of the training data known by the features of the layer that makes the outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.training_rows import TrainingRows
from lapwing.ground.data.inputs import chunks, tensors
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.layers.base import Factor
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.model import Model

LOOKED_AT = 8
"""Examples in which the inputs of a network are looked for among those of its last layer."""


@final
@dataclass(frozen=True, eq=False)
class FeatureRows(TrainingRows):
    """Rows of the layer that makes the outputs, the only uncertain one: its inputs are all there is to know.

    Args:
        head: That layer at the training inputs, without gradients.
    """

    head: OuterProducts

    @property
    def by_features(self) -> bool:
        """See ``TrainingRows``."""
        return True

    @property
    def held(self) -> str:
        """See ``TrainingRows``."""
        return "features of the training inputs kept"

    def factor(self, place: slice) -> OuterProducts:
        """The factor of the layer for some examples, whose gradients are the cotangents.

        Args:
            place: Which.
        """
        cotangents = self.cotangents[:, place].movedim(0, 1)
        by_position = cotangents.reshape(*cotangents.shape[:2], -1, cotangents.shape[-1])
        return replace(self.head.taken(place), g=by_position.mT.unsqueeze(2))

    def factors(self, model: Model, place: slice) -> list[Factor]:
        """See ``TrainingRows``; the network is not called."""
        return [self.factor(place).in_precision(model.precision)]

    def push(self, model: Model, block: Float[Tensor, "d s"]) -> Float[Tensor, "m s"]:
        """See ``TrainingRows``; the network is not called."""
        parts: list[Tensor] = []
        for place in self._places(model):
            factor = self.factor(place).for_products()
            moved = factor.push(model.network.part(factor.names, block))
            parts.append(moved.flatten(0, 1))
        return torch.cat(parts)

    def pull(self, model: Model, block: Float[Tensor, "m s"]) -> Float[Tensor, "d s"]:
        """See ``TrainingRows``; the network is not called."""
        parts = self._by_example(block)
        total = block.new_zeros(model.network.size, block.shape[1])
        for place in self._places(model):
            factor = self.factor(place).for_products()
            total += model.network.joined([(factor.names, factor.pull(parts[place]))], 0)
        return total

    def misfit(self, model: Model) -> str | None:
        """See ``TrainingRows``."""
        expected = (1, self.cotangents.shape[0], model.network.size)
        try:
            came = tuple(self.factor(slice(0, 1)).rows().shape)
        except (RuntimeError, ValueError, IndexError):  # sizes that cannot be multiplied
            came = None
        survey = model.survey
        features = self.head.a
        named = survey.head and self.head.names == survey.layers[0].names
        fits = named and len(features) == self.cotangents.shape[1] and came == expected
        return None if fits else f"features of shape {list(features.shape)}"

    def _places(self, model: Model) -> list[slice]:
        """Pieces of the examples whose explicit rows fit ``Limits.training``."""
        size = model.chunk(self.cotangents.shape[0], model.network.size)
        return [place for place, _ in chunks(self.head.a, size)]


def hides_inputs(forward: Pass) -> bool:
    """Whether the layer that makes the outputs sees something other than the network's inputs.

    Other parameters come before it, and no number of the inputs is among its own in each of the first examples.

    Args:
        forward: Some examples in a network whose outputs one layer makes.
    """
    (layer,) = forward.survey.layers
    own = layer.names[0].rpartition(".")[0]
    if all(name.rpartition(".")[0] == own for name in forward.network.fixed):
        return False
    features = forward.head.a[:LOOKED_AT].flatten(1)
    for value in tensors(forward.inputs):
        numbers = value[:LOOKED_AT].to(features).flatten(1)
        seen = torch.stack([torch.isin(mine, theirs) for mine, theirs in zip(numbers, features, strict=True)])
        if bool((seen & (numbers != 0)).all(0).any()):
            return False
    return True


def joined_heads(heads: list[OuterProducts]) -> OuterProducts:
    """The layer at the inputs of several chunks, one after the other."""
    whole = {name: torch.cat([head.tensors[name] for head in heads]) for name in heads[0].tensors}
    return replace(heads[0], **whole)
