"""Tomography: ``lapwing ct reconstruct | propose`` of files, and ``lapwing ct demo``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import lapwing as lw
from lapwing.cli.continuation import continued
from lapwing.cli.demonstration import QUICK, demonstrate
from lapwing.cli.imaging import ImagingEffort, check_one_slice, common_noise
from lapwing.cli.reconstruction import reconstructed
from lapwing.cli.say import make_folder, say
from lapwing.ct import FanBeam, Geometry, Parallel2d, Parallel3d, Scan
from lapwing.ct.design import Criterion
from lapwing.ground.arrays import read_arrays
from lapwing.ground.errors import ConfigError, DataError, DataWarning, check_count, check_positive, warn
from lapwing.ground.precision import wide

LEAST = 0.01
"""Noise over the mean of a sinogram, at least: rays through pixels are off by as much at the edges of an object."""

COUNTS = 50
"""Whole numbers this large are taken for photons: behind an object that dense there would be none."""


@final
@dataclass(frozen=True)
class Tomograph:
    """How a scan was made.

    Args:
        angles: A .npy or text file of the angles in radians, where the scan has none.
        pixels: Along each side of the image; as many as bins if not given.
        pixel_size: Side of a pixel, in a unit of yours that all lengths have.
        bin_size: Width of a bin of the detector; that of a pixel as it is seen there if not given.
        offset: How far the middle of the detector stands from where the middle ray meets it.
        source: From the source of a fan beam to the axis; parallel rays if not given.
        distance: From the axis to the detector of a fan beam.
        name: What a file of several arrays calls the sinogram, such as exchange/data.
        slice: Number of the slice that is taken of a scan of several, from 0; all if not given.
        photons: Photons of a ray without an object, where the scan has counts; it is made a sinogram then.
    """

    angles: Path | None = None
    pixels: int | None = None
    pixel_size: float = 1.0
    bin_size: float | None = None
    offset: float = 0.0
    source: float | None = None
    distance: float = 0.0
    name: str = "sinogram"
    slice: int | None = None
    photons: float | None = None

    def read(self, scan: Path) -> Measured:
        """A scan, where its rays run, and the variance of each where it is known.

        Args:
            scan: Its file.

        Raises:
            ConfigError: If an option makes no sense.
            DataError: If a file cannot be read, or the scan shows no object.
        """
        if self.pixels is not None:
            check_count("--pixels", self.pixels, usual=128)
        read = lw.ct.read_scan(scan, name=self.name)
        y, variance = self._rays(read)
        of = angles_of(read, self.angles)
        bins = y.shape[-1]
        side = (self.pixels or bins, self.pixels or bins)
        geometry: Geometry
        if self.source is not None:
            more = {"source": self.source, "distance": self.distance}
            geometry = FanBeam(side, of, bins, self.pixel_size, self.bin_size, self.offset, **more)
        elif y.ndim == 3:
            geometry = Parallel3d(side, of, bins, self.pixel_size, self.bin_size, self.offset, y.shape[1])
        else:
            geometry = Parallel2d(side, of, bins, self.pixel_size, self.bin_size, self.offset)
        geometry.check(y)
        check_object(y, scan)
        return Measured(geometry, y, variance)

    def _rays(self, scan: Scan) -> tuple[Tensor, Tensor | None]:
        """Its sinogram, of the slice that is taken, and the variance of each ray where the scan or its counts tell.

        Raises:
            ConfigError: If there is no such slice, or photons are not positive.
        """
        y = scan.sinogram
        variance = scan.variance
        if self.slice is not None:
            slices = y.shape[1] if y.ndim == 3 else 1
            if not 0 <= self.slice < slices:
                raise ConfigError(f"--slice from 0 to {slices - 1}", f"{self.slice}", "--slice 0, the first")
            y = y[:, self.slice] if y.ndim == 3 else y
            variance = variance[:, self.slice] if variance is not None and variance.ndim == 3 else variance
        if self.photons is not None:
            check_positive("--photons", self.photons, "1e5")
            y, variance = lw.ct.log_transform(y, self.photons)
        return y, variance


@final
@dataclass(frozen=True, eq=False)
class Measured:
    """A scan that was read.

    Args:
        geometry: Where its rays run.
        sinogram: Its line integrals.
        variance: Of the noise of each ray, where it is known.
    """

    geometry: Geometry
    sinogram: Float[Tensor, "angles *bins"]
    variance: Float[Tensor, "angles *bins"] | None


def reconstruct(
    scan: Path,
    /,
    *,
    tomograph: Tomograph = Tomograph(),
    method: Literal["tv", "fbp", "dip"] = "tv",
    weight: float = 2.0,
    noise_std: float | None = None,
    steps: int = 1500,
    samples: int = 64,
    seed: int = 0,
    out: Path = Path("runs/ct/reconstruct"),
) -> dict[str, Any]:
    """Reconstruct an image from a sinogram, and save it.

    Args:
        scan: The sinogram [angles, bins] or [angles, slices, bins]: .npy, .npz, .mat or .h5 (sinogram, and if it has
            them angles, variance), .tif or a folder.
        tomograph: How it was made.
        method: Little total variation, filtered back-projection with Hann's window, or a deep image prior, which has
            error bars.
        weight: Of the total variation of the image over its mean along the largest ray, for tv; larger is smoother.
        noise_std: Standard deviation of the sinogram's noise, for tv and dip; the scan's if not given, or estimated.
        steps: Most steps of the fit of dip.
        samples: Draws behind the error bars of dip.
        seed: Of everything random, for dip.
        out: Folder for image.npy, and image.png where matplotlib is installed; of dip std.npy, results.json and
            report.html too.
    """
    check_positive("--weight", weight, "2")
    check_noise(noise_std)
    check_count("--steps", steps, usual=1500)
    check_count("--samples", samples, 2)
    check_count("--seed", seed, 0)
    measured = tomograph.read(scan)
    geometry = measured.geometry
    y = measured.sinogram
    if method == "dip":
        check_one_slice(geometry)
        make_folder(out, "image.npy", "std.npy", "results.json", "reconstruction.png", "report.html")
        effort = ImagingEffort(steps=steps, samples=samples)
        return _with_error_bars(measured, noise_of(measured, noise_std), effort, seed, out)
    make_folder(out, "image.npy", "image.png")
    say(f"sinogram     {' × '.join(map(str, y.shape))}")
    if method == "fbp":
        image = lw.ct.filtered_back_projection(y, geometry, "hann")
    else:
        mean = float(y.abs().max()) / (geometry.pixels[0] * geometry.pixel_size) + 1e-30
        precision = noise_of(measured, noise_std) ** -2
        found = lw.ct.tv_reconstruction(y, lw.ct.Projector(geometry), weight / mean, precision=precision)
        image = found.value
        say(f"steps        {found.iterations}, to a residual of {float(found.residual):.2g}")
    say(f"image        {' × '.join(map(str, image.shape))}, from {float(image.min()):.3g} to {float(image.max()):.3g}")
    np.save(out / "image.npy", image.numpy())
    files = list(map(str, [out / "image.npy", *write_picture(image, out / "image.png")]))
    say(f"saved        {', '.join(files)}")
    return {"image": files[0], "files": files, "shape": list(image.shape), "method": method}


def _with_error_bars(
    measured: Measured, noise_std: float | Tensor, effort: ImagingEffort, seed: int, out: Path
) -> dict[str, Any]:
    """The image of a deep image prior, its error bars, and their page: what was written, and how good it is."""
    say(f"sinogram     {' × '.join(map(str, measured.sinogram.shape))}")
    found = reconstructed(measured.geometry, measured.sinogram, noise_std, out=out, effort=effort, seed=seed)
    height, width = found["settings"]["pixels"]
    say(f"held out     {found['held_out']:.3g}, the squared misfit of rays held out over the noise's; 1 is noise alone")
    say(f"image        {height} × {width}, standard deviation of a pixel {found['std']:.3g} in the mean")
    files = [str(out / name) for name in ("image.npy", "std.npy", "report.html")]
    say(f"saved        {', '.join(files)}: {found['seconds']:.0f} seconds")
    told = {name: found[name] for name in ("held_out", "std", "seconds")}
    return {"image": files[0], "files": files, "shape": [height, width], "method": "dip"} | told


def propose(
    scan: Path,
    /,
    *,
    tomograph: Tomograph = Tomograph(),
    count: int = 5,
    candidates: int = 180,
    criterion: Criterion = "ese",
    noise_std: float | None = None,
    seed: int = 0,
    out: Path = Path("runs/ct/propose"),
) -> dict[str, Any]:
    """Propose the next angles of a scan that is still running, by what it has measured so far.

    Args:
        scan: The sinogram so far [angles, bins]: .npy, .npz, .mat or .h5 (sinogram, and if it has them angles,
            variance), .tif or a folder.
        tomograph: How it was made.
        count: How many angles to propose.
        candidates: Angles there might be, at equal distances over half a turn; of fans over a whole one.
        criterion: ese, the expected squared error of what an angle measures, or eig, its expected information gain.
        noise_std: Standard deviation of the sinogram's noise; the scan's if not given, one for all rays, or estimated.
        seed: Of everything random.
        out: Folder for results.json, next.png and report.html.
    """
    check_count("--count", count, usual=5)
    check_count("--candidates", candidates, usual=180)
    check_count("--seed", seed, 0)
    check_noise(noise_std)
    measured = tomograph.read(scan)
    geometry = measured.geometry
    y = measured.sinogram
    make_folder(out, "results.json", "next.png", "report.html")
    say(f"sinogram     {' × '.join(map(str, y.shape))}")
    std = common_noise(noise_of(measured, noise_std))
    found = continued(geometry, y, std, count=count, candidates=candidates, criterion=criterion, out=out, seed=seed)
    say(f"held out     {found['held_out']:.3g}, the squared misfit of rays held out over the noise's; 1 is noise alone")
    say("next angles  " + ", ".join(f"{angle:.4f}" for angle in found["next_angles"]) + " radians")
    say(f"saved        {out / 'results.json'}, {out / 'report.html'}: {found['seconds']:.0f} seconds")
    told = {name: found[name] for name in ("next_angles", "held_out", "seconds")}
    return {"results": str(out / "results.json"), "criterion": criterion} | told


def demo(*, out: Path = Path("runs/ct/demo"), seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Scan a generated walnut, reconstruct it three ways, give it error bars, and propose the next angles.

    Args:
        out: Folder for results.json, reconstruction.png and report.html.
        seed: Of everything random.
        quick: Very small, to see that everything runs.
    """
    check_count("--seed", seed, 0)
    make_folder(out, "results.json", "reconstruction.png", "report.html")
    found = demonstrate(out, size=QUICK if quick else None, seed=seed)
    say("PSNR         " + ", ".join(f"{name.upper()} {value:.2f} dB" for name, value in found["psnr"].items()))
    say(f"coverage     {found['coverage']:.3f} of the object's pixels in their 95 % intervals")
    marginal, patches = (found[f"{name}_log_likelihood"] for name in ("marginal", "patch"))
    say(f"log density  {marginal:.3f} nats a pixel, {patches:.3f} by patches")
    say("next angles  " + ", ".join(f"{angle:.3f}" for angle in found["next_angles"]) + " radians")
    say(f"saved        {out / 'results.json'}, {out / 'report.html'}: {found['seconds']:.0f} seconds")
    told = {name: found[name] for name in ("psnr", "coverage", "next_angles", "seconds")}
    return {"results": str(out / "results.json")} | told


def noise_of(measured: Measured, known: float | None) -> float | Float[Tensor, "angles *bins"]:
    """The standard deviation of its noise, which is said: as given, as the scan has it of each ray, or estimated.

    What is estimated, and what the scan has, is no less than what pixels are off by.

    Args:
        measured: The scan.
        known: As it was given.
    """
    sinogram = measured.sinogram
    if known is not None:
        say(f"noise        standard deviation {known:.3g}, as given")
        return known
    least = LEAST * float(sinogram.abs().mean()) + 1e-30
    if measured.variance is not None:
        each = measured.variance.sqrt().clamp_min(least)
        say(f"noise        of each ray, standard deviations from {float(each.min()):.3g} to {float(each.max()):.3g}")
        return each
    found = lw.ct.noise_level(sinogram, measured.geometry)
    if found.value < least:
        say(f"noise        standard deviation {least:.3g}, what pixels are off by; {found:.2g} of it is the scan's own")
        return least
    say(f"noise        standard deviation {found:.2g}, told from the scan; --noise-std where you know it")
    return found.value


def check_noise(std: float | None) -> None:
    """Refuses noise of no size; ``None`` is estimated."""
    if std is not None and not 0 < std < math.inf:
        raise ConfigError("a positive finite --noise-std", f"{std!r}", "--noise-std 0.05, or none to have it estimated")


def check_object(sinogram: Float[Tensor, "*angles bins"], scan: Path) -> None:
    """Refuses a sinogram whose mean is not positive, and warns of one that looks like counted photons.

    Args:
        sinogram: That of a scan.
        scan: Its file.

    Raises:
        DataError: If it shows no object.

    Warns:
        DataWarning: If it looks like counts.
    """
    mean = float(wide(sinogram).mean())
    largest = float(sinogram.max())
    hint = "lapwing.ct.log_transform(counts, photons), which makes a sinogram of counted photons"
    if not mean > 0:
        came = "zeros alone" if not bool(sinogram.any()) else f"values of mean {mean:.3g}"
        raise DataError(f"a sinogram in {scan} that shows an object, positive line integrals", came, hint)
    if largest >= COUNTS and bool((sinogram == sinogram.round()).all()):
        warn(f"{scan} holds whole numbers up to {largest:g}, as counts of photons are. Try {hint}", DataWarning)


def angles_of(scan: Scan, path: Path | None) -> Float[Tensor, " angles"]:
    """Those of a file, those of the scan, or equidistant ones over half a turn, which is said.

    Args:
        scan: What was read.
        path: The file.

    Raises:
        DataError: If there is no such file, or it holds no numbers, or another count of them.
    """
    count = len(scan.sinogram)
    if path is None:
        if scan.angles is None:
            say(f"angles       none given: {count} equidistant ones over half a turn; --angles FILE for others")
        return lw.ct.equidistant(count) if scan.angles is None else scan.angles
    if not path.is_file():
        raise DataError("a file of angles for --angles", f"no file {path}", "its path, one number a line, or a .npy")
    hint = "one number a line, or a .npy"
    if path.suffix == ".npy":
        found = read_arrays(path, "a file of angles", hint).get("", np.zeros(0))
    else:
        try:
            found = np.loadtxt(path)
        except ValueError as error:  # that text is not in UTF-8 is one too
            raise DataError("a file of angles", f"{path}: {error}", hint) from error
    if found.shape != (count,) or found.dtype.kind not in "fiu":
        got = f"{list(found.shape)} of {found.dtype} in {path}"
        raise DataError(f"{count} angles, one a projection", got, "the angles of this scan")
    return torch.as_tensor(found, dtype=torch.float64, device="cpu")


def write_picture(image: Float[Tensor, "*shape"], path: Path) -> list[Path]:
    """Draw an image, or the middle slice, if matplotlib is there; what was written.

    Args:
        image: ``[height, width]`` or ``[slices, height, width]``.
        path: Where to.
    """
    try:
        from matplotlib.image import imsave
    except ImportError:
        return []
    imsave(path, (image if image.ndim == 2 else image[len(image) // 2]).numpy(), cmap="gray")
    return [path]
