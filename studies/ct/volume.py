"""Volumes: expectation maximisation by descent, its seconds and memory by the voxels, and a plan of 501 x 501 pixels.

A generated walnut is seen slice by slice by parallel rays; the network is a U-net of three dimensions, and products go
through it: no row of T J is kept. A step of the descent sees all rays, for a few of them would cost as much: each needs
the whole volume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting, Study
from benchmarks.data import generator
from benchmarks.report import Row, timed
from lapwing import ct
from lapwing.cli.demonstration import INSIDE, REACH
from lapwing.comparison.bench import measured
from lapwing.ct.image import scaled
from lapwing.ct.observed import Observed, linear_image, single_chunk
from lapwing.ground import probes
from lapwing.jacobian.network.modes import undisturbed
from lapwing.linear.solvers import SGD

REPEATS = 3
SIDE, ANGLES, BINS = 501, 60, 128
"""Of the walnut of the source in two dimensions and the smaller of its scans (Antorán 2024, section E7.1): a plan."""

OPTIONS: Mapping[str, tuple[Any, str, Any]] = {
    "angles": (20, "that are measured", 3),
    "fit": (200, "steps of the fit", 5),
    "descent": (50, "steps of a descent", 2),
}


@final
@dataclass(frozen=True)
class Amount:
    """How much of everything.

    Args:
        sides: Of the volumes, in voxels.
        flat: Sides of the images whose costs the plan is made of.
        channels: Of the U-net.
        steps: Of its fit.
        epochs: Steps of a descent.
        em: Steps of expectation maximisation.
        samples: Draws in each.
        draws: Of the volume, in the end.
        scale: Draws of the g-prior's scale.
    """

    sides: tuple[int, ...] = (32, 16, 24)
    flat: tuple[int, ...] = (64, 128)
    channels: int = 8
    steps: int = 200
    epochs: int = 50
    em: int = 3
    samples: int = 2
    draws: int = 4
    scale: int = 32


QUICK = Amount(sides=(8,), flat=(8, 16), channels=4, em=1, samples=1, draws=2, scale=2)


@final
@dataclass(frozen=True, eq=False)
class Scan:
    """A volume that was seen, and what is to be found out about it."""

    truth: Tensor
    operator: ct.Projector
    sinogram: Tensor
    noise_std: float

    @classmethod
    def of(cls, shape: tuple[int, ...], angles: int, bins: int, seed: int = 0) -> Scan:
        """A walnut of two dimensions or three."""
        truth = ct.walnut(shape, generator=generator(seed)).float()
        plane, turn = (shape[-2], shape[-1]), ct.equidistant(angles)
        flat = len(shape) == 2
        geometry = ct.Parallel2d(plane, turn, bins) if flat else ct.Parallel3d(plane, turn, bins, layers=shape[0])
        operator = ct.Projector(geometry)
        y, std = ct.add_gaussian(operator.push(truth.flatten()), 0.05, generator=generator(seed + 1))
        return cls(truth, operator, y, std)

    def fitted(self, amount: Amount, seed: int = 0) -> ct.Reconstruction:
        """A deep image prior."""
        source = generator(seed + 2)
        network = ct.UNet(self.truth.ndim, channels=amount.channels, generator=source)
        z = probes.gaussian((1, 1, *self.truth.shape), like=self.truth, generator=source)
        prior = ct.DeepImagePrior(tv=3.0, rate=5e-3, steps=amount.steps, patience=amount.steps, seed=seed)
        return prior.fit(network, z, self.operator, self.sinogram, noise_std=self.noise_std)

    def observed(self, network: nn.Module, z: Tensor) -> Observed:
        """Its rays through the linear model of a network, whose products go through the network."""
        noise = lw.Gaussian(self.noise_std**-2)
        return Observed(linear_image(network, z), self.operator, self.sinogram, noise, memory=0)

    @undisturbed()
    def tuned(self, found: ct.Reconstruction, amount: Amount, seed: int = 0) -> ct.ImagePosterior:
        """The posterior over volumes, its prior's scale from draws, its precision by descent."""
        observed = self.observed(found.network, found.z)
        prior = scaled(lw.GPrior(samples=amount.scale), observed, generator(seed + 3))
        solver = SGD(epochs=amount.epochs, batch=len(self.sinogram))
        posterior = ct.ImagePosterior(observed, prior, observed.likelihood, solver, amount.draws, seed)
        return lw.tune(posterior, lw.EM(samples=amount.samples, steps=amount.em, noise=False, tolerance=0.05))


def rows(setting: Setting) -> Iterator[Row]:
    """A row a volume, and one an image whose costs are planned with."""
    angles, steps, epochs = (setting.more[name] for name in OPTIONS)
    amount = replace(QUICK if setting.quick else Amount(), steps=steps, epochs=epochs)
    chosen = setting.among([*map(str, amount.sides), "plan"])
    for side in (side for side in amount.sides if str(side) in chosen):
        scan = Scan.of((side, side, side), angles, side)
        yield {"part": "volume", "side": side, "angles": angles, "voxels": side**3} | reconstructed(scan, amount)
    for side in amount.flat if "plan" in chosen else ():
        bins = side * BINS // SIDE
        yield {"part": "plan", "side": side, "pixels": side**2} | costs(Scan.of((side, side), ANGLES, bins), amount)


def reconstructed(scan: Scan, amount: Amount) -> Row:
    """What a volume costs, and how good it and its error bars are inside the object."""
    fit = measured(lambda: scan.fitted(amount))
    em = measured(lambda: scan.tuned(fit.value, amount))
    posterior = em.value
    draws = measured(lambda: posterior.std)
    near = (scan.truth - posterior.mean).abs() < REACH * draws.value
    row: Row = {"rays": len(scan.sinogram), "weights": len(posterior.observed.weights)}
    for name, cost in (("fit", fit), ("em", em), ("draw", draws)):
        row |= {f"{name}_seconds": cost.seconds, f"{name}_mib": cost.peak_mib}
    row |= {"seconds": fit.seconds + em.seconds + draws.seconds, "psnr": ct.psnr(posterior.mean, scan.truth)}
    row |= {"coverage": float(near[scan.truth > INSIDE].float().mean()), "precision": float(posterior.prior_precisions)}
    return row | {"precisions": [step.prior_precision[0] for step in posterior.trace]}


def costs(scan: Scan, amount: Amount) -> Row:
    """Seconds of a product with J and of one with its transpose, of those with T, and what they need in memory."""
    like = scan.truth
    network = ct.UNet(2, channels=amount.channels, generator=generator(0))
    observed = scan.observed(network, probes.gaussian((1, 1, *like.shape), like=like, generator=generator(1)))
    weights, image = torch.ones(len(observed.weights), 1), torch.ones(like.numel(), 1)
    rays = scan.operator.push(image)

    def products() -> None:
        chunk = single_chunk(observed.image, 1)
        chunk.pull(chunk.push(weights))

    def projections() -> None:
        scan.operator.pull(scan.operator.push(image))

    through, across = measured(products), [timed(projections)[1] for _ in range(REPEATS)]
    row: Row = {"rays": len(rays), "weights": len(weights), "network_mib": through.peak_mib}
    row |= {"network_seconds": min(timed(products)[1] for _ in range(REPEATS)), "projector_seconds": min(across)}
    return row | {"projector_mib": scan.operator.bytes / 2**20}


def verdicts(found: Sequence[Row]) -> Iterator[Row]:
    """Memory a voxel, whether it grows in proportion, and the plan."""
    volumes = [row for row in found if row["part"] == "volume"]
    for row in volumes:
        yield {"verdict": "memory of EM, KiB a voxel", "side": row["side"]} | {
            "kib": 1024 * row["em_mib"] / row["voxels"] if row["em_mib"] else None
        }
    plan = [row for row in found if row["part"] == "plan"]
    if len(plan) > 1:
        small, large = plan[-2:]
        pixels, rays = SIDE**2, ANGLES * BINS
        crossed = rays * SIDE  # a ray reads two pixels of each column or row
        network = large["network_seconds"] * pixels / large["pixels"]
        projector = large["projector_seconds"] * crossed / (large["rays"] * large["side"])
        growth = (large["network_seconds"] / small["network_seconds"]) / (large["pixels"] / small["pixels"])
        memory = [row["network_mib"] for row in plan]
        mib = memory[-1] * pixels / large["pixels"] if all(memory) else None
        held = large["projector_mib"] * crossed / (large["rays"] * large["side"])
        planned: Row = {"pixels": pixels, "rays": rays, "product_seconds": network + projector}
        planned |= {"network_mib": mib, "projector_mib": held, "seconds_over_pixels": growth}
        yield {"verdict": f"{SIDE} x {SIDE}, planned: a product and its transpose for one column"} | planned


STUDY = Study(rows, (), verdict=verdicts, seeds=1, options=OPTIONS)
