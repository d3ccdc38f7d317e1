"""Designs of scans of rectangles, angle by angle: how good the image is by how many angles (Antorán 2024, figure 7.20).

Every design begins with the same few angles and adds others of the same scan, whose noise is drawn once. The image is
by total variation, of one weight for all. ``equidistant`` measures as many angles anew at each count. Designs by a deep
image prior know the image of the first angles; ``again`` fits it to all that is measured, every few angles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, final

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting, Study
from benchmarks.data import generator
from benchmarks.report import Row, curve, figure, grouped, timed
from benchmarks.table import averaged
from lapwing import ct
from lapwing.ct.design import Criterion, Design
from lapwing.ct.pixels import LENGTHSCALES
from lapwing.ground import probes
from lapwing.linalg import Diagonal
from lapwing.linear.model import LinearModel

OPTIONS = {"size": (64, "pixels along a side of an image", 8)}


@final
@dataclass(frozen=True)
class Amount:
    """How much of everything.

    Args:
        side: Of an image, in pixels.
        candidates: Angles there might be.
        looks: Counts of angles at which the image is judged; designs begin with the first.
        every: Angles after which a design that fits again does.
        weight: Of the total variation.
        channels: Of the U-net.
        steps: Of its first fit, at most; a third of them when it is fitted again.
        climb: Steps of TV-PredCP, at most.
        draws: By which angles are judged.
    """

    side: int = 64
    candidates: int = 120
    looks: tuple[int, ...] = (5, 8, 10, 12, 15, 20)
    every: int = 5
    weight: float = 5.0
    channels: int = 8
    steps: int = 900
    climb: int = 1000
    draws: int = 500


QUICK = Amount(candidates=12, looks=(2, 4), every=1, channels=4, steps=3, climb=40, draws=8)


@cache
def projector(side: int, candidates: int) -> ct.Projector:
    """All angles there might be."""
    return ct.Projector(ct.Parallel2d((side, side), ct.equidistant(candidates), detector=side))


@final
@dataclass(frozen=True, eq=False)
class Scene:
    """An image, and what all angles would measure of it.

    Args:
        amount: How much of everything.
        seed: Of the image, its noise, and what fits it.
    """

    amount: Amount
    seed: int

    @property
    def whole(self) -> ct.Projector:
        """All angles."""
        return projector(self.amount.side, self.amount.candidates)

    @cached_property
    def truth(self) -> Tensor:
        """The image."""
        return ct.rectangles(self.amount.side, generator=generator(self.seed)).float()

    @cached_property
    def measured(self) -> tuple[Tensor, float]:
        """What each angle measures, a row an angle, and the standard deviation of its noise."""
        clean = self.whole.push(self.truth.flatten()).view(self.amount.candidates, -1)
        return ct.add_gaussian(clean, 0.05, generator=generator(1000 + self.seed))

    @cached_property
    def pilot(self) -> Fitted:
        """The deep image prior of the first angles."""
        like, source = self.truth, generator(2000 + self.seed)
        z = probes.gaussian((1, 1, *like.shape), like=like, generator=source)
        network = ct.UNet(channels=self.amount.channels, generator=source)
        return self.fitted(network, z, self.first, self.amount.steps)

    @property
    def first(self) -> list[int]:
        """The angles that every design begins with."""
        return self.evenly(self.amount.looks[0])

    def evenly(self, count: int) -> list[int]:
        """So many angles at equal distances."""
        return [round(i * self.amount.candidates / count) for i in range(count)]

    def fitted(self, network: nn.Module, z: Tensor, angles: Sequence[int], steps: int) -> Fitted:
        """A network fitted to some angles and made linear, the precision of its g-prior by the evidence."""
        y, std = self.measured
        y, operator = y[list(angles)].flatten(), self.whole.select(angles)
        prior = ct.DeepImagePrior(tv=3.0, rate=5e-3, steps=steps, patience=max(1, steps // 2), seed=self.seed)
        found = prior.fit(network, z, operator, y, noise_std=std)
        rays: dict[str, Any] = {"noise_std": std, "prior": lw.GPrior(), "seed": self.seed}
        posterior = ct.ImagePosterior.of(found.network, z, operator, y, **rays)
        return Fitted(found, lw.tune(posterior, lw.EM(samples=4, steps=5, noise=False)))

    def design(self, image: LinearModel, precision: float) -> Design:
        """After the first angles, with a prior over pixels."""
        prior = Diagonal(torch.full_like(image.weights, precision))
        options: dict[str, Any] = {"noise_std": self.measured[1], "samples": self.amount.draws}
        source = generator(4000 + self.seed)
        return Design.of(image, prior, self.whole, self.amount.candidates, self.first, generator=source, **options)

    def design_after(self, posterior: ct.ImagePosterior, angles: Sequence[int]) -> Design:
        """After some angles, with what they say of the image."""
        options: dict[str, Any] = {"samples": self.amount.draws, "generator": generator(4000 + self.seed)}
        return Design.after(posterior, self.whole, self.amount.candidates, angles, **options)

    @cache  # noqa: B019  # designs share their first angles; a scene is soon gone
    def psnr(self, angles: tuple[int, ...]) -> float:
        """Of the image by total variation from some angles, dB."""
        y, std = self.measured
        operator = self.whole.select(angles)
        found = ct.tv_reconstruction(y[list(angles)].flatten(), operator, self.amount.weight, precision=std**-2)
        return ct.psnr(found.value, self.truth)


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A deep image prior, and its posterior over images."""

    found: ct.Reconstruction
    posterior: ct.ImagePosterior


Angles = Callable[[Scene, int], list[int]]
"""A design: so many angles of a scene, in the order they are measured."""


def at_random(scene: Scene, count: int) -> list[int]:
    """Any angles that are not measured yet."""
    order = probes.permutation(scene.amount.candidates, generator=generator(3000 + scene.seed))
    return [*scene.first, *(angle for angle in order if angle not in scene.first)][:count]


def by_pixels(scene: Scene, count: int, lengthscales: Sequence[float | None]) -> list[int]:
    """What tells most of an image of Gaussian pixels, which vary as the first angles make likeliest."""
    y, std = scene.measured
    operator, shape = scene.whole.select(scene.first), scene.truth.shape
    fit = ct.fit_pixels(operator, y[scene.first].flatten(), shape, noise_std=std, lengthscales=lengthscales)
    design = scene.design(ct.pixel_prior(shape, fit.lengthscale), 1 / fit.variance)
    return [*scene.first, *design.propose(count - len(scene.first))]


def by_network(scene: Scene, count: int, criterion: Criterion = "ese") -> list[int]:
    """What tells most of the image of the deep image prior of the first angles, under its g-prior."""
    design = scene.design_after(scene.pilot.posterior, scene.first)
    return [*scene.first, *design.propose(count - len(scene.first), criterion)]


def by_filters(scene: Scene, count: int) -> list[int]:
    """The same under a prior over filters of correlated taps, its precisions and length-scales by TV-PredCP."""
    recipe = ct.TVPredCP(steps=scene.amount.climb, seed=scene.seed)
    design = scene.design_after(recipe.fit(scene.pilot.posterior), scene.first)
    return [*scene.first, *design.propose(count - len(scene.first))]


def by_network_again(scene: Scene, count: int) -> list[int]:
    """The same, with the network fitted to all that is measured every few angles."""
    chosen, fitted, amount = scene.first, scene.pilot, scene.amount
    while True:
        design = scene.design_after(fitted.posterior, chosen)
        chosen = [*chosen, *design.propose(min(amount.every, count - len(chosen)))]
        if len(chosen) == count:
            return chosen
        fitted = scene.fitted(fitted.found.network, fitted.found.z, chosen, amount.steps // 3)


EVENLY = "equidistant"
METHODS: Mapping[str, Angles] = {
    "random": at_random,
    "pixels": partial(by_pixels, lengthscales=(None,)),
    "Matérn pixels": partial(by_pixels, lengthscales=LENGTHSCALES),
    "network": by_network,
    "network, EIG": partial(by_network, criterion="eig"),
    "network, filters": by_filters,
    "network, again": by_network_again,
}
PAIRS = (
    *((name, EVENLY) for name in METHODS),
    ("pixels", "random"),
    ("Matérn pixels", "random"),
    ("network", "network, EIG"),
    ("network, again", "network"),
)
"""Which designs are compared, image by image."""


def rows(setting: Setting) -> Iterator[Row]:
    """A row an image, a design and a count of angles."""
    amount = replace(QUICK if setting.quick else Amount(), side=setting.more["size"])
    for seed in range(setting.images or (1 if setting.quick else 10)):
        scene = Scene(amount, seed)
        for method in setting.among((EVENLY, *METHODS)):
            found = [row for row in setting.known if (row["method"], row["seed"]) == (method, seed)]
            yield from found or judged(scene, method)


def judged(scene: Scene, method: str) -> Iterator[Row]:
    """The image at each count of angles of one design."""
    most = scene.amount.looks[-1]
    _ = scene.pilot  # its seconds are no design's
    chosen, seconds = timed(lambda: METHODS[method](scene, most) if method != EVENLY else [])
    for count in scene.amount.looks:
        angles = scene.evenly(count) if method == EVENLY else chosen[:count]
        row: Row = {"method": method, "angles": count, "size": scene.amount.side, "seed": scene.seed}
        yield row | {"psnr": scene.psnr(tuple(sorted(angles))), "seconds": seconds, "chosen": angles}


def verdicts(found: Sequence[Row]) -> Iterator[Row]:
    """By how much designs differ at each count of angles: mean over images, and its standard error."""
    images = [row for row in found if not row.get("summary")]
    for count, there in grouped(images, "angles").items():
        psnr = {(row["method"], row["seed"]): row["psnr"] for row in there}
        for one, other in PAIRS:
            more = [value - psnr[other, seed] for (name, seed), value in psnr.items() if name == one]
            if not more or count == min(row["angles"] for row in images):
                continue
            row: Row = {"verdict": f"{one} over {other}, dB", "angles": count, "images": len(more)}
            yield row | averaged({"more": more})


def draw(found: Sequence[Row]) -> Any:
    """How good the image is by how many angles."""
    made = figure(6.5, 4.5, 1)
    panel = made.axes[0]
    for method, there in grouped((row for row in found if row.get("summary")), "method").items():
        curve(panel, there, "angles", "psnr", label=method, linestyle=":" if method in (EVENLY, "random") else "-")
    panel.set(xlabel="angles", ylabel="PSNR, dB")
    panel.legend()
    return made


STUDY = Study(rows, ("psnr", "seconds"), verdict=verdicts, draw=draw, seeds=1, options=OPTIONS)
