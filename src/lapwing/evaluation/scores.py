"""Scores of a predictor on held-out data: one call, one small table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from lapwing.evaluation import metrics
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Data, Source, Unpack, inputs_of
from lapwing.ground.device import default_device_aside
from lapwing.ground.errors import ConfigError, check_kind
from lapwing.ground.progress import working
from lapwing.likelihoods import Likelihood
from lapwing.predictive import (
    Classification,
    Counts,
    MultiLabel,
    Predictive,
    Regression,
    canonical_targets,
    log_predictive,
)


@runtime_checkable
class Predictor(Protocol):
    """Whatever predicts: a posterior, or a baseline."""

    @property
    def likelihood(self) -> Likelihood:
        """p(y | f)."""
        ...

    def predict(self, x: Any) -> Predictive:
        """Predictive distribution of the targets at inputs, of whichever kind it takes."""
        ...


def aligned(lines: Sequence[Sequence[str]], words: int) -> list[str]:
    """Lines of a table as text, its columns under one another: the first few, words, to the left, numbers to the right.

    Args:
        lines: The cells of each line.
        words: How many columns are words.

    Example:
        >>> aligned([["method", "NLL"], ["KFAC", "0.25"]], 1)
        ['method   NLL', 'KFAC    0.25']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.ljust if place < words else str.rjust for place in range(len(widths))]
    return ["  ".join(side(w, n) for side, w, n in zip(sides, line, widths, strict=True)).rstrip() for line in lines]


MEANINGS = {
    "accuracy": "share of examples, higher is better",
    "nll": "nats an example, lower is better",
    "ece": "calibration error of the confidence, lower is better",
    "ece_floor": "what a calibrated predictor would have as ece",
    "adaptive_ece": "calibration error, bins of equally many, lower is better",
    "brier": "squared distance from 0 to 2, lower is better",
    "rejection_area": "accuracy of the surest, averaged over how many are kept, higher is better",
    "rmse": "unit of the targets, lower is better",
    "crps": "unit of the targets, lower is better",
    "picp": "share of targets inside the 95 % intervals, best at 0.95",
    "ood_auroc": "foreign examples told from familiar ones, 0.5 is chance, higher is better",
}
"""The unit of each score, and which way it is better."""


@final
class Scores(dict[str, float]):
    """Scores by name; printed with their units, and which way they are better.

    Example:
        >>> print(Scores({"accuracy": 0.9, "nll": 0.25}))
        accuracy  0.9000  share of examples, higher is better
        nll       0.2500  nats an example, lower is better
    """

    def __str__(self) -> str:
        numbers = aligned([[name, f"{value:.4f}"] for name, value in self.items()], 1)
        meanings = [MEANINGS.get(name, "") for name in self]
        return "\n".join(f"{line}  {words}".rstrip() for line, words in zip(numbers, meanings, strict=True))


@default_device_aside()
def evaluate(
    predictor: Predictor,
    data: Source,
    *,
    ood: Source | Inputs | None = None,
    unpack: Unpack | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Scores:
    """Scores on held-out data.

    Args:
        predictor: A posterior, or a baseline such as ``Map(model)``.
        data: Held-out data: a loader, or a pair of tensors.
        ood: Data from elsewhere, or their inputs alone; targets are ignored.
        unpack: Splits one element of a loader.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        **options: Passed on to ``predict``, such as ``link="mc"`` for a posterior; a baseline takes none.

    Returns:
        Classes: ``accuracy``, ``nll`` (nats a position), ``ece`` (15 bins) with ``ece_floor``, that of a
        calibrated predictor of the same confidences, ``adaptive_ece``, ``brier``,
        ``rejection_area``, and with ``ood`` the ``ood_auroc`` of one minus the confidence. Real targets: ``rmse``,
        ``nll``, ``crps`` (units of y), ``picp`` (coverage of the 95 % interval), and with ``ood`` the ``ood_auroc`` of
        the summed standard deviation. Many labels and counts: ``nll``.

    Raises:
        ConfigError: If ``predict`` has no such option.

    Cost:
        A ``predict`` a batch. What is kept of an example is a few numbers for each of its c outputs; the covariance of
        its outputs, c² of them, is dropped with its batch.

    Example:
        >>> import lapwing as lw
        >>> x, y = torch.randn(40, 2), torch.randint(0, 3, (40,))
        >>> posterior = lw.Laplace(lw.Categorical()).fit(torch.nn.Linear(2, 3), (x, y))
        >>> sorted(lw.evaluate(posterior, (x, y)))
        ['accuracy', 'adaptive_ece', 'brier', 'ece', 'ece_floor', 'nll', 'rejection_area']
    """
    check_predictor(predictor, options)
    with working("evaluate", progress):
        kept = _gathered(predictor, data, unpack, options)
        outside = None if ood is None else _uncertainties(predictor, ood, unpack, options)
    targets, scores = kept["targets"], dict[str, float]()
    if "probs" in kept:
        scores = _classification(kept["probs"], targets)
    else:
        scores["nll"] = float(-kept["log"].double().mean())
    if "mean" in kept:
        scores |= {
            "rmse": metrics.rmse(kept["mean"], targets),
            "crps": metrics.crps(kept["mean"], kept["std"], targets),
            "picp": metrics.picp(kept["low"], kept["high"], targets),
        }
    if outside is not None:
        scores["ood_auroc"] = metrics.auroc(kept["uncertainty"], outside)
    return Scores(scores)


def _gathered(
    predictor: Predictor,
    data: Source,
    unpack: Unpack | None,
    options: Mapping[str, Any],
) -> dict[str, Tensor]:
    """What the scores need of all predictions, on the CPU; a batch's outputs and their covariance go with the batch."""
    columns: dict[str, list[Tensor]] = {}
    for batch in Data(data, unpack=unpack):
        prediction = predictor.predict(batch.inputs, **options)
        targets = canonical_targets(predictor.likelihood, prediction, batch.targets)
        found = {"uncertainty": _uncertainty(prediction)}
        found |= _scored(prediction, targets, options.get("generator"))
        for name, values in found.items():
            columns.setdefault(name, []).append(values.cpu())
    return {name: torch.cat(parts) for name, parts in columns.items()}


def _uncertainties(
    predictor: Predictor, inputs: Source | Inputs, unpack: Unpack | None, options: Mapping[str, Any]
) -> Tensor:
    """How unsure each prediction is, on the CPU."""
    return torch.cat([_uncertainty(predictor.predict(x, **options)).cpu() for x in inputs_of(inputs, unpack)])


def _scored(prediction: Predictive, targets: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
    """What the scores need of a batch."""
    if isinstance(prediction, Classification):
        return {"targets": targets, "probs": prediction.probs}
    found = {"targets": targets, "log": log_predictive(prediction, targets, generator=generator)}
    if isinstance(prediction, Regression):
        low, high = prediction.interval()
        found |= {"mean": prediction.mean, "std": prediction.std, "low": low, "high": high}
    return found


def check_predictor(predictor: Predictor, options: Mapping[str, Any]) -> None:
    """Refuses what does not predict, and options that its ``predict`` does not take.

    Raises:
        ConfigError: Naming the options that it takes.
    """
    check_kind("the predictor", predictor, (Predictor,), "a posterior, or Map(model, likelihood) of lw.baselines")
    known = signature(predictor.predict).parameters
    unknown = [name for name in options if name not in known]
    if unknown and not any(each.kind is Parameter.VAR_KEYWORD for each in known.values()):
        takes = ", ".join([*known][1:]) or "none"
        expected = f"options that {type(predictor).__name__}.predict takes ({takes})"
        got = ", ".join(f"{each}={options[each]!r:.40}" for each in unknown)
        raise ConfigError(expected, got, "one of these names, or the call without them")


def _classification(probs: Tensor, targets: Tensor) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(probs, targets),
        "nll": metrics.nll(probs, targets),
        "ece": metrics.ece(probs, targets),
        "ece_floor": metrics.ece_floor(probs, targets),
        "adaptive_ece": metrics.adaptive_ece(probs, targets),
        "brier": metrics.brier(probs, targets),
        "rejection_area": metrics.rejection_curve(probs, targets).area,
    }


def _uncertainty(prediction: Predictive) -> Tensor:
    """How unsure a prediction is: the out-of-distribution score of each example."""
    match prediction:
        case Classification():
            return (1 - prediction.confidence).flatten()
        case MultiLabel():
            return prediction.entropy.mean(-1).flatten()
        case Regression() | Counts():
            return prediction.std.sum(-1).flatten()
