"""What conformal prediction rests on: the quantile of scores of held-out examples, and how often it covers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.evaluate import Predictor
from lapwing.evaluation.task import Entry, Task
from lapwing.ground.errors import ConfigError, DataError
from lapwing.ground.precision import wide
from lapwing.likelihoods import Likelihood
from lapwing.predictive import Predictive


def conformal_quantile(scores: Float[Tensor, "n *c"], level: float) -> Float[Tensor, "*c"]:
    """The ⌈(n + 1) level⌉-th smallest of n scores: a new one is no larger with a probability of at least ``level``.

    Args:
        scores: Those of held-out examples, which are as new ones are.
        level: Probability.

    Raises:
        DataError: If there are too few examples for the level.

    Source: V. Vovk, A. Gammerman and G. Shafer, Algorithmic Learning in a Random World, 2005.

    Example:
        >>> import torch
        >>> conformal_quantile(torch.arange(1.0, 20.0), 0.9)
        tensor(18.)
    """
    n = len(scores)
    rank = math.ceil((n + 1) * level - 1e-9)
    if rank > n:
        least = math.ceil(level / (1 - level) - 1e-9)
        raise DataError(
            f"at least {least} held-out examples for a level of {level:g}", f"{n}", "more, or a lower level"
        )
    return scores.kthvalue(rank, 0).values


@final
@dataclass(frozen=True)
class Coverage:
    """How often sets or intervals hold the target, and how large they are.

    Args:
        share: The share of targets that are inside.
        stderr: Its standard error, for these sets or intervals and other test examples.
        size: Classes in a set, or the width of an interval, on average.
        examples: Examples, tokens or pixels it is of.
    """

    share: float
    stderr: float
    size: float
    examples: int

    @classmethod
    def of(cls, inside: Float[Tensor, " m"], sizes: Float[Tensor, " m"]) -> Coverage:
        """That of positions.

        Args:
            inside: The share of targets of each that are inside.
            sizes: The size of its set or intervals.
        """
        values = wide(inside)
        stderr = float(values.std(correction=0)) / len(values) ** 0.5
        return cls(float(values.mean()), stderr, float(wide(sizes).mean()), len(values))


@dataclass(frozen=True, eq=False)
class OnPredictor:
    """What stands on top of a predictor, and predicts as it does.

    Args:
        predictor: What predicts.
    """

    predictor: Predictor

    @property
    def likelihood(self) -> Likelihood:
        """p(y | f)."""
        return self.predictor.likelihood

    @final
    def predict(self, x: Any, **options: Any) -> Predictive:
        """The predictive distribution, as the predictor gives it; an ``interval`` of its own is not the conformal one.

        Args:
            x: Inputs.
            **options: Of the predictor's own ``predict``.
        """
        return self.predictor.predict(x, **options)


def predictor_of(of: Entry | Predictor | None, task: Task, who: str) -> Predictor:
    """What conformal prediction is put on: fitted without the validation data, which must be new to it.

    Args:
        of: An entry, a predictor, or ``None`` for the plain network.
        task: The task.
        who: The method, as a message names it.

    Raises:
        ConfigError: If it is none of these.
    """
    if of is None:
        return task.network
    if isinstance(of, Entry):
        return of.fit(replace(task, validation=None))
    if isinstance(of, Predictor):
        return of
    expected = f"{who} on a predictor, or on what has fit(task)"
    raise ConfigError(expected, f"a {type(of).__name__}", f"{who}(SWAG()), or {who}().on(predictor, held_out)")
