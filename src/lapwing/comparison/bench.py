"""One method at a time: fitted, tuned, scored and metered, with a sentence where it cannot be."""

from __future__ import annotations

import ctypes
import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, final

import torch
from torch import nn

from lapwing.comparison.table import Row
from lapwing.evaluation.baselines import PlainNetwork
from lapwing.evaluation.evaluate import Predictor, evaluate, predict_options
from lapwing.gp import GP, GPPosterior, GPStep, LaplaceGPPosterior
from lapwing.ground.data.inputs import Inputs, concatenated
from lapwing.ground.data.sources import Data, Source, Unpack, inputs_of
from lapwing.ground.errors import LapwingError
from lapwing.ground.progress import Bar
from lapwing.jacobian.network.output import Output
from lapwing.methods.hessian_free import HessianFree, PreTrained
from lapwing.methods.laplace import Laplace
from lapwing.metrics.score_table import Scores
from lapwing.posteriors import Posterior, Step
from lapwing.predictive import Link
from lapwing.tuning import Method, tune

T = TypeVar("T")

Contender: TypeAlias = Laplace | HessianFree | GP | Predictor
"""What can be compared: a recipe, which is fitted, or a predictor as it is."""


@final
@dataclass(frozen=True, eq=False)
class Bench:
    """What is the same for every method: the data it is scored on, and how.

    Args:
        train: The training data.
        test: Held-out data to score on.
        ood: Data from elsewhere.
        output: Which part of what the network returns is its output.
        unpack: Splits one element of a loader.
        link: How posteriors average over the uncertainty of the logits; ``None`` for each one's own.
        device: Where the network is.
        generator: Source of randomness.
        bar: Progress, one step a call.
        failures: What stopped the methods that could not run.
    """

    train: Source
    test: Source
    ood: Source | Inputs | None
    output: Output
    unpack: Unpack | None
    link: Link | None
    device: torch.device
    generator: torch.Generator | None
    bar: Bar
    failures: list[Exception] = field(default_factory=list)

    def plain(self, name: str, predictor: Predictor) -> Row:
        """The row of a predictor as it is."""
        return _row(name, "", predictor, (self._predicted(name, predictor),))

    def calibrated(self, network: PlainNetwork, validation: Source) -> Row:
        """The row of the network with a temperature, or noise, that suits the validation data."""
        name = "temperature scaling" if network.likelihood.classes else "plain network"

        def row() -> Row:
            tuned = self._timed(name, lambda: network.calibrated(validation, unpack=self.unpack))
            scores = self._predicted(name, tuned.value)
            return _row(name, "validation", tuned.value, (tuned, scores), tune_seconds=tuned.seconds)

        return self._attempted(name, "validation", row)

    def rows(
        self, name: str, method: Contender, model: nn.Module, tunings: Mapping[str, Method | None]
    ) -> Iterator[Row]:
        """The rows of a method: one for each way of tuning it, or one alone where there is nothing to tune."""
        gc.collect()  # what the method before left in cycles is not this one's memory
        match method:
            case Laplace():
                fit = partial(
                    method.fit,
                    model,
                    self.train,
                    output=self.output,
                    unpack=self.unpack,
                    generator=self.generator,
                )
                yield from self._fitted(name, fit, tunings)
            case GP():
                yield from self._fitted(name, lambda: method.fit(self._whole()), {"default": None})
            case HessianFree():
                yield self._attempted(name, "", partial(self._hessian_free, name, method, model))
            case _:
                yield self._attempted(name, "", partial(self.plain, name, method))

    def _hessian_free(self, name: str, recipe: HessianFree, model: nn.Module) -> Row:
        """The row of a Hessian-free posterior, which answers where it will be scored."""
        points = None if isinstance(recipe.fits, PreTrained) else self._points()
        fit = partial(recipe.fit, model, self.train, points=points, output=self.output, unpack=self.unpack)
        fitted = self._timed(f"{name}: fit", fit)
        costs = fitted, self._predicted(name, fitted.value)
        return _row(name, "", fitted.value, costs, **_precision(fitted.value), fit_seconds=fitted.seconds)

    def _points(self) -> Inputs:
        """All inputs that scores are taken at."""
        sources = [source for source in (self.test, self.ood) if source is not None]
        return concatenated([inputs for source in sources for inputs in inputs_of(source, self.unpack)])

    def _whole(self) -> tuple[Inputs, torch.Tensor]:
        """The training data in one batch."""
        batches = list(Data(self.train, unpack=self.unpack))
        return concatenated([batch.inputs for batch in batches]), torch.cat([batch.targets for batch in batches])

    def _fitted(
        self,
        name: str,
        fit: Callable[[], Posterior | GPPosterior | LaplaceGPPosterior],
        tunings: Mapping[str, Method | None],
    ) -> Iterator[Row]:
        """A row for each way of tuning a posterior, which is fitted once; ``None`` is the default of ``tune``."""
        try:
            fitted = self._timed(f"{name}: fit", fit)
        except Exception as error:
            yield from (self._failed(name, tuned_by, error) for tuned_by in tunings)
            return
        for tuned_by, method in tunings.items():
            yield self._attempted(name, tuned_by, partial(self._tuned, name, tuned_by, fitted, method))

    def _tuned(
        self,
        name: str,
        tuned_by: str,
        fitted: Measured[Posterior | GPPosterior | LaplaceGPPosterior],
        method: Method | None,
    ) -> Row:
        tuned = self._timed(f"{name}: {tuned_by}", lambda: tune(fitted.value, method))
        posterior = tuned.value
        scores = self._predicted(name, posterior)
        seconds = {"fit_seconds": fitted.seconds, "tune_seconds": tuned.seconds}
        numbers = _criterion(posterior.trace, method) | _precision(posterior) | _knowledge(posterior) | seconds
        row = _row(name, tuned_by, posterior, (fitted, tuned, scores), **numbers)
        return replace(row, certain=_certain(posterior))

    def _predicted(self, name: str, predictor: Predictor) -> Measured[Scores]:
        """The scores of a method, by the link where it takes one."""
        taken = predict_options(predictor)
        options: dict[str, Any] = {}
        if "link" in taken:
            options["link"] = self.link
        if "generator" in taken:
            options["generator"] = self.generator
        scores = partial(evaluate, predictor, self.test, ood=self.ood, unpack=self.unpack, **options)
        return self._timed(f"{name}: predict", scores)

    def _timed(self, what: str, call: Callable[[], T]) -> Measured[T]:
        self.bar.update(0, what)
        result = measured(call, self.device)
        self.bar.update()
        return result

    def _attempted(self, name: str, tuned_by: str, row: Callable[[], Row]) -> Row:
        """The row of a method, or one that says what stopped it."""
        try:
            return row()
        except Exception as error:
            return self._failed(name, tuned_by, error)

    def _failed(self, name: str, tuned_by: str, error: Exception) -> Row:
        traceback.clear_frames(error.__traceback__)  # whose variables hold the memory of what failed
        self.failures.append(error)
        said = " ".join(str(error).split())
        note = said if isinstance(error, LapwingError) else f"{type(error).__name__}: {said or 'without a word'}"
        return Row(name, tuned_by, (), note)


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


def _row(name: str, tuned_by: str, predictor: Predictor, costs: tuple[Measured[Any], ...], **numbers: float) -> Row:
    """A row whose last cost is that of the scores."""
    peaks = [cost.peak_mib for cost in costs if cost.peak_mib is not None]
    scores = costs[-1]
    known = {"peak_mib": max(peaks)} if peaks else {}
    run = dict(scores.value) | numbers | {"predict_seconds": scores.seconds} | known
    return Row(name, tuned_by, (run,), predictor=predictor)


MIB = 2**20
CPU = torch.device("cpu")
PROCESS = Path("/proc/self")
"""Where the kernel of Linux tells of this process and forgets what it had at most."""


@final
@dataclass(frozen=True)
class Measured(Generic[T]):
    """What a call returned, and what it cost.

    Args:
        value: What it returned.
        seconds: Wall-clock seconds.
        peak_mib: Most memory at any moment of the call, above what was held when it began, MiB: on a GPU the bytes
            torch allocated, on Linux the resident set of the process, whose high-water mark the kernel keeps.
            ``None`` where neither can be read.
    """

    value: T
    seconds: float
    peak_mib: float | None


def measured(call: Callable[[], T], device: torch.device = CPU, process: Path = PROCESS) -> Measured[T]:
    """The result of a call with its seconds and peak memory.

    Free memory is first given back to the system, so that reusing it counts as use.

    Args:
        call: What to run, without arguments.
        device: Where it computes.
        process: What the kernel tells of the process.

    Example:
        >>> cost = measured(lambda: torch.ones(2**22).sum())
        >>> float(cost.value), cost.seconds > 0
        (4194304.0, True)
    """
    base = _restarted(device, process)
    cuda = device.type == "cuda"
    start = time.perf_counter()
    value = call()
    if cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    if base is None:
        return Measured(value, seconds, None)
    peak = torch.cuda.max_memory_allocated(device) / MIB if cuda else _resident("VmHWM:", process)
    return Measured(value, seconds, max(peak - base, 0.0))


def _restarted(device: torch.device, process: Path) -> float | None:
    """Start a new high-water mark; MiB held now, or ``None`` where there is no such mark."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / MIB
    reset = process / "clear_refs"
    if device.type != "cpu" or not reset.exists():
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
    try:
        reset.write_text("5")
    except OSError:  # a sandbox may forbid it; then the peak is unknown
        return None
    return _resident("VmRSS:", process)


def _resident(field: str, process: Path) -> float:
    words = (process / "status").read_text(encoding="ascii").split()
    return int(words[words.index(field) + 1]) / 1024
