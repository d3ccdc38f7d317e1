# pyright: basic, reportMissingImports=false
"""Lightning: a posterior of the network when ``Trainer.fit`` ends."""

from __future__ import annotations

import copy
from os import PathLike
from pathlib import Path
from typing import Any, final

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from lapwing.ground.data.sources import Source, Unpack
from lapwing.ground.errors import ConfigError, DataError, UnsupportedError
from lapwing.integrations.callbacks import FitAfterTraining, Outcome, one_loader
from lapwing.jacobian.network.output import Output
from lapwing.posteriors import Posterior
from lapwing.tuning.method import Method


@final
class LaplaceCallback(Callback):
    """Fits a posterior when training ends, tunes it on the validation data, saves it and logs what it changed.

    The training loader is read in the order of its data set, each example once, whatever its sampler. The module is
    left as it was.

    Args:
        recipe: What is fitted, a ``Laplace``.
        network: Which part of the module returns the outputs, such as ``"net"``; the module itself, by its ``forward``,
            where none is named.
        method: What the posterior is tuned by; ``None`` for the validation data, and without them for that of
            ``lw.tune(posterior)``.
        best: Whether to take the weights of the best checkpoint in place of the last ones.
        train: The training data; ``None`` for those of the trainer.
        validation: The validation data; ``None`` for those of the trainer. Without them nothing is compared and
            ``outcome.metrics`` is empty.
        output: As in ``Laplace.fit``.
        unpack: As in ``Laplace.fit``.
        folder: Where ``posterior.safetensors`` goes; ``None`` for the folder of the checkpoints.

    Raises:
        ConfigError: If it is no recipe.

    Example:
        >>> import lightning, torch, lapwing as lw
        >>> callback = lw.lightning.LaplaceCallback(lw.Laplace(lw.Categorical()), network="net")
        >>> trainer = lightning.Trainer(callbacks=[callback], logger=False)
    """

    def __init__(
        self,
        recipe: Any,
        *,
        network: str = "",
        method: Method | None = None,
        best: bool = False,
        train: Source | None = None,
        validation: Source | None = None,
        output: Output = None,
        unpack: Unpack | None = None,
        folder: str | PathLike[str] | None = None,
    ) -> None:
        place = None if folder is None else Path(folder)
        self.fit_after_training = FitAfterTraining(recipe, method=method, output=output, unpack=unpack, folder=place)
        self.network = network
        self.best = best
        self.train = train
        self.validation = validation
        self.outcome: Outcome | None = None

    @property
    def posterior(self) -> Posterior:
        """The posterior.

        Raises:
            ConfigError: If training has not ended.
        """
        if self.outcome is None:
            raise ConfigError("a posterior, once training has ended", "a callback of no training", "trainer.fit(...)")
        return self.outcome.posterior

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses, before anything is trained, what could not be fitted when it is.

        Raises:
            ConfigError: If the module has no such part, or that has no ``forward``, or there is no best checkpoint.
            UnsupportedError: If several processes train.
        """
        if stage != "fit":
            return
        if trainer.world_size > 1:
            raise UnsupportedError(
                "one process, for LaplaceCallback",
                f"{trainer.world_size} of them",
                "lw.Laplace(...).fit of the checkpoint afterwards: docs/distributed.md",
            )
        names = [name for name, _ in pl_module.named_modules()]
        if self.network not in names:
            parts = ", ".join(name for name, _ in pl_module.named_children()) or "none"
            raise ConfigError(f"network= to be a part of the module ({parts})", repr(self.network), 'network=""')
        part = pl_module.get_submodule(self.network)
        if type(part).forward in (LightningModule.forward, nn.Module.forward):
            parts = ", ".join(repr(name) for name, _ in part.named_children()) or "none"
            got = f"{type(part).__name__}, which has none"
            raise ConfigError("a network with a forward", got, f"network= with one of its parts: {parts}")
        if self.best and trainer.checkpoint_callback is None:
            raise ConfigError(
                "a ModelCheckpoint, for best=True", "a trainer without one", "Trainer(callbacks=[ModelCheckpoint(...)])"
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses, before training where the trainer looks at the validation data then, batches that are not known.

        Raises:
            DataError: If they have no inputs and targets that are known.
            UnsupportedError: If there are several loaders.
        """
        held_out = self._validation(trainer)
        if trainer.sanity_checking and held_out is not None:
            self.fit_after_training.check_validation(held_out)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses, by a batch and the untrained network, what could not be fitted when it is trained.

        Raises:
            DataError: If there are no training data, or batches have no inputs and targets that are known.
            UnsupportedError: If there are several loaders; others as of ``Laplace.fit``.
        """
        self.fit_after_training.check_training(pl_module.get_submodule(self.network), self._training(trainer))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fits, tunes, saves and logs."""
        network = self._network(trainer, pl_module)
        home = next(network.parameters()).device
        device = trainer.strategy.root_device  # the trainer has taken the module off it
        if device != home:
            network = copy.deepcopy(network).to(device)
        outcome = self.fit_after_training.of(
            network, self._training(trainer), self._validation(trainer), folder_of(trainer)
        )
        self.outcome = outcome
        for logger in trainer.loggers:
            logger.log_metrics(outcome.metrics, step=trainer.global_step)
            logger.save()

    def _training(self, trainer: Trainer) -> Source:
        """The training data."""
        training = self.train
        if training is None:
            training = one_loader(trainer.train_dataloader, "training", "LaplaceCallback(..., train=loader)")
        if training is None:
            raise DataError("a training loader", "a trainer without one", "LaplaceCallback(..., train=loader)")
        return training

    def _validation(self, trainer: Trainer) -> Source | None:
        """The validation data, where there are some."""
        if self.validation is not None:
            return self.validation
        return one_loader(trainer.val_dataloaders, "validation", "LaplaceCallback(..., validation=loader)")

    def _network(self, trainer: Trainer, module: LightningModule) -> nn.Module:
        """The network at the weights that are asked for; a copy where they are not the last."""
        if not self.best:
            return module.get_submodule(self.network)
        checkpoint = torch.load(best_of(trainer), map_location="cpu", weights_only=True)
        other = copy.deepcopy(module)
        other.load_state_dict(checkpoint["state_dict"])
        return other.get_submodule(self.network)


def best_of(trainer: Trainer) -> str:
    """The path of the best checkpoint; an empty one where there is none."""
    found: Any = getattr(trainer.checkpoint_callback, "best_model_path", "")
    return str(found)


def folder_of(trainer: Trainer) -> Path:
    """The folder of the checkpoints, or that of the run where there are none."""
    best = best_of(trainer)
    return Path(best).parent if best else Path(trainer.default_root_dir)
