from __future__ import annotations

import pytest
import torch

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.tasks import Drawn
from lapwing.posteriors import NystromPosterior
from studies.ella import toy
from studies.ella.ablation import Exact, leading, relative
from studies.ella.cifar import OTHERS, STRENGTHS, augmentation, moved
from studies.ella.seconds import passes
from studies.ella.setting import amount_of, at_precision, case_of, cnn, ella, first, laplace, watched
from studies.ella.shifted import judged


@pytest.fixture(scope="module")
def case():
    return case_of(Setting(quick=True), "cnn")


def test_the_cnn_has_the_weights_of_the_paper() -> None:
    assert sum(p.numel() for p in cnn().parameters()) == 29_034


def test_with_all_directions_ella_is_exact_on_the_toy(monkeypatch) -> None:
    monkeypatch.setattr(toy, "RANK", 16)
    pair = toy.draw_data(3)
    model = toy.trained(toy.network(3, 6), pair, 1.0, 30)
    found = {row["method"]: row for row in toy.compared(model, pair, 1.0, 3)}
    assert found["ELLA, residual"]["kl"] < 1e-8 < found["ELLA"]["kl"]
    assert found["ELLA"]["kl"] < found["diagonal"]["kl"]


def test_divergences_are_those_of_gaussians() -> None:
    pair = toy.draw_data(0)
    model = toy.trained(toy.network(0, 6), pair, 1.0, 30)
    x = torch.linspace(-4, 4, 7, dtype=torch.float64)[:, None]
    strong, weak = (toy.predicted(toy.fitted(model, pair, a, structure=lw.Full()), x) for a in (3.0, 1.0))
    ratio = (strong.outputs.std / weak.outputs.std).square()
    torch.testing.assert_close(toy.latent(strong, weak), 0.5 * (ratio - 1 - ratio.log()))


def test_far_away_sines_forget_the_data_and_only_the_residual_knows() -> None:
    pair = toy.draw_data(0)
    model = toy.trained(toy.network(0, 20, wave=True), pair, 1.0, 30)
    found = {row["method"]: row["far_over_prior"] for row in toy.far(model, pair, 0)}
    assert found["ELLA"] < 0.1 and 0.8 < found["ELLA, residual"] < 1 + 1e-9 and 0.8 < found["exact"] < 1


def test_with_all_pairs_as_landmarks_both_errors_vanish(case) -> None:
    few = case_of(Setting(quick=True), "cnn")
    few.train[0].resize_(4, 1, 8, 8)
    few.train[1].resize_(4)
    exact = Exact.of(few, 3)
    recipe = laplace(few, lw.Nystrom(40, 4000, residual=True))
    posterior = recipe.fit(few.model, few.train)
    assert isinstance(posterior, NystromPosterior)
    (errors,) = exact.errors([posterior])
    assert errors["eps_nystrom"] < 1e-3 and errors["eps_residual"] < 5e-3 < errors["eps_ella"]


def test_leading_directions_are_a_fit_of_smaller_rank(case) -> None:
    whole, few = (laplace(case, lw.Nystrom(k, 9)).fit(case.model, first(case.train, 12)) for k in (6, 2))
    torch.testing.assert_close(leading(whole, 2).compressed, few.compressed, rtol=1e-4, atol=1e-4)


def test_errors_are_those_of_the_predicted_covariance(case) -> None:
    exact = Exact.of(case, 200)
    for residual, name in ((False, "eps_ella"), (True, "eps_residual")):
        posterior = laplace(case, lw.Nystrom(4, 9, residual=residual)).fit(case.model, case.train)
        (errors,) = exact.errors([posterior])
        full = laplace(case, lw.Full(view="weights")).fit(case.model, case.train)
        ours, theirs = (p.predict(case.held_out[0], joint=True).logits.covariance for p in (posterior, full))
        expected = float((ours - theirs).norm() / theirs.norm())
        assert errors[name] == pytest.approx(expected, rel=0.1, abs=4 * errors[f"{name}_error"])


def test_relative_errors_and_their_standard_error() -> None:
    exact = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
    assert relative(1.5 * exact, exact) == pytest.approx((0.5, 0.0))
    eps, error = relative(exact + torch.tensor([[1.0, 0.0], [0.0, 0.0]]), exact)
    assert eps == pytest.approx(0.2)
    spread = torch.tensor([1 - 9 * 0.04, -16 * 0.04]).std() / 12.5 / 2**0.5
    assert error == pytest.approx(float(spread) / 0.4)


def test_passes_are_products_with_the_jacobian(case) -> None:
    x = case.test[0][:3]
    fitted = laplace(case, lw.Nystrom(2, 5)).fit(case.model, first(case.train, 6))
    expected = fitted.training.on(x).push(fitted.changes)
    for together in (True, False):
        found = passes(case.model, fitted.changes, x, together=together)
        torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-3, atol=1e-5)


def test_stopping_early_keeps_the_images_with_the_smallest_loss(case) -> None:
    amount = amount_of(Setting(quick=True))
    posterior, row = ella(case, amount, 0, stopping=watched(case.held_out, amount))
    losses = {int(n): nll for n, nll in row["trace"] if n}
    assert row["stopped_at"] == min(losses, key=losses.__getitem__) == posterior.totals.examples
    again = Drawn(posterior, 8)
    assert torch.equal(again.predict(case.test[0]).probs, again.predict(case.test[0]).probs)


def test_another_precision_is_that_of_a_fresh_fit(case) -> None:
    recipe = OTHERS["last layer, KFAC"]
    fitted = recipe.fit(case.model, first(case.train, 10))
    fresh = lw.Laplace(recipe.likelihood, prior=lw.Isotropic(7.0), structure=recipe.structure, weights=recipe.weights)
    x = case.test[0]
    expected = fresh.fit(case.model, first(case.train, 10)).predict(x).probs
    torch.testing.assert_close(at_precision(fitted, 7.0).predict(x).probs, expected)


def test_images_move_by_whole_pixels() -> None:
    images = torch.arange(36.0).reshape(1, 1, 6, 6)
    assert torch.equal(moved(images, torch.tensor([[0.5, 0.5]]), 2), images)
    shifted = moved(images, torch.tensor([[0.99, 0.0]]), 2)
    assert torch.equal(shifted[0, 0, :4, 2:], images[0, 0, 2:, :4])


def test_augmentation_changes_every_image_in_its_own_way(generator) -> None:
    images = torch.ones(20, 3, 32, 32)
    found = augmentation(STRENGTHS["mild"])(images, generator)
    blank = (found == 0).all(1).flatten(1).sum(1)
    assert bool((blank == 64).all())
    assert len(found.flatten(1).amax(1).unique()) == 20
    again = augmentation(STRENGTHS["mild"])(images, torch.Generator().manual_seed(5))
    same = augmentation(STRENGTHS["mild"])(images, torch.Generator().manual_seed(5))
    assert torch.equal(again, same)


def test_answers_about_foreign_images_are_wrong() -> None:
    inside = torch.tensor([[0.95, 0.05], [0.4, 0.6], [0.8, 0.2]])
    row = judged(inside, torch.tensor([0, 1, 1]), torch.tensor([[0.7, 0.3], [0.55, 0.45]]))
    assert row["error_0"] == pytest.approx(3 / 5) and row["error_0.7"] == pytest.approx(2 / 3) and row["error_0.9"] == 0
    assert row["auroc"] == pytest.approx(5 / 6)
    assert row["curve"]["share_above"][18] == pytest.approx(1 / 5)
    assert row["curve"]["error_below"][12] == pytest.approx(1.0)


def test_a_quick_cnn_is_kept_apart_from_the_whole_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("studies.ella.setting.EPOCHS", 1)
    models: list[torch.nn.Module] = []
    for quick in (True, False, True, False):
        models.append(case_of(Setting(quick=quick, kept=tmp_path), "cnn").model)
        assert not models[-1].training
    assert len(list(tmp_path.iterdir())) == 2
    for one, again in zip(models[:2], models[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert len({sum(p.numel() for p in model.parameters()) for model in models}) == 2
