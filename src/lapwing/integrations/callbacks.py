"""What callbacks of training loops share: a posterior when training ends, tuned, compared with the network, saved."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler

from lapwing.evaluation.evaluate import evaluate
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.data.sources import Data, Source, Unpack, is_pair
from lapwing.ground.errors import UnsupportedError, check_kind
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.unwrapping import opened
from lapwing.methods.laplace import Laplace
from lapwing.metrics.score_table import MEANINGS, Scores, aligned
from lapwing.posteriors import Posterior
from lapwing.store import save
from lapwing.tuning import Validation, tune
from lapwing.tuning.method import Method

logger = logging.getLogger(__name__)

FILE = "posterior.safetensors"
"""The name of the file beside a checkpoint."""

BATCH = 256
"""Examples of a batch where a loader does not say how many it has."""


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """A posterior and what it changed.

    Args:
        posterior: The posterior, tuned.
        before: Scores of the network at its word on the validation data; empty, as ``metrics``, where there are none.
        after: Those of the posterior on the same data, by which it was tuned too unless another method was asked for.
        file: Where the posterior was saved.
    """

    posterior: Posterior
    before: Scores
    after: Scores
    file: Path

    @property
    def metrics(self) -> dict[str, float]:
        """Both scores by name, as loggers take them: ``before/nll``, ``after/nll``, ..."""
        before = {f"before/{name}": value for name, value in self.before.items()}
        after = {f"after/{name}": value for name, value in self.after.items()}
        return before | after

    def __str__(self) -> str:
        if not self.after:
            return f"{self.posterior}\nsaved in {self.file}; without validation data nothing was compared"
        lines = [["", "before", "after"]]
        lines += [[name, f"{self.before[name]:.4f}", f"{self.after[name]:.4f}"] for name in self.after]
        meanings = ["", *(MEANINGS.get(name, "") for name in self.after)]
        return "\n".join(f"{line}  {words}".rstrip() for line, words in zip(aligned(lines, 1), meanings, strict=True))


@final
@dataclass(frozen=True, eq=False)
class FitAfterTraining:
    """The recipe and the choices of what is done when training ends.

    Args:
        recipe: What is fitted, a ``Laplace``.
        method: What the posterior is tuned by; ``None`` for the validation data, and without them for that of
            ``lw.tune(posterior)``.
        output: As in ``Laplace.fit``.
        unpack: As in ``Laplace.fit``.
        folder: Where the posterior is saved; ``None`` for beside the checkpoint.
    """

    recipe: Any
    method: Method | None = field(default=None, kw_only=True)
    output: Output = field(default=None, kw_only=True)
    unpack: Unpack | None = field(default=None, kw_only=True)
    folder: Path | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_kind("the recipe", self.recipe, (Laplace,), "LaplaceCallback(lw.Laplace(lw.Categorical()))")
        if self.method is not None:
            check_kind("method=", self.method, (Method,), "lw.Mixup(), lw.ELBO() or lw.EvidenceGradient()")

    def check_training(self, network: nn.Module, training: Source) -> None:
        """Refuses, before anything is trained, what could not be fitted when it is: looks at a batch.

        Batches that can be read only once, and data sets that are streams, are not looked at.

        Args:
            network: The network, untrained; left as it is.
            training: The training data.

        Cost:
            A batch, and what ``fit`` asks of three examples.
        """
        with torch.random.fork_rng(), torch.enable_grad(), torch.inference_mode(False), undisturbed():
            batch = first_batch(training)
            if batch is not None:
                module, data = opened(network, [batch], "LaplaceCallback", unpack=self.unpack)
                self.recipe.task(module, data, output=self.output)

    def check_validation(self, validation: Source) -> None:
        """Refuses validation data whose first batch has no inputs and targets that are known; see ``check_training``.

        Args:
            validation: The validation data.
        """
        with torch.random.fork_rng():
            batch = first_batch(validation)
            if batch is not None:
                Data([batch], unpack=self.unpack).first()

    def of(self, network: nn.Module, training: Source, validation: Source | None, checkpoint: Path) -> Outcome:
        """The posterior of a trained network, which is left as it is.

        Args:
            network: The network.
            training: The training data, in any order.
            validation: The validation data; ``None`` where there are none.
            checkpoint: The folder of the checkpoint.

        Cost:
            A fit, a ``tune``, and two passes over the validation data.
        """
        folder = checkpoint if self.folder is None else self.folder
        file = folder / FILE
        with torch.enable_grad(), torch.inference_mode(False):
            data = in_order(training)
            held_out = None if validation is None else in_order(validation)
            posterior: Posterior = self.recipe.fit(network, data, output=self.output, unpack=self.unpack)
            posterior = self._tuned(posterior, held_out)
            folder.mkdir(parents=True, exist_ok=True)
            save(posterior, file)
            outcome = self._compared(posterior, network, held_out, file)
        logger.info("saved %s\n%s", file, outcome)
        return outcome

    def _tuned(self, posterior: Posterior, held_out: Source | None) -> Posterior:
        """The posterior tuned by the method asked for."""
        if self.method is not None or held_out is None:
            return tune(posterior, self.method)
        return tune(posterior, Validation(held_out, unpack=self.unpack))

    def _compared(self, posterior: Posterior, network: nn.Module, held_out: Source | None, file: Path) -> Outcome:
        """Both, scored on the validation data; the network has the noise that was found for the posterior."""
        if held_out is None:
            return Outcome(posterior, Scores(), Scores(), file)
        plain = PlainNetwork(network, posterior.likelihood, output=self.output)
        before = evaluate(plain, held_out, unpack=self.unpack)
        after = evaluate(posterior, held_out, unpack=self.unpack)
        return Outcome(posterior, before, after, file)


def one_loader(loaders: Any, whose: str, hint: str) -> Source | None:
    """The only loader of what a training loop was given; ``None`` where it was given none.

    Args:
        loaders: A loader, several, or none.
        whose: What they are of.
        hint: The argument by which one is given.

    Raises:
        UnsupportedError: If there are several.
    """
    several = list(loaders) if isinstance(loaders, list | tuple) else [loaders]
    if isinstance(loaders, dict):
        several = list(loaders.values())
    if len(several) > 1:
        raise UnsupportedError(f"one loader of {whose} data", f"{len(several)} of them", hint)
    return several[0] if several else None


def first_batch(loader: Source) -> Any:
    """The first batch of a loader that can be read again; ``None`` of others.

    Args:
        loader: The loader.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> first_batch(DataLoader(range(5), batch_size=2))
        tensor([0, 1])
        >>> first_batch(iter([1, 2])) is None
        True
    """
    if isinstance(loader, DataLoader):
        if isinstance(loader.dataset, IterableDataset):
            return None
        return next(iter(in_order(loader, workers=0)), None)
    if is_pair(loader):
        return loader
    return loader[0] if isinstance(loader, list | tuple) and loader else None


def in_order(loader: Source, workers: int | None = None) -> Source:
    """A loader of the same examples, each of them once and in the order of the data set.

    A loader that shuffles, weighs or drops examples is right for training; a posterior is a sum over all of them.
    What is no ``DataLoader`` is read as it is.

    Args:
        loader: The loader.
        workers: Processes that read; ``None`` for as many as the loader has.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> shuffled = DataLoader(TensorDataset(torch.arange(5)), batch_size=2, shuffle=True, drop_last=True)
        >>> [batch[0].tolist() for batch in in_order(shuffled)]
        [[0, 1], [2, 3], [4]]
    """
    if not isinstance(loader, DataLoader):
        return loader
    if loader.batch_sampler is None:
        return loader  # its data set makes the batches itself
    dataset = loader.dataset
    indices = indices_of(loader)
    if indices is not None:
        dataset = Subset(dataset, indices)
    return DataLoader(
        dataset,
        batch_size=batch_size_of(loader),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers if workers is None else workers,
        worker_init_fn=loader.worker_init_fn,
    )


def indices_of(loader: DataLoader[Any]) -> list[int] | None:
    """Which examples of its data set a loader draws from; ``None`` for all."""
    sampler = loader.sampler
    if isinstance(sampler, SubsetRandomSampler):
        return sorted(sampler.indices)
    return None


def batch_size_of(loader: DataLoader[Any]) -> int:
    """How many examples a batch of a loader has, also where something else makes its batches."""
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else BATCH
