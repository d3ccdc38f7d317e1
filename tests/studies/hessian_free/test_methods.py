from __future__ import annotations

import pytest
import torch

import lapwing as lw
from benchmarks.command import Setting
from studies.hessian_free.methods import METHODS, covariance, exact, top_eigenvectors
from studies.hessian_free.shallow import Fitted, fitted
from studies.hessian_free.table import relative_error, variances


@pytest.fixture(scope="module")
def network() -> Fitted:
    return fitted("Quadratic-Inbetween", Setting(quick=True), [0])[0]


def test_the_covariance_is_that_of_the_predictions(network: Fitted) -> None:
    x = network.data.outside[0]
    jacobian = network.jacobian(x)
    for curvature in (lw.Hessian(), lw.GGN()):
        posterior = exact(curvature, network)
        expected = (jacobian @ covariance(posterior) * jacobian).sum(1)
        torch.testing.assert_close(variances(posterior, x), expected)


def test_top_eigenvectors_keep_the_largest_of_the_precision(network: Fitted) -> None:
    x = network.data.outside[0]
    values, vectors = torch.linalg.eigh(exact(lw.GGN(), network).precision_operator.dense())
    top = top_eigenvectors(network)
    assert top.factor.shape == (16, 3)
    jacobian = network.jacobian(x)
    expected = ((jacobian @ vectors[:, -3:]).square() / values[-3:]).sum(1)
    torch.testing.assert_close(variances(top, x), expected, rtol=1e-5, atol=0)
    assert bool((variances(top, x) < variances(exact(lw.GGN(), network), x)).all())
    torch.testing.assert_close(top.predict(x).mean, network.model(x).detach())


@pytest.mark.parametrize("name", ["probed", "per point", "per point, as printed"])
def test_variants_agree_with_the_full_hessian(network: Fitted, name: str) -> None:
    x = network.data.outside[0]
    truth = variances(METHODS["full Hessian"](network, x), x)
    assert relative_error(variances(METHODS[name](network, x), x), truth) < 1e-3


def test_a_pre_trained_fit_answers_with_the_covariance_to_the_mean(network: Fitted) -> None:
    x = network.data.outside[0]
    jacobian = network.jacobian(x)
    answer = jacobian @ covariance(exact(lw.Hessian(), network)) @ jacobian.mean(0)
    torch.testing.assert_close(variances(METHODS["pre-trained, mean"](network, x), x), answer.abs(), rtol=1e-4, atol=0)


def test_the_relative_error_is_a_median() -> None:
    truth = torch.tensor([1.0, 2.0, 4.0])
    assert relative_error(torch.tensor([1.5, 2.2, 0.0]), truth) == pytest.approx(0.5)
