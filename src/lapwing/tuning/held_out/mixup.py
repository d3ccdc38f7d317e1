"""Tuning a classifier from its training data alone, by how it behaves between neighbours."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, InputsLike, as_inputs, checked, concatenated, count, over_tensors, take
from lapwing.ground.data.sources import Batch, Data, Source, inputs_of
from lapwing.ground.errors import ConfigError, DataError, ShapeError, UnsupportedError, check_count
from lapwing.likelihoods import IGNORED
from lapwing.posteriors import Posterior
from lapwing.predictive import Moments
from lapwing.tuning.held_out.budget import Budget, Seconds, check_seconds
from lapwing.tuning.held_out.examples import selected
from lapwing.tuning.held_out.neighbours import either, neighbours, numeric
from lapwing.tuning.held_out.outputs import held_out_outputs
from lapwing.tuning.held_out.search import HeldOutSearch, candidates
from lapwing.tuning.held_out.tokens import pairs_of_tokens
from lapwing.tuning.method import P

SHARE = 0.5
"""Of each of two neighbours in a mixture: there neither label is the likelier."""

FACTORS = (1e-6, 1e12)
"""Factors of the prior precisions tried. With the strongest the posterior is the network, to the last digit."""

VIEWS = "views=lambda x: x.flip(-1)"

CURE = "Validation(loader) with held-out data, or ELBO()"

UNCHANGED = (
    "predictions stay the network's, for at and between its training inputs it is not too sure; held-out data tell "
    "more, tune(posterior, loader)"
)
"""What is said where no uncertainty helps."""

Blend = Callable[[Any, Any, float], Any]
"""Mixtures of the inputs of two sets of examples, the first with a share."""


@final
@dataclass(frozen=True)
class Mixup:
    """Tunes a classifier halfway between neighbours, as ``Validation`` does on held-out data.

        z = (x_i + x_j) / 2,    x_j the nearest to x_i,    the label of z is y_i or y_j, one as likely as the other

    A network has fitted its training inputs and is certain of them, rightly or not; halfway to the next one it may be
    certain still, and wrong. Where neighbours have one label, it is that of what lies between them; where they have
    two, as at the border of classes and where labels are noisy, nobody knows, and a network that is certain pays. Such
    mixtures stay where the data are, unlike those of any two (Zhang et al. 2018).

    Rows of a table are near by their columns, each over its deviation. Images are near by their pixels where such
    neighbours agree on labels twice as well as any two images, as digits do; else, as photographs, by the outputs of
    the network. Tokens are near by outputs too, and mixed where they become numbers, behind the embeddings that read
    them as they are, if all sequences have one length. Of several inputs, such as tokens and their mask, those of
    numbers are mixed too; others, the mask among them, are those of x_i. Where neighbours by outputs agree on labels no
    better than any two, as on labels of each token or pixel, none is near: x_i stands alone.

    Where these mixtures want no uncertainty, the prior becomes so strong that predictions are the network's, with a
    warning. The rule was chosen on one half of the networks of ``studies.tuning`` and tested there on others: most gain
    or stay as they are, one of 37 rows lost beyond two standard errors.

    It asks for too little caution where neighbours are much nearer to one another than new inputs will be: copies and
    repeated measurements. It cannot make a network surer.

    Inputs without labels that the network was not trained on take their place by ``unlabelled=``: they are mixed with
    each other, and have the labels that the network gives them, after an idea of Hu et al. 2024, whose pairs at random
    make tables worse. ``studies.tuning`` has both. Views of the training inputs, ``views=``, such as the crops and
    flips of data augmentation, take the place of mixtures where you know what leaves a label as it is.

    Args:
        examples: Mixtures, of as many examples at most.
        seed: Of the choice of examples, and of chance in ``views``.
        seconds: Budget: as many of the mixtures are looked at as it buys, 64 at least. ``"auto"`` for three times what
            the fit took, ten seconds at least; ``None`` for all of them. How many they were is in the log and in the
            trace, ``validation_examples``: ``Mixup(examples=that, seconds=None)`` looks at as many anywhere.
        unlabelled: Inputs the network was not trained on, a tensor of them or a loader; targets in it are not read.
            ``None`` mixes training inputs.
        views: Of a batch of inputs, as the network gets them, another view of each, ``[n, ...]``: it is given the label
            of the input. ``None`` mixes neighbours.

    Raises:
        ConfigError: If the seconds are no budget, or views no function.

    Cost:
        Two or three passes over the training data, which only read them, and one or two predictions of ``examples``
        inputs, or of as many as ``seconds`` buys; a forward pass of all where outputs tell what is near; of tokens one
        pass more. Memory of many outputs as ``Validation``.

    Example:
        >>> import lapwing as lw
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(60, 2, generator=generator)
        >>> y = (x[:, 0] + torch.randn(60, generator=generator) > 0).long()
        >>> posterior = lw.Laplace(lw.Categorical()).fit(torch.nn.Linear(2, 2), (x, y))
        >>> lw.tune(posterior, Mixup()).prior.precision > 0
        True
    """

    examples: int = 400
    seed: int = 0
    seconds: Seconds = "auto"
    unlabelled: Source | Inputs | None = field(default=None, kw_only=True)
    views: Callable[[Any], InputsLike] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_count("examples", self.examples, usual=400)
        check_count("seed", self.seed, 0)
        check_seconds(self.seconds)
        if not (self.views is None or callable(self.views)):
            raise ConfigError("views= to be a function of a batch of inputs", f"{self.views!r:.40}", VIEWS)

    def tune(self, posterior: P, progress: bool | None) -> P:
        """The posterior of smallest NLL on mixtures.

        Raises:
            DataError: If there is one class only.
            UnsupportedError: If the posterior lacks its training data, targets are no labels, or inputs no numbers.

        Warns:
            ConvergenceWarning: If the best is at an end of the bounds.
        """
        budget = Budget.of(self.seconds, posterior)
        data = self.examples_to_mix(posterior)
        if self.views is not None:
            return self.searched(posterior, self.viewed(data), budget, progress)
        with blending(posterior, data) as mix:
            return self.searched(posterior, self.mixed(posterior, data, mix), budget, progress)

    def searched(self, posterior: P, batch: Batch, budget: Budget, progress: bool | None) -> P:
        """The posterior of smallest NLL on some examples with two labels each."""
        data = held_out_outputs(posterior, [batch], FACTORS, budget, either=True)
        return HeldOutSearch("Mixup", data, candidates(posterior, None), unchanged=UNCHANGED).run(progress)

    def examples_to_mix(self, posterior: Posterior) -> Data:
        """The training data, or inputs without labels and what the network says they are.

        Raises:
            UnsupportedError: If the posterior is of no classifier, or lacks its training data where they are needed.
        """
        if not posterior.likelihood.labels:
            raise UnsupportedError("a posterior of a classifier", f"{posterior.likelihood}", CURE)
        if self.unlabelled is not None:
            return labelled_by_network(posterior, self.unlabelled)
        if posterior.data is None:
            cure = "load(path, model, data), Mixup(unlabelled=inputs), or Validation(loader) with held-out data"
            raise UnsupportedError("a posterior that has its training data", "one from a file, which holds none", cure)
        return posterior.data

    def mixed(self, posterior: Posterior, data: Data, mix: Blend) -> Batch:
        """Mixtures of neighbours, each with both labels, ``[m, 2, ...]``; see ``tune``."""
        generator = torch.Generator().manual_seed(self.seed)
        chosen = self.chosen(data, generator)
        near = neighbours(posterior, data, chosen, generator)
        return Batch(mix(chosen.inputs, near.inputs, SHARE), either(chosen.targets, near.targets, IGNORED))

    def viewed(self, data: Data) -> Batch:
        """Views of some examples, each with its label twice.

        Raises:
            ShapeError: If there are not as many views as inputs.
        """
        chosen = self.chosen(data, torch.Generator().manual_seed(self.seed))
        assert self.views is not None
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            seen = as_inputs(self.views(chosen.inputs))
        if count(seen) != len(chosen):
            raise ShapeError(f"a view of each of {len(chosen)} inputs", f"{count(seen)} views", VIEWS)
        return Batch(seen, either(chosen.targets, chosen.targets, IGNORED))

    def chosen(self, data: Data, generator: torch.Generator) -> Batch:
        """Some of the examples of all processes, at random.

        Raises:
            DataError: If there is one class only.
        """
        wanted = torch.randperm(data.span[1], generator=generator)[: self.examples].sort().values
        inputs, targets = examples_of(data, wanted)
        check_classes(targets)
        return Batch(inputs, targets)


def labelled_by_network(posterior: Posterior, unlabelled: Source | Inputs) -> Data:
    """Inputs without labels, each with the one the network gives it.

    Raises:
        DataError: If there are no inputs, or one that is not finite.
        UnsupportedError: If training data have positions without a label: nobody says where these inputs have some.
    """
    data = posterior.data
    if data is not None and bool((next(iter(data)).targets == IGNORED).any()):
        got = f"training targets of which some are {IGNORED}, such as padding: of other inputs nobody says which"
        raise UnsupportedError("inputs of which all positions count", got, CURE)
    unpack = None if data is None else data.unpack
    batches: list[tuple[Inputs, Tensor]] = []
    for some in inputs_of(unlabelled, unpack):
        inputs = checked(some, posterior.network.like)
        outputs = posterior.model.outputs(inputs)
        prediction: Any = posterior.likelihood.predictive(Moments.certain(outputs), "probit")
        batches.append((inputs, prediction.labels))
    return Data(batches, like=posterior.network.like)


def check_classes(targets: Tensor) -> None:
    """Refuse examples between which there is nothing to tell.

    Raises:
        DataError: If there is one example alone, or all targets are the same.
    """
    if len(targets) == 1:
        raise DataError("two examples at least, to mix one with another", "one", CURE)
    if bool((targets == targets[0]).all()):
        raise DataError("examples of two classes at least", f"{len(targets)} of one class", CURE)


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
def blending(posterior: Posterior, data: Data) -> Generator[Blend]:
    """How inputs are mixed: as they are, or tokens behind their embedding.

    Args:
        posterior: Has the network.
        data: The examples to be mixed.

    Raises:
        UnsupportedError: If they cannot be.
    """
    if numeric(data.first()):
        yield blend
        return
    tokens = pairs_of_tokens(posterior, data)
    if tokens is None:
        expected = "inputs that can be mixed: floating-point numbers, or tokens of one length that an embedding reads"
        raise UnsupportedError(expected, "others", f"Mixup(views=...), {CURE}")
    with tokens.open():
        yield tokens


def mixable(posterior: Posterior) -> bool:
    """Whether the training inputs can be mixed, as they are or behind an embedding."""
    data = posterior.data
    return data is not None and (numeric(data.first()) or pairs_of_tokens(posterior, data) is not None)


def blend(one: Inputs, other: Inputs, share: float) -> Inputs:
    """``share * one + (1 - share) * other``, leaf by leaf."""
    return over_tensors(lambda larger, smaller: share * larger + (1 - share) * smaller, one, other)
