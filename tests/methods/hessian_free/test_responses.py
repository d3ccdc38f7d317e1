"""Groups of fits, their progress, and bad data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import DataError, ShapeError
from lapwing.jacobian.products.copies import Copies
from lapwing.methods.hessian_free import Inner, NewtonCG, PerPoint, PreTrained, Probed
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import OutputSums, Regulariser
from lapwing.methods.hessian_free.responses import HELD
from tests.methods.hessian_free.setting import curve, shared
from tests.posterior_cases import normal, portrait, refused


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
    recipe = lw.HessianFree(setting.likelihood, prior=setting.prior, **options)
    responder = recipe.responder(setting.model, (setting.x, setting.y))
    responder = replace(responder, budget=4 * twins * HELD * 8 * len(setting.theta))
    covariances, linearity = recipe.fits.covariances(responder, points)
    assert max(sizes) == 4 * twins
    found, expected = (each.covariance.residual for each in (covariances, whole.covariances))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert linearity.fits == whole.linearity.fits
    assert linearity.scale == pytest.approx(whole.linearity.scale, rel=1e-4)


def test_points_that_come_in_pieces_add_up() -> None:
    setting = shared("classes")
    recipe = lw.HessianFree(setting.likelihood, prior=setting.prior)
    model = recipe.responder(setting.model, (setting.x, setting.y)).refit.model
    whole = OutputSums(normal(2, 5, model.event[-1]), setting.points[:5])
    pieces = replace(whole, piece=2)
    torch.testing.assert_close(pieces.gradient(Copies(model)), whole.gradient(Copies(model)))


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
