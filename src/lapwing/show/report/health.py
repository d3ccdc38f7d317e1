"""The health of a posterior on data of one's own: before and after, least known inputs, doubts."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lapwing.comparison import Column, Comparison, Row
from lapwing.evaluation.diagnosis import diagnose
from lapwing.evaluation.evaluate import gathered, strangeness
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.canvas import INK, LINES, axes, panels
from lapwing.ground.data.inputs import Inputs, place, take, tensors
from lapwing.ground.data.sources import Batch, Data, Source, Unpack
from lapwing.ground.errors import LapwingError, check_count, check_kind
from lapwing.ground.files.atomic import replacing
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.ground.results import Estimate
from lapwing.metrics import rejection_curve
from lapwing.posteriors import Posterior
from lapwing.predictive import Predictive
from lapwing.show.plots.posteriors import plot_evidence
from lapwing.show.plots.predictions import plot_coverage, plot_reliability
from lapwing.show.report.page import render

DRAWS = 64
"""Draws of the weights that are compared with their precision."""

SIDE = 4
"""Thumbnails in a row."""


@final
@dataclass(frozen=True, eq=False)
class Example:
    """An input that is little known.

    Args:
        place: Which of the data it is, counted from 0 in the order in which they were read.
        inputs: The input, an axis of one example before it, on the CPU.
        strangeness: How unknown it is, in the unit that ``Health.unknown`` names.
        predicted: Class of largest probability, or the mean of the first output.
        target: Its label, or its first target.
    """

    place: int
    inputs: Inputs
    strangeness: float
    predicted: float
    target: float

    @property
    def image(self) -> Float[Tensor, "h w c"] | None:
        """The input as an image from 0 to 1, where it is one: ``[1, c, h, w]`` with one or three channels."""
        if not isinstance(self.inputs, Tensor) or self.inputs.ndim != 4 or self.inputs.shape[1] not in (1, 3):
            return None
        values = self.inputs[0].movedim(0, -1).float()
        low = values.min()
        return (values - low) / (values.max() - low).clamp_min(1e-12)


@final
@dataclass(frozen=True, eq=False)
class Health:
    """What is to be known of a posterior before it is relied on; print it, or ``write`` a page.

    Args:
        comparison: Scores of the network at its word, and of the posterior.
        facts: Sentences: what it is, how it was tuned, whether its curvature and draws are right.
        warnings: Sentences: what gives cause for doubt, and what to try.
        least_known: The inputs that are least known, the least first.
        before: Terms of the network's scores, see ``Predictive.score_terms``.
        after: Those of the posterior's.
        trace: Its steps of tuning.
        unknown: By what inputs are little known, with its unit.
    """

    comparison: Comparison
    facts: tuple[str, ...]
    warnings: tuple[str, ...]
    least_known: tuple[Example, ...]
    before: dict[str, Tensor] = field(repr=False)
    after: dict[str, Tensor] = field(repr=False)
    trace: tuple[Any, ...] = field(repr=False)
    unknown: str = "epistemic uncertainty"

    def __str__(self) -> str:
        parts = [self.comparison.table(), "", *self.facts]
        parts += [f"Warning: {sentence}" for sentence in self.warnings]
        parts += ["", self.known.table()]
        return "\n".join(parts)

    @property
    def known(self) -> Comparison:
        """The least known inputs as a table."""
        rows = [
            Row(
                f"example {each.place}",
                "",
                ({"strangeness": each.strangeness, "predicted": each.predicted, "target": each.target},),
            )
            for each in self.least_known
        ]
        means = "epistemic uncertainty, or uncertainty without a tuned scale"
        columns = (
            Column("strangeness", self.unknown, "neither", ".3f", means, spread=False),
            Column(
                "predicted", "predicted", "neither", ".4g", "most probable class, or mean of an output", spread=False
            ),
            Column("target", "target", "neither", ".4g", "label, or the first target", spread=False),
        )
        return Comparison(tuple(rows), columns)

    def write(self, path: str | PathLike[str]) -> Path:
        """Write one self-contained page: the tables, calibration, risk, thumbnails, and the trace of tuning.

        Args:
            path: Where to.

        Returns:
            Where the page is.

        Raises:
            ConfigError: If ``jinja2`` or ``matplotlib`` is not installed.
        """
        out = Path(path)
        text = [*self.facts, *(f"Warning: {sentence}" for sentence in self.warnings)]
        figures = list[dict[str, Any]]()
        with TemporaryDirectory() as folder:
            for number, (title, caption, draw) in enumerate(self._drawings()):
                file = f"figure-{number}.svg"
                draw().figure.savefig(Path(folder) / file)
                figures.append({"file": file, "title": title, "caption": caption})
            results: dict[str, Any] = {"title": "Health", "text": text, "figures": figures}
            results |= self.comparison.to_dict()
            words = {"title": "Least known inputs", "heading": "The least known first", "rows_are": "input"}
            results["sections"] = [words | self.known.to_dict()]
            page = render(results, Path(folder))
        with replacing(out) as draft:
            draft.write_text(page, encoding="utf-8")
        return out

    def _drawings(self) -> list[tuple[str, str, Callable[[], Any]]]:
        """Title, caption and drawing of each figure there is."""
        drawings = list[tuple[str, str, Callable[[], Any]]]()
        if "probs" in self.after:
            drawings.append(("Calibration before", "The network at its word.", self._reliability_before))
            drawings.append(("Calibration after", "The posterior.", self._reliability_after))
            drawings.append(("Selective risk", "Errors among the surest, by how many are kept.", self._risk))
        elif "std" in self.after:
            drawings.append(("Coverage", "Targets inside the posterior's central intervals.", self._coverage))
        if any(each.image is not None for each in self.least_known):
            drawings.append(("Least known inputs", "The least known first.", self._thumbnails))
        if len(self.trace) > 1:
            drawings.append(("Tuning", "The steps by which the prior was chosen.", self._trace))
        return drawings

    def _reliability_before(self) -> Any:
        return plot_reliability(self.before["probs"], self.before["targets"])

    def _reliability_after(self) -> Any:
        return plot_reliability(self.after["probs"], self.after["targets"])

    def _risk(self) -> Any:
        ax = axes(None, 4.2, 3.6)
        for name, terms, colour in (("before", self.before, LINES[1]), ("after", self.after, LINES[0])):
            curve = rejection_curve(terms["probs"], terms["targets"])
            ax.plot((1 - curve.fraction).numpy(), curve.risk.numpy(), color=colour, label=name)
        ax.axhline(0.05, color=INK, linestyle="--", linewidth=1, label="5 % errors")
        ax.set(xlabel="share of examples kept", ylabel="share of errors among them")
        ax.legend(frameon=False)
        return ax

    def _coverage(self) -> Any:
        terms = self.after
        return plot_coverage(terms["mean"].flatten(), terms["std"].flatten(), terms["targets"].flatten())

    def _thumbnails(self) -> Any:
        shown = [each for each in self.least_known if each.image is not None]
        rows = -(-len(shown) // SIDE)
        places = panels(1.5 * SIDE, 1.7 * rows, SIDE, rows)
        for ax in places:
            ax.set_axis_off()
        for ax, each in zip(places, shown, strict=False):
            image = each.image
            assert image is not None
            ax.imshow(image.squeeze(-1).numpy(), cmap="gray")
            ax.set_title(f"{each.place}: {each.predicted:g}, is {each.target:g}", fontsize=8)
        return places[0]

    def _trace(self) -> Any:
        return plot_evidence(self.trace)


@final
class LeastKnown:
    """Keeps the inputs that are least known of all that it is shown.

    Args:
        keep: How many.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.seen = 0
        self.examples: list[Example] = []
        self.unknown = "epistemic uncertainty"

    def __call__(self, batch: Batch, prediction: Predictive) -> None:
        """Look at a batch and its prediction; an example of several positions counts by their mean."""
        scaled = prediction.knowledge is not None and prediction.knowledge.familiar is not None
        epistemic = f"epistemic uncertainty, {prediction.epistemic_unit}"
        self.unknown = epistemic if scaled else f"uncertainty, {prediction.uncertainty_unit}"
        unknown = wide(strangeness(prediction).detach()).reshape(len(batch), -1).mean(1).cpu()
        predicted = self._predicted(prediction)
        targets = batch.targets.reshape(len(batch), -1)[:, 0].cpu()
        for index in unknown.argsort(descending=True)[: self.keep].tolist():
            alone = take(batch.inputs, slice(index, index + 1))
            example = Example(
                self.seen + index,
                alone.cpu() if isinstance(alone, Tensor) else alone,
                float(unknown[index]),
                float(predicted[index]),
                float(targets[index]),
            )
            self.examples.append(example)
        self.examples.sort(key=lambda each: -each.strangeness)
        del self.examples[self.keep :]
        self.seen += len(batch)

    def _predicted(self, prediction: Predictive) -> Tensor:
        """The class of largest probability of each example, or the mean of its first output."""
        labels = getattr(prediction, "labels", None)
        values = prediction.location if labels is None else labels
        return values.reshape(len(values), -1)[:, 0].cpu()


def health(
    posterior: Any,
    data: Source,
    *,
    train: Source | None = None,
    keep: int = 12,
    draws: int | None = None,
    unpack: Unpack | None = None,
    progress: bool | None = None,
) -> Health:
    """Before and after on data of one's own, the least known inputs, and what gives cause for doubt.

    Args:
        posterior: The posterior of a network.
        data: Held-out data, as for ``evaluate``.
        train: The training data, to see whether the curvature is that of them; ``None`` for those the posterior has.
        keep: How many of the least known inputs are kept.
        draws: Draws of the weights that are compared with their precision, see ``diagnose``; 0 for none, ``None`` for
            64 where they are exact and so cost little.
        unpack: Splits one element of a loader.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Returns:
        A ``Health``: print it, or ``write`` its page.

    Raises:
        ConfigError: If it is no posterior of a network.

    Cost:
        Two predictions of the data, one with the error bars at the scale of knowledge, two forward passes, and one pass
        through the training data, where they are at hand, in which inputs are compared.

    Example:
        >>> import torch, lapwing as lw
        >>> x, y = torch.randn(60, 2), torch.randint(0, 3, (60,))
        >>> posterior = lw.Laplace(lw.Categorical()).fit(torch.nn.Linear(2, 3), (x[:40], y[:40]))
        >>> found = lw.health(posterior, (x[40:], y[40:]))
        >>> [row.method for row in found.comparison.rows], len(found.least_known), found.unknown
        (['plain network', 'posterior'], 12, 'uncertainty, 1 − confidence')
    """
    hint = "health(Laplace(...).fit(model, train), test); evaluate(posterior, test) scores a Gaussian process"
    check_kind("the posterior", posterior, (Posterior,), hint)
    check_count("keep", keep)
    least_known = LeastKnown(keep)
    with working("health", progress), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network = posterior.network
        plain = PlainNetwork(network.module, posterior.likelihood, output=network.output)
        before, _, kind = gathered(plain, data, unpack, {}, with_strangeness=False)
        after, _, _ = gathered(posterior, data, unpack, {}, with_strangeness=False, watch=least_known)
        rows = (
            Row("plain network", "", (kind.scores_of(before),)),
            Row("posterior", tuned_by(posterior), (kind.scores_of(after),)),
        )
        facts = [what_it_is(posterior), how_it_was_tuned(posterior)]
        doubts = doubts_of(rows, less_likely(kind.losses_of(before), kind.losses_of(after)))
        curvature = whose_curvature(posterior, train, unpack)
        facts += curvature.facts
        doubts += curvature.doubts
        doubts += seen_in_training(posterior, data, train, unpack)
        if not posterior.trace:
            doubts.append("it was not tuned. Try lw.tune(posterior)")
        count = draws
        if count is None:
            count = DRAWS if posterior.exact else 0
        if count:
            facts.append(str(diagnose(posterior, count, directions=0, generator=0)))
    doubts += [str(each.message) for each in caught if is_ours(each.category)]
    return Health(
        Comparison(rows),
        tuple(facts),
        tuple(dict.fromkeys(doubts)),
        tuple(least_known.examples),
        before,
        after,
        posterior.trace,
        least_known.unknown,
    )


def is_ours(category: type[Warning]) -> bool:
    """Whether a warning is one of lapwing's."""
    return category.__module__.partition(".")[0] == "lapwing"


def what_it_is(posterior: Posterior) -> str:
    """One sentence on what was fitted to what."""
    network = posterior.network
    whole = sum(value.numel() for value in network.module.parameters())
    module = type(network.module).__name__
    prior = " ".join(f"{posterior.prior}".split())
    return (
        f"{type(posterior).__name__} of {network.size:,} of the {whole:,} weights of a {module}, fitted to "
        f"{posterior.totals.examples:,} examples; {prior:.200}, {posterior.likelihood}."
    )


def tuned_by(posterior: Posterior) -> str:
    """What its prior was chosen by, in a word."""
    if not posterior.trace:
        return "nothing"
    last = posterior.trace[-1]
    if last.validation_nll is not None:
        return "predictions"
    return "evidence" if last.bound is None else "bound"


def less_likely(before: Float[Tensor, " m"], after: Float[Tensor, " m"]) -> Estimate:
    """By how many nats a target is less likely after than before, on average, with the standard error of that.

    Args:
        before: Its negative log density, see ``Predictive.losses_of``.
        after: The same.
    """
    difference = after - before
    n = len(difference)
    stderr = float(difference.std()) / n**0.5 if n > 1 else math.nan
    return Estimate(float(difference.mean()), stderr, n)


def seen_in_training(posterior: Posterior, data: Source, train: Source | None, unpack: Unpack | None) -> list[str]:
    """A sentence where most of the data are among those a posterior was fitted to.

    Args:
        posterior: The posterior.
        data: The data.
        train: Its training data; ``None`` for those it has.
        unpack: Splits one element of a loader of ``data`` and ``train``.

    Cost:
        A pass through both; where no training data are at hand a forward pass, by which all of them are known again.
    """
    hint = "Try data that it has not seen"
    known = posterior.data if train is None else Data(train, unpack=unpack)
    if known is None:
        return [f"these are the data it was trained on. {hint}"] if is_of(posterior, data, unpack) else []
    seen = set[bytes]()
    for batch in known:
        seen.update(rows_of(batch, posterior))
    found = [row in seen for batch in Data(data, unpack=unpack) for row in rows_of(batch, posterior)]
    if 2 * sum(found) <= len(found):
        return []
    return [f"{sum(found):,} of these {len(found):,} inputs are among the data it was trained on. {hint}"]


def rows_of(batch: Batch, posterior: Posterior) -> list[bytes]:
    """What tells each input of a batch from others, in the dtype that the network takes.

    Args:
        batch: The batch.
        posterior: Of the network.
    """
    flat = [
        each.detach().cpu().reshape(len(batch), -1) for each in tensors(place(batch.inputs, posterior.network.like))
    ]
    contents = [wide(each).contiguous().numpy().view(np.uint8).reshape(len(batch), -1) for each in flat]
    joined = np.concatenate(contents, 1)
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in joined]


def how_it_was_tuned(posterior: Posterior) -> str:
    """One sentence on its steps of tuning."""
    if not posterior.trace:
        return "It was not tuned."
    last = posterior.trace[-1]
    least = min(last.prior_precision)
    largest = max(last.prior_precision)
    found = [f"prior precision {least:.4g}" if least == largest else f"prior precisions {least:.4g} to {largest:.4g}"]
    if last.validation_nll is not None:
        found.append(f"NLL {last.validation_nll:.4g} nats an example of those it was judged by")
    if last.log_marginal is not None:
        found.append(f"log evidence {last.log_marginal:.6g} nats")
    if last.effective_dimension is not None:
        found.append(f"{last.effective_dimension:.4g} directions determined by the data")
    return f"Tuned in {len(posterior.trace)} steps: {', '.join(found)}."


def doubts_of(rows: tuple[Row, ...], worse: Estimate) -> list[str]:
    """What the scores before and after give cause for.

    Args:
        rows: Of the network and of the posterior.
        worse: See ``less_likely``.
    """
    (before,), (after,) = (row.runs for row in rows)
    doubts = list[str]()
    if worse.value > 0 and not worse.value < 2 * worse.stderr:
        doubts.append(
            f"targets are less likely than by the network, NLL {after['nll']:.4g} after {before['nll']:.4g}, by "
            f"{worse.value:.2g} ± {worse.stderr:.1g} nats an example (one standard error). Try lw.tune(posterior, "
            "held_out), which is never worse than the network on the data it is given"
        )
    if "ece" in after and after["ece"] > 2 * after["ece_floor"]:
        doubts.append(
            f"its confidences are off by {after['ece']:.3f}, more than the {after['ece_floor']:.3f} of chance. Try "
            "lw.tune(posterior, held_out)"
        )
    if "picp" in after and abs(after["picp"] - 0.95) > 0.05:
        doubts.append(
            f"its 95 % intervals have {100 * after['picp']:.0f} % of the targets. Try lw.tune(posterior, held_out)"
        )
    return doubts


@final
@dataclass(frozen=True)
class Findings:
    """What was found, in sentences.

    Args:
        facts: What is so.
        doubts: What gives cause for doubt.
    """

    facts: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def whose_curvature(posterior: Posterior, train: Source | None, unpack: Unpack | None) -> Findings:
    """Whether the curvature is that of the training data at hand.

    Args:
        posterior: The posterior.
        train: The training data; ``None`` for those it has.
        unpack: Splits one element of a loader.
    """
    source = train if train is not None or posterior.data is None else posterior.data.source
    if source is None:
        return Findings(("Whether the curvature is that of the training data was not looked at: give train=.",))
    own = unpack if train is not None or posterior.data is None else posterior.data.unpack
    if posterior.partial or is_of(posterior, source, own):
        return Findings(("The curvature is that of the training data given.",))
    sentence = "the curvature is that of other data than these training data. Try fitting again"
    return Findings(doubts=(sentence,))


def is_of(posterior: Posterior, source: Source, unpack: Unpack | None) -> bool:
    """Whether data are those a posterior was fitted to.

    Args:
        posterior: The posterior.
        source: The data.
        unpack: Splits one element of a loader.

    Cost:
        A forward pass over them.
    """
    try:
        posterior.with_training_data(source, unpack)
    except LapwingError:
        return False
    return True
