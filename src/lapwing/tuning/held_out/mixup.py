"""Tuning a classifier from its training data alone, by how it behaves between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks, concatenated, count, over_tensors, take, tensors
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.errors import ConfigError, DataError, UnsupportedError, check_count
from lapwing.ground.progress import Bar
from lapwing.likelihoods import IGNORED, Bernoulli
from lapwing.posteriors import Posterior
from lapwing.tuning.held_out.budget import Budget, Seconds, check_seconds
from lapwing.tuning.held_out.examples import entries, selected
from lapwing.tuning.held_out.outputs import held_out_outputs
from lapwing.tuning.held_out.search import HeldOutSearch, candidates
from lapwing.tuning.held_out.tokens import pairs_of_tokens
from lapwing.tuning.method import P

ERRORS = 1 / 8
"""Part of the mixtures that the network is to get wrong: enough to tell caution from its lack, few enough to trust."""

LEAST = 0.55
"""Smallest larger share tried."""

MOST = 0.95
"""Largest one."""

MOST_OF_IMAGES = 0.7
"""Largest one of images."""

HALVINGS = 7
"""Of the interval of shares, to three thousandths."""

SURE = 2.5
"""Standard deviations by which the errors of some mixtures must miss ``ERRORS`` to tell on which side all are."""

FACTORS = (1e-6, 1e12)
"""Factors of the prior precisions tried. With the strongest the posterior is the network, to the last digit."""

CHUNK = 16
"""Mixtures that the network reads at a time, at most."""

LABELS = 512
"""Labels of theirs that tell enough; of long sequences few are read at a time."""

CURE = "Validation(loader) with held-out data, or ELBO()"

Blend = Callable[[Any, Any, float], Any]
"""Mixtures of the inputs of two sets of examples, the first with the larger share."""


@final
@dataclass(frozen=True)
class Mixup:
    """Tunes a classifier on mixtures of its training inputs, as ``Validation`` does on held-out data.

        z = λ x_i + (1 - λ) x_j,    y_i ≠ y_j,    the label of z is y_i

    A network has fitted its training inputs and is certain of them, rightly; between them it is certain too, and often
    wrong. What it should say there is known well enough: of two classes mixed, the larger share is the better guess.
    The mixtures are those of Zhang et al. (2018), their loss that of the label with the larger share.

    The share decides how hard the question is, and how much caution comes out. It is the one at which the network errs
    on one mixture in eight, and of images .7 at most: they stand a smaller one than tables, whose mixtures soon lie
    where the other class does. Both numbers were chosen on the networks on which ``studies.tuning`` reports, two
    ResNet-20 and small networks on images and tables: they are no independent test of them.

    Tokens are mixed where they become numbers, behind the embeddings that read them as they are, if all sequences have
    one length. Of several inputs, such as tokens and their mask, those of numbers are mixed too; others, the mask among
    them, are those of the larger share.

    Where mixtures want no uncertainty, the prior becomes so strong that predictions are the network's, with a warning.
    Short-trained networks are often calibrated already; it is the overfitted that gain.

    It fails where inputs between two others look like nothing the network will meet: sparse or discrete columns of a
    table; and it asks for too little caution where training labels are noisy, which no function of the training data
    can tell from right ones.

    Args:
        share: λ, the larger share; ``None`` finds it.
        examples: Mixtures.
        seed: Of the choice of pairs.
        seconds: Budget: as many of the mixtures are looked at as it buys, 64 at least. ``"auto"`` for three times what
            the fit took, ten seconds at least; ``None`` for all of them. How many they were is in the log and in the
            trace, ``validation_examples``: ``Mixup(examples=that, seconds=None)`` looks at as many anywhere.

    Raises:
        ConfigError: If the share is not between a half and one, or the seconds are no budget.

    Cost:
        Two passes over the training data, which only read them, about one forward pass and one or two predictions of
        ``examples`` inputs, or of as many as ``seconds`` buys; of tokens one pass more. Memory of many outputs as
        ``Validation``.

    Example:
        >>> import lapwing as lw
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(60, 2, generator=generator)
        >>> y = (x[:, 0] + torch.randn(60, generator=generator) > 0).long()
        >>> posterior = lw.Laplace(lw.Categorical()).fit(torch.nn.Linear(2, 2), (x, y))
        >>> lw.tune(posterior, Mixup()).prior.precision > 0
        True
    """

    share: float | None = None
    examples: int = 400
    seed: int = 0
    seconds: Seconds = "auto"

    def __post_init__(self) -> None:
        if self.share is not None and not 0.5 < self.share < 1.0:
            raise ConfigError("a share between a half and one, or None", f"{self.share}", "share=None")
        check_count("examples", self.examples, usual=400)
        check_count("seed", self.seed, 0)
        check_seconds(self.seconds)

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior of smallest NLL on mixtures.

        Raises:
            DataError: If there is one class only.
            UnsupportedError: If the posterior lacks its training data, targets are no labels, or inputs no numbers.

        Warns:
            ConvergenceWarning: If the best is at an end of the bounds.
        """
        budget = Budget.of(self.seconds, posterior)
        with blending(posterior) as mix:
            data = held_out_outputs(posterior, [self.mixed(posterior, mix)], FACTORS, budget)
            return HeldOutSearch("Mixup", data, candidates(posterior, None)).run(progress)

    def mixed(self, posterior: Posterior, mix: Blend) -> Batch:
        """The mixtures, labelled by the larger share; see ``tune``."""
        data = posterior.data
        assert data is not None
        generator = torch.Generator().manual_seed(self.seed)
        wanted = torch.randperm(posterior.totals.examples, generator=generator)[: 2 * self.examples].sort().values
        inputs, targets = examples_of(data, wanted)
        one, other = pairs(targets.cpu(), self.examples, generator)
        first = take(inputs, one.to(targets.device))
        second = take(inputs, other.to(targets.device))
        labels = targets[one.to(targets.device)]
        share = natural_share(posterior, mix, first, second, labels) if self.share is None else self.share
        return Batch(mix(first, second, share), labels)


def examples_of(data: Data, wanted: Int[Tensor, " m"]) -> tuple[Inputs, Tensor]:
    """Inputs and targets of the examples of these numbers, which all processes have together."""
    own = list(selected(data, wanted - data.span[0]))
    if not own:  # none of this process; of what shape they are the others' have to fit
        first = next(iter(data))
        own = [Batch(take(first.inputs, slice(0)), first.targets[:0])]
    inputs = over_tensors(data.joined, concatenated([part.inputs for part in own]))
    targets = data.joined(torch.cat([part.targets for part in own]))
    return inputs, targets


@contextmanager
def blending(posterior: Posterior) -> Generator[Blend]:
    """How the training inputs of a posterior are mixed: as they are, or tokens behind their embedding.

    Raises:
        UnsupportedError: If they cannot be, or it is no classifier.
    """
    expected = "a posterior of a classifier that has its training data"
    if posterior.data is None:
        cure = "load(path, model, data), or Validation(loader) with held-out data"
        raise UnsupportedError(expected, "one from a file, which holds none", cure)
    if not posterior.likelihood.labels:
        raise UnsupportedError(expected, f"{posterior.likelihood}", CURE)
    if numbers(posterior.data):
        yield blend
        return
    tokens = pairs_of_tokens(posterior)
    if tokens is None:
        expected = "inputs that can be mixed: floating-point numbers, or tokens of one length that an embedding reads"
        raise UnsupportedError(expected, "others", CURE)
    with tokens.open():
        yield tokens


def mixable(posterior: Posterior) -> bool:
    """Whether the training inputs can be mixed, as they are or behind an embedding."""
    return posterior.data is not None and (numbers(posterior.data) or pairs_of_tokens(posterior) is not None)


def natural_share(posterior: Posterior, mix: Blend, first: Inputs, second: Inputs, labels: Tensor) -> float:
    """The larger share at which the network errs on ``ERRORS`` of the mixtures, as nearly as half of them can tell.

    Of a network that errs on more of them at the largest share, that.
    """
    low = LEAST
    high = MOST_OF_IMAGES if images(first) else MOST
    share = high
    with Bar("share of the mixtures", most=1 + HALVINGS, unit="shares") as bar:
        for _ in range(1 + HALVINGS):
            hard = too_hard(posterior, mix(first, second, share), labels)
            bar.update()
            if hard is None or (hard and share == high):
                return share
            if hard:
                low = share
            else:
                high = share
            share = (low + high) / 2
    return high


def too_hard(
    posterior: Posterior, inputs: Inputs, labels: Tensor, most: int = CHUNK, enough: int = LABELS
) -> bool | None:
    """Whether the network errs on more than ``ERRORS`` of the mixtures; ``None`` where half of them do not tell."""
    wrong = 0
    read = 0
    size = min(most, max(4, enough * len(labels) // labels.numel()))
    for place, part in chunks(inputs, size):
        missed = errors(posterior, part, labels[place])
        wrong += int(missed.sum())
        read += missed.numel()
        apart = wrong - ERRORS * read
        if abs(apart) > SURE * (read * ERRORS * (1 - ERRORS)) ** 0.5:
            return apart > 0
        if 2 * place.stop >= len(labels):
            break
    return None


def images(inputs: Inputs) -> bool:
    """Whether some input has at least two axes beside those of examples and channels."""
    return any(value.ndim >= 4 for value in tensors(inputs))


def errors(posterior: Posterior, inputs: Inputs, labels: Tensor) -> Bool[Tensor, " m"]:
    """Which labels the network itself gets wrong."""
    f = posterior.model.outputs(inputs)
    y = posterior.likelihood.canonical_targets(f, labels)
    if isinstance(posterior.likelihood, Bernoulli):
        return ((f > 0) != (y > 0.5)).flatten()
    return (f.argmax(-1) != y)[y != IGNORED]


def numbers(data: Data) -> bool:
    """Whether all inputs are floating-point tensors with an axis of examples."""
    inputs = next(iter(data)).inputs
    examples = count(inputs)
    for value in entries(inputs).values():
        if not (isinstance(value, Tensor) and value.is_floating_point() and value.ndim and len(value) == examples):
            return False
    return True


def pairs(targets: Tensor, count: int, generator: torch.Generator) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """Random pairs of examples whose targets differ.

    Raises:
        DataError: If there is one example alone, or all targets are the same.
    """
    flat = targets.flatten(1) if targets.ndim > 1 else targets[:, None]
    n = len(flat)
    if n == 1:
        raise DataError("two training examples at least, to mix one with another", "one", CURE)
    if bool((flat == flat[0]).all()):
        raise DataError("training examples of two classes at least", f"{n} of one class", CURE)
    rounds = math.ceil(count / n)
    one = torch.cat([torch.randperm(n, generator=generator) for _ in range(rounds)])[:count]
    others: list[int] = []
    for i in one.tolist():
        differs = (flat != flat[i]).any(1).nonzero()[:, 0]
        others.append(int(differs[torch.randint(len(differs), (1,), generator=generator)]))
    return one, torch.tensor(others)


def blend(one: Inputs, other: Inputs, share: float) -> Inputs:
    """``share * one + (1 - share) * other``, leaf by leaf."""
    return over_tensors(lambda larger, smaller: share * larger + (1 - share) * smaller, one, other)
