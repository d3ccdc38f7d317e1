"""Who chooses the hyper-parameters while the weights are trained: the evidence of all data, or the loss's gradient."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace
from typing import final, get_args

from torch import nn

from lapwing.ground.data import Source
from lapwing.ground.errors import ConfigError, TooLargeError, check_count, check_kind, check_option
from lapwing.ground.types import Unpack
from lapwing.methods.laplace import Laplace
from lapwing.methods.marginal.hyper import Hyperparameters
from lapwing.posteriors import Posterior
from lapwing.structures import AFFORDABLE, KFAC, Auto, Full, Structure
from lapwing.tuning import At, EvidenceGradient, tune


@dataclass(frozen=True)
class Updates(abc.ABC):
    """A way to change prior and noise during training."""

    @property
    @abc.abstractmethod
    def by_gradient(self) -> bool:
        """Whether the loss's gradient moves them."""

    @abc.abstractmethod
    def end_of_epoch(
        self, epoch: int, model: nn.Module, data: Source | None, hyper: Hyperparameters, unpack: Unpack | None
    ) -> None:
        """Change them after an epoch that counts.

        Args:
            epoch: Epochs since the warm-up, from 0 for its own end.
            model: The network as it is now.
            data: All training data.
            hyper: Changed in place.
            unpack: Splits one element of the data into inputs and targets.
        """


@final
@dataclass(frozen=True)
class ByEvidence(Updates):
    """After an epoch, the prior and the noise of largest evidence at the weights as they are, from all the data.

    Immer et al. 2021, algorithm 1, its steps in the hyper-parameters taken to their optimum: with one
    eigendecomposition that costs no more than one of them. The evidence is that of all data, so it has none of the bias
    of a mini-batch's log-determinant, whatever the loss uses for the weights.

    Args:
        structure: How the curvature is held. ``None`` is exact, in the view of the fewer weights or observations, where
            ``Auto`` would afford that, and ``Auto()`` beyond; for the mode over the weights, and ``KFAC()`` beyond.
        every: Epochs between two updates.
        share: How much of the way, in logarithms; 1 is all of it.
        at: ``"weights"``, or ``"mode"``: the evidence one Newton step away, with its term ½ gᵀΛ⁻¹g, for a network that
            is not near its optimum when it is asked; Gaussian likelihoods only. It is of what the linear model could
            fit, which need not be what training reaches.

    Raises:
        ConfigError: If an option makes no sense.

    Cost:
        A Laplace fit: a pass over the data with c cotangents, and its eigendecomposition.
    """

    structure: Structure | None = None
    every: int = 1
    share: float = 1.0
    at: At = "weights"

    def __post_init__(self) -> None:
        check_kind("structure=", self.structure, (*get_args(Structure), type(None)), "KFAC() or None")
        check_option("at", self.at, get_args(At))
        check_count("every", self.every)
        if not 0 < self.share <= 1:
            raise ConfigError("a share= above 0 and at most 1", f"share={self.share}", "ByEvidence()")

    @property
    def by_gradient(self) -> bool:
        """No."""
        return False

    def end_of_epoch(
        self, epoch: int, model: nn.Module, data: Source | None, hyper: Hyperparameters, unpack: Unpack | None
    ) -> None:
        """Go to the best values; see ``Updates.end_of_epoch``.

        Raises:
            ConfigError: If there are no data.
        """
        if epoch % self.every:
            return
        if data is None:
            raise ConfigError(
                "all training data at the end of an epoch, for the evidence",
                "none",
                "marginal.end_of_epoch(loader), or updates=ByGradient(start=None)",
            )
        posterior = self._posterior(Laplace(hyper.likelihood, prior=hyper.prior), model, data, unpack)
        tuned = tune(posterior, EvidenceGradient(noise=hyper.noisy, at=self.at))
        hyper.move_to(tuned.prior, tuned.likelihood, self.share)

    def _posterior(self, recipe: Laplace, model: nn.Module, data: Source, unpack: Unpack | None) -> Posterior:
        if self.structure is not None:
            return replace(recipe, structure=self.structure).fit(model, data, unpack=unpack)
        view, beyond = ("weights", KFAC()) if self.at == "mode" else ("auto", Auto())
        try:
            small = Full(view=view, max_seconds=AFFORDABLE)
            return replace(recipe, structure=small).fit(model, data, unpack=unpack)
        except TooLargeError:
            return replace(recipe, structure=beyond).fit(model, data, unpack=unpack)


@final
@dataclass(frozen=True)
class ByGradient(Updates):
    """The loss's own gradient, by the user's optimiser, batch by batch: weights and hyper-parameters together.

    The precisions are as good as the log-determinant of the loss: that of a mini-batch is biased (see ``Gram`` and
    ``Bound``), and all data in one batch have no bias. During the warm-up the noise of a Gaussian likelihood is learned
    too, by the likelihood alone.

    Args:
        start: Where the precisions start from after the warm-up: an update by evidence, or ``None`` to keep the prior
            that was given. A prior far too strong for the network shrinks it to a constant before its gradient has
            weakened it, and a constant network is a local maximum of the evidence.
    """

    start: ByEvidence | None = field(default_factory=ByEvidence)

    @property
    def by_gradient(self) -> bool:
        """Yes."""
        return True

    def end_of_epoch(
        self, epoch: int, model: nn.Module, data: Source | None, hyper: Hyperparameters, unpack: Unpack | None
    ) -> None:
        """Only the start; see ``Updates.end_of_epoch``."""
        if epoch == 0 and self.start is not None:
            self.start.end_of_epoch(epoch, model, data, hyper, unpack)
