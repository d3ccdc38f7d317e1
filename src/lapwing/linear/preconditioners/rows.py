"""Exact rows of the curvature: of a few examples, or of the least certain outputs, which make nearly all of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, concatenated, over_tensors, take, tensors
from lapwing.ground.data.sources import Data
from lapwing.ground.distributed import all_of, check_alone
from lapwing.ground.errors import ShapeError, check_bytes, check_count
from lapwing.ground.precision import wide
from lapwing.likelihoods import IGNORED, Likelihood
from lapwing.likelihoods.base import by_position
from lapwing.linalg import LowRank
from lapwing.linear.model import LinearModel
from lapwing.linear.preconditioners.base import CurvatureRecipe, model_of
from lapwing.linear.problem import Problem


@final
@dataclass(frozen=True)
class Subsample(CurvatureRecipe):
    """``P = s Σ_B w_n J_nᵀ B_n J_n + A``: the exact curvature of a few examples, inverted by Woodbury's identity.

    With labels, every class has as many of them. Where it is scaled, ``w_n`` is how many examples each stands for:
    those of its label, else ``N / B``; where not, 1.

    Args:
        examples: Examples B.
        scaled: Whether they stand for all N.
        max_bytes: Largest factor ``[d, B c]`` it will make.

    Raises:
        ConfigError: If there are no examples.
        TooLargeError: If the factor would be larger; nothing is computed.

    Cost:
        A forward and c backward passes for B examples, ``d (B c)²`` once; memory ``d B c`` numbers.
    """

    examples: int
    scaled: bool = True
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_count("examples", self.examples)

    def curvature(self, problem: Problem) -> LowRank:
        """``Σ_B w_n J_nᵀ B_n J_n``."""
        model = model_of(problem, self)
        rows = self.examples * model.event.numel()
        check_room_for_rows(
            model, rows, self.max_bytes, "Subsample with fewer examples, TopRows(500), or a larger max_bytes"
        )
        inputs, targets, weights = balanced(model.data, self.examples)
        roots = weights.sqrt() if self.scaled else torch.ones_like(weights)

        def directions(f: Tensor, place: slice) -> Iterator[Tensor]:
            root = model.likelihood.root(f, model.likelihood.canonical_targets(f, targets[place]))
            each = roots[place].to(root).view(-1, *(1,) * (root.ndim - 1))
            return by_position((each * root).movedim(-1, 0))

        return LowRank(torch.cat([part.flatten(0, 1) for part in model.rows(inputs, directions)]).mT)


@final
@dataclass(frozen=True)
class TopRows(CurvatureRecipe):
    """``P = s Σ_r λ_r (J_nᵀ v_r)(J_nᵀ v_r)ᵀ + A`` over the largest eigenpairs ``B_n v = λ v`` of all output Hessians.

    A trained classifier is sure of most examples: their output Hessian is next to nothing. Every row is exact and costs
    a backward pass of one example, where a column of ``PivotedCholesky`` costs a product with all data.

    Args:
        rank: Rows, at most; of equal ones any.
        max_bytes: Largest factor ``[d, rank]`` it will make.

    Raises:
        ConfigError: If there is no row.
        TooLargeError: If the factor would be larger; nothing is computed.

    Cost:
        A forward pass over the data with an eigendecomposition of every output Hessian, ``O(n c³)``; a forward and c
        backward passes for at most ``rank`` examples, ``d rank²`` once; memory ``d rank`` numbers.

    Example:
        >>> import lapwing as lw
        >>> lw.solvers.CG(preconditioner=TopRows(500)).preconditioner
        TopRows(rank=500, max_bytes=2147483648)
    """

    rank: int
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_count("rank", self.rank)

    def curvature(self, problem: Problem) -> LowRank:
        """``Σ_r λ_r (J_nᵀ v_r)(J_nᵀ v_r)ᵀ``."""
        model = model_of(problem, self)
        check_room_for_rows(model, self.rank, self.max_bytes, "TopRows with a smaller rank, or a larger max_bytes")
        inputs, targets, chosen = self._selected(model)
        if not len(chosen):  # every output Hessian is 0: the network is as sure as its numbers can say
            return LowRank(model.weights.new_zeros(len(model.weights), 1))
        most = int(chosen.max())

        def directions(f: Tensor, place: slice) -> Iterator[Tensor]:
            y = model.likelihood.canonical_targets(f, targets[place])
            yield _leading(output_hessian(model.likelihood, f, y), most).to(f).view(most, *f.shape)

        rows = list[Tensor]()
        start = 0
        for part in model.rows(inputs, directions):
            wanted = torch.arange(most, device=chosen.device) < chosen[start : start + len(part), None]
            rows.append(part[wanted])
            start += len(part)
        return LowRank(torch.cat(rows).mT.contiguous())

    def _selected(self, model: LinearModel) -> tuple[Inputs, Tensor, Tensor]:
        """The examples that have one of the largest eigenvalues, and how many each has."""
        best: _Spectra | None = None
        for batch in model.data:
            f = model.on(batch.inputs).outputs
            values = _eigenvalues(model.likelihood, f, batch.targets)
            found = _Spectra(batch.inputs, batch.targets, values)
            best = (found if best is None else best.and_more(found)).best(self.rank)
        assert best is not None
        return best.inputs, best.targets, _largest(best.values, self.rank).sum(1)


@final
@dataclass(frozen=True, eq=False)
class _Spectra:
    """Some examples, and the eigenvalues of their output Hessians.

    Args:
        inputs: Their inputs.
        targets: Their targets.
        values: The eigenvalues of each.
    """

    inputs: Inputs
    targets: Tensor
    values: Float[Tensor, "n m"]

    def and_more(self, other: _Spectra) -> _Spectra:
        """These examples and others."""
        inputs = concatenated([self.inputs, other.inputs])
        return _Spectra(inputs, torch.cat([self.targets, other.targets]), torch.cat([self.values, other.values]))

    def best(self, count: int) -> _Spectra:
        """Those that have one of the largest eigenvalues."""
        index = _largest(self.values, count).any(1).nonzero()[:, 0]
        return _Spectra(take(self.inputs, index), self.targets[index], self.values[index])


def output_hessian(likelihood: Likelihood, f: Tensor, y: Tensor) -> Float[Tensor, "n *event c c"]:
    """B in float64."""
    outputs = wide(f)
    return likelihood.hessian(outputs, y.to(outputs.device))


def _eigenvalues(likelihood: Likelihood, f: Tensor, targets: Tensor) -> Float[Tensor, "n m"]:
    """Eigenvalues of the output Hessian of each example, of all its positions."""
    y = likelihood.canonical_targets(f, targets)
    return torch.linalg.eigvalsh(output_hessian(likelihood, f, y)).flatten(1)


def _largest(values: Float[Tensor, "n m"], count: int) -> Tensor:
    """Where the ``count`` largest positive entries are."""
    flat = values.flatten()
    first = flat.topk(min(count, len(flat))).indices
    return torch.zeros_like(flat, dtype=torch.bool).index_fill(0, first, True).view_as(values) & (values > 0)


def _leading(hessian: Float[Tensor, "n *event c c"], count: int) -> Float[Tensor, "k n m"]:
    """``√λ v`` of the largest eigenpairs of each example, as cotangents of all its positions."""
    n = len(hessian)
    c = hessian.shape[-1]
    values, vectors = torch.linalg.eigh(hessian.reshape(n, -1, c, c))
    largest, place = values.flatten(1).topk(count)
    own = vectors.mT.flatten(1, 2).gather(1, place[..., None].expand(n, count, c))
    scaled = own * largest.clamp_min(0).sqrt()[..., None]
    cotangents = scaled.new_zeros(n, count, values.shape[1], c)
    cotangents.scatter_(2, (place // c)[..., None, None].expand(n, count, 1, c), scaled.unsqueeze(2))
    return cotangents.flatten(2).movedim(1, 0)


WeightedExamples: TypeAlias = tuple[Inputs, Tensor, Float[Tensor, " n"]]
"""Inputs and targets of some examples, and for how many examples of the data each stands, float64 on the CPU."""

Turns: TypeAlias = tuple[Inputs, Tensor, Tensor]
"""Inputs and targets of some examples, and how many examples of its label came before each."""


def balanced(data: Data, examples: int) -> WeightedExamples:
    """Examples from one pass over the data, as many of every label where targets are labels.

    Otherwise they are spread evenly. Ignored labels are left out. Of several processes all get the same, those of one
    that reads their parts one after the other.

    Returns:
        Inputs, targets, and for how many examples each stands: those of its label, where there are labels; all
        together, for all that are not ignored.

    Raises:
        ShapeError: If they have several shapes, see ``balanced_by_shape``.
    """
    parts = balanced_by_shape(data, examples)
    if len(parts) > 1:
        raise ShapeError(
            "examples of one shape, to be put together",
            f"examples of {len(parts)} shapes",
            "padding them to one length",
        )
    return parts[0]


def balanced_by_shape(data: Data, examples: int) -> list[WeightedExamples]:
    """The same examples in as many parts as they have shapes: sequences of several lengths are not put together.

    Raises:
        ShapeError: If they have several where several processes share the data.
    """
    parts, label_counts = _candidates(data, examples)
    if data.shared:
        if len(parts) > 1:
            raise ShapeError("examples of one shape in all processes", f"{len(parts)} shapes", "one process")
        part, label_counts = _of_all(data, parts[0], label_counts, examples)
        parts = [part]
    first = torch.cat([turns for _, _, turns in parts]).argsort(stable=True)[:examples]
    weights = _weights(parts, first, label_counts, data.span[1])
    chosen: list[WeightedExamples] = []
    start = 0
    for inputs, targets, turns in parts:
        own = (first >= start) & (first < start + len(turns))
        place = (first[own] - start).to(targets.device)
        start += len(turns)
        if len(place):
            chosen.append((take(inputs, place), targets[place], weights[own]))
    return chosen


def _candidates(data: Data, examples: int) -> tuple[list[Turns], Counter[int]]:
    """The examples that may be chosen, a part for each shape, and how many there are of each label, if there are."""
    position, there = data.span
    even = set(torch.linspace(0, there - 1, min(examples, there)).round().long().tolist())
    by_shape: dict[object, list[Turns]] = {}
    label_counts = Counter[int]()
    for batch in data:
        if batch.targets.ndim == 1 and not batch.targets.is_floating_point():
            turns = torch.tensor([_turn(label_counts, label) for label in batch.targets.tolist()])
        else:
            turns = torch.tensor([0 if position + i in even else examples for i in range(len(batch))])
        position += len(batch)
        index = (turns < examples).nonzero()[:, 0]
        if len(index):
            place = index.to(batch.targets.device)
            inputs = take(batch.inputs, place)
            targets = batch.targets[place]
            shape = tuple(tuple(value.shape[1:]) for value in (*tensors(inputs), targets))
            by_shape.setdefault(shape, []).append((inputs, targets, turns[index]))
    return [_together(parts) for parts in by_shape.values()], label_counts


def _weights(
    parts: list[Turns], first: Int[Tensor, " n"], label_counts: Counter[int], examples: int
) -> Float[Tensor, " n"]:
    """For how many examples of the data each of the first stands: those of its label, all together for all."""
    labels = [0] * len(first)
    if label_counts:
        every = torch.cat([targets for _, targets, _ in parts])
        labels = every[first.to(every.device)].tolist()
    total = label_counts or Counter({0: examples})
    taken = Counter(labels)
    weights = torch.tensor([total[label] / taken[label] for label in labels], dtype=torch.float64)
    weights *= total.total() / weights.sum()
    return weights


def _together(parts: list[Turns]) -> Turns:
    """Several batches of one shape."""
    inputs, targets, turns = zip(*parts, strict=True)
    return concatenated(list(inputs)), torch.cat(targets), torch.cat(turns)


def _of_all(data: Data, part: Turns, label_counts: Counter[int], examples: int) -> tuple[Turns, Counter[int]]:
    """What may be chosen in any process, in order of their ranks: at most so many of each are sent."""
    inputs, targets, turns = part
    by_rank = all_of(label_counts)
    before = sum(by_rank[: dist.get_rank()], Counter[int]())
    if label_counts:
        turns = turns + torch.tensor([before[label] for label in targets.tolist()])
    first = turns.argsort(stable=True)[:examples].sort().values
    place = first.to(targets.device)
    inputs = over_tensors(data.joined, take(inputs, place))
    joined = (inputs, data.joined(targets[place]), data.joined(turns[first]))
    return joined, sum(by_rank, Counter[int]())


def _turn(label_counts: Counter[int], label: int) -> int:
    """How many examples of a label came before this one; more than there are for an ignored one."""
    if label == IGNORED:
        return sys.maxsize
    label_counts[label] += 1
    return label_counts[label] - 1


def check_room_for_rows(model: LinearModel, rows: int, max_bytes: int, cure: str) -> None:
    """Refuse so many explicit Jacobian rows where they would take more than ``max_bytes``.

    Raises:
        TooLargeError: If they would.
        UnsupportedError: If several processes have the rows.
    """
    check_alone(model.data.shared, "a preconditioner of single rows", "LowRank(100) or KFAC()")
    got = f"{rows:,} rows of {len(model.weights):,} weights, which need"
    check_bytes("Jacobian rows", rows * model.weights.nbytes, max_bytes, got, cure)
