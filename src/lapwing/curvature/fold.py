"""One pass over the data at the trained weights: the place where sums over data go through, and what they begin with.

Whether two readings of the data have the same sums is seen here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import check_inputs, chunks, tensors
from lapwing.ground.data.sources import Data
from lapwing.ground.distributed import all_of
from lapwing.ground.errors import DataError, DataWarning, warn
from lapwing.ground.precision import wide
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.model import Model


@final
@dataclass(frozen=True)
class Fingerprint:
    """What two readings of the same examples have in common, in any order.

    Args:
        examples: Examples n.
        inputs: Sum of squares of the inputs.
        targets: Sum of squares of the targets.
        nll: Negative log likelihood, nats.
    """

    examples: int
    inputs: float
    targets: float
    nll: float


@final
@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over the data at the trained weights.

    Args:
        parts: Fingerprint of each chunk, in order.
        observations: Scalar observations that the targets stand for, the ignored left out: with a weight, any number.
        misfit: For Gaussian noise the squared error, weighted by the noise precision; 0 for others.
        score: Gradient of the log likelihood in the uncertain weights; only for Gaussian noise.
    """

    parts: tuple[Fingerprint, ...]
    observations: float
    misfit: float
    score: Float[Tensor, " d"] | None

    @property
    def examples(self) -> int:
        """Examples n."""
        return sum(part.examples for part in self.parts)

    @property
    def nll(self) -> float:
        """Negative log likelihood of all targets, nats, all constants included."""
        return sum(part.nll for part in self.parts)

    def joined(self, other: Totals) -> Totals:
        """Sums over both data.

        Args:
            other: Those over others, of the same network and likelihood.
        """
        score = None
        if self.score is not None and other.score is not None:
            score = self.score + other.score.to(self.score)
        observations = self.observations + other.observations
        return Totals(self.parts + other.parts, observations, self.misfit + other.misfit, score)

    @property
    def whole(self) -> Fingerprint:
        """One fingerprint of all examples."""
        inputs = sum(part.inputs for part in self.parts)
        targets = sum(part.targets for part in self.parts)
        return Fingerprint(self.examples, inputs, targets, self.nll)


@final
class Fold:
    """One pass over the data in chunks: every chunk is handed out, checked, and counted in ``totals``.

    A chunk is its forward pass with its canonical outputs and targets.

    Args:
        model: The network, its likelihood, and the data.
        size: Examples to a chunk, at most.
        graph: Whether the passes will be pulled back; else a graph is made only where one is after all.
        score: Whether the totals of Gaussian noise have its score.

    Raises:
        DataError: If inputs, targets or outputs are not finite, or targets do not fit the likelihood.
        ShapeError: If outputs or targets do not fit the likelihood.
    """

    def __init__(self, model: Model, size: int, *, graph: bool = True, score: bool = True) -> None:
        self._model = model
        self._size = size
        self._graph = graph
        self._with_score = score and model.likelihood.noise is not None
        self.parts: list[Fingerprint] = []
        self.batch = 0
        """Examples of the largest batch so far."""
        self._counted = self._misfit = 0.0
        self._score: Tensor | None = None

    def __iter__(self) -> Iterator[tuple[Pass, Tensor, Tensor]]:
        likelihood = self._model.likelihood
        for batch in self._model.data:
            check_inputs(batch.inputs)
            self.batch = max(self.batch, len(batch))
            for place, inputs in chunks(batch.inputs, self._size):
                forward = self._model.forward(inputs)
                f = forward.outputs if self._graph else self._model.outputs(inputs)
                y = likelihood.canonical_targets(f, batch.targets[place])
                likelihood.check(f, y)
                self._count(forward, f, y)
                yield forward, f, y

    def _count(self, forward: Pass, f: Tensor, y: Tensor) -> None:
        likelihood = self._model.likelihood
        squares = sum(float(wide(x).square().sum()) for x in tensors(forward.inputs))
        nll = float(likelihood.total_nll(f, y))
        self.parts.append(Fingerprint(len(f), squares, float(wide(y).square().sum()), nll))
        self._counted += likelihood.unweighted.count(y)
        self._misfit += float(likelihood.misfit(f, y))
        if self._with_score:
            part = forward.gradient(likelihood.score(f, y))
            self._score = part if self._score is None else self._score + part

    def totals(self) -> Totals:
        """Sums over the chunks so far; over all data where none was handed out.

        Raises:
            DataError: If every target is ignored.
        """
        if not self.parts:
            for _ in self:
                pass
        data = self._model.data
        parts = self.parts
        score = self._score
        counted, misfit = data.added(torch.tensor([self._counted, self._misfit], dtype=torch.float64)).tolist()
        if not counted:
            raise DataError("at least one target that is not ignored", "none", "labels other than -100")
        if data.shared:
            parts = parts_of_all(parts)
            score = None if score is None else data.added(score)
        return Totals(tuple(parts), self._model.likelihood.weight * counted, misfit, score)


def parts_of_all(parts: list[Fingerprint]) -> list[Fingerprint]:
    """The chunks of all processes, in order of their ranks.

    Args:
        parts: Those of this process.

    Raises:
        DataError: If two of them read the same data.
    """
    known = all_of(parts)
    for rank, own in enumerate(known):
        if own in known[:rank]:
            raise DataError(
                "a part of the data for each process",
                f"the same for ranks {known.index(own)} and {rank}",
                "Subset(dataset, range(rank, len(dataset), world)), or x[rank::world], y[rank::world]",
            )
    return [part for own in known for part in own]


def check_repeatable(model: Model, totals: Totals, *, strict: bool = False) -> None:
    """Read the data again and name what changed since the curvature was computed.

    Lists and pairs of tensors cannot change and are not read again; neither is an iterator, which is spent.

    Args:
        model: The network, its likelihood, and the training data.
        totals: Sums of the first reading.
        strict: Whether the data will be read again after the fit, so that any difference is an error.

    Raises:
        DataError: If the same inputs came with other targets, or anything else differs where ``strict``.

    Warns:
        DataWarning: If examples were left out, or the inputs changed.

    Cost:
        One batch where the order is fixed; a forward pass over the data where it is shuffled.
    """
    complete = _is_complete(model.data, totals)
    needed = (complete or strict) and not isinstance(model.data.source, list | tuple | Iterator)
    if not float(model.data.added(torch.tensor(float(needed)))):  # one that reads again needs the others
        return
    again = Fold(model, totals.parts[0].examples, graph=False, score=False)
    for _ in again:
        if len(again.parts) == 1 and not model.data.shared and alike(totals.parts[0], again.parts[0]):
            return
    _compare(totals.whole, again.totals().whole, strict)


def check_same(model: Model, totals: Totals) -> None:
    """Refuse data that are not those of another time, by their sums; the order does not matter.

    Args:
        model: The network, its likelihood, and the data at hand.
        totals: Sums over the data of then.

    Raises:
        DataError: If they differ beyond rounding.

    Cost:
        A forward pass over the data.
    """
    size = max(part.examples for part in totals.parts)
    then = totals.whole
    now = Fold(model, size, graph=False, score=False).totals().whole
    if not alike(then, now):
        raise DataError(
            f"the data the posterior was fitted to ({then.examples} examples, NLL {then.nll:.6g} nats)",
            f"others ({now.examples} examples, NLL {now.nll:.6g} nats)",
            "the loader given to Laplace.fit, without augmentation",
        )


def _is_complete(data: Data, totals: Totals) -> bool:
    """Whether every example of the loader's dataset was read, as far as one can tell; warns if not."""
    dataset = getattr(data.source, "dataset", None)
    if isinstance(dataset, Sized) and data.shared and data.examples < len(dataset) < totals.examples:
        counts = f"{totals.examples} examples in all processes, of a dataset of {len(dataset)}"
        warn(f"{counts}: some count twice. Try Subset(dataset, range(rank, len(dataset), world)) each", DataWarning)
    if not isinstance(dataset, Sized) or len(dataset) <= totals.examples:
        return True
    warn(
        f"the loader gave {totals.examples} of its dataset's {len(dataset)} examples: the posterior will be too wide. "
        "Try drop_last=False, or a sampler that visits every example",
        DataWarning,
    )
    return False


def _compare(first: Fingerprint, second: Fingerprint, strict: bool) -> None:
    if first.examples != second.examples:
        changed = f"{first.examples} examples, then {second.examples}"
        cure = "drop_last=False and a sampler that visits every example once"
    elif not close(first.inputs, second.inputs):
        changed = "other inputs"
        cure = (
            "the dataset without random augmentation, of which the curvature is that of one random copy, and "
            "drop_last=False where the loader shuffles"
        )
    elif not close(first.targets, second.targets):
        changed = "other targets"
        cure = "a loader without random labels (mixup, label noise)"
    elif not close(first.nll, second.nll):
        raise DataError(
            "the same target for the same input in every pass over the data",
            f"the same inputs and targets in another pairing (NLL {first.nll:.6g}, then {second.nll:.6g} nats)",
            "shuffling inputs and targets together",
        )
    else:
        return
    if strict:
        raise DataError("the same data in every pass, for a posterior that reads them again", changed, cure)
    warn(f"two passes over the training data differ: {changed}. Try {cure}", DataWarning)


def alike(a: Fingerprint, b: Fingerprint) -> bool:
    """Whether two fingerprints agree up to rounding."""
    return (
        a.examples == b.examples and close(a.inputs, b.inputs) and close(a.targets, b.targets) and close(a.nll, b.nll)
    )


def close(a: float, b: float) -> bool:
    """Whether two sums agree up to float32 rounding."""
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
