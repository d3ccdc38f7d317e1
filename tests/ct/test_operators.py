"""Every measurement is linear, has its exact adjoint, and is differentiable by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator
from torch.func import jvp, vjp, vmap

from lapwing.ct.beams import FanBeam, Parallel2d, Parallel3d
from lapwing.ct.geometry import equidistant
from lapwing.ct.observed import Measurement
from lapwing.ct.operators import ForwardOperator, Fourier, FunctionMeasurement, measurement
from lapwing.ct.projector import Projector
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError
from lapwing.linalg import FunctionOperator
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

MATRIX = normal(6, 15, seed=4)
GAPS = MATRIX * (MATRIX > 0)
MASK = normal(3, 5, seed=5) > 0
ANGLES = equidistant(4)
MEASUREMENTS: dict[str, Callable[[], ForwardOperator]] = {
    "parallel": lambda: Projector(Parallel2d((3, 5), ANGLES, detector=7), torch.float64),
    "slices": lambda: Projector(Parallel3d((3, 5), ANGLES, detector=7, layers=2), torch.float64),
    "fan": lambda: Projector(FanBeam((3, 5), ANGLES, detector=7, source=9.0, distance=3.0), torch.float64),
    "fourier": lambda: Fourier(MASK, torch.float64),
    "pair": lambda: FunctionMeasurement(lambda v: MATRIX @ v, lambda u: MATRIX.mT @ u, (6, 15), MATRIX),
    "dense": lambda: measurement(MATRIX),
    "sparse": lambda: measurement(GAPS.to_sparse()),
    "compressed": lambda: measurement(GAPS.to_sparse_csr()),
    "operator": lambda: measurement(FunctionOperator(lambda v: MATRIX @ v, lambda u: MATRIX.mT @ u, (6, 15), MATRIX)),
    "array": lambda: measurement(MATRIX.numpy()),
    "scipy": lambda: measurement(sparse.csr_array(GAPS.numpy())),
}
every_measurement = pytest.mark.parametrize("name", MEASUREMENTS)


@every_measurement
def test_pull_is_the_adjoint_of_push(name: str) -> None:
    t = MEASUREMENTS[name]()
    assert isinstance(t, Measurement)
    rows, pixels = t.shape
    dense = t.push(torch.eye(pixels).double())
    torch.testing.assert_close(t.pull(torch.eye(rows).double()), dense.mT)
    v, u = normal(pixels, 3), normal(rows, 3, seed=1)
    torch.testing.assert_close(t.push(v), dense @ v)
    torch.testing.assert_close(t.push(v[:, 0]), dense @ v[:, 0])
    torch.testing.assert_close(t.pull(u[:, 0]), dense.mT @ u[:, 0])
    assert dense.abs().sum() > 0


@every_measurement
def test_gradients_are_products_with_the_adjoint(name: str) -> None:
    t = MEASUREMENTS[name]()
    rows, pixels = t.shape
    v, u = normal(pixels, 2).requires_grad_(), normal(rows, 2, seed=1).requires_grad_()
    gradient = torch.autograd.grad((t.push(v) * u).sum(), v, create_graph=True)[0]
    torch.testing.assert_close(gradient, t.pull(u))
    torch.testing.assert_close(torch.autograd.grad((gradient * v).sum(), u)[0], t.push(v))


def test_function_transforms_pass_through() -> None:
    t = MEASUREMENTS["slices"]()
    v, w, u = normal(t.shape[1], 2), normal(t.shape[1], 2, seed=1), normal(t.shape[0], 2, seed=2)
    torch.testing.assert_close(jvp(t.push, (v,), (w,))[1], t.push(w))
    torch.testing.assert_close(vjp(t.push, v)[1](u)[0], t.pull(u))
    torch.testing.assert_close(vmap(t.push, in_dims=1, out_dims=1)(v), t.push(v))


def test_matrices_are_themselves() -> None:
    v = normal(15, 2)
    for name, matrix in (("dense", MATRIX), ("sparse", GAPS), ("operator", MATRIX), ("array", MATRIX), ("scipy", GAPS)):
        torch.testing.assert_close(MEASUREMENTS[name]().push(v), matrix @ v)


def test_fourier_is_unitary_where_all_is_measured_and_reads_the_frequencies_of_its_mask() -> None:
    x = normal(15, 2)
    everything = Fourier(torch.ones(3, 5, dtype=torch.bool), torch.float64)
    torch.testing.assert_close(everything.push(x).square().sum(0), x.square().sum(0))
    z = np.fft.fft2(x[:, 0].view(3, 5).numpy(), norm="ortho")[MASK.numpy()]
    torch.testing.assert_close(
        Fourier(MASK, torch.float64).push(x[:, 0]), torch.tensor(np.concatenate([z.real, z.imag]))
    )


def test_what_is_no_measurement_is_refused() -> None:
    with refused(ConfigError, "adjoint= to be the adjoint of forward="):
        FunctionMeasurement(lambda v: 2 * v, lambda u: u / 2, (4, 4))
    with refused(ShapeError, "forward= to give [3, 6]. Got [4, 6]"):
        FunctionMeasurement(lambda v: v, lambda u: u, (3, 4))
    with refused(ConfigError, "a matrix, or an operator of SciPy"):
        measurement("radon")
    for vector in (MATRIX[0], MATRIX[0].numpy()):
        with refused(ShapeError, "a matrix [rows, pixels]. Got [15]"):
            measurement(vector)
    with refused(UnsupportedError, "a matrix of real numbers. Got torch.int64"):
        measurement(MATRIX.long())
    with refused(ShapeError, "[pixels] or [pixels, k] with 15 pixels. Got [3, 5]"), unchecked():
        measurement(MATRIX).push(normal(3, 5))
    with refused(UnsupportedError, "dtype torch.float64. Got torch.float32"):
        measurement(MATRIX).push(torch.zeros(15))
    with refused(ShapeError, "0 of it not zero"):
        Fourier(torch.zeros(3, 5, dtype=torch.bool))
    with refused(ShapeError, "a boolean mask"), unchecked():
        Fourier(torch.ones(3, 5))
    with refused(ConfigError, "geometry to be of type Geometry"), unchecked():
        Projector((128, 128))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, aslinearoperator])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_matrix_of_scipy_multiplies_images_of_its_own_dtype(
    kind: Any, dtype: Any, generator: torch.Generator
) -> None:
    matrix = torch.randn(3, 5, generator=generator).numpy().astype(dtype)
    t, v, u = measurement(kind(matrix)), torch.arange(5.0), torch.arange(3.0)
    own = torch.as_tensor(matrix)
    torch.testing.assert_close(t.push(v.to(own)), own @ v.to(own))
    torch.testing.assert_close(t.pull(u.to(own)), own.mT @ u.to(own))


def test_a_matrix_of_complex_numbers_is_refused() -> None:
    with refused(UnsupportedError, "a matrix of real numbers. Got complex128"):
        measurement(np.eye(3, dtype=complex))
