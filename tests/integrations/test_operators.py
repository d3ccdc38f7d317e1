"""Operators of deepinv and PyLops where a projector does: the same products, reconstructions and error bars."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ct import DeepImagePrior, ImagePosterior, Parallel2d, Projector, equidistant
from lapwing.ct.observed import Measurement
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError
from lapwing.ground.moving import Mover
from lapwing.integrations.operators import OperatorMeasurement, measurement
from tests.integrations.pages import run_page
from tests.posterior_cases import normal, refused

SIDE = 6
PROJECTOR = Projector(Parallel2d((SIDE, SIDE), equidistant(4), detector=5), torch.float64)
MATRIX = PROJECTOR.push(torch.eye(SIDE**2, dtype=torch.float64))


class Matrix:
    """An operator as others have them: of images, several at once."""

    dtype = torch.float64

    def __init__(self, matrix: Tensor = MATRIX) -> None:
        self.matrix = matrix

    def A(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.matrix.mT).unflatten(1, (1, 4, -1))

    def A_adjoint(self, y: Tensor) -> Tensor:
        return (y.flatten(1) @ self.matrix).view(-1, 1, SIDE, SIDE)


def ours(operator: object = None, dtype: torch.dtype | None = None) -> OperatorMeasurement:
    return measurement(operator or Matrix(), (1, SIDE, SIDE), dtype=dtype)


@pytest.fixture(scope="session")
def deepinv() -> Any:
    """With a stub for torchvision where it is not installed: what deepinv takes of it, no operator needs."""
    if importlib.util.find_spec("deepinv") is None:
        pytest.skip("deepinv is not installed")
    if importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module("deepinv")
    parts = ("", ".transforms", ".transforms.functional", ".utils", ".datasets", ".datasets.utils", ".datasets.folder")
    with pytest.MonkeyPatch.context() as patch:
        for part in parts:
            patch.setitem(sys.modules, f"torchvision{part}", Stub(f"torchvision{part}"))
        return importlib.import_module("deepinv")


class Stub(ModuleType):
    """A module that has every name."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def answers(operator: Measurement) -> tuple[Tensor, Tensor]:
    """A reconstruction of fixed data, and its error bars."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 1, 3, padding=1)).double()
    z = normal(1, 1, SIDE, SIDE)
    sinogram = operator.push(normal(SIDE**2, seed=1).abs())
    with pytest.warns(lw.ConvergenceWarning):  # in so few steps
        found = DeepImagePrior(steps=30, rate=0.02).fit(network, z, operator, sinogram, noise_std=0.1, progress=False)
    posterior = ImagePosterior.of(found.network, z, operator, sinogram, noise_std=0.1, samples=8)
    return found.image, posterior.std


def check_alike(operator: OperatorMeasurement, projector: Measurement) -> None:
    v, u = normal(SIDE**2, 3), normal(projector.shape[0], 3, seed=2)
    torch.testing.assert_close(operator.push(v), projector.push(v))
    torch.testing.assert_close(operator.pull(u), projector.pull(u))
    for came, expected in zip(answers(operator), answers(projector), strict=True):
        torch.testing.assert_close(came, expected, rtol=1e-6, atol=1e-6)
        assert expected.abs().min() > 0


def test_an_operator_reconstructs_as_the_projector_of_its_matrix() -> None:
    check_alike(ours(), PROJECTOR)


def test_one_of_pylops_does() -> None:
    pylops = pytest.importorskip("pylops", reason="PyLops is not installed")
    operator = measurement(pylops.TorchOperator(pylops.MatrixMult(MATRIX.numpy(), dtype="float64"), batch=True))
    assert operator.like.dtype == torch.float64
    check_alike(operator, PROJECTOR)


def test_one_of_pylops_on_images_that_are_not_flat_has_its_products() -> None:
    pylops = pytest.importorskip("pylops", reason="PyLops is not installed")
    inner = pylops.FirstDerivative((SIDE, SIDE + 1), axis=0, dtype="float64")
    operator = measurement(pylops.TorchOperator(inner, batch=True, flatten=False))
    block = normal(SIDE * (SIDE + 1), 3)
    torch.testing.assert_close(operator.push(block), lw.ct.measurement(inner).push(block))
    assert operator.image == (SIDE, SIDE + 1)


def test_a_linear_physics_of_deepinv_does(deepinv: Any) -> None:
    own = Matrix()
    physics = deepinv.physics.LinearPhysics(A=own.A, A_adjoint=own.A_adjoint)
    check_alike(ours(physics, torch.float64), PROJECTOR)


def test_the_tomography_of_deepinv_does(deepinv: Any) -> None:
    physics = deepinv.physics.Tomography(4, SIDE, normalize=False, dtype=torch.float64)
    operator = ours(physics)
    check_alike(operator, lw.ct.measurement(operator.push(torch.eye(SIDE**2, dtype=torch.float64))))


def test_an_adjoint_that_is_not_is_refused_with_how_much(deepinv: Any) -> None:
    with pytest.raises(ConfigError, match=r"which differ by 0\.\d+ of"):
        ours(deepinv.physics.Tomography(4, SIDE, adjoint_via_backprop=False, normalize=False, dtype=torch.float64))


def test_an_operator_that_divides_by_its_norm_is_named(deepinv: Any, caplog: pytest.LogCaptureFixture) -> None:
    plain = ours(deepinv.physics.Tomography(4, SIDE, normalize=False))
    with caplog.at_level(logging.WARNING):
        normalised = ours(deepinv.physics.Tomography(4, SIDE, normalize=True))
    assert f"Tomography divides by its norm, {normalised.unit:.4g}" in caplog.text
    image = normal(SIDE**2).float()
    seen = plain.push(image)
    measured, noise = normalised.in_unit(seen.view(4, -1), 0.1)
    torch.testing.assert_close(measured, normalised.push(image))
    assert noise == pytest.approx(0.1 / normalised.unit) and plain.in_unit(seen, 0.1)[1] == 0.1


@pytest.mark.parametrize("make", [torch.clone, Tensor.numpy, Tensor.tolist])
def test_each_ray_has_its_own_noise_in_that_unit(make: Any) -> None:
    operator = replace(ours(), unit=4.0)
    rows = operator.shape[0]
    std = torch.linspace(0.1, 0.5, rows, dtype=torch.float64)
    measured, noise = operator.in_unit(torch.ones(rows, dtype=torch.float64), make(std))
    torch.testing.assert_close([measured, noise], [torch.full_like(std, 0.25), std / 4])


def test_nothing_is_differentiated_through_an_operator() -> None:
    class Opaque(Matrix):
        def A(self, x: Tensor) -> Tensor:
            assert not x.requires_grad and not torch.is_grad_enabled()
            return torch.as_tensor(np.asarray(super().A(x)))

        def A_adjoint(self, y: Tensor) -> Tensor:
            assert not y.requires_grad and not torch.is_grad_enabled()
            return torch.as_tensor(np.asarray(super().A_adjoint(y)))

    operator = ours(Opaque())
    v, u = normal(SIDE**2, 2).requires_grad_(), normal(20, 2, seed=1)
    (gradient,) = torch.autograd.grad((operator.push(v) * u).sum(), v)
    torch.testing.assert_close(gradient, operator.pull(u))
    torch.testing.assert_close(torch.func.jvp(operator.push, (v,), (v,))[1], operator.push(v))


def test_columns_are_given_some_at_a_time() -> None:
    operator = ours()
    block = normal(SIDE**2, 131)
    torch.testing.assert_close(operator.push(block), MATRIX @ block)


class Wrong(Matrix):
    """One whose products are changed."""

    def __init__(
        self, a: Callable[[Tensor], Any] = lambda y: y, adjoint: Callable[[Tensor], Any] = lambda x: x
    ) -> None:
        super().__init__()
        self.changes = a, adjoint

    def A(self, x: Tensor) -> Any:
        return self.changes[0](super().A(x))

    def A_adjoint(self, y: Tensor) -> Any:
        return self.changes[1](super().A_adjoint(y))


@pytest.mark.parametrize(
    ("error", "message", "operator"),
    [
        (ConfigError, "to be the adjoint of the product", Wrong(adjoint=lambda x: 1.1 * x)),
        (ConfigError, "whose A makes zeros of zeros. Got up to 1 for images of zeros", Wrong(lambda y: y + 1)),
        (ShapeError, "the adjoint to give [36, 6]", Wrong(adjoint=lambda x: x[..., 1:])),
        (ShapeError, "a list", Wrong(lambda y: [y])),
        (ShapeError, "Got [1, 4, 5]", Wrong(lambda y: y[0])),
        (UnsupportedError, "torch.complex128", Wrong(lambda y: y + 0j)),
        (ConfigError, "TorchOperator of PyLops. Got a int", 3),
    ],
)
def test_what_is_no_operator_is_refused(error: type[Exception], message: str, operator: object) -> None:
    with refused(error, message):
        ours(operator)


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-3), (torch.float64, 1e-5)])
def test_an_adjoint_that_is_a_little_off_is_refused(dtype: torch.dtype, share: float) -> None:
    """By more than rounding makes, whether all of it is or some of its entries are."""

    def operator(adjoint: Tensor) -> Any:
        made = Matrix(MATRIX.to(dtype))
        wrong = Matrix(adjoint.to(dtype))
        made.A_adjoint = wrong.A_adjoint  # type: ignore[method-assign]
        return ours(made, dtype)

    assert operator(MATRIX).shape == (20, 36)
    for adjoint in ((1 + share) * MATRIX, MATRIX + 10 * share * normal(20, 36)):
        with refused(ConfigError, "to be the adjoint of the product"):
            operator(adjoint)


def test_an_operator_of_another_dtype_gives_that_of_its_images() -> None:
    class Double(Matrix):
        def A(self, x: Tensor) -> Tensor:
            return super().A(x.double())

        def A_adjoint(self, y: Tensor) -> Tensor:
            return super().A_adjoint(y.double())

    single = ours(Double(), torch.float32)
    assert single.push(torch.ones(36)).dtype == single.pull(torch.ones(20)).dtype == torch.float32
    with refused(ConfigError, "dtype="):
        ours(Matrix(), torch.float32)


def test_shapes_and_devices_are_asked_for() -> None:
    with refused(ConfigError, "image=None"):
        measurement(Matrix())
    with refused(ConfigError, "an operator that takes images [2, 1, 5, 5]"):
        measurement(Matrix(), (1, 5, 5))
    assert ours().moved_by(Mover("cpu")).shape == (20, 36)
    with refused(UnsupportedError, "an operator made for that device"):
        ours().moved_by(Mover("meta"))


def test_pylops_without_a_batch_is_refused() -> None:
    pylops = pytest.importorskip("pylops", reason="PyLops is not installed")
    with refused(ConfigError, "batch=True"):
        measurement(pylops.TorchOperator(pylops.MatrixMult(MATRIX.numpy())))


def test_the_page_runs(tmp_path: Path, deepinv: Any) -> None:
    names = run_page("operators", tmp_path)
    std = names["posterior"].std
    assert std.numel() == 16 * 16 and bool((std > 0).all())
    assert names["operator"].shape == (5, 9)
