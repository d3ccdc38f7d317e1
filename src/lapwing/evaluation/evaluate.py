"""Scores of a predictor on held-out data: one call, one small table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from lapwing import metrics
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Batch, Data, Source, Unpack, inputs_of, unpack_for
from lapwing.ground.device import default_device_aside
from lapwing.ground.errors import ConfigError, check_kind
from lapwing.ground.progress import working
from lapwing.likelihoods import Likelihood
from lapwing.metrics.score_table import Scores
from lapwing.predictive import Predictive


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


@runtime_checkable
class Unpacks(Protocol):
    """A predictor that was fitted by a loader."""

    @property
    def unpack(self) -> Unpack | None:
        """How its elements were split."""
        ...


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
        predictor: A posterior, or a baseline such as ``PlainNetwork(model)``.
        data: Held-out data: a loader, or a pair of tensors.
        ood: Data from elsewhere, or their inputs alone; targets are ignored.
        unpack: Splits one element of a loader; ``None`` for that of the fit, where the predictor was fitted.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        **options: Passed on to ``predict``, such as ``link="mc"`` for a posterior; a baseline takes none.

    Returns:
        Classes: ``accuracy``, ``nll`` (nats a position), ``ece`` (15 bins) with ``ece_floor``, that of a
        calibrated predictor of the same confidences, ``adaptive_ece``, ``brier``,
        ``aurc``, ``augrc`` and ``coverage_5``, of risk against coverage. Real targets: ``rmse``,
        ``nll``, ``crps`` (units of y), and of the 95 % intervals ``picp`` (coverage), ``interval_score`` and ``width``.
        Counts: ``nll``, ``rmse`` and ``picp``. Many labels: ``nll``. They are what the predictive distribution's own
        ``scores`` says, of all batches together. With ``ood`` also ``ood_auroc``, ``ood_aupr`` and ``ood_fpr95``: by
        ``epistemic`` of a tuned posterior, which has a scale of knowledge, by ``strangeness`` of a baseline that has
        such a score, else by ``uncertainty``. Of a posterior with such a scale ``ood_unfamiliar`` too, the median of
        ``unfamiliar``.

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
        ['accuracy', 'adaptive_ece', 'augrc', 'aurc', 'brier', 'coverage_5', 'ece', 'ece_floor', 'nll']
    """
    with working("evaluate", progress):
        return evaluated(predictor, data, ood=ood, unpack=unpack, **options).scores


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores, and the numbers of single targets that they are of.

    Args:
        scores: As ``evaluate`` gives them.
        terms: What they are made from, see ``Predictive.score_terms``.
        losses: Negative log predictive density of each target, nats.
        familiar: How strange each position of the data is; none where there is nothing from elsewhere.
        foreign: How strange what is from elsewhere is.
        foreign_uncertainty: ``Predictive.uncertainty`` of what is from elsewhere: of classes, one minus the confidence.
    """

    scores: Scores
    terms: Mapping[str, Tensor]
    losses: Tensor
    familiar: Tensor
    foreign: Tensor
    foreign_uncertainty: Tensor


@default_device_aside()
def evaluated(
    predictor: Predictor,
    data: Source,
    *,
    ood: Source | Inputs | None = None,
    unpack: Unpack | None = None,
    **options: Any,
) -> Evaluation:
    """The scores of ``evaluate`` with what they are made from; arguments, errors and cost as there."""
    check_predictor(predictor, options)
    if ood is None and "epistemic" in predict_options(predictor):
        options = {"epistemic": False, **options}
    terms, familiar, kind = gathered(predictor, data, unpack, options, with_strangeness=ood is not None)
    scores = kind.scores_of(terms)
    losses = kind.losses_of(terms)
    if ood is None:
        return Evaluation(scores, terms, losses, familiar, torch.zeros(0), torch.zeros(0))
    foreign = _foreign(predictor, ood, unpack, options)
    scores["ood_auroc"] = metrics.auroc(familiar, foreign.strangeness)
    scores["ood_aupr"] = metrics.aupr(familiar, foreign.strangeness)
    scores["ood_fpr95"] = metrics.fpr95(familiar, foreign.strangeness)
    if foreign.unfamiliar is not None:
        scores["ood_unfamiliar"] = float(foreign.unfamiliar.median())
    return Evaluation(scores, terms, losses, familiar, foreign.strangeness, foreign.uncertainty)


def gathered(
    predictor: Predictor,
    data: Source,
    unpack: Unpack | None,
    options: Mapping[str, Any],
    *,
    with_strangeness: bool,
    watch: Callable[[Batch, Predictive], None] | None = None,
) -> tuple[dict[str, Tensor], Tensor, type[Predictive]]:
    """Terms of the scores, strangeness and kind of all predictions, on the CPU; a batch's covariances go with it.

    Args:
        predictor: What predicts.
        data: Held-out data.
        unpack: As in ``evaluate``.
        options: Of ``predict``.
        with_strangeness: Whether ``strangeness`` is wanted; none otherwise.
        watch: Is shown each batch and its prediction.
    """
    columns: dict[str, list[Tensor]] = {}
    familiar: list[Tensor] = [torch.zeros(0)]
    kind: type[Predictive] = Predictive
    for batch in Data(data, unpack=unpack_for(data, unpack, unpack_of_fit(predictor))):
        prediction = predictor.predict(batch.inputs, **options)
        kind = type(prediction)
        targets = predictor.likelihood.targets_of(prediction, batch.targets)
        terms = prediction.score_terms(targets, generator=options.get("generator"))
        for name, values in terms.items():
            columns.setdefault(name, []).append(values.cpu())
        if with_strangeness:
            familiar.append(strangeness(prediction).flatten().cpu())
        if watch is not None:
            watch(batch, prediction)
    return {name: torch.cat(parts) for name, parts in columns.items()}, torch.cat(familiar), kind


@final
@dataclass(frozen=True, eq=False)
class Foreign:
    """What a predictor says of inputs from elsewhere, on the CPU.

    Args:
        strangeness: See ``strangeness``.
        uncertainty: ``Predictive.uncertainty``.
        unfamiliar: ``Predictive.unfamiliar``; ``None`` of a predictor that has not looked at familiar inputs.
    """

    strangeness: Tensor
    uncertainty: Tensor
    unfamiliar: Tensor | None


def _foreign(
    predictor: Predictor, inputs: Source | Inputs, unpack: Unpack | None, options: Mapping[str, Any]
) -> Foreign:
    """What a predictor says of inputs from elsewhere, batch by batch."""
    strange = list[Tensor]()
    unsure = list[Tensor]()
    unfamiliar = list[Tensor]()
    for x in inputs_of(inputs, unpack_for(inputs, unpack, unpack_of_fit(predictor))):
        prediction = predictor.predict(x, **options)
        strange.append(strangeness(prediction).flatten().cpu())
        unsure.append(prediction.uncertainty.flatten().cpu())
        if has_scale(prediction):
            unfamiliar.append(prediction.unfamiliar.flatten().cpu())
    return Foreign(torch.cat(strange), torch.cat(unsure), torch.cat(unfamiliar) if unfamiliar else None)


def unpack_of_fit(predictor: Predictor) -> Unpack | None:
    """How the elements were split of the loader that a predictor was fitted by, if it was."""
    return predictor.unpack if isinstance(predictor, Unpacks) else None


def strangeness(prediction: Predictive) -> Tensor:
    """By what foreign inputs are told: a score of its own, what is not known on a scale of its own, or uncertainty."""
    if prediction.strangeness is not None:
        return prediction.strangeness
    return prediction.epistemic if has_scale(prediction) else prediction.uncertainty


def has_scale(prediction: Predictive) -> bool:
    """Whether a prediction is of a predictor that looked at familiar inputs: one that was tuned."""
    return prediction.knowledge is not None and prediction.knowledge.familiar is not None


def predict_options(predictor: Predictor) -> list[str]:
    """What ``predict`` takes beside the inputs, by name."""
    return [*signature(predictor.predict).parameters][1:]


def check_predictor(predictor: Predictor, options: Mapping[str, Any]) -> None:
    """Refuses what does not predict, and options that its ``predict`` does not take.

    Raises:
        ConfigError: Naming the options that it takes.
    """
    check_kind(
        "the predictor", predictor, (Predictor,), "a posterior, or PlainNetwork(model, likelihood) of lw.baselines"
    )
    known = signature(predictor.predict).parameters.values()
    unknown = [name for name in options if name not in predict_options(predictor)]
    if unknown and not any(each.kind is Parameter.VAR_KEYWORD for each in known):
        takes = ", ".join(predict_options(predictor)) or "none"
        expected = f"options that {type(predictor).__name__}.predict takes ({takes})"
        got = ", ".join(f"{each}={options[each]!r:.40}" for each in unknown)
        raise ConfigError(expected, got, "one of these names, or the call without them")
