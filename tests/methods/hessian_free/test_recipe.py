"""Covariances by refits against dense Hessians and Jacobians."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, MismatchError, NumericalError, UnsupportedError
from lapwing.methods.hessian_free import HessianFree, NewtonCG, PerPoint, PreTrained, Probed
from lapwing.methods.hessian_free.probed import absolute
from lapwing.methods.hessian_free.regularisers import InSample
from tests.methods.hessian_free.setting import SETTINGS, Setting, curve, shared, tanh
from tests.posterior_cases import normal, portrait, refused

every_setting = pytest.mark.parametrize("name", SETTINGS)


def close(found: Tensor, expected: Tensor, part: float) -> None:
    """Relative to the largest entry."""
    torch.testing.assert_close(found.to(expected), expected, rtol=0, atol=part * float(expected.abs().max()))


@every_setting
@pytest.mark.no_cover
def test_a_fit_a_point_finds_the_covariance_of_its_outputs(name: str) -> None:
    setting = shared(name)
    posterior = setting.fit(fits=PerPoint(group=3))
    moments = setting.blocks()
    close(posterior.covariances.on(setting.points).blocks, moments, 1e-5)
    found = posterior.variances(setting.points).value / moments.diagonal(dim1=-2, dim2=-1)
    assert float((found - 1).abs().max()) < 1e-4


@every_setting
@pytest.mark.parametrize("objective", ["mean", "absolute"])
@pytest.mark.no_cover
def test_a_pre_trained_fit_finds_the_covariance_with_the_mean_output(name: str, objective: str) -> None:
    setting = shared(name)
    posterior = setting.fit(fits=PreTrained(objective))
    outputs = setting.outputs(setting.theta, setting.points)
    signs = outputs.sign() if objective == "absolute" else torch.ones_like(outputs)
    jacobian = setting.jacobian(setting.points).view(*outputs.shape, -1)
    mean = (signs[..., None] * jacobian).mean(0)
    new = normal(3, setting.x.shape[1], seed=5)
    expected = setting.jacobian(new).view(3, *mean.shape) @ torch.linalg.solve(setting.hessian, mean.mT)
    close(posterior.covariances.on(new).blocks, absolute(expected), 1e-5)
    if outputs.shape[1] == 1:
        close(posterior.variances(new).value[:, 0], expected.abs()[:, 0, 0], 1e-5)


@every_setting
@pytest.mark.no_cover
def test_in_sample_is_absolute_over_the_training_inputs(name: str) -> None:
    setting = shared(name)
    within = setting.fit(fits=PreTrained("in_sample"))
    apart = setting.fit(setting.x, fits=PreTrained("absolute"))
    close(within.covariances.on(setting.points).blocks, apart.covariances.on(setting.points).blocks, 1e-7)


def test_augmented_is_the_mean_over_the_training_inputs_and_fits_shifted_targets() -> None:
    """By the gradient, at some other weights, of the loss of these targets."""
    setting = shared("two-outputs")
    within = setting.fit(fits=PreTrained("augmented"), scale=1e-4)
    apart = setting.fit(setting.x, fits=PreTrained("mean"), scale=1e-4)
    close(within.covariances.responses.plus, apart.covariances.responses.plus, 1e-6)
    scales, delta = torch.tensor([0.3, 1.3], dtype=torch.float64), 0.1 * normal(2, len(setting.theta))
    regulariser = InSample(torch.eye(2, dtype=torch.float64) / len(setting.x), signed=False).times(scales)
    slopes = within.refit.slopes(regulariser, delta) + within.refit.gradient
    for k, precision in enumerate((2.0, 5.0)):
        shift = torch.zeros(2, dtype=torch.float64)
        shift[k] = scales[k] / (precision * len(setting.x))
        shifted = replace(setting, y=setting.y + shift)
        close(slopes[k], grad(shifted.loss)(setting.theta + delta[k]), 1e-12)


@every_setting
def test_as_many_probes_as_outputs_find_every_covariance(name: str) -> None:
    setting = shared(name)
    outputs = setting.jacobian(setting.points).shape[0]
    posterior = setting.fit(fits=Probed(outputs + 3, 2))
    joint = posterior.covariances.on(setting.points).joint
    close(joint.reshape(outputs, outputs), setting.covariance(), 1e-4)
    close(posterior.covariances.on(setting.points).blocks, setting.blocks(), 1e-4)


def test_fewer_probes_are_within_their_error() -> None:
    setting = curve(hidden=5, examples=12)
    found = setting.fit(fits=Probed(3, 8), seed=1).variances(setting.points)
    truth = setting.blocks()[:, 0]
    assert float(found.stderr.max()) > 1e-3 * float(truth.max())
    low, high = found.interval(0.999)
    assert bool(((low <= truth) & (truth <= high)).double().mean() > 0.85)


def test_too_few_probes_are_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    setting = shared("two-outputs")
    setting.fit(fits=Probed(1, 8))
    assert [record.levelname for record in caplog.records if "try Probed(4, 16)" in record.message] == ["WARNING"]
    caplog.clear()
    setting.fit(fits=Probed(setting.covariance().shape[0] + 3, 2))
    assert not [record for record in caplog.records if "try Probed" in record.message]


@every_setting
def test_the_network_predicts_with_that_covariance(name: str) -> None:
    setting = shared(name)
    prediction = setting.fit(fits=PerPoint()).predict(setting.points)
    mean = setting.outputs(setting.theta, setting.points)
    expected = setting.likelihood.predictive(lw.predictive.Moments(mean, setting.blocks()))
    if isinstance(setting.likelihood, lw.Categorical):
        close(prediction.probs, expected.probs, 1e-5)
    else:
        close(prediction.std, expected.std, 1e-5)
        close(prediction.mean, expected.mean, 1e-12)


@pytest.mark.parametrize(("antithetic", "power"), [(True, 2), (False, 1)])
@pytest.mark.no_cover
def test_the_error_falls_with_the_power_of_lambda(antithetic: bool, power: int) -> None:
    setting = shared("curve")
    truth = setting.blocks()[:, 0, 0]
    errors = []
    for scale in (0.2, 0.1):
        options = {"fits": PerPoint(), "scale": scale, "antithetic": antithetic}
        found = setting.fit(setting.points[4:7], **options).variances(setting.points[4:7]).value
        errors.append((found[:, 0] - truth[4:7]).abs().max())
    assert 0.8 * 2**power < float(errors[0] / errors[1]) < 1.25 * 2**power


def test_lambda_moves_the_weights_by_the_step() -> None:
    setting = shared("two-outputs")
    responses = setting.fit(fits=PreTrained(), step=1e-4).covariances.responses
    moved = torch.einsum("si,ij,sj->s", responses.plus, setting.hessian, responses.plus).sqrt()
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-4), rtol=1e-3, atol=0)


def test_given_lambda_is_used() -> None:
    posterior = shared("two-outputs").fit(fits=PreTrained(), scale=1e-3)
    assert posterior.linearity.scale == (1e-3, 1e-3)


def test_fits_are_counted() -> None:
    found = shared("two-outputs").fit(fits=PreTrained()).linearity
    assert (found.fits, found.checked) == (2 + 4 + 4, 2) and found.products > 0
    assert 0 < found.change < 1e-6 and found.residual < 1e-5


def away(setting: Setting) -> Setting:
    """The same a little before its minimum."""
    model = tanh(3, 4, 2)
    shift = 1e-3 * normal(len(setting.theta), seed=9)
    nn.utils.vector_to_parameters(setting.theta + shift, model.parameters())
    return Setting(model, setting.likelihood, setting.alpha, setting.x, setting.y, setting.points)


@pytest.mark.parametrize("antithetic", [True, False])
def test_away_from_a_minimum_the_centred_answer_is_that_of_the_hessian_there(antithetic: bool) -> None:
    setting = away(shared("two-outputs"))
    posterior = setting.fit(fits=PreTrained(), antithetic=antithetic)
    expected = setting.covariance().view(5, 2, 5, 2).mean(2)
    close(posterior.covariances.responses.outputs(setting.points).movedim(0, -1), expected, 1e-4)
    assert posterior.linearity.gradient > 1


@pytest.mark.no_cover
def test_refits_from_away_find_the_minimum_unless_centred() -> None:
    """Then twins cancel what is left of training, and one-sided differences do not."""
    start, end = away(shared("two-outputs")), shared("two-outputs")
    inner = NewtonCG(steps=5)
    twins = start.fit(fits=PreTrained(), inner=inner, centred=False, scale=1e-4).covariances.responses
    torch.testing.assert_close(twins.refit.weights(twins.plus)[0], end.theta, rtol=0, atol=1e-4)
    close(twins.outputs(end.points).movedim(0, -1), end.covariance().view(5, 2, 5, 2).mean(2), 1e-3)
    with refused(NumericalError, "near linear"):
        start.fit(fits=PreTrained(), inner=inner, centred=False, antithetic=False, scale=1e-6)


def test_an_indefinite_hessian_is_refused_with_a_sentence() -> None:
    setting = shared("curve")
    raw = Setting(tanh(1, 8, 1, seed=3), setting.likelihood, 1e-3, setting.x, setting.y, setting.points)
    assert float(torch.linalg.eigvalsh(raw.hessian)[0]) < 0
    before = portrait(raw.model)
    with refused(NumericalError, "positive definite"):
        raw.fit()
    assert portrait(raw.model) == before


@pytest.mark.parametrize(
    "fits", [PerPoint(), PreTrained("in_sample"), Probed(4, 2)], ids=lambda fits: type(fits).__name__
)
def test_the_module_is_left_as_it_was(fits: object) -> None:
    setting = curve(hidden=3, examples=8)
    setting.model.train()
    before = portrait(setting.model)
    setting.fit(fits=fits).predict(setting.points[:2])
    assert portrait(setting.model) == before


def test_the_default_points_are_the_training_inputs() -> None:
    setting = shared("two-outputs")
    posterior = HessianFree(setting.likelihood, prior=setting.prior, fits=PerPoint()).fit(
        setting.model, [(setting.x[:5], setting.y[:5]), (setting.x[5:], setting.y[5:])]
    )
    close(posterior.covariances.on(setting.x.flip(0)).blocks, setting.blocks(setting.x).flip(0), 1e-4)


def test_scores_on_held_out_data() -> None:
    setting = shared("classes")
    scores = lw.evaluate(setting.fit(setting.x), (setting.x, setting.y))
    assert 0 < scores["nll"] < 2


def test_it_has_no_weights_to_sample() -> None:
    posterior = shared("classes").fit(fits=PreTrained())
    assert not any(hasattr(posterior, name) for name in ("sample", "log_marginal", "sample_functions"))
    assert "HessianFreePosterior(Isotropic" in repr(posterior)


def test_only_some_weights_are_refitted() -> None:
    setting = shared("two-outputs")
    posterior = setting.fit(fits=PerPoint(), weights=lw.LastLayer())
    last = slice(16, 26)
    part = setting.jacobian(setting.points)[:, last]
    expected = part @ torch.linalg.solve(setting.hessian[last, last], part.mT)
    blocks = torch.stack([expected[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] for i in range(5)])
    close(posterior.covariances.on(setting.points).blocks, blocks, 1e-5)


def test_other_inputs_are_refused() -> None:
    setting = shared("two-outputs")
    posterior = setting.fit(setting.points[:2], fits=Probed(2, 2))
    with refused(UnsupportedError, "2 evaluation points"):
        posterior.predict(setting.points)
    with refused(DataError, "at least one example"):
        posterior.predict(setting.points[:0])
    with refused(DataError, "at least one example"):
        setting.fit(setting.points[:0])


def test_a_joint_covariance_needs_probes() -> None:
    setting = shared("two-outputs")
    assert setting.fit(fits=Probed(4, 2)).predict(setting.points, joint=True).outputs.covariance.shape == (5, 2, 5, 2)
    with refused(UnsupportedError, "probed fits"):
        setting.fit(fits=PreTrained()).predict(setting.points, joint=True)


def test_bad_choices_are_refused() -> None:
    with refused(ConfigError, "residual of at least 2"):
        Probed(4, 1)
    with refused(ConfigError, "a positive step"):
        HessianFree(lw.Categorical(), step=-1.0)


def test_a_network_that_was_trained_on_is_refused() -> None:
    setting = curve(hidden=3, examples=8)
    posterior = setting.fit(fits=PreTrained())
    with torch.no_grad():
        setting.model[0].bias += 1
    with pytest.raises(MismatchError):
        posterior.predict(setting.points)
