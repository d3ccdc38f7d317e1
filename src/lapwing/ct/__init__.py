"""Tomography: a projector, classical reconstructions, and what they need."""

from __future__ import annotations

from lapwing.ct.beams import FanBeam, Parallel2d, Parallel3d
from lapwing.ct.design import Design
from lapwing.ct.dip import DeepImagePrior, Reconstruction, pretrained
from lapwing.ct.files import Scan, read_scan
from lapwing.ct.filtered import filtered_back_projection
from lapwing.ct.geometry import Geometry, equidistant
from lapwing.ct.image import ImagePosterior, image_prior
from lapwing.ct.interval import Interval
from lapwing.ct.noise import add_gaussian, count_photons, log_transform, noise_level
from lapwing.ct.observed import Measurement, Observed, linear_image
from lapwing.ct.operators import Fourier, FunctionMeasurement, measurement
from lapwing.ct.patches import log_density, patch_covariance, psnr
from lapwing.ct.phantoms import Ellipses, digits, rectangles, shepp_logan, walnut
from lapwing.ct.pixels import PixelFit, fit_pixels, pixel_prior
from lapwing.ct.predcp import TVPredCP
from lapwing.ct.projector import Projector
from lapwing.ct.unet import UNet, dropped
from lapwing.ct.variation import tv_reconstruction
from lapwing.ct.whitened import Whitened

__all__ = [
    "DeepImagePrior",
    "Design",
    "Ellipses",
    "FanBeam",
    "Fourier",
    "FunctionMeasurement",
    "Geometry",
    "ImagePosterior",
    "Interval",
    "Measurement",
    "Observed",
    "Parallel2d",
    "Parallel3d",
    "PixelFit",
    "Projector",
    "Reconstruction",
    "Scan",
    "TVPredCP",
    "UNet",
    "Whitened",
    "add_gaussian",
    "count_photons",
    "digits",
    "dropped",
    "equidistant",
    "filtered_back_projection",
    "fit_pixels",
    "image_prior",
    "linear_image",
    "log_density",
    "log_transform",
    "measurement",
    "noise_level",
    "patch_covariance",
    "pixel_prior",
    "pretrained",
    "psnr",
    "read_scan",
    "rectangles",
    "shepp_logan",
    "tv_reconstruction",
    "walnut",
]
