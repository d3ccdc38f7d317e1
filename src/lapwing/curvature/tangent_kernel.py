"""Between examples: the tangent kernel J A⁻¹ Jᵀ, and the joint covariance J Λ⁻¹ Jᵀ, chunk by chunk, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.propagation import Propagation
from lapwing.curvature.training_rows import TrainingRows, rows_of
from lapwing.ground.data.inputs import Inputs, chunks, count, take
from lapwing.ground.precision import wide, without_tf32
from lapwing.ground.progress import Bar, track
from lapwing.jacobian.layers.base import Factor
from lapwing.jacobian.model import Model
from lapwing.likelihoods.base import identity_cotangents

T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class TangentKernel:
    """The tangent kernel of a network between chunks of data.

    A chunk is known by its layer factors: its rows are one for each example and cotangent.

    Args:
        model: The network and its likelihood.
    """

    model: Model

    def rows(self, inputs: Inputs, cotangents: Float[Tensor, "k n ..."] | None = None) -> list[Factor]:
        """The rows ``uᵀ J`` of a chunk.

        Args:
            inputs: n examples.
            cotangents: Directions u, canonical; ``None`` takes every output of every event position.
        """
        return rows_of(self.model, inputs, cotangents)

    def gram(self, left: list[Factor], right: list[Factor], variance: Float[Tensor, " d"]) -> Float[Tensor, "m m2"]:
        """``J_left diag(variance) J_rightᵀ``.

        Args:
            left: One chunk, of m rows.
            right: Another one, of m2 rows.
            variance: Prior variance of each uncertain weight.

        Cost:
            For a layer whose weight is used at one position and has one variance ``m m2 (o + i)``; otherwise explicit
            rows of both chunks, of so many examples at a time that they fit ``Limits.training``.
        """
        network = self.model.network
        variance = network.spread(variance)
        total = variance.new_zeros([chunk[0].g.shape[:2].numel() for chunk in (left, right)])
        for a, b in zip(left, right, strict=True):
            weights = network.part(a.names, variance)
            if bool(weights.any()):
                with without_tf32():
                    total += wide(a.gram(b, weights.to(a.g)))
        return total

    def cross(self, inputs: Inputs, training: TrainingRows, variance: Float[Tensor, " d"]) -> Float[Tensor, "m m2"]:
        """Kernel between every output of ``inputs`` and the rows of training data.

        Cost:
            For each chunk of ``inputs`` a forward and c backward passes over it, and what ``training`` takes to tell
            its rows: of features nothing, of inputs a forward and k backward passes over all of them.
        """
        blocks = []
        for _, part in track(self._chunks(inputs), "rows of the kernel", unit="pieces"):
            left = self.rows(part)
            others = (training.factors(self.model, place) for place in self._places(training))
            blocks.append(torch.cat([self.gram(left, right, variance) for right in others], dim=1))
        return torch.cat(blocks)

    def training_grams(
        self, training: TrainingRows, variances: Sequence[Float[Tensor, " d"]]
    ) -> Float[Tensor, "g m m"]:
        """Kernels between all rows of training data, one for each vector of prior variances.

        Cost:
            For each chunk what ``training`` takes to tell its rows and those of the chunks before it.
        """
        m = len(training)
        whole = variances[0].new_empty(len(variances), m, m)

        def rows(place: slice) -> list[Factor]:
            return training.factors(self.model, place)

        def grams(left: list[Factor], right: list[Factor]) -> Float[Tensor, "g m m2"]:
            return torch.stack([self.gram(left, right, variance) for variance in variances])

        return matrix_between_chunks(self._places(training), rows, grams, whole)

    def _chunks(self, inputs: Inputs) -> list[tuple[slice, Inputs]]:
        return list(chunks(inputs, self.model.chunk(self.model.width)))

    def _places(self, training: TrainingRows) -> list[slice]:
        return [place for place, _ in self._chunks(training.cotangents[0])]


def joint(given: Propagation, inputs: Inputs) -> tuple[Float[Tensor, "n *event c"], Float[Tensor, "m m"]]:
    """Mean of each example, and under the first precision the covariance of all m outputs of all examples at once.

    Args:
        given: Carries the weights' Gaussian to the outputs.
        inputs: n examples.

    Cost:
        As ``Propagation.moments``, where the factors of all examples fit ``Limits.training``, or without layers their
        rows; else the passes are made again for every pair of chunks. That memory, and m².
    """
    width = given.model.width
    operator = given.precisions[0].operator
    n = count(inputs)
    each = given.model.survey.bytes(width, operator.dtype.itemsize, given.extra)
    budget = given.model.limits.training
    together = n if n * each <= budget // 2 else max(1, budget // 4 // each)
    means: dict[int, Tensor] = {}

    def whitened(place: slice) -> list[Factor]:
        forward = given.model.forward(take(inputs, place))
        means[place.start] = f = forward.outputs
        return given.whitened(given.factors(forward, torch.cat(list(identity_cotangents(f)))))

    whole = torch.empty(width * n, width * n, dtype=operator.dtype, device=operator.device)
    places = [place for place, _ in chunks(inputs, together)]
    covariance = matrix_between_chunks(places, whitened, given.between, whole)
    return torch.cat([means[start] for start in sorted(means)]), covariance


def matrix_between_chunks(
    places: list[slice],
    make: Callable[[slice], T],
    between: Callable[[T, T], Float[Tensor, "*g m m2"]],
    whole: Float[Tensor, "*g all all"],
) -> Float[Tensor, "*g all all"]:
    """A symmetric matrix between all examples, each pair of chunks computed once.

    Args:
        places: Where the chunks lie among the examples.
        make: What is computed of a chunk.
        between: The matrix between two chunks.
        whole: Is filled, and returned.
    """
    width = whole.shape[-1] // places[-1].stop
    with Bar("pairs of outputs", len(places) * (len(places) + 1) // 2, unit="pairs of pieces") as bar:
        for i, place in enumerate(places):
            own = make(place)
            for there in places[: i + 1]:
                block = between(own, own if there is place else make(there))
                if there is place:
                    block = (block + block.mT) / 2
                rows, columns = (slice(width * at.start, width * at.stop) for at in (place, there))
                whole[..., rows, columns] = block
                whole[..., columns, rows] = block.mT
                bar.update()
    return whole
