"""Evidence at the mode and at the trained weights of a U-net that is a deep image prior (Antorán 2024, table 5.1).

An image is scanned from few angles, and a U-net fitted to the scan. The posterior is that of its tangent model, whose
evidence is exact in the space of the rays. Its prior, a single precision or one for each block, is chosen as in
``studies.sampled.table``, and the noise with it. Scores are nats a pixel of the true image. Beside them two variances
that are the same for all pixels: the one that would explain the residuals of the scan, and the one that is best for
this image, known only to whoever has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import generator, mnist
from benchmarks.networks import weight_count
from benchmarks.report import Row
from lapwing import ct
from lapwing.ct.patches import FLOOR
from studies.published import beside_published
from studies.sampled.setting import SOURCE, START, quietly
from studies.sampled.table import WHERE

ANGLES = 20
NOISE = 0.05
"""Standard deviation of the noise, over the mean of the scan without it."""

BLOCKS = ("down.0.", "down.1.", "down.2.", "up.0.", "up.1.")
"""Parts of the network that have a precision each; what is in none of them, convolutions of 1 x 1, has one together."""

PRIORS: Mapping[str, lw.Prior] = {"single": lw.Isotropic(START), "layerwise": lw.Layerwise(START)}
PUBLISHED: Mapping[tuple[str, str], float] = {
    ("mode", "single"): -1.793,
    ("mode", "layerwise"): -2.240,
    ("weights", "single"): -1.164,
    ("weights", "layerwise"): -1.703,
}
"""NLL of table 5.1, nats a pixel, on ten images of KMNIST."""

RESIDUAL = "one variance, from the residuals"
BEST = "one variance, the best of this image"
COUNTS = ("fit_step",)
OPTIONS = {
    "first": (0, "image, for a run of its own of some: up to --seeds"),
    "rate": (1e-3, "of the descent, 1e-4 in the source"),
}
COLUMNS = ("nll", "joint", "mean_std", "rms_error", "precision", "noise_ratio")


@final
@dataclass(frozen=True, eq=False)
class Scan:
    """A scan of an image, and the network that was fitted to it.

    Args:
        truth: The image, ``[side, side]``.
        matrix: T, ``[rays, pixels]``.
        sinogram: y.
        noise_std: Standard deviation of its noise.
        found: The reconstruction.
    """

    truth: Float[Tensor, "side side"]
    matrix: Float[Tensor, "rays pixels"]
    sinogram: Float[Tensor, " rays"]
    noise_std: float
    found: ct.Reconstruction

    @classmethod
    def of(cls, truth: Float[Tensor, "side side"], seed: int, setting: Setting) -> Scan:
        """A scan with noise of a seed; the network starts from the image that filtered back-projection makes of it."""
        angles, channels, steps = (6, 4, 60) if setting.quick else (ANGLES, 32, 3000)
        geometry = ct.Parallel2d((len(truth), len(truth)), ct.equidistant(angles))
        operator = ct.Projector(geometry)
        y, std = ct.add_gaussian(operator.push(truth.reshape(-1, 1))[:, 0], NOISE, generator=generator(seed))
        z = ct.filtered_back_projection(y, geometry)[None, None]
        network = ct.UNet(channels=channels, generator=generator(seed + 100))
        recipe = ct.DeepImagePrior(tv=3.0, rate=setting.more["rate"], steps=steps, seed=seed)
        with quietly():
            found = recipe.fit(network, z, operator, y, noise_std=std)
        return cls(truth, operator.push(torch.eye(truth.numel())), y, std, found)

    @property
    def error(self) -> Float[Tensor, " pixels"]:
        """The true image less the network's, float64."""
        return (self.truth - self.found.image).flatten().double()

    @property
    def residual(self) -> Float[Tensor, " rays"]:
        """What was measured less what the network's image would have shown, float64."""
        return (self.sinogram - self.matrix @ self.found.image.flatten()).double()


@final
class Blocks(nn.Module):
    """A linear network with a layer of one output for each part of its inputs, which it adds up.

    Args:
        weights: Of each part.
    """

    def __init__(self, weights: Sequence[Float[Tensor, " d"]]) -> None:
        super().__init__()
        self.sizes = [len(part) for part in weights]
        self.layers = nn.ModuleList()
        for part in weights:
            layer = nn.Linear(len(part), 1, bias=False)
            layer.weight = nn.Parameter(part[None].clone())
            self.layers.append(layer)

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
        """The sum of the layers."""
        parts = rows.split(self.sizes, dim=1)
        return torch.stack([layer(part) for layer, part in zip(self.layers, parts, strict=True)]).sum(0)


@final
@dataclass(frozen=True, eq=False)
class TangentImage:
    """The tangent model of a network's image as a linear network, and what it reads.

    The weights of a block have one precision, so that another orthonormal basis of them changes nothing. Here they are
    in one in which all but as many as there are pixels have no effect, and all of those without lie along one axis.

    Args:
        network: The linear network, at the trained weights.
        features: J, ``[pixels, d]``: its inputs where it makes the image.
    """

    network: Blocks
    features: Float[Tensor, "pixels d"]

    @classmethod
    def of(cls, found: ct.Reconstruction) -> TangentImage:
        """That of a reconstruction, in the weights of its convolutions."""
        image = ct.linear_image(found.network, found.z)
        pixels = found.image.numel()
        each_pixel = ct.measurement(torch.eye(pixels))
        jacobian = ct.Observed(image, each_pixel, torch.zeros(pixels)).features.detach()
        features, weights = list[Tensor](), list[Tensor]()
        for indices in blocks_of(image.layout.names, image.layout.sizes):
            basis, triangle = torch.linalg.qr(jacobian[:, indices].mT)
            within = basis.mT @ image.weights[indices]
            without = image.weights[indices] - basis @ within
            weights.append(torch.cat([within, without.norm()[None]]).double())
            features.append(torch.cat([triangle.mT, torch.zeros(pixels, 1)], 1).double())
        return cls(Blocks(weights), torch.cat(features, 1))

    def posterior(self, scan: Scan, prior: lw.Prior) -> lw.Posterior:
        """The posterior given a scan, with its whole covariance.

        The linear network has no offset, so that its targets are ``y + T (J w̃ - x̃)`` (equation 7.11).

        Args:
            scan: Whose tangent model it is.
            prior: Of the weights.
        """
        rows = scan.matrix.double() @ self.features
        with torch.no_grad():
            targets = self.network(rows) + scan.residual[:, None]
        recipe = lw.Laplace(lw.Gaussian(scan.noise_std**-2), prior=prior, structure=lw.Full(view="functions"))
        return recipe.fit(self.network, (rows, targets))


def blocks_of(names: Sequence[str], sizes: Sequence[int]) -> list[Tensor]:
    """Positions of the weights of each block, and last those of none."""
    found: dict[int, list[Tensor]] = {}
    start = 0
    for name, size in zip(names, sizes, strict=True):
        number = next((k for k, block in enumerate(BLOCKS) if name.startswith(block)), len(BLOCKS))
        found.setdefault(number, []).append(torch.arange(start, start + size))
        start += size
    return [torch.cat(found[number]) for number in sorted(found)]


def rows(setting: Setting) -> Iterator[Row]:
    """The scan of every image by every choice of the prior; a seed is an image."""
    truths = images(setting)
    for seed in setting.repeats[setting.more["first"] :]:
        scan = Scan.of(truths[seed], seed, setting)
        for found in of_scan(scan):
            yield {"part": "U-net", "rate": f"{setting.more['rate']:g}", "seed": seed} | found


def images(setting: Setting) -> Float[Tensor, "n side side"]:
    """The first test images of MNIST; without them, digits of scikit-learn, enlarged, in a hurry small ones."""
    if setting.data is not None:
        return mnist(setting.data).x_test[:, 0]
    side = 12 if setting.quick else 28
    return ct.digits(side, count=len(setting.repeats), generator=generator()).float()


def of_scan(scan: Scan) -> Iterator[Row]:
    """The network with one variance for all pixels, and with those of each choice of the prior."""
    error = scan.error
    pixels = len(error)
    cost: Row = {"fit_step": scan.found.step, "held_out": scan.found.held_out, "noise_std": scan.noise_std}
    cost |= {"weights": weight_count(scan.found.network), "rays": len(scan.sinogram)}
    cost["psnr"] = ct.psnr(scan.found.image, scan.truth)
    white = float(scan.residual.square().sum() / scan.matrix.double().square().sum())
    for name, variance in {RESIDUAL: white, BEST: float(error.square().mean())}.items():
        yield {"method": name} | cost | scores(error, variance * torch.eye(pixels, dtype=error.dtype), scan)
    tangent = TangentImage.of(scan.found)
    for prior, known in PRIORS.items():
        start = tangent.posterior(scan, known)
        for where, method in WHERE.items():
            with quietly():
                tuned = lw.tune(start, method)
            row: Row = {"method": f"evidence at the {where}, {prior}", "where": where, "prior": prior}
            row |= {"precision": float(tuned.prior_precisions.log().mean().exp())}
            row |= {"precisions": tuned.prior_precisions.tolist()}
            row["noise_ratio"] = tuned.noise_scale
            yield row | scores(error, covariance(tuned, tangent.features), scan)


def covariance(posterior: lw.Posterior, features: Float[Tensor, "pixels d"]) -> Float[Tensor, "pixels pixels"]:
    """That of all pixels together."""
    pixels = len(features)
    with quietly():
        return posterior.outputs(features, joint=True).covariance.reshape(pixels, pixels)


def scores(error: Float[Tensor, " pixels"], covariance: Float[Tensor, "pixels pixels"], scan: Scan) -> Row:
    """How likely the true image is, pixel by pixel and as a whole, nats a pixel, lower is better; how large errors are.

    Every variance is at least ``ct.log_density``'s.
    """
    floor = FLOOR * float(scan.truth.max() - scan.truth.min()) ** 2
    variances = covariance.diagonal() + floor
    single = torch.distributions.Normal(torch.zeros_like(error), variances.sqrt())
    raised = covariance + floor * torch.eye(len(error), dtype=error.dtype)
    together = torch.distributions.MultivariateNormal(torch.zeros_like(error), raised)
    return {
        "nll": -float(single.log_prob(error).mean()),
        "joint": -float(together.log_prob(error)) / len(error),
        "mean_std": float(variances.sqrt().mean()),
        "rms_error": float(error.square().mean().sqrt()),
    }


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Means over the images beside the source's table."""
    for row in found:
        printed = published(row)
        if row.get("summary") and printed is not None:
            quantity = f"{row['part']}, rate {row['rate']}: test NLL a pixel, {row['method']}"
            yield beside_published(quantity, row["nll"], printed, f"{SOURCE}, table 5.1")


def published(row: Row) -> float | None:
    """The NLL that the source has for a choice of the prior; ``None`` where it has none."""
    return PUBLISHED[row["where"], row["prior"]] if "where" in row else None
