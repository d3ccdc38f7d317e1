from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import generator
from studies.hessian_free.curves import CURVES
from studies.hessian_free.shallow import NOISES, PRIOR_VARIANCE, STEPS, Shallow, columns, fitted, flat, network

WIDTH = 4


@pytest.fixture
def two() -> tuple[Shallow, Tensor]:
    """Two networks of 4 units on 7 points each, at weights that are no minimum."""
    g = generator(5)
    x, y, theta = (torch.randn(2, n, generator=g, dtype=torch.float64) for n in (7, 7, 3 * WIDTH + 1))
    return Shallow(x, y, torch.tensor([2.0, 5.0], dtype=torch.float64), WIDTH), theta


def test_outputs_are_those_of_the_module(two: tuple[Shallow, Tensor]) -> None:
    nets, theta = two
    model = network(0, WIDTH)
    for row, x, outputs in zip(theta, nets.x, nets.outputs(theta, nets.x), strict=True):
        torch.nn.utils.vector_to_parameters(row, model.parameters())
        torch.testing.assert_close(model(x[:, None])[:, 0].detach(), outputs)


def test_derivatives_are_those_of_autograd(two: tuple[Shallow, Tensor]) -> None:
    nets, theta = two
    gradient, hessian = nets.derivatives(theta)
    for k in range(2):
        alone = Shallow(nets.x[[k]], nets.y[[k]], nets.precision[[k]], WIDTH)
        loss = lambda row, own=alone: own.loss(row[None])[0]  # noqa: E731
        torch.testing.assert_close(gradient[k], torch.autograd.functional.jacobian(loss, theta[k]))
        torch.testing.assert_close(hessian[k], torch.autograd.functional.hessian(loss, theta[k]))
        outputs = lambda row, own=alone: own.outputs(row[None], own.x)[0]  # noqa: E731
        expected = torch.autograd.functional.jacobian(outputs, theta[k])
        torch.testing.assert_close(nets.jacobian(theta, nets.x)[k].mT, expected)


def test_newton_ends_at_a_minimum_and_leaves_the_start(two: tuple[Shallow, Tensor]) -> None:
    nets, theta = two
    before = theta.clone()
    found = nets.newton(theta)
    gradient, hessian = nets.derivatives(found)
    assert torch.equal(theta, before) and bool((nets.loss(found) < nets.loss(theta)).all())
    assert float(gradient.abs().max()) < 1e-8 and float(torch.linalg.eigvalsh(hessian).min()) > 0


def test_adam_treats_each_network_as_if_it_were_alone(two: tuple[Shallow, Tensor]) -> None:
    nets, theta = two
    alone = Shallow(nets.x[[1]], nets.y[[1]], nets.precision[[1]], WIDTH)
    torch.testing.assert_close(nets.adam(theta, 20)[[1]], alone.adam(theta[[1]], 20))
    assert bool((nets.loss(nets.adam(theta, 20)) < nets.loss(theta)).all())


def test_fitted_networks_are_minima_of_the_posterior_lapwing_builds() -> None:
    made = fitted("Quadratic-Inbetween", Setting(quick=True))
    assert [each.seed for each in made] == [0, 1]
    for each in made:
        data = (columns([each.data], "train", at) for at in (0, 1))
        alone = Shallow(*data, torch.tensor([1 / each.noise], dtype=torch.float64), 5)
        assert each.noise in NOISES and each.smallest > 0
        assert float(alone.derivatives(each.weights[None])[0].abs().max()) < 1e-8
        assert each.prior == lw.Isotropic(1 / PRIOR_VARIANCE) and each.likelihood == lw.Gaussian(1 / each.noise)
        recipe = lw.Laplace(
            each.likelihood, prior=each.prior, structure=lw.Full(view="weights"), curvature=lw.Hessian()
        )
        precision = recipe.fit(each.model, each.data.train).precision_operator.dense()
        assert float(torch.linalg.eigvalsh(precision)[0]) == pytest.approx(each.smallest, rel=1e-8)
        x = each.data.outside[0][:3]
        torch.testing.assert_close(each.jacobian(x), gradients(each.model, x))


def test_the_noise_is_that_of_least_validation_nll() -> None:
    (each,) = fitted("Sin-Uniform", Setting(quick=True), [1])
    noises = torch.tensor(NOISES, dtype=torch.float64)
    x, y, held, seen = (
        columns([each.data] * len(NOISES), part, at) for part in ("train", "validation") for at in (0, 1)
    )
    nets = Shallow(x, y, 1 / noises, 5)
    outputs = nets.outputs(nets.adam(flat(network(1, 5)).expand(len(NOISES), -1), STEPS // 4), held)
    scores = torch.distributions.Normal(outputs, noises.sqrt()[:, None]).log_prob(seen).sum(1)
    assert each.noise == NOISES[int(scores.argmax())]


def gradients(model: torch.nn.Module, x: Tensor) -> Tensor:
    rows = [torch.autograd.grad(output, list(model.parameters()), retain_graph=True) for output in model(x)]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def test_the_data_of_all_seeds_lie_side_by_side() -> None:
    data = [CURVES["Sin-Uniform"].draw(seed, quick=True) for seed in (0, 1)]
    assert torch.equal(columns(data, "train", 1)[1], data[1].train[1][:, 0])


def test_minima_are_found_once_and_again_after_other_steps(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(quick=True, kept=tmp_path)
    (first,) = fitted("Quadratic-Inbetween", setting, [0])
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr("studies.hessian_free.shallow.trained", lambda *_: pytest.fail("trained again"))
    (again,) = fitted("Quadratic-Inbetween", setting, [0])
    assert torch.equal(first.weights, again.weights) and first.noise == again.noise
    monkeypatch.undo()
    fitted("Quadratic-Inbetween", setting, [0], steps=8)
    assert len(list(tmp_path.iterdir())) == 2 and path.exists()
