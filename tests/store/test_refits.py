"""Posteriors from refits come back from a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.errors import ConfigError, MismatchError, UnsupportedError
from lapwing.methods.hessian_free import HessianFreePosterior, PreTrained
from lapwing.store import load, read_header, save
from tests.checker import unchecked
from tests.posterior_cases import Problem, problem, refused

POINTS = 2
"""Evaluation points: ``PerPoint`` fits the network for each output of each."""

FITS: dict[str, Any] = {
    "points": lw.hessian_free.PerPoint(),
    "probes": lw.hessian_free.Probed(3, 2),
    "mean": PreTrained(),
    "in-sample": PreTrained("in_sample"),
    "augmented": PreTrained("augmented"),
}


def fitted(fits: str, case: Problem, **options: Any) -> HessianFreePosterior:
    recipe = lw.HessianFree(case.likelihood, prior=lw.Layerwise((40.0, 60.0)), fits=FITS[fits], **options)
    return recipe.fit(case.model, (case.x, case.y), case.new[:POINTS])


@pytest.mark.parametrize("fits", FITS)
def test_predicts_as_the_saved_one_without_the_data(fits: str, tmp_path: Path) -> None:
    case = problem("gaussian")
    posterior = fitted(fits, case, antithetic=fits != "mean")
    save(posterior, tmp_path / "a")
    loaded = load(tmp_path / "a", copy.deepcopy(case.model))
    assert isinstance(loaded, HessianFreePosterior)
    assert (loaded.prior, loaded.likelihood, loaded.linearity) == (
        posterior.prior,
        posterior.likelihood,
        posterior.linearity,
    )
    mine, theirs = (it.predict(case.new[1:POINTS]).outputs for it in (loaded, posterior))
    assert torch.equal(mine.mean, theirs.mean) and torch.equal(mine.covariance, theirs.covariance)
    assert torch.equal(loaded.variances(case.new[:POINTS]).stderr, posterior.variances(case.new[:POINTS]).stderr)
    if fits == "probes":
        joint = [it.predict(case.new[:POINTS], joint=True).outputs.covariance for it in (loaded, posterior)]
        assert torch.equal(*joint)
    save(loaded, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_needs_the_data_says_so_without_them(tmp_path: Path) -> None:
    case = problem("gaussian")
    save(fitted("probes", case), tmp_path / "a")
    loaded = load(tmp_path / "a", case.model)
    assert isinstance(loaded, HessianFreePosterior)
    with refused(UnsupportedError, "its training data"):
        _ = loaded.refit.gradient
    again = load(tmp_path / "a", case.model, (case.x, case.y))
    assert isinstance(again, HessianFreePosterior)
    torch.testing.assert_close(again.refit.gradient, fitted("probes", case).refit.gradient)
    assert read_header(tmp_path / "a")["covariances"]["kind"] == "PointCovariances"


def test_other_weights_are_refused(tmp_path: Path) -> None:
    case = problem("gaussian")
    save(fitted("probes", case), tmp_path / "a")
    other = copy.deepcopy(case.model)
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    with pytest.raises(MismatchError, match="the weights the posterior was fitted at"):
        load(tmp_path / "a", other)


def test_what_is_no_posterior_is_refused(tmp_path: Path) -> None:
    odd: Any = PlainNetwork(problem("gaussian").model, lw.Gaussian())
    with unchecked(), refused(ConfigError, "the posterior"):
        save(odd, tmp_path / "a")
    case = problem("gaussian")
    free = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree()))
    with refused(UnsupportedError, "holds its curvature"):
        save(free, tmp_path / "a")
