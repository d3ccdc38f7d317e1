"""One method at a time: fitted, tuned, scored and metered, with a sentence where it cannot be."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, final

import torch

from lapwing.comparison.cost import NO_LIMITS, Limits, Measured, measured
from lapwing.comparison.entries import Contender, Tuned
from lapwing.comparison.ledger import Ledger
from lapwing.comparison.scoring import Further, Scoring
from lapwing.comparison.table import Row
from lapwing.evaluation.evaluate import Predictor
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.evaluation.task import Entry, Task
from lapwing.gp import GP, GPPosterior, GPStep
from lapwing.gp.laplace import LaplaceProcess
from lapwing.ground.data.inputs import Inputs, concatenated
from lapwing.ground.data.sources import Data, Source, inputs_of
from lapwing.ground.errors import LapwingError, TooSlowError
from lapwing.ground.files.records import checksum
from lapwing.ground.progress import Bar
from lapwing.methods.hessian_free import HessianFree, PreTrained
from lapwing.methods.laplace import Laplace
from lapwing.posteriors import Posterior, Step
from lapwing.predictive import Link
from lapwing.tuning import Method, Validation, tune

T = TypeVar("T")

STEPS = ("fit", "tune", "predict")
"""What a method is timed at."""

TUNINGS = ("default", "validation")
"""Names of tunings that mean the same in every comparison."""


@final
@dataclass(frozen=True, eq=False)
class Bench:
    """What is the same for every method in one run: the data it is made from and scored on, and what it may take.

    Args:
        task: The network and its data.
        scoring: What methods are scored on.
        limits: What each may take.
        bar: Progress, one step a call.
        ledger: The rows that are finished.
        failures: What stopped the methods that could not run.
        given_up: Rows by method and what tuned them that took too long in an earlier run.
        root: A number of which every method has a source of randomness of its own, see ``drawing``.
    """

    task: Task
    scoring: Scoring
    limits: Limits
    bar: Bar
    ledger: Ledger
    failures: list[Exception]
    given_up: dict[tuple[str, str], TooSlowError] = field(default_factory=dict[tuple[str, str], TooSlowError])
    root: int = 0

    def drawing(self, *words: str) -> Bench:
        """The same, with a source of randomness that is told by words: what ran before draws nothing from it.

        Args:
            words: The method, and what tunes it.
        """
        source = torch.Generator(self.task.device).manual_seed(checksum((self.root, *words)))
        task = replace(self.task, generator=source)
        return replace(self, task=task, scoring=replace(self.scoring, generator=source))

    def plain(self, network: PlainNetwork) -> Row:
        """The row of the network at its word; what goes wrong there would go wrong everywhere."""
        name = "plain network"
        return self.ledger.row(name, "", network) or self.ledger.kept(
            self._scored(name, "", network, {}, NO_LIMITS), network
        )

    def calibrated(self, network: PlainNetwork, validation: Source) -> Row:
        """The row of the network with a temperature, or noise, that suits the validation data."""
        name = "temperature scaling" if network.likelihood.classes else "plain network"

        def row() -> Row:
            tuned = self._timed(name, lambda: network.calibrated(validation, unpack=self.task.unpack), NO_LIMITS)
            return self._scored(name, "validation", tuned.value, {"tune": tuned}, NO_LIMITS)

        return self._attempted(name, "validation", network, row)

    def rows(self, name: str, method: Contender, tunings: Mapping[str, Method | None]) -> Iterator[Row]:
        """The rows of a method: one for each way of tuning it, or one alone where there is nothing to tune."""
        gc.collect()  # what the method before left in cycles is not this one's memory
        own = self.drawing(name)
        match method:
            case Laplace():
                yield from own._posteriors(name, method, tunings)
            case GP():
                yield from own._posteriors(name, method, {"default": None})
            case Tuned():
                yield from own._posteriors(name, method, {method.word: self._way(method)})
            case HessianFree():
                yield own._attempted(name, "", method, partial(own._hessian_free, name, method))
            case Predictor():
                yield own._attempted(name, "", method, partial(own._scored, name, "", method, {}, self.limits))
            case _:
                yield own._attempted(name, "", method, partial(own._made, name, method))

    def _way(self, method: Tuned) -> Method | None:
        """What tunes a recipe that says so itself."""
        if method.method == "default":
            return None
        if method.method == "validation":
            return Validation(self.task.held_out(type(method).__name__), unpack=self.task.unpack, link=method.link)
        return method.method

    def _made(self, name: str, method: Entry | Callable[[Task], Predictor]) -> Row:
        """The row of what makes a predictor of the task."""
        fit = method.fit if isinstance(method, Entry) else method
        fitted = self._timed(f"{name}: fit", lambda: fit(self.task), self.limits)
        return self._scored(name, "", fitted.value, {"fit": fitted}, self.limits.less(fitted.seconds))

    def _hessian_free(self, name: str, recipe: HessianFree) -> Row:
        """The row of a Hessian-free posterior, which answers where it will be scored."""
        points = None if isinstance(recipe.fits, PreTrained) else self._points()
        options: dict[str, Any] = {"output": self.task.output, "unpack": self.task.unpack}
        fit = partial(recipe.fit, self.task.model, self.task.train, points=points, **options)
        fitted = self._timed(f"{name}: fit", fit, self.limits)
        left = self.limits.less(fitted.seconds)
        return self._scored(name, "", fitted.value, {"fit": fitted}, left, None, _precision(fitted.value))

    def _points(self) -> Inputs:
        """All inputs that scores are taken at."""
        scoring = self.scoring
        sources = [source for source in (scoring.test, scoring.ood, *scoring.shifts.values()) if source is not None]
        return concatenated([inputs for source in sources for inputs in inputs_of(source, self.task.unpack)])

    def _whole(self) -> tuple[Inputs, torch.Tensor]:
        """The training data in one batch."""
        batches = list(Data(self.task.train, unpack=self.task.unpack))
        return concatenated([batch.inputs for batch in batches]), torch.cat([batch.targets for batch in batches])

    def _posteriors(
        self, name: str, method: Laplace | GP | Tuned, tunings: Mapping[str, Method | None]
    ) -> Iterator[Row]:
        """A row for each way of tuning a posterior, which is fitted once; ``None`` is the default of ``tune``."""
        recipe = method.recipe if isinstance(method, Tuned) else method
        link = method.link if isinstance(method, Tuned) else None
        entries = {tuned_by: self._entry(method, tuned_by, way) for tuned_by, way in tunings.items()}
        known = {tuned_by: self.ledger.row(name, tuned_by, entry) for tuned_by, entry in entries.items()}
        missing = [tuned_by for tuned_by, row in known.items() if row is None]
        fitted = self._fit(name, method, recipe, missing)
        for tuned_by, way in tunings.items():
            row = known[tuned_by]
            if row is not None:
                self.bar.update()
                yield row
            elif isinstance(fitted, Exception):
                yield self.ledger.kept(self._failed(name, tuned_by, fitted), entries[tuned_by])
            elif fitted is not None:
                attempt = partial(self.drawing(name, tuned_by)._tuned, name, tuned_by, fitted, way, link)
                yield self._attempted(name, tuned_by, entries[tuned_by], attempt)

    def _entry(self, method: Laplace | GP | Tuned, tuned_by: str, way: Method | None) -> object:
        """What a row is kept under: the method, and how it is tuned where neither it nor the name says so."""
        said = isinstance(method, Tuned) or tuned_by in TUNINGS
        return method if said else (method, way)

    def _fit(
        self, name: str, method: Contender, recipe: Laplace | GP, missing: Sequence[str]
    ) -> Measured[Posterior | GPPosterior | LaplaceProcess] | Exception | None:
        """The posterior, or what stopped it; ``None`` where no row needs it."""
        if not missing:
            return None
        given_up = [self.given_up[name, tuned_by] for tuned_by in missing if (name, tuned_by) in self.given_up]
        if len(given_up) == len(missing):
            return given_up[0]
        try:
            return self._timed(f"{name}: fit", self._call_to_fit(recipe), self.limits)
        except (Exception, SystemExit) as error:
            return _as_error(error)

    def _call_to_fit(self, recipe: Laplace | GP) -> Callable[[], Posterior | GPPosterior | LaplaceProcess]:
        task = self.task
        if isinstance(recipe, GP):
            return lambda: recipe.fit(self._whole())
        options: dict[str, Any] = {"output": task.output, "unpack": task.unpack, "generator": task.generator}
        bound = self.limits.bytes
        bounded = recipe if bound is None else replace(recipe, structure=recipe.structure.within(bound))
        return partial(bounded.fit, task.model, task.train, **options)

    def _tuned(
        self,
        name: str,
        tuned_by: str,
        fitted: Measured[Posterior | GPPosterior | LaplaceProcess],
        method: Method | None,
        link: Link | None,
    ) -> Row:
        limits = self.limits.less(fitted.seconds)
        tuned = self._timed(f"{name}: {tuned_by}", lambda: tune(fitted.value, method), limits)
        posterior = tuned.value
        numbers = _criterion(posterior.trace, method) | _precision(posterior) | _knowledge(posterior)
        costs = {"fit": fitted, "tune": tuned}
        row = self._scored(name, tuned_by, posterior, costs, limits.less(tuned.seconds), link, numbers)
        return replace(row, certain=_certain(posterior))

    def _scored(
        self,
        name: str,
        tuned_by: str,
        predictor: Predictor,
        costs: Mapping[str, Measured[Any]],
        limits: Limits,
        link: Link | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> Row:
        """The row of a predictor: its scores, what it took, and what is kept of single examples."""
        of_test = self._timed(f"{name}: predict", lambda: self.scoring.on_test(predictor, link), limits)
        found = {**of_test.value.scores, **(numbers or {})}
        limits = limits.less(of_test.seconds)
        further = Further()
        if self.scoring.further:
            rest = self._timed(f"{name}: score", lambda: self.scoring.further_scores(predictor, link), limits)
            found |= {**rest.value.scores, "further_seconds": rest.seconds}
            further = rest.value
        steps = {**costs, "predict": of_test}
        found |= {f"{step}_seconds": steps[step].seconds for step in STEPS if step in steps}
        peaks = {step: peak for step in STEPS if step in steps and (peak := steps[step].peak_mib) is not None}
        found |= {f"{step}_mib": peak for step, peak in peaks.items()}
        if peaks:
            found["peak_mib"] = max(peaks.values())
        examples = self.scoring.examples(of_test.value, further)
        return Row(name, tuned_by, (found,), predictor=predictor, examples=(examples,))

    def _timed(self, what: str, call: Callable[[], T], limits: Limits) -> Measured[T]:
        self.bar.update(0, what)
        result = measured(call, self.task.device, limits=limits)
        self.bar.update()
        return result

    def _attempted(self, name: str, tuned_by: str, entry: object, attempt: Callable[[], Row]) -> Row:
        """The row of a method as it was kept, or as it is found now, or one that says what stopped it."""
        known = self.ledger.row(name, tuned_by, entry)
        if known is not None:
            self.bar.update()
            return known
        try:
            if (name, tuned_by) in self.given_up:
                raise self.given_up[name, tuned_by]
            row = attempt()
        except (Exception, SystemExit) as error:
            row = self._failed(name, tuned_by, _as_error(error))
        return self.ledger.kept(row, entry)

    def _failed(self, name: str, tuned_by: str, error: Exception) -> Row:
        traceback.clear_frames(error.__traceback__)  # whose variables hold the memory of what failed
        self.failures.append(error)
        if isinstance(error, TooSlowError):
            self.given_up[name, tuned_by] = error
        said = " ".join(str(error).split())
        note = said if isinstance(error, LapwingError) else f"{type(error).__name__}: {said or 'without a word'}"
        return Row(name, tuned_by, (), note)


def _as_error(error: Exception | SystemExit) -> Exception:
    """An error as any other, where it would have ended the interpreter."""
    return error if isinstance(error, Exception) else RuntimeError(f"SystemExit({error.code!r})")


def _criterion(trace: tuple[Step, ...] | tuple[GPStep, ...], method: Method | None) -> dict[str, float]:
    """What tuning made as good as it could, by the name of its column; empty where it was never measured."""
    if not trace:
        return {}
    step = trace[-1]
    if isinstance(step, GPStep):
        return {} if step.log_marginal is None else {"evidence": step.log_marginal}
    at_mode = step.mode_nll is not None or getattr(method, "at", "weights") == "mode"
    found = {
        "validation_nll": step.validation_nll,
        "bound": step.bound,
        "evidence_at_mode" if at_mode else "evidence": step.log_marginal,
    }
    return next(({name: value} for name, value in found.items() if value is not None), {})


def _precision(posterior: Any) -> dict[str, float]:
    """The prior precision, where there is one."""
    if not hasattr(posterior, "prior"):
        return {}
    precisions = posterior.prior.precisions(posterior.network.uncertain).tolist()
    return {"prior_precision": precisions[0]} if len(precisions) == 1 else {}


def _knowledge(posterior: Any) -> dict[str, float]:
    """The prior precisions at which it tells what it knows, where it has looked at familiar inputs."""
    precision = _precision(posterior).get("prior_precision")
    knowledge = getattr(posterior, "knowledge", None)
    if knowledge is None or precision is None:
        return {}
    found = {"knowledge_precision": precision * knowledge.factor}
    if knowledge.head:
        found["knowledge_precision_head"] = precision * knowledge.head_factor
    return found


def _certain(posterior: Any) -> bool:
    """Whether its probabilities are the network's own."""
    knowledge = getattr(posterior, "knowledge", None)
    return knowledge is not None and knowledge.certain
