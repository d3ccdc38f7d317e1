"""Sums over the data at the trained weights, and whether two readings of the data have the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import Data, check_inputs, chunks, tensors
from lapwing.ground.errors import DataError, DataWarning, warn
from lapwing.jacobian.layers.passes import Pass
from lapwing.jacobian.model import Model
from lapwing.likelihoods import Likelihood


@final
@dataclass(frozen=True)
class Fingerprint:
    """What two readings of the same examples have in common, in any order.

    Args:
        examples: Examples n.
        inputs: Accumulator of squares of the inputs.
        targets: Accumulator of squares of the targets.
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


class Tally:
    """Adds up ``Totals`` chunk by chunk."""

    def __init__(self, likelihood: Likelihood, *, with_score: bool = True) -> None:
        self._likelihood = likelihood
        self._with_score = with_score and likelihood.noise is not None
        self.parts: list[Fingerprint] = []
        self._counted = 0.0
        self._misfit = 0.0
        self._score: Tensor | None = None

    def add(self, forward: Pass, f: Tensor, y: Tensor) -> None:
        """Take in one chunk: its forward pass, canonical outputs and canonical targets."""
        likelihood = self._likelihood
        squares = sum(float(x.double().square().sum()) for x in tensors(forward.inputs))
        nll = float(likelihood.nll(f, y).double().sum())
        self.parts.append(Fingerprint(len(f), squares, float(y.double().square().sum()), nll))
        self._counted += likelihood.unweighted.count(y)
        self._misfit += float(likelihood.misfit(f, y))
        if self._with_score:
            part = score_of(forward, likelihood, f, y)
            self._score = part if self._score is None else self._score + part

    def totals(self) -> Totals:
        """What was added up.

        Raises:
            DataError: If every target is ignored.
        """
        if not self._counted:
            raise DataError("at least one target that is not ignored", "none", "labels other than -100")
        observations = self._likelihood.weight * self._counted
        return Totals(tuple(self.parts), observations, self._misfit, self._score)


def visit(model: Model, size: int, *, graph: bool = True) -> Iterator[tuple[Pass, Tensor, Tensor]]:
    """Forward passes over the data in chunks of at most ``size``, with canonical outputs and targets, all checked.

    Args:
        model: The network, its likelihood, and the data.
        size: Examples to a chunk.
        graph: Whether the passes will be pulled back; else a graph is made only where one is after all.

    Raises:
        DataError: If inputs, targets or outputs are not finite, or targets do not fit the likelihood.
        ShapeError: If outputs or targets do not fit the likelihood.
    """
    likelihood = model.likelihood
    for batch in model.data:
        check_inputs(batch.inputs)
        for place, inputs in chunks(batch.inputs, size):
            forward = model.forward(inputs)
            f = forward.outputs if graph else model.outputs(inputs)
            y = likelihood.canonical_targets(f, batch.targets[place])
            likelihood.check(f, y)
            yield forward, f, y


def score_of(forward: Pass, likelihood: Likelihood, f: Tensor, y: Tensor) -> Float[Tensor, " d"]:
    """The part of one chunk."""
    return forward.gradient(likelihood.score(f, y))


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
    if not (complete or strict) or isinstance(model.data.source, list | tuple | Iterator):
        return
    first, size = totals.parts[0], totals.parts[0].examples
    tally = Tally(model.likelihood, with_score=False)
    for forward, f, y in visit(model, size, graph=False):
        tally.add(forward, f, y)
        if len(tally.parts) == 1 and alike(first, tally.parts[0]):
            return
    again = tally.totals()
    _compare(total(totals), total(again), strict)


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
    tally = Tally(model.likelihood, with_score=False)
    for forward, f, y in visit(model, max(part.examples for part in totals.parts), graph=False):
        tally.add(forward, f, y)
    then, now = total(totals), total(tally.totals())
    if not alike(then, now):
        raise DataError(
            f"the data the posterior was fitted to ({then.examples} examples, NLL {then.nll:.6g} nats)",
            f"others ({now.examples} examples, NLL {now.nll:.6g} nats)",
            "the loader given to Laplace.fit, without augmentation",
        )


def _is_complete(data: Data, totals: Totals) -> bool:
    """Whether every example of the loader's dataset was read, as far as one can tell; warns if not."""
    dataset = getattr(data.source, "dataset", None)
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
        changed, cure = (
            "other inputs",
            "the dataset without random augmentation, of which the curvature is that of one random copy, and "
            "drop_last=False where the loader shuffles",
        )
    elif not close(first.targets, second.targets):
        changed, cure = "other targets", "a loader without random labels (mixup, label noise)"
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


def total(totals: Totals) -> Fingerprint:
    """One fingerprint of all examples."""
    parts = totals.parts
    return Fingerprint(
        totals.examples, sum(part.inputs for part in parts), sum(part.targets for part in parts), totals.nll
    )


def alike(a: Fingerprint, b: Fingerprint) -> bool:
    """Whether two fingerprints agree up to rounding."""
    return (
        a.examples == b.examples and close(a.inputs, b.inputs) and close(a.targets, b.targets) and close(a.nll, b.nll)
    )


def close(a: float, b: float) -> bool:
    """Whether two sums agree up to float32 rounding."""
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
