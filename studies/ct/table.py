"""Table 7.1 on a generated phantom: density of the true image by g-prior EM, TV-PredCP and MC dropout, and the cost.

One deep image prior a seed serves all but the last: the same reconstruction, with the error bars of its linear model.
The g-prior is scaled by what the rays see of a weight, as the source has it, and by what it does to the image. Dropout
has a network of its own, fitted with it. Rows of T J are in no method's seconds; all but dropout need them, and how
much faster EM is says so with them. Log densities are nats a pixel of all pixels, coverage is that of 95 % intervals
inside the object.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, final

from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study
from benchmarks.data import generator
from benchmarks.report import Row, timed
from benchmarks.table import averaged
from lapwing import ct
from lapwing.cli.demonstration import INSIDE, REACH
from lapwing.ct.image import scaled
from lapwing.ground import probes

METHODS = EM, IMAGE, PREDCP, DROPOUT = ("g-prior EM", "g-prior of the image", "TV-PredCP", "MC dropout")
TRACES = (16, 4, 2)
"""Draws; the table's scores are those of the first."""

EDGES = tuple(0.5 * k for k in range(7))
"""Of the bins of |error| over standard deviation; the last is open."""

OPTIONS: Mapping[str, tuple[Any, str] | tuple[Any, str, Any]] = {
    "size": (64, "pixels along a side", 12),
    "angles": (30, "angles that are measured", 6),
    "channels": (8, "of the U-net", 4),
    "phantom": ("walnut", "walnut or rectangles"),
    "climb": (1000, "most steps of TV-PredCP", 40),
    "rate": (0.1, "of TV-PredCP, 0.01 in the source"),
    "draws": (10, "of each block a step of TV-PredCP, 20 in the source", 2),
    "first": (0, "seed, for a run of its own of some: up to --seeds"),
}
COLUMNS = ("marginal", "patches", "coverage", "coverage_outside", "psnr", "rms_ratio", "seconds")


@final
@dataclass(frozen=True, eq=False)
class Scan:
    """A phantom, what was measured of it, and the networks that were fitted.

    Args:
        setting: How much of everything.
        seed: Of the phantom, its noise and the networks.
    """

    setting: Setting
    seed: int

    @cached_property
    def operator(self) -> ct.Projector:
        """T."""
        side = self.setting.more["size"]
        return ct.Projector(ct.Parallel2d((side, side), ct.equidistant(self.setting.more["angles"]), detector=side))

    @cached_property
    def measured(self) -> tuple[Tensor, Tensor, float, Tensor]:
        """The truth, the sinogram, its noise, and the network's input."""
        side, source = self.setting.more["size"], generator(self.seed)
        shapes = {"walnut": lambda: ct.walnut((side, side), generator=source)}
        shapes["rectangles"] = lambda: ct.rectangles(side, generator=source)
        truth = shapes[self.setting.more["phantom"]]().float()
        y, std = ct.add_gaussian(self.operator.push(truth.flatten()), 0.05, generator=source)
        return truth, y, std, probes.gaussian((1, 1, side, side), like=truth, generator=source)

    def fitted(self, dropout: float = 0.0) -> ct.Reconstruction:
        """A deep image prior."""
        _, y, std, z = self.measured
        net = ct.UNet(channels=self.setting.more["channels"], dropout=dropout, generator=generator(self.seed + 100))
        steps = 8 if self.setting.quick else 1500
        recipe = ct.DeepImagePrior(tv=3.0, rate=5e-3, steps=steps, patience=400, seed=self.seed)
        return recipe.fit(net, z, self.operator, y, noise_std=std)

    @cached_property
    def posterior(self) -> tuple[ct.ImagePosterior, Row]:
        """That of a linear model under the g-prior of its image, not tuned; what it cost."""
        _, y, std, z = self.measured
        found, fitting = timed(self.fitted)
        samples = 8 if self.setting.quick else 256

        def linear() -> ct.ImagePosterior:
            options: dict[str, Any] = {"noise_std": std, "samples": samples, "seed": self.seed}
            made = ct.ImagePosterior.of(found.network, z, self.operator, y, **options)
            _ = made.observed.features  # that no method pays for them
            return made

        made, rows = timed(linear)
        cost = {"fit_seconds": fitting, "fit_step": found.step, "held_out": found.held_out, "rows_seconds": rows}
        return made, cost | {"weights": len(made.observed.weights), "rays": len(y), "noise_std": std}


def judged(scan: Scan, mean: Tensor, deviations: Tensor) -> Row:
    """Scores of a reconstruction and its draws."""
    truth = scan.measured[0]
    std, error, inside = deviations.square().mean(0).sqrt().view_as(truth), truth - mean, truth > INSIDE
    ratio = (error / std.clamp_min(1e-12)).abs()
    counts = [float(((ratio >= low) & (ratio < low + 0.5))[inside].float().mean()) for low in EDGES]
    return {
        "psnr": ct.psnr(mean, truth),
        "marginal": ct.log_density(mean, deviations, truth),
        "patches": ct.log_density(mean, deviations, truth, size=10),
        "coverage": float((ratio < REACH)[inside].float().mean()),
        "coverage_outside": float((ratio < REACH)[~inside].float().mean()),
        "rms_ratio": float(ratio[inside].square().mean().sqrt()),
        "histogram": [*counts, 1.0 - sum(counts)],
        "mean_std": float(std[inside].mean()),
        "rms_error": float(error[inside].square().mean().sqrt()),
    }


def by_em(scan: Scan) -> Row:
    """The g-prior of what the rays see, its precision by EM; traces with several numbers of draws."""
    start, cost = scan.posterior
    known = scaled(lw.GPrior(), start.observed, None)
    return dict(cost) | climbed(scan, start.with_hyperparameters(known, start.likelihood))


def by_image(scan: Scan) -> Row:
    """The g-prior of what weights do to the image, its precision by EM."""
    return climbed(scan, scan.posterior[0])


def climbed(scan: Scan, start: ct.ImagePosterior) -> Row:
    """EM from a posterior with each number of draws, and scores after it; the first run makes the preconditioner."""
    row, scores = Row(), list[Row]()
    steps = 2 if scan.setting.quick else 8
    for samples in TRACES:
        em = lw.EM(samples=samples, steps=steps, noise=False, seed=scan.seed)
        tuned, row[f"seconds_{samples}"] = timed(lambda em=em: lw.tune(replace(start), em))
        row[f"precisions_{samples}"] = [step.prior_precision[0] for step in tuned.trace]
        row[f"gamma_{samples}"] = [step.effective_dimension for step in tuned.trace]
        _, seconds = timed(lambda tuned=tuned: tuned.deviations)
        scores.append(judged(scan, tuned.mean, tuned.deviations) | {"draw_seconds": seconds})
        row |= {f"{name}_{samples}": scores[-1][name] for name in ("marginal", "patches", "coverage")}
    return row | {"seconds": row[f"seconds_{TRACES[0]}"]} | scores[0]


def by_predcp(scan: Scan) -> Row:
    """The filters' Matérn prior by TV-PredCP."""
    start, _ = scan.posterior
    more = scan.setting.more
    options = {"steps": more["climb"], "rate": more["rate"], "samples": more["draws"]}
    recipe = ct.TVPredCP(**options, seed=scan.seed)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tuned, seconds = timed(lambda: recipe.fit(start))
    for each in warned:
        warnings.warn(each.message, stacklevel=2)
    moving = any("TV-PredCP" in f"{each.message}" for each in warned)
    filters, steps = tuned.observed.image.filters, len(tuned.trace)
    found: Row = {"steps": steps, "settled": not moving, "seconds": seconds}
    found |= {"precisions": filters.precisions.tolist(), "lengths": filters.lengths.tolist()}
    _, found["draw_seconds"] = timed(lambda: tuned.deviations)
    return found | judged(scan, tuned.mean, tuned.deviations)


def by_dropout(scan: Scan) -> Row:
    """A network fitted with dropout, and images with dropout."""
    found, fitting = timed(lambda: scan.fitted(0.05))
    images, seconds = timed(lambda: ct.dropped(found.network, found.z, 8 if scan.setting.quick else 256, scan.seed))
    mean = images.mean(0)
    row: Row = {"fit_seconds": fitting, "seconds": 0.0, "draw_seconds": seconds, "held_out": found.held_out}
    return row | judged(scan, mean, (images - mean).flatten(1))


WORK: Mapping[str, Callable[[Scan], Row]] = dict(zip(METHODS, (by_em, by_image, by_predcp, by_dropout), strict=True))


def rows(setting: Setting, work: Mapping[str, Callable[[Scan], Row]] = WORK) -> Iterator[Row]:
    """A row a seed and method."""
    for seed in setting.repeats[setting.more["first"] :]:
        scan = Scan(setting, seed)
        for method in setting.among(METHODS):
            case: Row = {"method": method, "seed": seed, "size": setting.more["size"], "angles": setting.more["angles"]}
            case["phantom"] = setting.more["phantom"]
            yield setting.resumed(case, partial(work[method], scan))


def verdicts(found: Sequence[Row]) -> Iterator[Row]:
    """The order of the methods, seed by seed; how much faster EM is, how soon it settles, and what it covers."""
    by = {(row["method"], row["seed"]): row for row in found if "seed" in row and not row.get("summary")}
    seeds = sorted({seed for _, seed in by})
    for better, worse in ((EM, PREDCP), (IMAGE, PREDCP), (IMAGE, EM), (PREDCP, DROPOUT), (EM, DROPOUT)):
        for score in ("marginal", "patches"):
            more = [by[better, s][score] - by[worse, s][score] for s in seeds if {(better, s), (worse, s)} <= by.keys()]
            if more:
                yield {"verdict": f"{better} over {worse}, {score}"} | averaged({"more": more})
    for method, draws in product((EM, IMAGE), TRACES):
        key, times = f"seconds_{draws}", list[float]()
        for seed in seeds:
            row, slow, cost = (by.get((name, seed), {}) for name in (method, PREDCP, EM))
            if key in row and slow and "rows_seconds" in cost:
                features = cost["rows_seconds"]  # which both need
                times.append((slow["seconds"] + features) / (row[key] + features))
        if times:
            name = f"seconds of TV-PredCP over those of {method}, {draws} draws, each with the rows of T J"
            yield {"verdict": name, "ratio": statistics.mean(times), "each": times}
    for method in (EM, IMAGE):
        covered = [by[method, s]["coverage"] for s in seeds if (method, s) in by]
        if covered:
            met = all(0.92 <= c <= 0.99 for c in covered)
            yield {"verdict": f"{method} covers 92 to 99 %", "coverage": covered, "met": met}
    steps = [settled(by[EM, s][f"precisions_{TRACES[-1]}"]) for s in seeds if (EM, s) in by]
    if steps:
        yield {"verdict": "EM steps with two draws", "steps": steps, "met": all(step <= 5 for step in steps)}


def settled(precisions: Sequence[float]) -> int:
    """The first step from which the precision stays within a twentieth of the last."""
    off = [abs(value / precisions[-1] - 1) > 0.05 for value in precisions]
    return max((step + 1 for step, far in enumerate(off) if far), default=0)


STUDY = Study(rows, COLUMNS, ("weights", "rays", "fit_step", "steps"), verdict=verdicts, seeds=3, options=OPTIONS)
