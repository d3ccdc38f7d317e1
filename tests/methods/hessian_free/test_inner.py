"""Inner solvers: the same answers by other ways."""

from __future__ import annotations

import copy
import dataclasses
from functools import cache

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, ConvergenceWarning, NumericalError
from lapwing.methods.hessian_free import Descent, Inner, NewtonCG, PreTrained
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.responses import check_linear
from tests.methods.hessian_free.setting import Setting, converged, shared, tanh
from tests.posterior_cases import normal, refused, seeded

SOLVERS: dict[str, Inner] = {
    "newton": NewtonCG(rtol=1e-8),
    "descent": Descent(lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5), epochs=60),
}


@cache
def mild() -> Setting:
    """Eigenvalues of the Hessian close enough for gradient descent, over batches of three too."""
    x, y = normal(9, 2), normal(9, 2, seed=1)
    return converged(Setting(tanh(2, 2, 2), lw.Gaussian(0.5), 2.0, x, y, normal(4, 2, seed=2)))


def truth(setting: Setting) -> torch.Tensor:
    return setting.covariance().view(4, 2, 4, 2).mean(2)


@pytest.mark.parametrize(("name", "antithetic"), [("newton", True), ("newton", False), ("descent", False)])
def test_every_solver_finds_the_response(name: str, antithetic: bool) -> None:
    setting = mild()
    posterior = setting.fit(fits=PreTrained(), inner=SOLVERS[name], antithetic=antithetic, step=1e-2)
    found = posterior.covariances.responses.outputs(setting.points).movedim(0, -1)
    tolerance = 1e-3 if antithetic else 5e-2
    torch.testing.assert_close(found, truth(setting), rtol=0, atol=tolerance * float(truth(setting).abs().max()))


@pytest.mark.no_cover
def test_twins_see_the_same_mini_batches() -> None:
    """Of a linear network their changes are then mirror images, on a loader that shuffles anew at every pass too."""
    x, y = normal(9, 2), normal(9, 2, seed=1)
    generator = torch.Generator().manual_seed(0)
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=3, shuffle=True, generator=generator)
    inner = Descent(lambda parameters: torch.optim.SGD(parameters, lr=0.1), epochs=10, decay=False)
    recipe = lw.HessianFree(lw.Gaussian(0.5), prior=lw.Isotropic(2.0), fits=PreTrained(), inner=inner, scale=1e-2)
    model = seeded(lambda: torch.nn.Linear(2, 2), 0)
    first, second = (recipe.fit(model, loader, x[:1]).covariances.responses for _ in range(2))
    torch.testing.assert_close(first.plus, -first.minus, rtol=1e-10, atol=1e-15)
    assert first.refit.work.gradients >= 2 * 2 * 10
    assert float((first.plus - second.plus).abs().max() / first.plus.abs().max()) > 1e-3


def test_the_default_optimiser_is_adam() -> None:
    optimiser = Descent().optimiser([torch.zeros(2, requires_grad=True)])
    assert isinstance(optimiser, torch.optim.Adam) and optimiser.defaults["lr"] == 0.005


def test_float32_is_enough_for_a_per_cent() -> None:
    setting = shared("classes")
    single = copy.deepcopy(setting.model).float()
    recipe = lw.HessianFree(setting.likelihood, prior=setting.prior, fits=lw.hessian_free.PerPoint())
    posterior = recipe.fit(single, (setting.x.float(), setting.y), setting.points.float())
    found, expected = posterior.covariances.on(setting.points.float()).blocks, setting.blocks()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-2 * float(expected.abs().max()))


def test_responses_that_are_not_linear_are_named() -> None:
    check_linear(0.05)
    with pytest.warns(ConvergenceWarning, match="change by 30 %"):
        check_linear(0.3)
    with refused(NumericalError, "near linear"):
        check_linear(float("nan"))
    with refused(NumericalError, "near linear"):
        check_linear(1e6, torch.float32)


def test_gradients_that_do_not_bear_out_the_hessian_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of another prior."""
    setting, slopes = mild(), Refit.slopes

    def other(self: Refit, *asked: object) -> object:
        return slopes(dataclasses.replace(self, prior=0 * self.prior), *asked)

    monkeypatch.setattr(Refit, "slopes", other)
    with pytest.warns(ConvergenceWarning, match="do not bear out the Hessian"):
        setting.fit(fits=PreTrained())


def test_an_indefinite_hessian_may_be_rounding() -> None:
    setting = mild()
    start = copy.deepcopy(setting.model)
    with torch.no_grad():
        start[2].weight.copy_(-3 * start[2].weight)
    for model, also in ((start, False), (copy.deepcopy(start).float(), True)):
        dtype = model[0].weight.dtype
        recipe = lw.HessianFree(lw.Gaussian(50.0), prior=lw.Isotropic(1e-4), fits=PreTrained())
        with pytest.raises(NumericalError, match="positive definite") as caught:
            recipe.fit(model, (setting.x.to(dtype), setting.y.to(dtype)), setting.points.to(dtype))
        assert ("should rounding be the cause" in caught.value.hint) == also


def test_bad_options_are_refused() -> None:
    with refused(ConfigError, "steps of at least 1"):
        NewtonCG(steps=0)
    with refused(ConfigError, "a positive rtol"):
        NewtonCG(rtol=0.0)
    with refused(ConfigError, "epochs of at least 1"):
        Descent(epochs=0)
