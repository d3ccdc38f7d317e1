"""Total variation against solutions known in closed form, and by another solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

from lapwing.ct.beams import Parallel2d, Parallel3d
from lapwing.ct.geometry import equidistant
from lapwing.ct.operators import measurement
from lapwing.ct.projector import Projector
from lapwing.ct.variation import _Saddle, tv_reconstruction
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, ShapeError, UnsupportedError
from tests.checker import unchecked
from tests.posterior_cases import normal, refused

SHAPE = (3, 4)
T = normal(20, 12, seed=1)
Y = T @ (normal(12) + 0.3) + 0.1 * normal(20, seed=2)


def dual(matrix: Tensor, y: Tensor, weight: float, *, nonnegative: bool) -> Tensor:
    """The minimiser from the bounded least squares of the multipliers, by SciPy.

    ``x = (TᵀT)⁻¹ (Tᵀy − Dᵀq + z)`` where ``|q| ≤ λ`` and ``z ≥ 0`` make ``|R⁻ᵀ(Tᵀy − Dᵀq + z)|`` smallest, RᵀR = TᵀT.
    """
    pixels = torch.eye(12).double().view(12, *SHAPE)
    d = torch.cat([pixels.diff(dim=1).flatten(1), pixels.diff(dim=2).flatten(1)], 1).numpy()
    r = np.linalg.cholesky((matrix.mT @ matrix).numpy(), upper=True)
    a, b = np.linalg.solve(r.T, np.hstack([-d, np.eye(12)])), np.linalg.solve(r.T, (matrix.mT @ y).numpy())
    low, high = (
        np.r_[np.full(d.shape[1], -weight), np.zeros(12)],
        np.r_[np.full(d.shape[1], weight), np.full(12, np.inf)],
    )
    used = slice(None) if nonnegative else slice(d.shape[1])
    a = a[:, used]
    found = lsq_linear(a, -b, (low[used], high[used]), method="bvls", tol=1e-14)
    return torch.tensor(np.linalg.solve(r, b + a @ found.x)).view(SHAPE)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("weight", [0.3, 4.0])
def test_it_is_the_minimiser(weight: float, nonnegative: bool) -> None:
    truth = dual(T, Y, weight, nonnegative=nonnegative)
    found = tv_reconstruction(Y, measurement(T), weight, nonnegative=nonnegative, image=SHAPE, rtol=1e-6)
    assert found.converged and found.residual <= 1e-6
    torch.testing.assert_close(found.value, truth, rtol=0, atol=1e-4)
    assert bool((truth < -0.01).any()) is not nonnegative  # the constraint matters


def test_a_step_is_lowered_by_the_weight_over_its_widths() -> None:
    """``min ½|x − y|² + λ|difference|``: the flat parts of m and n samples move by λ/m and λ/n."""
    y = torch.tensor([1.0, 1.0, 5.0, 5.0, 5.0]).double()
    found = tv_reconstruction(y, measurement(torch.eye(5).double()), 0.6, image=(1, 5), rtol=1e-5)
    truth = torch.tensor([1.3, 1.3, 4.8, 4.8, 4.8]).double()
    torch.testing.assert_close(found.value[0], truth, rtol=0, atol=1e-4)


def test_steps_are_as_short_as_the_norm_of_the_measurement_wants() -> None:
    norm = float(torch.linalg.matrix_norm(T, 2)) ** 2
    assert norm < _Saddle.of(Y, measurement(T), 1.0, 1.0, True, SHAPE).norm < 1.1 * norm


def test_precisions_weigh_rays() -> None:
    b = torch.linspace(0.5, 2.0, 20, dtype=torch.float64)
    scaled = tv_reconstruction(Y * b.sqrt(), measurement(T * b.sqrt()[:, None]), 1.0, image=SHAPE, rtol=1e-5)
    weighed = tv_reconstruction(Y, measurement(T), 1.0, precision=b, image=SHAPE, rtol=1e-5)
    torch.testing.assert_close(weighed.value, scaled.value, rtol=0, atol=1e-3)
    halved = tv_reconstruction(Y, measurement(T), 0.5, image=SHAPE, rtol=1e-5)
    doubled = tv_reconstruction(Y, measurement(T), 1.0, precision=2.0, image=SHAPE, rtol=1e-5)
    torch.testing.assert_close(doubled.value, halved.value, rtol=0, atol=1e-3)


def test_slices_that_are_the_same_are_reconstructed_as_one() -> None:
    angles, x = equidistant(6), (normal(5, 4) > 0).double()
    plane, stack = Parallel2d((5, 4), angles), Parallel3d((5, 4), angles, layers=3)
    y = Projector(plane, torch.float64).push(x.flatten()).view(plane.sinogram) + 0.1 * normal(*plane.sinogram)
    one = tv_reconstruction(y, Projector(plane, torch.float64), 0.3, rtol=1e-5).value
    three = tv_reconstruction(y[:, None].expand(-1, 3, -1), Projector(stack, torch.float64), 0.3, rtol=1e-5).value
    torch.testing.assert_close(three, one.expand(3, -1, -1), rtol=0, atol=1e-3)


def test_an_end_before_the_tolerance_is_a_warning_and_a_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(ConvergenceWarning, match="ended after 3 steps"):
        found = tv_reconstruction(Y, measurement(T), 1.0, image=SHAPE, iterations=3, progress=True)
    assert not found.converged and found.iterations == 3 and found.value.shape == SHAPE
    assert "total variation" in capsys.readouterr().err


def test_a_flat_image_is_found() -> None:
    found = tv_reconstruction(torch.tensor([1.0, 2.0, 3.0, 2.0]), measurement(torch.eye(4)), 50.0, image=(2, 2))
    assert found.converged
    torch.testing.assert_close(found.value, torch.full((2, 2), 2.0), rtol=0, atol=0.05)


def test_nothing_measured_is_nothing() -> None:
    assert tv_reconstruction(torch.zeros(20).double(), measurement(T), 1.0, image=SHAPE).value.abs().max() == 0


def test_what_does_not_fit_is_refused() -> None:
    with refused(ShapeError, "the shape of 12 pixels. Got None"):
        tv_reconstruction(Y, measurement(T), 1.0)
    with refused(ShapeError, "a sinogram of 20 rays. Got [19]"):
        tv_reconstruction(Y[:19], measurement(T), 1.0, image=SHAPE)
    with refused(DataError, "finite sinogram"):
        tv_reconstruction(Y * torch.nan, measurement(T), 1.0, image=SHAPE)
    with refused(UnsupportedError, "a sinogram of real numbers. Got torch.int64"), unchecked():
        tv_reconstruction(Y.long(), measurement(T), 1.0, image=SHAPE)
    with refused(ConfigError, "one positive precision, or 20"):
        tv_reconstruction(Y, measurement(T), 1.0, precision=torch.zeros(20).double(), image=SHAPE)
    with refused(ConfigError, "a positive weight"):
        tv_reconstruction(Y, measurement(T), 0.0, image=SHAPE)
