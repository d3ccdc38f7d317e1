"""Posteriors on the span of a few gradients on disk: the span, the report, and what early stopping left out."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import DataError, UnsupportedError
from tests.posterior_cases import problem


def again(posterior: lw.Posterior, folder: Path, *data: Any) -> lw.posteriors.NystromPosterior:
    lw.save(posterior, folder / "a.safetensors")
    loaded = lw.load(folder / "a.safetensors", copy.deepcopy(posterior.network.module), *data)
    assert isinstance(loaded, lw.posteriors.NystromPosterior)
    return loaded


@pytest.mark.parametrize("residual", [True, False])
def test_span_and_report_survive(residual: bool, tmp_path: Path) -> None:
    case = problem("images")
    stopping = lw.structures.NystromStopping((case.new, torch.tensor([0, 1, 2, 0])), every=3, patience=100)
    structure = lw.Nystrom(4, samples=9, residual=residual, stopping=stopping)
    posterior = lw.Laplace(case.likelihood, structure=structure).fit(case.model, case.batches(3))
    assert isinstance(posterior, lw.posteriors.NystromPosterior)
    loaded = again(posterior, tmp_path)
    ours, theirs = loaded.report, posterior.report
    assert (ours.kept, ours.error, ours.trace, ours.partial) == (
        theirs.kept,
        theirs.error,
        theirs.trace,
        theirs.partial,
    )
    assert torch.equal(ours.eigenvalues, theirs.eigenvalues) and torch.equal(ours.pairs, theirs.pairs)
    assert loaded.residual is residual and len(ours.trace) > 2
    for one in (loaded, posterior):
        assert one.with_hyperparameters(lw.Layerwise(2.0), case.likelihood).log_marginal() == pytest.approx(
            posterior.with_hyperparameters(lw.Layerwise(2.0), case.likelihood).log_marginal(), rel=1e-12
        )
    draws = [one.sample(3, generator=torch.Generator().manual_seed(0)) for one in (loaded, posterior)]
    assert torch.equal(*draws)
    assert torch.equal(loaded.predict(case.new).probs, posterior.predict(case.new).probs)


def test_data_are_checked_where_all_of_them_are_in_the_posterior(tmp_path: Path) -> None:
    case = problem("images")
    whole = case.fit(lw.Laplace(case.likelihood, structure=lw.Nystrom(4, samples=9)))
    assert again(whole, tmp_path, case.batches()).training.data.examples == 10
    with pytest.raises(DataError, match="the data the posterior was fitted to"):
        again(whole, tmp_path, case.batches()[:1])


def test_a_posterior_that_stopped_early_takes_any_data_and_asks_for_none(tmp_path: Path) -> None:
    case = problem("images")
    with torch.no_grad():
        wrong = copy.deepcopy(case.model).eval()(case.new).argmin(1)
    stopping = lw.structures.NystromStopping((case.new, wrong), every=1, patience=2)
    recipe = lw.Laplace(
        case.likelihood, prior=lw.Isotropic(1e-4), structure=lw.Nystrom(4, samples=9, stopping=stopping)
    )
    stopped = recipe.fit(case.model, case.batches(1))
    assert stopped.partial and stopped.totals.examples < 8
    loaded = again(stopped, tmp_path, case.batches())
    assert loaded.totals.parts == stopped.totals.parts and loaded.log_marginal() == stopped.log_marginal()
    with pytest.raises(UnsupportedError, match="stopped early"):
        loaded.training  # noqa: B018
