"""Posteriors made of draws on disk: what they say without their data, and how they go on with them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.store import load, read_header, save
from tests.posterior_cases import problem, refused

SOLVER = lw.solvers.CG(rtol=1e-8, preconditioner=lw.Diagonal())


def fitted(name: str = "images", **options: Any) -> lw.posteriors.SampledPosterior:
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(3, SOLVER), **options))
    assert isinstance(posterior, lw.posteriors.SampledPosterior)
    return posterior


def again(posterior: lw.posteriors.SampledPosterior, folder: Path, *data: Any) -> lw.posteriors.SampledPosterior:
    save(posterior, folder / "a.safetensors")
    loaded = load(folder / "a.safetensors", copy.deepcopy(posterior.network.module), *data)
    assert isinstance(loaded, lw.posteriors.SampledPosterior)
    return loaded


@pytest.mark.parametrize("prior", [lw.Isotropic(0.7), lw.GPrior(0.5)], ids=["isotropic", "g-prior"])
@pytest.mark.parametrize("name", ["gaussian", "images", "tokens"])
def test_predicts_and_draws_as_the_saved_one_without_the_data(name: str, prior: Any, tmp_path: Path) -> None:
    case, posterior = problem(name), fitted(name, prior=prior)
    loaded = again(posterior, tmp_path)
    assert loaded.data is None and loaded.solver == posterior.solver and loaded.prior == posterior.prior
    for link in ("probit", "mc"):
        for joint in (False, True):
            mine, theirs = (it.predict(case.new, link, joint=joint) for it in (loaded, posterior))
            assert torch.equal(mine.covariance, theirs.covariance)
            assert torch.equal(mine.sample(2, generator=seed()), theirs.sample(2, generator=seed()))
    assert torch.equal(loaded.sample(5, generator=seed()), posterior.sample(5, generator=seed()))
    functions = [it.sample_functions(case.new, 5, generator=seed()) for it in (loaded, posterior)]
    assert torch.equal(*functions)
    for estimator in ("auto", "outputs", "weights"):
        assert loaded.effective_dimension(estimator) == posterior.effective_dimension(estimator)
    assert torch.equal(loaded.solution.residual, posterior.solution.residual)
    assert loaded.solution.stopped == posterior.solution.stopped
    assert loaded.solution.matvecs == posterior.solution.matvecs


def seed() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_what_needs_the_data_says_so_without_them(tmp_path: Path) -> None:
    loaded = again(fitted(), tmp_path)
    for ask in (
        loaded.log_marginal,
        lambda: loaded.resampled(4),
        lambda: loaded.with_hyperparameters(lw.Isotropic(3.0), loaded.likelihood).draws,
    ):
        with refused(UnsupportedError, "its training data"):
            ask()


def test_goes_on_with_the_data(tmp_path: Path) -> None:
    case, posterior = problem("images"), fitted(prior=lw.GPrior(0.5))
    shuffled = DataLoader(TensorDataset(case.x, case.y), batch_size=4, shuffle=True)
    for data in (case.batches(), (case.x, case.y), shuffled):
        loaded = again(posterior, tmp_path, data)
        choices = (posterior.prior.with_precisions(torch.tensor([3.0])), posterior.likelihood)
        moved, expected = loaded.with_hyperparameters(*choices), posterior.with_hyperparameters(*choices)
        torch.testing.assert_close(moved.draws, expected.draws, rtol=1e-6, atol=1e-7)
        assert loaded.effective_dimension() == posterior.effective_dimension()


@pytest.mark.parametrize("change", ["targets", "fewer", "pairing"])
def test_other_data_are_refused(change: str, tmp_path: Path) -> None:
    case, posterior = problem("images"), fitted()
    x, y = case.x, case.y
    match change:
        case "targets":
            y = (y + 1) % 3
        case "fewer":
            x, y = x[:-1], y[:-1]
        case _:
            x = x.flip(0)
    with refused(DataError, "10 examples"):
        again(posterior, tmp_path, (x, y))


def test_data_go_with_any_posterior(tmp_path: Path) -> None:
    case = problem("images")
    save(case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC())), tmp_path / "a")
    assert load(tmp_path / "a", case.model, case.batches()).training.data.examples == 10


def test_saving_solves_for_what_was_not_and_what_was_loaded_gives_the_same_bytes(tmp_path: Path) -> None:
    posterior = fitted()
    save(posterior, tmp_path / "a")
    posterior.log_marginal()
    save(posterior, tmp_path / "b")
    save(load(tmp_path / "a", posterior.network.module), tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_header_tells_what_is_inside(tmp_path: Path) -> None:
    save(fitted(), tmp_path / "a")
    header = read_header(tmp_path / "a")
    assert header["posterior"] == "SampledPosterior"
    assert header["solver"]["preconditioner"] == {"kind": "Diagonal"}
    assert header["solution"]["stopped"] == "converged"
