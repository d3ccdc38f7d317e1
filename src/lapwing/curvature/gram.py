"""Between examples: the tangent kernel J A⁻¹ Jᵀ, and the joint covariance J Λ⁻¹ Jᵀ, chunk by chunk, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.training_rows import TrainingRows, rows_of
from lapwing.curvature.variance import Propagation, in_basis, variance_of, whitened_rows
from lapwing.ground.data.inputs import Inputs, chunks, count, take
from lapwing.ground.progress import Bar, track
from lapwing.jacobian.layers.factors import Factor, Outer, Rows, jacobian_rows
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.model import BUDGET, Model
from lapwing.likelihoods.base import identity_cotangents
from lapwing.linalg import Dense, Structured

SHARE = 8
"""One in so many bytes of the budget is for the explicit rows of a layer: both sides, with copies, beside factors."""

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
            rows of both chunks, of so many examples at a time that they fit ``BUDGET``.
        """
        network = self.model.network
        variance = network.spread(variance)
        total = variance.new_zeros([chunk[0].g.shape[:2].numel() for chunk in (left, right)])
        for a, b in zip(left, right, strict=True):
            weights = network.part(a.names, variance)
            if bool(weights.any()):
                total += factor_gram(a, b, weights)
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
        return symmetric(
            self._places(training),
            lambda place: training.factors(self.model, place),
            lambda left, right: torch.stack([self.gram(left, right, variance) for variance in variances]),
            variances[0].new_empty(len(variances), m, m),
        )

    def _chunks(self, inputs: Inputs) -> list[tuple[slice, Inputs]]:
        return list(chunks(inputs, self.model.chunk(self.model.width, BUDGET)))

    def _places(self, training: TrainingRows) -> list[slice]:
        return [place for place, _ in self._chunks(training.cotangents[0])]


def joint(given: Propagation, inputs: Inputs) -> tuple[Float[Tensor, "n *event c"], Float[Tensor, "m m"]]:
    """Mean of each example, and under the first precision the covariance of all m outputs of all examples at once.

    Args:
        given: Carries the weights' Gaussian to the outputs.
        inputs: n examples.

    Cost:
        As ``Propagation.moments``, where the factors of all examples fit ``BUDGET``, or without layers their rows; else
        the passes are made again for every pair of chunks. That memory, and m².
    """
    held, network, width = given.precisions[0], given.model.network, given.model.width
    n, means = count(inputs), dict[int, Tensor]()
    each = given.model.survey.bytes(width, held.operator.dtype.itemsize, given.extra)
    together = n if n * each <= BUDGET // 2 else max(1, BUDGET // 4 // each)

    def weighed(place: slice) -> list[tuple[Factor, Structured | None]]:
        """The factors with their blocks of the precision; without layers ``J W``, ``W Wᵀ = Λ⁻¹``."""
        forward = given.model.forward(take(inputs, place))
        means[place.start] = f = forward.outputs
        factors = given.factors(forward, torch.cat(list(identity_cotangents(f))))
        if given.by_layers:
            return list(given.blocks(factors, held))
        return [(Rows(None, None, whitened_rows(jacobian_rows(network, factors), held.operator)), None)]

    def between(left: list[tuple[Factor, Structured | None]], right: list[tuple[Factor, Structured | None]]) -> Tensor:
        pairs = zip(left, right, strict=True)
        return reduce(torch.add, (layer_covariance(a, b, block) for (a, block), (b, _) in pairs))

    whole = network.like.new_empty(width * n, width * n, dtype=held.operator.dtype)
    places = [place for place, _ in chunks(inputs, together)]
    covariance = symmetric(places, weighed, between, whole)
    return torch.cat([means[start] for start in sorted(means)]), covariance


def symmetric(
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


def layer_covariance(left: Factor, right: Factor, block: Structured | None) -> Float[Tensor, "m m2"]:
    """What a layer adds to the covariance between two chunks, under its block of the precision."""
    if block is None:
        return left.rows().flatten(0, 1) @ right.rows().flatten(0, 1).mT
    weighed = (left, right, variance_of(block, left))
    return blockwise(*(weighed if isinstance(block, Dense) else narrowed(*weighed)), partial(in_basis, block=block))


def factor_gram(left: Factor, right: Factor, variance: Float[Tensor, " d"]) -> Float[Tensor, "m m2"]:
    """``J diag(variance) Jᵀ`` of one layer between two chunks."""
    constant = bool((variance == variance[0]).all())
    if constant and isinstance(left, Outer) and isinstance(right, Outer) and left.positions == right.positions == 1:
        inputs = torch.einsum("npi,mpi->pnm", left.columns.squeeze(-1), right.columns.squeeze(-1))
        gradients = torch.einsum("nkpo,mlpo->pnkml", left.g.squeeze(-1), right.g.squeeze(-1))
        gram = (gradients * inputs[:, :, None, :, None]).sum(0)
        return variance[0] * gram.flatten(0, 1).flatten(1)
    return blockwise(*narrowed(left, right, variance))


def blockwise(
    left: Factor,
    right: Factor,
    variance: Float[Tensor, " d"],
    turned: Callable[[Factor], Factor] | None = None,
) -> Float[Tensor, "m m2"]:
    """``J_left diag(variance) J_rightᵀ`` of one layer, from the explicit rows of a few examples at a time.

    Args:
        left: The layer's factor on m / k examples.
        right: That on others, or the same one.
        variance: Of each weight, in the basis that ``turned`` leads to.
        turned: To a basis in which the covariance of the weights is diagonal; ``None`` where it is.
    """
    (n, k), m = left.g.shape[:2], len(right.g)
    size = max(1, BUDGET // (SHARE * k * len(variance) * left.g.itemsize))
    root = variance.sqrt()

    def rows(factor: Factor, start: int) -> Float[Tensor, "m d"]:
        some = factor.taken(slice(start, start + size))
        return ((some if turned is None else turned(some)).rows() * root).flatten(0, 1)

    blocks = []
    for i in range(0, n, size):
        own = rows(left, i)
        row = [own @ (own if left is right and i == j else rows(right, j)).mT for j in range(0, m, size)]
        blocks.append(torch.cat(row, dim=1))
    return torch.cat(blocks)


def narrowed(
    left: Factor, right: Factor, variance: Float[Tensor, " d"]
) -> tuple[Factor, Factor, Float[Tensor, " used"]]:
    """Factors and variances with only those rows of an embedding's table that one of both looked up."""
    if not (isinstance(left, Lookup) and isinstance(right, Lookup)):
        return left, right, variance
    used = torch.cat([left.index.flatten(), right.index.flatten()]).unique()
    kept = left.padding is not None and bool((used == left.padding).any())
    padding = int((used < left.padding).sum()) if kept else None
    shape = (len(used), left.shape[1])
    narrow = replace(left, index=torch.searchsorted(used, left.index), shape=shape, padding=padding)
    other = narrow if left is right else replace(narrow, index=torch.searchsorted(used, right.index), g=right.g)
    return narrow, other, variance.view(left.shape[0], -1)[used].flatten()
