"""One method at a time: fitted, tuned, scored and timed, with a sentence where it cannot be."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import torch
from torch import nn
from tqdm.auto import tqdm

from lapwing.baselines import Map
from lapwing.comparison.meter import Measured, measured
from lapwing.comparison.methods import calibrated
from lapwing.comparison.table import Row
from lapwing.data import Source
from lapwing.errors import LapwingError
from lapwing.evaluation import Predictor, Scores, evaluate
from lapwing.laplace import Laplace
from lapwing.likelihoods import Categorical
from lapwing.posteriors import Posterior
from lapwing.predictive import Link
from lapwing.tuning import Method, tune
from lapwing.types import Unpack

T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class Bench:
    """What is the same for every method: the data it is scored on, and how.

    Args:
        train: The training data.
        test: Held-out data to score on.
        ood: Data from elsewhere.
        unpack: Splits one element of a loader.
        link: How posteriors average over the uncertainty of the logits.
        device: Where the network is.
        generator: Source of randomness.
        bar: Progress, one step a call.
        failures: Errors of the methods that could not run.
    """

    train: Source
    test: Source
    ood: Source | None
    unpack: Unpack | None
    link: Link
    device: torch.device
    generator: torch.Generator | None
    bar: tqdm[Any]
    failures: list[LapwingError] = field(default_factory=list)

    def plain(self, network: Map) -> Row:
        """The row of the network as it is."""
        return _row("plain network", "", network, (self._score("plain network", network),))

    def calibrated(self, network: Map, validation: Source) -> Row:
        """The row of the network with a temperature, or noise, that suits the validation data."""
        name = "temperature scaling" if isinstance(network.likelihood, Categorical) else "plain network"
        try:
            tuned = self._timed(name, lambda: calibrated(network, validation, self.unpack))
            scores = self._score(name, tuned.value)
        except LapwingError as error:
            return self._failed(name, "validation", error)
        return _row(name, "validation", tuned.value, (tuned, scores), tune_seconds=tuned.seconds)

    def posterior(
        self, name: str, recipe: Laplace, model: nn.Module, tunings: Mapping[str, Method | None]
    ) -> Iterator[Row]:
        """A row for each way of tuning a recipe, which is fitted once; ``None`` is the default of ``tune``."""
        gc.collect()  # what the method before left in cycles is not this one's memory
        try:
            fitted = self._timed(
                f"{name}: fit",
                lambda: recipe.fit(model, self.train, unpack=self.unpack, generator=self.generator),
            )
        except LapwingError as error:
            yield from (self._failed(name, tuned_by, error) for tuned_by in tunings)
            return
        for tuned_by, method in tunings.items():
            try:
                yield self._tuned(name, tuned_by, fitted, method)
            except LapwingError as error:
                yield self._failed(name, tuned_by, error)

    def _tuned(self, name: str, tuned_by: str, fitted: Measured[Posterior], method: Method | None) -> Row:
        tuned = self._timed(f"{name}: {tuned_by}", lambda: tune(fitted.value, method))
        posterior = tuned.value
        scores = self._score(f"{name}: predict", posterior, link=self.link, generator=self.generator)
        precisions = posterior.prior.precisions(posterior.network.uncertain).tolist()
        evidence = float(posterior.log_marginal())
        numbers = {"evidence": evidence, "fit_seconds": fitted.seconds, "tune_seconds": tuned.seconds}
        if len(precisions) == 1:
            numbers["prior_precision"] = precisions[0]
        return _row(name, tuned_by, posterior, (fitted, tuned, scores), **numbers)

    def _score(self, what: str, predictor: Predictor, **options: Any) -> Measured[Scores]:
        return self._timed(what, lambda: evaluate(predictor, self.test, ood=self.ood, unpack=self.unpack, **options))

    def _timed(self, what: str, call: Callable[[], T]) -> Measured[T]:
        self.bar.set_postfix_str(what, refresh=False)
        result = measured(call, self.device)
        self.bar.update()
        return result

    def _failed(self, name: str, tuned_by: str, error: LapwingError) -> Row:
        self.failures.append(error)
        return Row(name, tuned_by, (), str(error))


def _row(name: str, tuned_by: str, predictor: Predictor, costs: tuple[Measured[Any], ...], **numbers: float) -> Row:
    """A row whose last cost is that of the scores."""
    peaks = [cost.peak_mib for cost in costs if cost.peak_mib is not None]
    scores = costs[-1]
    known = {"peak_mib": max(peaks)} if peaks else {}
    run = dict(scores.value) | numbers | {"predict_seconds": scores.seconds} | known
    return Row(name, tuned_by, (run,), predictor=predictor)
