from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from lapwing.posteriors import NystromPosterior, Posterior
from lapwing.predictive import Classification, Moments
from studies.ella import ablation
from studies.ella.setting import EarlyStopped, Ella, averaged, predicted
from studies.ella.shifted import Images, rejection


@pytest.fixture(scope="module")
def ella() -> Ella:
    return Ella.read(Setting(quick=True))


def nystrom(ella: Ella, rank: int, samples: int) -> NystromPosterior:
    """The library's own posterior on the network of a study."""
    structure = lw.Nystrom(rank, samples, residual=False)
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(ella.precision), structure=structure)
    posterior = recipe.fit(ella.task.model, ella.task.train)
    assert isinstance(posterior, NystromPosterior)
    return posterior


def test_features_give_the_posterior_of_the_library(ella: Ella, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = nystrom(ella, rank=5, samples=20)
    monkeypatch.setattr(Ella, "changes", whole.changes)
    same = Ella(ella.task, ella.amount, ella.setting)
    within = same.compression(len(same.train.labels), rank=5)
    torch.testing.assert_close(within.curvature, whole.compressed)
    outputs = whole.outputs_each(ella.task.test[0], [whole])[0]
    assert isinstance(outputs, Moments)
    torch.testing.assert_close(predicted(within, same.test), averaged(outputs).probs)


def test_the_directions_span_what_the_library_s_do(ella: Ella) -> None:
    """With all pairs as landmarks there is nothing random in them."""
    pairs = 10 * len(ella.train.labels)
    many = Ella(ella.task, replace(ella.amount, landmarks=pairs), ella.setting)
    expected = nystrom(ella, rank=5, samples=pairs).changes
    cosines = torch.linalg.svdvals(many.changes.mT @ expected) * many.precision
    torch.testing.assert_close(cosines, torch.ones_like(cosines), rtol=1e-4, atol=0)


def test_it_stops_where_the_validation_loss_was_smallest(ella: Ella) -> None:
    losses = {}
    for images in (4, 8, 12):
        probs = predicted(ella.compression(images, rank=3), ella.held_out)
        losses[images] = lw.metrics.nll(probs, ella.held_out.labels)
    assert ella.stopped_at(3) == min(losses, key=losses.__getitem__)


def test_the_entry_of_a_comparison_predicts_after_the_images_at_which_it_stops(ella: Ella) -> None:
    posterior = EarlyStopped(ella).fit(lw.baselines.Task(ella.task.model, ella.task.train))
    within = ella.compression(ella.stopped_at())
    assert torch.equal(posterior.predict(ella.task.test[0]).probs, predicted(within, ella.test))


def test_features_that_are_kept_are_those_that_were_made(ella: Ella, tmp_path: Path) -> None:
    kept = Ella(ella.task, ella.amount, Setting(quick=True, kept=tmp_path))
    again = Ella(ella.task, ella.amount, Setting(quick=True, kept=tmp_path))
    torch.testing.assert_close(kept.test.values, ella.test.values)
    assert torch.equal(kept.test.values, again.test.values) and len(list(tmp_path.iterdir())) == 2


def test_every_method_sees_the_same_images_of_all_severities(ella: Ella) -> None:
    first, again = Images.of(ella), Images.of(ella)
    assert list(first.corrupted) == [0, 1, 2, 3, 4, 5]
    clean = first.corrupted[0][0]
    off = [float((x - clean).abs().mean()) for x, _ in first.corrupted.values()]
    assert off[0] == 0 and off[1] < off[5]
    assert all(torch.equal(first.corrupted[k][0], again.corrupted[k][0]) for k in range(6))


def test_answers_about_foreign_images_are_wrong() -> None:
    row = rejection(torch.tensor([0.95, 0.6, 0.8]), torch.tensor([1, 1, 0]), torch.tensor([0.7, 0.55]))
    assert row["error_above"][0] == pytest.approx(3 / 5)
    assert row["error_0.7"] == pytest.approx(2 / 3) and row["error_0.9"] == 0
    assert row["auroc"] == pytest.approx(5 / 6)
    assert row["share_0.9"] == pytest.approx(1 / 5)
    assert row["error_below"][12] == pytest.approx(1.0)


def test_with_all_pairs_as_landmarks_both_errors_vanish() -> None:
    case = ablation.case_of(Setting(quick=True))
    few = ablation.Case(case.model, (case.train[0][:4], case.train[1][:4]), case.held_out)
    exact = ablation.Exact.of(few, 3)
    posterior = few.laplace(lw.Nystrom(40, 4000, residual=True)).fit(few.model, few.train)
    assert isinstance(posterior, NystromPosterior)
    (errors,) = exact.errors([posterior])
    assert errors["eps_nystrom"] < 1e-3 and errors["eps_residual"] < 5e-3 < errors["eps_ella"]


def test_leading_directions_are_a_fit_of_smaller_rank() -> None:
    case = ablation.case_of(Setting(quick=True))
    whole, few = (case.laplace(lw.Nystrom(k, 9, residual=False)).fit(case.model, case.train) for k in (6, 2))
    assert isinstance(whole, NystromPosterior) and isinstance(few, NystromPosterior)
    torch.testing.assert_close(ablation.leading(whole, 2).compressed, few.compressed, rtol=1e-4, atol=1e-4)


def covariance(posterior: Posterior, x: Tensor) -> Tensor:
    """Of all logits together."""
    prediction = posterior.predict(x, joint=True)
    assert isinstance(prediction, Classification)
    return prediction.logits.covariance


def test_errors_are_those_of_the_predicted_covariance() -> None:
    case = ablation.case_of(Setting(quick=True))
    exact = ablation.Exact.of(case, 200)
    for residual, name in ((False, "eps_ella"), (True, "eps_residual")):
        posterior = case.laplace(lw.Nystrom(4, 9, residual=residual)).fit(case.model, case.train)
        assert isinstance(posterior, NystromPosterior)
        (errors,) = exact.errors([posterior])
        full = case.laplace(lw.Full(view="weights")).fit(case.model, case.train)
        ours, theirs = covariance(posterior, case.held_out), covariance(full, case.held_out)
        expected = float((ours - theirs).norm() / theirs.norm())
        assert errors[name] == pytest.approx(expected, rel=0.1, abs=4 * errors[f"{name}_error"])


def test_relative_errors_and_their_standard_error() -> None:
    exact = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
    assert ablation.relative(1.5 * exact, exact) == pytest.approx((0.5, 0.0))
    eps, error = ablation.relative(exact + torch.tensor([[1.0, 0.0], [0.0, 0.0]]), exact)
    assert eps == pytest.approx(0.2)
    spread = torch.tensor([1 - 9 * 0.04, -16 * 0.04]).std() / 12.5 / 2**0.5
    assert error == pytest.approx(float(spread) / 0.4)
