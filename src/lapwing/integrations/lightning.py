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
from lapwing.integrations.after_training import AfterTraining, Outcome, one_loader
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
        validation: The validation data; ``None`` for those of the trainer.
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
        self.after_training = AfterTraining(recipe, method=method, output=output, unpack=unpack, folder=place)
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
            ConfigError: If the module has no such part, or there is no best checkpoint.
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
        if self.best and trainer.checkpoint_callback is None:
            raise ConfigError(
                "a ModelCheckpoint, for best=True", "a trainer without one", "Trainer(callbacks=[ModelCheckpoint(...)])"
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fits, tunes, saves and logs.

        Raises:
            DataError: If there are no training data.
            UnsupportedError: If there are several loaders of one kind.
        """
        training = self.train
        if training is None:
            training = one_loader(trainer.train_dataloader, "training", "LaplaceCallback(..., train=loader)")
        if training is None:
            raise DataError("a training loader", "a trainer without one", "LaplaceCallback(..., train=loader)")
        held_out = self.validation
        if held_out is None:
            hint = "LaplaceCallback(..., validation=loader)"
            held_out = one_loader(trainer.val_dataloaders, "validation", hint)
        network = self._network(trainer, pl_module)
        home = next(network.parameters()).device
        device = trainer.strategy.root_device  # the trainer has taken the module off it
        if device != home:
            network = copy.deepcopy(network).to(device)
        outcome = self.after_training.of(network, training, held_out, folder_of(trainer))
        self.outcome = outcome
        for logger in trainer.loggers:
            logger.log_metrics(outcome.metrics, step=trainer.global_step)
            logger.save()

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
