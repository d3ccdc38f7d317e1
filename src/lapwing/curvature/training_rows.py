"""The rows that the training data have in function space, by what has to be kept to know them again."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, chunks, concatenated, count, take
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.ground.precision import wide
from lapwing.jacobian.layers.base import Factor
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.batch_jacobian import BatchJacobian
from lapwing.likelihoods.base import COLUMNS, identity_cotangents


def rows_of(model: Model, inputs: Inputs, cotangents: Float[Tensor, "k n ..."] | None = None) -> list[Factor]:
    """The rows ``uᵀ J`` of some examples by their layers' factors, as products are made.

    Args:
        model: The network and its likelihood.
        inputs: n examples.
        cotangents: Directions u, canonical; ``None`` takes every output of every event position.

    Cost:
        A forward pass, and a backward pass a cotangent.
    """
    forward = model.forward(inputs)
    if cotangents is None:
        cotangents = torch.cat(list(identity_cotangents(forward.outputs)))
    return [factor.in_precision(model.precision) for factor in forward.factors(cotangents)]


@dataclass(frozen=True, eq=False)
class TrainingRows(abc.ABC):
    """The rows ``J̃ = Sᵀ J`` of the training data: of every example, and of it every column of the root S of its B.

    Args:
        cotangents: The columns of S, canonical.
    """

    cotangents: Float[Tensor, "k n ..."]

    def __len__(self) -> int:
        """How many rows there are, m = n k."""
        return self.cotangents.shape[0] * self.cotangents.shape[1]

    @property
    @abc.abstractmethod
    def by_features(self) -> bool:
        """Whether they are known without the training inputs."""

    @property
    @abc.abstractmethod
    def held(self) -> str:
        """What is kept of the training inputs, in words."""

    @abc.abstractmethod
    def factors(self, model: Model, place: slice) -> list[Factor]:
        """The rows of some examples by their layers' factors, as products are made.

        Args:
            model: The network and its likelihood.
            place: Which.
        """

    @abc.abstractmethod
    def push(self, model: Model, block: Float[Tensor, "d s"]) -> Float[Tensor, "m s"]:
        """``J̃ V``: of every example, then every cotangent.

        Args:
            model: The network and its likelihood.
            block: V.
        """

    @abc.abstractmethod
    def pull(self, model: Model, block: Float[Tensor, "m s"]) -> Float[Tensor, "d s"]:
        """``J̃ᵀ U``.

        Args:
            model: The network and its likelihood.
            block: U.
        """

    def without_inputs(self) -> TrainingRows:
        """The same without the training inputs."""
        return self

    def with_data(self, model: Model, gram: Float[Tensor, "m m"], variance: Float[Tensor, " d"]) -> TrainingRows:
        """The same with the training inputs of a model's data, where they are missing.

        Args:
            model: The network, its likelihood, and the training data.
            gram: ``J̃ V J̃ᵀ`` of the training inputs.
            variance: The diagonal of V.
        """
        return self

    @abc.abstractmethod
    def misfit(self, model: Model) -> str | None:
        """In what way these cannot be rows of a model, in words; ``None`` where they can.

        Args:
            model: The network and its likelihood.
        """

    def _by_example(self, block: Float[Tensor, "m s"]) -> Float[Tensor, "n k s"]:
        return block.unflatten(0, (-1, self.cotangents.shape[0]))


@final
@dataclass(frozen=True, eq=False)
class InputRows(TrainingRows):
    """Rows of any weights: the training inputs, which go through the network each time the rows are asked for.

    Args:
        inputs: The training inputs; ``None`` where a file holds none.
    """

    inputs: Inputs | None

    @property
    def by_features(self) -> bool:
        """See ``TrainingRows``."""
        return False

    @property
    def held(self) -> str:
        """See ``TrainingRows``."""
        return "training inputs missing: see load" if self.inputs is None else "training inputs kept"

    @property
    def known_inputs(self) -> Inputs:
        """The training inputs.

        Raises:
            UnsupportedError: If there are none.
        """
        if self.inputs is None:
            raise UnsupportedError(
                "training inputs, for the kernel between them and others",
                "a posterior from a file, which holds none unless it is asked to",
                "load(path, model, data) with the training data in their order, or "
                "save(posterior, path, training_inputs=True)",
            )
        return self.inputs

    def without_inputs(self) -> InputRows:
        """See ``TrainingRows``."""
        return replace(self, inputs=None)

    def factors(self, model: Model, place: slice) -> list[Factor]:
        """See ``TrainingRows``; a forward pass, and a backward pass a cotangent."""
        return rows_of(model, take(self.known_inputs, place), self.cotangents[:, place])

    def push(self, model: Model, block: Float[Tensor, "d s"]) -> Float[Tensor, "m s"]:
        """See ``TrainingRows``; about two forward passes a column, or a backward pass an output."""
        size = model.chunk(max(model.width, min(block.shape[1], COLUMNS)))
        parts: list[Tensor] = []
        for place, part in chunks(self.known_inputs, size):
            moved = BatchJacobian(model, part).push(block).flatten(2)
            seen = torch.einsum("kne,sne->nks", self.cotangents[:, place].flatten(2), moved)
            parts.append(seen.flatten(0, 1))
        return torch.cat(parts)

    def pull(self, model: Model, block: Float[Tensor, "m s"]) -> Float[Tensor, "d s"]:
        """See ``TrainingRows``; a backward pass a column, or an output."""
        combined = torch.einsum("kne,nks->sne", self.cotangents.flatten(2), self._by_example(block))
        outputs = combined.unflatten(2, model.event)
        total = block.new_zeros(model.network.size, block.shape[1])
        for place, part in chunks(self.known_inputs, model.chunk(1)):
            total += BatchJacobian(model, part).pull(outputs[:, place])
        return total

    def misfit(self, model: Model) -> str | None:
        """See ``TrainingRows``."""
        if self.inputs is not None and count(self.inputs) != self.cotangents.shape[1]:
            return f"inputs of {count(self.inputs)} examples"
        return None

    def with_data(self, model: Model, gram: Float[Tensor, "m m"], variance: Float[Tensor, " d"]) -> InputRows:
        """See ``TrainingRows``; ``J̃ V J̃ᵀ r`` of one random r says whether the inputs are those of the fit.

        Args:
            model: The network, its likelihood, and the training data.
            gram: ``J̃ V J̃ᵀ`` of the training inputs.
            variance: The diagonal of V.

        Raises:
            DataError: If their order is another.

        Cost:
            A pass over the data, a product with J and one with Jᵀ.
        """
        if self.inputs is not None:
            return self
        found = replace(self, inputs=concatenated([batch.inputs for batch in model.data]))
        like = model.network.like
        probe = probes.gaussian((len(self), 1), like=like, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            pulled = found.pull(model, probe)
            came = wide(found.push(model, variance.to(like)[:, None] * pulled))
        expected = wide(gram) @ wide(probe)
        if not bool((came - expected).norm() <= torch.finfo(like.dtype).eps ** 0.5 * expected.norm()):
            raise DataError(
                "the training data in the order they had at the fit",
                "the same examples in another",
                "a loader that does not shuffle at both times, or save(posterior, path, training_inputs=True)",
            )
        return found
