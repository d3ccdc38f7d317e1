"""Hugging Face: a posterior of the network when ``Trainer.train`` ends."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lapwing.ground.data.sources import Source
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.integrations.callbacks import FitAfterTraining, Outcome
from lapwing.jacobian.network.output import Output
from lapwing.posteriors import Posterior
from lapwing.tuning.method import Method


@final
class LaplaceCallback(TrainerCallback):
    """Fits a posterior when training ends, tunes it on the evaluation data, saves it and logs what it changed.

    The training loader is read in the order of its data set, each example once, whatever its sampler. The model is
    left as it was. With ``load_best_model_at_end`` it has the best weights by then.

    Args:
        recipe: What is fitted, a ``Laplace``.
        method: What the posterior is tuned by; ``None`` for the evaluation data, and without them for that of
            ``lw.tune(posterior)``.
        validation: The evaluation data, a loader; ``None`` for those of the trainer, which it shows once it has
            evaluated (``eval_strategy="epoch"``).
        output: As in ``Laplace.fit``.
        folder: Where ``posterior.safetensors`` goes; ``None`` for the folder of the checkpoint.

    Raises:
        ConfigError: If it is no recipe.

    Example:
        >>> import lapwing as lw
        >>> recipe = lw.Laplace(lw.Categorical(), weights=lw.LastLayer())
        >>> callback = lw.huggingface.LaplaceCallback(recipe)  # Trainer(..., callbacks=[callback])
    """

    def __init__(
        self,
        recipe: Any,
        *,
        method: Method | None = None,
        validation: Source | None = None,
        output: Output = None,
        folder: str | PathLike[str] | None = None,
    ) -> None:
        place = None if folder is None else Path(folder)
        self.fit_after_training = FitAfterTraining(recipe, method=method, output=output, folder=place)
        self.validation = validation
        self.outcome: Outcome | None = None

    @property
    def posterior(self) -> Posterior:
        """The posterior.

        Raises:
            ConfigError: If training has not ended.
        """
        if self.outcome is None:
            raise ConfigError("a posterior, once training has ended", "a callback of no training", "trainer.train()")
        return self.outcome.posterior

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuses, before anything is trained, what could not be fitted when it is.

        Raises:
            DataError: If batches have no inputs and targets that are known.
            UnsupportedError: If several processes train; others as of ``Laplace.fit``.
        """
        if args.world_size > 1:
            raise UnsupportedError(
                "one process, for LaplaceCallback",
                f"{args.world_size} of them",
                "lw.Laplace(...).fit of the checkpoint afterwards: docs/distributed.md",
            )
        if self.validation is not None:
            self.fit_after_training.check_validation(self.validation)
        self.fit_after_training.check_training(kwargs["model"], kwargs["train_dataloader"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Fits, tunes, saves and logs: ``before/nll`` and the like are the last entry of ``state.log_history``."""
        held_out = self.validation
        if held_out is None:
            held_out = kwargs["eval_dataloader"]
        outcome = self.fit_after_training.of(
            kwargs["model"], kwargs["train_dataloader"], held_out, folder_of(args, state)
        )
        self.outcome = outcome
        state.log_history.append({**outcome.metrics, "step": state.global_step})


def folder_of(args: TrainingArguments, state: TrainerState) -> Path:
    """The folder of the checkpoint that holds the weights as they are, or that of the run where there is none."""
    out = Path(str(args.output_dir))
    best = state.best_model_checkpoint
    if args.load_best_model_at_end and best is not None:
        return Path(best)
    last = out / f"checkpoint-{state.global_step}"
    return last if last.is_dir() else out
