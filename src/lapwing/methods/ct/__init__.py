"""Tomography: a projector, classical reconstructions, and what they need."""

from __future__ import annotations

from lapwing.methods.ct.beams import FanBeam, Parallel2d, Parallel3d
from lapwing.methods.ct.design import Design
from lapwing.methods.ct.dip import DeepImagePrior, Reconstruction, pretrained
from lapwing.methods.ct.files import Scan, read_scan
from lapwing.methods.ct.filtered import filtered_back_projection
from lapwing.methods.ct.geometry import Geometry, equidistant
from lapwing.methods.ct.image import ImagePosterior, image_prior
from lapwing.methods.ct.interval import Interval
from lapwing.methods.ct.noise import add_gaussian, count_photons, log_transform, noise_level
from lapwing.methods.ct.observed import Measurement, Observed, linear_image
from lapwing.methods.ct.operators import Fourier, Given, measurement
from lapwing.methods.ct.patches import log_density, patch_covariance, psnr
from lapwing.methods.ct.phantoms import Ellipses, digits, rectangles, shepp_logan, walnut
from lapwing.methods.ct.pixels import PixelFit, fit_pixels, pixel_prior
from lapwing.methods.ct.predcp import TVPredCP
from lapwing.methods.ct.projector import Projector
from lapwing.methods.ct.unet import UNet, dropped
from lapwing.methods.ct.variation import tv_reconstruction

__all__ = [
    "DeepImagePrior",
    "Design",
    "Ellipses",
    "FanBeam",
    "Fourier",
    "Geometry",
    "Given",
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
