"""The projector against line integrals in closed form and scikit-image's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapwing.ct.beams import FanBeam, Parallel2d, Parallel3d
from lapwing.ct.geometry import Geometry, equidistant
from lapwing.ct.phantoms import Ellipses
from lapwing.ct.projector import Projector, _entries
from tests.posterior_cases import normal

TURN = equidistant(11, 2 * math.pi) + 0.1
GEOMETRIES = [
    Parallel2d((90, 120), TURN, detector=100, pixel_size=0.1, bin_size=0.15, offset=0.07),
    FanBeam((90, 120), TURN, detector=100, pixel_size=0.1, bin_size=0.25, offset=0.07, source=20.0, distance=14.0),
]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: type(g).__name__)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


@every_geometry
def test_a_blob_has_the_line_integrals_of_the_formula(geometry: Geometry) -> None:
    """A normal density of standard deviation s in the plane is one along each ray, at the ray's distance."""
    centre, s = torch.tensor([1.3, -0.8]).double(), 0.7
    image = torch.exp(-(geometry.points - centre).square().sum(-1) / (2 * s**2)) / (2 * math.pi * s**2)
    origin, direction = geometry.rays()
    rest = origin - centre
    distance = rest[..., 0] * direction[..., 1] - rest[..., 1] * direction[..., 0]
    truth = torch.exp(-distance.square() / (2 * s**2)) / math.sqrt(2 * math.pi * s**2)
    assert error(Projector(geometry, torch.float64).push(image), truth.flatten()) < 2e-3


@every_geometry
def test_ellipses_have_their_chords(geometry: Geometry) -> None:
    """Pixels at the edge stand for a part of it: an error that falls with the size of the pixels."""
    parts = ((1.0, 2.5, 1.5, 0.5, 0.3, 0.7), (-0.6, 1.0, 1.0, 0.8, -0.4, 0.0))
    ellipses = Ellipses(parts, scale=1.2)
    truth = ellipses.sinogram(geometry).flatten()
    coarse = replace(geometry, pixels=(45, 60), pixel_size=0.2)
    rough, fine = (
        error(Projector(g, torch.float64).push(ellipses.image(g).flatten()), truth) for g in (coarse, geometry)
    )
    assert fine < 0.02 and fine < 0.6 * rough


def test_it_is_the_radon_transform_of_scikit_image() -> None:
    transform = pytest.importorskip("skimage.transform")
    y, x = torch.meshgrid(torch.arange(128.0), torch.arange(128.0), indexing="ij")
    blobs = ((1.0, 74, 59, 12), (0.7, 44, 79, 8), (-0.4, 64, 84, 6))
    image = sum(a * torch.exp(-((x - p) ** 2 + (y - q) ** 2) / (2 * s**2)) for a, p, q, s in blobs).double()
    image *= (x - 64) ** 2 + (y - 64) ** 2 < 63**2  # it turns about pixel 64, and warns of what lies outside
    angles = equidistant(15)
    theirs = torch.tensor(transform.radon(image.numpy(), angles.rad2deg().numpy()).T)
    geometry = Parallel2d((129, 129), angles, detector=129)
    padded = torch.nn.functional.pad(image, (0, 1, 0, 1))
    found = Projector(geometry, torch.float64).push(padded.flatten()).view(15, 129)[:, :128]
    assert error(found, theirs) < 1e-3


def test_the_adjoint_is_exact_in_single_precision(device: torch.device) -> None:
    t = Projector(Parallel2d((40, 50), equidistant(9)), device=device)
    assert t.matrix.dtype == torch.float32 and t.matrix.values().dtype == torch.float32
    v, u = normal(t.shape[1]).to(t.like), normal(t.shape[0], seed=1).to(t.like)
    pushed, pulled = t.push(v), t.pull(u)
    there, here = (pulled.double() * v.double()).sum(), (pushed.double() * u.double()).sum()
    assert abs(there - here) <= 1e-6 * float(pushed.norm() * u.norm())


def test_slices_are_projected_each_by_itself_and_angles_lead() -> None:
    plane, stack = (
        kind((4, 5), TURN, detector=6) for kind in (Parallel2d, lambda *a, **k: Parallel3d(*a, layers=3, **k))
    )
    volume = normal(3, 4, 5)
    alone = [Projector(plane, torch.float64).push(part.flatten()).view(11, 6) for part in volume]
    found = Projector(stack, torch.float64).push(volume.flatten()).view(stack.sinogram)
    torch.testing.assert_close(found, torch.stack(alone, 1))


@every_geometry
def test_the_projector_of_some_angles_is_their_rows(geometry: Geometry) -> None:
    t, index = Projector(geometry, torch.float64), [7, 2]
    x = normal(t.shape[1], 2)
    torch.testing.assert_close(
        t.select(index).push(x), t.push(x).unflatten(0, (11, -1))[index].flatten(0, 1), rtol=0, atol=1e-12
    )


def test_its_bytes_are_those_of_what_it_holds() -> None:
    t = Projector(Parallel2d((8, 8), equidistant(5)))
    parts = [part for m in (t.matrix, t.transposed) for part in (m.crow_indices(), m.col_indices(), m.values())]
    assert t.bytes == sum(part.nbytes for part in parts)
    assert t.bytes <= t.shape[0] * 8 * 32 + 4 * (sum(t.shape) + 2)


def test_pieces_of_the_matrix_make_the_whole() -> None:
    (whole,) = _entries(GEOMETRIES[1])
    pieces = list(_entries(GEOMETRIES[1], 2 * 120 * 37))
    assert len(pieces) > 1
    for place, expected in enumerate(whole):
        assert torch.equal(torch.cat([piece[place] for piece in pieces]), expected)
