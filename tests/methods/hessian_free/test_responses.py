"""Groups of fits, their progress, and bad data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import DataError, ShapeError
from lapwing.methods.hessian_free import Inner, NewtonCG, PerPoint, PreTrained, Probed, regularisers, responses
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import Regulariser
from tests.methods.hessian_free.setting import curve, shared
from tests.posterior_cases import portrait, refused


@pytest.mark.parametrize(("inner", "antithetic"), [(NewtonCG(), True), (NewtonCG(), False)])
@pytest.mark.no_cover
def test_groups_of_fits_find_the_same(inner: Inner, antithetic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, sizes, solve = shared("classes"), list[int](), type(inner).solve

    def watched(self: Inner, refit: Refit, fits: Regulariser, start: Tensor) -> object:
        sizes.append(len(fits))
        return solve(self, refit, fits, start)

    monkeypatch.setattr(type(inner), "solve", watched)
    options = {"fits": PerPoint(), "inner": inner, "antithetic": antithetic, "step": 1e-3}
    points, twins = setting.points[:2], 1 + antithetic
    whole = setting.fit(points, **options)
    assert max(sizes) == 6 * twins
    sizes.clear()
    monkeypatch.setattr(responses, "BUDGET", 4 * twins * responses.HELD * 8 * len(setting.theta))
    parts = setting.fit(points, **options)
    assert max(sizes) == 4 * twins
    found, expected = (each.covariances.covariance.residual for each in (parts, whole))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert parts.linearity.fits == whole.linearity.fits
    assert parts.linearity.scale == pytest.approx(whole.linearity.scale, rel=1e-4)


def test_points_that_come_in_pieces_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = shared("classes")
    whole = setting.fit(setting.points[:5], fits=Probed(2, 2), step=1e-3)
    monkeypatch.setattr(regularisers, "PIECE", 2)
    parts = setting.fit(setting.points[:5], fits=Probed(2, 2), step=1e-3)
    found, expected = (each.predict(setting.points[:5]).logits.covariance for each in (parts, whole))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)


def test_is_quiet_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    setting = shared("two-outputs")
    recipe = lw.HessianFree(setting.likelihood, prior=setting.prior, fits=PreTrained())
    recipe.fit(setting.model, (setting.x, setting.y), setting.points)
    assert capfd.readouterr() == ("", "")
    posterior = recipe.fit(setting.model, (setting.x, setting.y), setting.points, progress=True)
    assert "refits" in capfd.readouterr().err
    assert posterior.refit.work.gradients + posterior.refit.work.products >= posterior.linearity.fits
    lw.hessian_free.weight_uncertainty(
        setting.model, (setting.x, setting.y), setting.likelihood, prior=setting.prior, progress=True
    )
    assert "refits" in capfd.readouterr().err


def test_data_that_do_not_fit_are_refused_and_the_network_is_left_as_it_was() -> None:
    setting = curve(hidden=3, examples=8)
    setting.model.train()
    before = portrait(setting.model)
    recipe = lw.HessianFree(setting.likelihood, prior=setting.prior, fits=Probed(2, 2))
    gap = setting.x.clone()
    gap[2] = torch.nan
    with refused(DataError, "finite"):
        recipe.fit(setting.model, (gap, setting.y), setting.points)
    with refused(DataError, "finite"):
        recipe.fit(setting.model, (setting.x, gap), setting.points)
    with refused(DataError, "finite"):
        recipe.fit(setting.model, (setting.x, setting.y), gap)
    with refused(ShapeError, "targets"):
        recipe.fit(setting.model, (setting.x, setting.y.repeat(1, 2)), setting.points)
    assert portrait(setting.model) == before
