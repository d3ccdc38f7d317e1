"""The loss in an ordinary loop: its three parts, its records, what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, ShapeError, UnsupportedError
from lapwing.methods.marginal import ByEvidence, ByGradient, MarginalLikelihood
from tests.curvature.unchanged import unchanged
from tests.methods.marginal.setting import SIZE, case, dense, gradients, marginal_of
from tests.posterior_cases import convnet, labels, mlp, normal, refused


def test_the_warm_up_is_the_likelihood_of_the_module_as_it_is_called() -> None:
    model, likelihood, x, y = case("gaussian")
    marginal = MarginalLikelihood(model, likelihood, data_size=2 * SIZE, warm_up=1, noise=False)
    model.train()
    torch.manual_seed(5)
    loss = marginal.loss(x, y)
    torch.manual_seed(5)
    torch.testing.assert_close(loss, 2 * likelihood.nll(model(x), y).sum())
    assert loss.item() != marginal.loss(x, y).item()


def test_afterwards_dropout_has_no_effect_and_modes_are_left_alone() -> None:
    marginal, x, y = marginal_of("gaussian", lw.Isotropic())
    with unchanged(marginal.model):
        losses = [marginal.loss(x, y).item() for _ in range(2)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("updates", [ByGradient(), ByEvidence()], ids=lambda x: type(x).__name__)
def test_while_settling_the_weights_do_not_hear_of_the_log_determinant(updates: Any) -> None:
    marginal, x, y = marginal_of("gaussian", lw.Isotropic(1.7), settle=1, updates=updates)
    loss, whole = marginal.loss(x, y), dense(marginal, x, y)
    log_det = dense(marginal, x, y) - dense(marginal, x, y, lambda ggn, precision: precision.log().sum())
    weights = list(marginal.model.parameters())
    grads = [torch.autograd.grad(value, weights, retain_graph=True) for value in (loss, whole, log_det)]
    for ours, both, own in zip(*grads, strict=True):
        torch.testing.assert_close(ours, both - own)
    if updates.by_gradient:
        torch.testing.assert_close(loss, whole)
        torch.testing.assert_close(gradients(marginal.loss(x, y), marginal)[-2], gradients(whole, marginal)[-2])
    else:
        assert math.isnan(marginal._terms[-1][2])


def test_a_record_holds_every_term_of_the_evidence() -> None:
    marginal, x, y = marginal_of("gaussian", lw.Isotropic(1.7), updates=ByGradient(start=None))
    loss = marginal.loss(x, y).item()
    theta = torch.cat([p.detach().flatten() for p in marginal.model.parameters()])
    record = marginal.end_of_epoch()
    assert record.total == pytest.approx(loss)
    assert record.nll == pytest.approx(marginal.likelihood.nll(marginal.model.eval()(x), y).sum().item())
    layout = marginal._hyper.layout
    assert record.log_prior == pytest.approx(float(lw.Isotropic(1.7).log_density(theta, layout)))
    assert record.half_log_det == pytest.approx(
        loss - record.nll + record.log_prior + 0.5 * len(theta) * math.log(2 * math.pi)
    )
    assert record.prior_precision == pytest.approx((1.7,))
    assert record.noise_precision == pytest.approx((2.0, 5.0))
    assert marginal.history == [record]


def test_records_are_means_over_batches() -> None:
    marginal, x, y = marginal_of("gaussian", lw.Isotropic(), updates=ByGradient(start=None))
    losses = [marginal.loss(part, target).item() for part, target in zip(x.split(3), y.split(3), strict=True)]
    assert marginal.end_of_epoch().total == pytest.approx(sum(losses) / 2)


def test_by_gradient_an_optimiser_moves_precisions_and_noise_to_the_optimum_of_the_evidence() -> None:
    marginal, x, y = marginal_of("gaussian", lw.Layerwise(1.0), updates=ByGradient(start=None))
    optimiser = torch.optim.LBFGS(marginal.hyperparameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = marginal.loss(x, y)
        loss.backward()
        return loss

    optimiser.step(closure)
    recipe = lw.Laplace(lw.Gaussian((2.0, 5.0)), prior=lw.Layerwise(1.0), structure=lw.Full())
    best = lw.tune(recipe.fit(marginal.model, (x, y)), lw.EvidenceGradient())
    assert marginal.prior.precision == pytest.approx(best.prior.precision, rel=1e-3)
    assert marginal.likelihood.precision == pytest.approx(best.likelihood.precision, rel=1e-3)


def test_without_a_log_determinant_the_weights_see_the_joint_density() -> None:
    marginal, x, y = marginal_of("categorical", lw.Isotropic(1.7), log_det=None, updates=ByEvidence())
    with_prior = dense(marginal, x, y, lambda ggn, precision: precision.log().sum())
    torch.testing.assert_close(marginal.loss(x, y), with_prior)
    assert math.isnan(marginal._terms[-1][2])


@pytest.mark.parametrize("outputs", [1, SIZE])
def test_a_wrong_rule_of_vectorised_differentiation_is_gone_around(outputs: int) -> None:
    """PReLU's takes examples for outputs where there are as many, and fails where there is one."""
    model = nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, outputs)).double()
    x, y = normal(SIZE, 3), normal(SIZE, outputs, seed=1)
    marginal = MarginalLikelihood(model, lw.Gaussian(2.0), data_size=SIZE, warm_up=0, settle=0)
    params, rows = list(model.parameters()), list[Tensor]()
    for output in model(x).flatten():
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(output, params, create_graph=True)]))
    jacobian, weights = torch.stack(rows), torch.cat([p.flatten() for p in params])
    precision = 2 * jacobian.mT @ jacobian + torch.eye(len(weights), dtype=torch.float64)
    expected = (y - model(x)).square().sum() + 0.5 * weights.square().sum() + 0.5 * torch.logdet(precision)
    loss = marginal.loss(x, y)
    assert loss.item() == pytest.approx(expected.item() + 0.5 * y.numel() * math.log(math.pi))
    for ours, theirs in zip(*(torch.autograd.grad(each, params) for each in (loss, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"data_size": 0}, "data_size=0"),
        ({"warm_up": -1}, "warm_up=-1"),
        ({"settle": -1}, "settle=-1"),
        ({"log_det": None, "updates": ByGradient()}, "log_det=None"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_options_that_make_no_sense(options: dict[str, Any], got: str) -> None:
    with refused(ConfigError, got):
        MarginalLikelihood(mlp(), lw.Gaussian(), **({"data_size": 6} | options))


def test_data_that_do_not_fit() -> None:
    marginal, x, y = marginal_of("gaussian", lw.Isotropic(), data_size=5, updates=ByEvidence())
    with refused(DataError, "data_size=5"):
        marginal.loss(x, y)
    with refused(ShapeError, "[5, 2]"):
        marginal.loss(x[:5], normal(5, 3))
    marginal.loss(x[:5], y[:5])
    with refused(DataError, "data_size=5"):
        marginal.end_of_epoch((x, y))
    with refused(ConfigError, "follow the curvature"):
        MarginalLikelihood(mlp(), lw.Gaussian(), lw.GPrior(), data_size=6)
    with refused(ConfigError, "one loss"):
        MarginalLikelihood(mlp(), lw.Gaussian(), data_size=6).end_of_epoch()


def test_batch_norm_that_has_seen_no_data_is_refused_and_after_a_warm_up_it_is_frozen() -> None:
    model, x, y = convnet(), normal(6, 1, 5, 5), labels(6, classes=3)
    options = {"data_size": 6, "settle": 0, "updates": ByGradient(start=None)}
    with refused(ConfigError, "seen data"):
        MarginalLikelihood(model, lw.Categorical(), warm_up=0, **options).loss(x, y)
    marginal = MarginalLikelihood(model.train(), lw.Categorical(), warm_up=1, **options)
    marginal.loss(x, y)
    marginal.end_of_epoch()
    mean = model[1].running_mean.clone()
    marginal.loss(x, y).backward()
    assert torch.equal(mean, model[1].running_mean)
    assert model[0].weight.grad is not None


def test_a_network_whose_outputs_depend_on_the_batch_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)).double()
    marginal = MarginalLikelihood(model, lw.Gaussian(), data_size=6, warm_up=0)
    with refused(UnsupportedError, "one example each"):
        marginal.loss(normal(6, 3), normal(6, 2))


def test_inputs_by_keyword_and_position() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2).double()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(a + b)

    for warm_up in (0, 1):
        marginal = MarginalLikelihood(Sum(), lw.Gaussian(), data_size=6, warm_up=warm_up, settle=0)
        a, b, y = normal(6, 3), normal(6, 3, seed=1), normal(6, 2)
        assert marginal.loss((a, b), y).item() == pytest.approx(marginal.loss({"a": a, "b": b}, y).item())
