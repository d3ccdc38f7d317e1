"""The tangent model against dense algebra: its outputs, its gradient, its curvature and its mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import ConfigError, MismatchError, ShapeError
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.likelihoods import Gaussian
from lapwing.linalg import Diagonal, Structured
from lapwing.linear.mode.loss import Loss
from lapwing.linear.mode.newton import lowest
from lapwing.linear.preconditioners import Subsample
from lapwing.linear.problem import Problem as Products
from lapwing.linear.solvers import CG, SGD
from lapwing.linear.tangent import Tangent, Target
from tests.checker import unchecked
from tests.linear.tangent_dense import SCALE, Dense, fitted, somewhere, uneven
from tests.pairwise import in_turn
from tests.posterior_cases import PROBLEMS, labels, normal, portrait, problem, refused, seeded

TARGETS: list[Target] = ["affine", "simplified"]
CONVEX = [name for name in PROBLEMS if name not in ("heteroscedastic", "student-t")]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_outputs_are_linear_in_the_weights(name: str, target: Target) -> None:
    dense = Dense(name, target)
    w = somewhere(dense.size)
    torch.testing.assert_close(Tangent(dense.training, target).outputs(dense.case.x, w), dense.outputs(w))


@pytest.mark.parametrize("name", PROBLEMS)
def test_at_the_trained_weights_the_gradient_is_the_networks_own(name: str) -> None:
    case, posterior = fitted(name)
    score, nll, misfit = Tangent(posterior.training).score(posterior.network.weights)
    params = [value for value in case.model.parameters() if value.requires_grad]
    training = case.model.training
    f = case.likelihood.canonical(case.model.eval()(case.x))
    case.model.train(training)
    loss = case.likelihood.nll(f, case.likelihood.canonical_targets(f, case.y)).sum()
    expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, params)])
    torch.testing.assert_close(score, -expected)
    assert nll == pytest.approx(float(loss.detach())) == pytest.approx(posterior.totals.nll)
    assert misfit == pytest.approx(posterior.totals.misfit)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_score_is_a_derivative_anywhere(name: str, target: Target) -> None:
    dense = Dense(name, target)
    w = somewhere(dense.size)
    score, nll, misfit = Tangent(dense.training, target).score(w)
    torch.testing.assert_close(score, -torch.func.grad(dense.nll)(w))
    assert nll == pytest.approx(float(dense.nll(w)))
    if isinstance(dense.case.likelihood, Gaussian):
        squares = (dense.y - dense.outputs(w)).square() * dense.case.likelihood.precisions(dense.f)
        assert misfit == pytest.approx(float(squares.sum()))
    else:
        assert misfit == 0.0


@pytest.mark.parametrize(
    ("name", "target"), in_turn(PROBLEMS, TARGETS, whole=("categorical", "heteroscedastic", "tokens"))
)
def test_newtons_matrix_has_the_output_hessian_of_its_weights(name: str, target: Target) -> None:
    dense = Dense(name, target)
    tangent, prior = Tangent(dense.training, target), uneven(dense.size)
    for w in (somewhere(dense.size), somewhere(dense.size, seed=6)):
        found, ggn = tangent.problem(w, prior, SCALE), dense.ggn(w)
        torch.testing.assert_close(found.precision.dense(), SCALE * ggn + prior.dense())
        root = found.root.dense()
        torch.testing.assert_close(root @ root.mT, ggn)
        torch.testing.assert_close(found.root.T.dense(), root.mT)
        total = torch.zeros_like(ggn)
        for batch in found.curvature.parts(dense.size):
            for part in batch:
                total += part.dense()
        torch.testing.assert_close(total, ggn)


@pytest.mark.parametrize(
    ("name", "target"), in_turn(CONVEX, TARGETS, whole=("gaussian-per-output", "categorical", "tokens"))
)
def test_the_mode_is_that_of_the_dense_model(name: str, target: Target) -> None:
    dense, scale = Dense(name, target), SCALE if name.startswith("gaussian") else 1.0
    prior = uneven(dense.size)
    with torch.random.fork_rng():
        before = portrait(dense.case.model)
        found = Tangent(dense.training, target).mode(prior, scale, rtol=1e-10)
        assert portrait(dense.case.model) == before
    expected = dense.mode(prior.values, scale)
    torch.testing.assert_close(found.weights, expected, rtol=1e-8, atol=1e-8)
    assert found.converged and found.gradient <= 1e-10
    assert found.nll == pytest.approx(float(dense.nll(expected)))
    distance = (prior.values * (found.weights - expected).square()).sum().sqrt()
    assert distance <= 1e-8 * (prior.values * expected.square()).sum().sqrt()


@pytest.mark.parametrize("solver", [CG(), SGD(epochs=400, batch=10, momentum=0.95, rtol=1e-3)])
def test_with_gaussian_noise_the_mode_is_the_posterior_mean(solver: CG | SGD) -> None:
    dense = Dense("gaussian-per-output", "affine")
    prior = Diagonal(torch.linspace(1.0, 3.0, dense.size, dtype=torch.float64))
    j, precisions = dense.jacobian.flatten(0, 1), torch.tensor([0.5, 3.0], dtype=torch.float64).repeat(10)
    shifted = dense.y - dense.f + dense.jacobian @ dense.theta
    b = SCALE * j.mT @ (precisions * shifted.flatten())
    expected = torch.linalg.solve(SCALE * (j.mT * precisions) @ j + prior.dense(), b)
    rtol = 1e-9 if isinstance(solver, CG) else 1e-2
    for initial in (None, somewhere(dense.size)):
        found = Tangent(dense.training).mode(prior, SCALE, solver=solver, initial=initial, rtol=rtol)
        torch.testing.assert_close(found.weights, expected, rtol=10 * rtol, atol=10 * rtol)
        residual = precisions * (dense.y - dense.outputs(expected)).flatten().square()
        assert found.misfit == pytest.approx(float(residual.sum()), rel=10 * rtol)
        assert found.gradient <= 5 * rtol


def test_descent_reaches_directions_that_the_data_hardly_determine() -> None:
    """Their residuals are small beside a right-hand side that is large elsewhere: no sign that it is done."""
    x = normal(40, 4) * torch.tensor([30.0, 3.0, 1.0, 0.3], dtype=torch.float64)
    model = nn.Linear(4, 1, bias=False).double()
    y = x @ normal(4, 1, seed=2) + 0.1 * normal(40, 1, seed=3)
    training = lw.Laplace(lw.Gaussian(), structure=lw.MatrixFree()).fit(model, (x, y)).training
    prior = Diagonal(torch.full((4,), 20.0, dtype=torch.float64))
    expected = torch.linalg.solve(x.mT @ x + prior.dense(), x.mT @ y)[:, 0]
    found = Tangent(training).mode(prior, solver=SGD(epochs=600, batch=40, rtol=1e-2, momentum=0.95))
    assert found.converged and found.gradient <= 1e-2 and found.iterations <= found.matvecs <= 620
    assert (found.weights - expected).norm() <= 1e-2 * expected.norm()


@pytest.mark.parametrize("name", ["categorical", "poisson", "negative-binomial"])
def test_descent_finds_the_mode_of_other_likelihoods(name: str) -> None:
    dense = Dense(name, "affine")
    prior = Diagonal(torch.linspace(3.0, 9.0, dense.size, dtype=torch.float64))
    exact = Tangent(dense.training).mode(prior, rtol=1e-10)
    found = Tangent(dense.training).mode(prior, solver=SGD(epochs=100, batch=6, rtol=0.01))
    assert found.iterations > 0 and found.gradient < 0.03
    difference = (prior.values * (found.weights - exact.weights).square()).sum().sqrt()
    assert difference <= 0.03 * (prior.values * exact.weights.square()).sum().sqrt()


def normalised() -> nn.Module:
    """All weights but those of the head before a norm; no biases."""

    def build() -> nn.Module:
        norms = [nn.LayerNorm(6, eps=0.0, elementwise_affine=False) for _ in range(2)]
        hidden = nn.Linear(3, 6, bias=False), nn.Linear(6, 6, bias=False)
        return nn.Sequential(
            hidden[0], norms[0], nn.Tanh(), hidden[1], norms[1], nn.Tanh(), nn.Linear(6, 3, bias=False)
        )

    return seeded(build)


def test_behind_norms_and_with_a_linear_head_the_offset_is_nothing() -> None:
    x, y = normal(12, 3), labels(12, classes=3)
    training = lw.Laplace(lw.Categorical()).fit(normalised(), (x, y)).training
    affine, simplified = (Tangent(training, target) for target in TARGETS)
    w = somewhere(training.model.network.size)
    torch.testing.assert_close(affine.outputs(x, w), simplified.outputs(x, w), rtol=1e-9, atol=1e-9)
    prior = uneven(training.model.network.size)
    modes = [tangent.mode(prior, rtol=1e-10).weights for tangent in (affine, simplified)]
    torch.testing.assert_close(modes[0], modes[1], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("memory", "spare"), [(2**31, 2**28), (4000, 500), (400, 50)])
def test_loaders_may_shuffle_and_outputs_need_not_fit(memory: int, spare: int) -> None:
    dense = Dense("categorical", "affine")
    dataset = TensorDataset(dense.case.x, dense.case.y)
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    posterior = lw.Laplace(lw.Categorical()).fit(dense.case.model, loader)
    prior = uneven(dense.size)
    loss = Loss(Linearisation(posterior.training.model, memory), prior, spare=spare)
    with torch.no_grad():
        found = CG().minimise(loss, lowest(loss), rtol=1e-9, steps=100, progress=None)
    torch.testing.assert_close(found.weights, dense.mode(prior.values, 1.0), rtol=1e-7, atol=1e-8)


def test_from_the_mode_there_is_nothing_left_to_do() -> None:
    dense = Dense("images", "affine")
    tangent, prior = Tangent(dense.training), uneven(dense.size)
    first = tangent.mode(prior, rtol=1e-6)
    again = tangent.mode(prior, rtol=1e-6, initial=first.weights)
    assert (again.iterations, again.matvecs, again.stopped) == (0, 1, "converged")
    near = tangent.mode(Diagonal(1.2 * prior.values), rtol=1e-6, initial=first.weights)
    assert near.converged and near.matvecs < first.matvecs


def test_a_network_that_is_certain_has_a_mode_too() -> None:
    """Where one class has all probability the output Hessian is gone, and Newton's step far too long or too short."""
    model, x = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))), normal(20, 3)
    with torch.no_grad():
        model[2].weight.mul_(60.0)
    y = model(x).argmax(1)
    training = lw.Laplace(lw.Categorical()).fit(model, (x, y)).training
    for precision in (1e-2, 1.0):
        prior = Diagonal(torch.full((training.model.network.size,), precision, dtype=torch.float64))
        for initial in (None, torch.zeros(training.model.network.size).double()):
            found = Tangent(training).mode(prior, initial=initial, rtol=1e-6)
            assert found.converged and found.iterations < 40


def test_rounding_ends_what_tolerance_does_not() -> None:
    x, y = normal(30, 3).float(), labels(30, classes=3)
    model = nn.Linear(3, 3)
    tangent = Tangent(lw.Laplace(lw.Categorical()).fit(model, (x, y)).training)
    found = tangent.mode(Diagonal(torch.ones(12)), rtol=1e-14)
    assert found.stopped == "stagnated" and found.gradient < 1e-5


class Counted:
    """How often an approximation of the curvature was made."""

    calls = 0


def test_an_approximation_of_the_curvature_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Dense("categorical", "affine")
    made = Subsample.curvature

    def counted(self: Subsample, problem: Products) -> Structured:
        Counted.calls += 1
        return made(self, problem)

    monkeypatch.setattr(Subsample, "curvature", counted)
    tangent, solver = Tangent(dense.training), CG(preconditioner=Subsample(10))
    for precision in (0.5, 2.0):
        prior = Diagonal(torch.full((dense.size,), precision, dtype=torch.float64))
        found = tangent.mode(prior, solver=solver, rtol=1e-9)
        torch.testing.assert_close(found.weights, dense.mode(prior.values, 1.0), rtol=1e-7, atol=1e-8)
        assert found.iterations > 1
    assert Counted.calls == 1


def test_what_makes_no_sense_is_refused() -> None:
    dense = Dense("categorical", "affine")
    tangent, prior = Tangent(dense.training), uneven(dense.size)
    with refused(ShapeError, "flat"):
        tangent.score(torch.zeros(3).double())
    with refused(ShapeError, f"{dense.size} weights"):
        tangent.mode(Diagonal(torch.ones(3).double()))
    with refused(ConfigError, "positive scale"):
        tangent.mode(prior, 0.0)
    with refused(ConfigError, "positive rtol"):
        tangent.mode(prior, rtol=-1.0)


def test_a_network_that_was_trained_on_is_refused() -> None:
    case = problem("categorical")
    tangent = Tangent(case.fit(lw.Laplace(case.likelihood)).training)
    with torch.no_grad():
        next(case.model.parameters()).add_(1.0)
    with pytest.raises(MismatchError):
        tangent.score(torch.zeros(tangent.training.layout.size).double())


def test_a_descent_ends_at_its_solvers_own_tolerance() -> None:
    dense = Dense("categorical", "affine")
    loose, tight = (
        Tangent(dense.training).mode(uneven(dense.size), solver=SGD(epochs=2000, batch=40, rtol=rtol))
        for rtol in (0.3, 1e-2)
    )
    assert loose.converged and 1e-2 < loose.gradient <= 0.3 and loose.iterations < tight.iterations


def test_a_descent_whose_steps_are_far_too_short_goes_as_far_as_they_lead() -> None:
    dense = Dense("gaussian", "affine")
    modes = [
        Tangent(dense.training).mode(uneven(dense.size), solver=SGD(epochs=epochs, batch=40, step=1e-9))
        for epochs in (20, 100)
    ]
    assert [mode.stopped for mode in modes] == ["iterations"] * 2
    assert modes[1].gradient < modes[0].gradient < 1.0 and modes[1].nll < modes[0].nll


def test_a_prior_does_for_its_operator() -> None:
    _, posterior = fitted("categorical")
    tangent = Tangent(posterior.training)
    by_prior = tangent.mode(lw.Isotropic(0.7))
    by_operator = tangent.mode(Diagonal(torch.full((posterior.network.size,), 0.7)))
    torch.testing.assert_close(by_prior.weights, by_operator.weights, rtol=1e-6, atol=1e-8)
    with unchecked():
        with refused(ConfigError, "the prior"):
            tangent.mode(1.0)  # type: ignore[arg-type]
        with refused(ConfigError, "the training"):
            Tangent(nn.Linear(2, 2))  # type: ignore[arg-type]
