"""The evidence of the tangent model: where it is taken, what a scale does to it, and its two views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.jacobian.network.scale_invariance import normalised
from lapwing.linear.tangent import Mode, Tangent
from lapwing.tuning.evidence import at_mode
from tests.laws.test_rescaling import EPS, rescaled
from tests.posterior_cases import Linearised, Problem, labels, normal, problem, seeded

VALUES = [0.05, 1.0, 20.0]


def full(case: Problem, prior: lw.priors.Prior, view: str = "weights") -> lw.Posterior:
    return case.fit(lw.Laplace(case.likelihood, prior=prior, structure=lw.Full(view=view)))


def mode_of(posterior: lw.Posterior, target: str = "affine") -> Mode:
    prior = posterior.prior.operator(posterior.network.uncertain, posterior.network.like)
    solver = lw.solvers.CG(preconditioner=lw.preconditioners.PivotedCholesky(200))
    return Tangent(posterior.training, target).mode(prior, posterior.noise_scale, solver=solver, rtol=1e-9)


def evidence_of(posterior: lw.Posterior, at: str, target: str = "affine") -> float:
    """At the trained weights, or at the mode of the tangent model."""
    here = posterior.evidence
    if at == "mode":
        mode, layout = mode_of(posterior, target), posterior.network.uncertain
        norms = posterior.prior.square_norms(mode.weights, layout)
        here = at_mode(here, norms, nll=mode.nll, misfit=mode.misfit)
    return float(here.log_marginal(posterior.prior_precisions, posterior.scale))


# ---- where the evidence is taken ------------------------------------------------------------------------------------


def stopped_early(seed: int) -> Problem:
    """Two clusters of a sine, targets of standard deviation 1, a normalised network that was not trained to the end."""
    x = torch.cat([normal(30, 1, seed=seed).tanh() - 1.5, normal(30, 1, seed=seed + 10).tanh() + 1.5])
    y = torch.sin(2 * x) + 0.15 * normal(60, 1, seed=seed + 20)
    y = (y - y.mean()) / y.std()

    def hidden(size: int) -> list[nn.Module]:
        return [nn.Linear(size, 10), nn.LayerNorm(10), nn.Tanh()]

    model = seeded(lambda: nn.Sequential(*hidden(1), *hidden(10), nn.Linear(10, 1)), seed)
    descent = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(200):
        descent.zero_grad()
        (model(x) - y).square().mean().backward()
        descent.step()
    noise = float((model(x) - y).square().mean().detach())
    return Problem(model, lw.Gaussian(1 / noise), x, y, torch.linspace(-2.5, 2.5, 21).double()[:, None])


@pytest.mark.parametrize("seed", [0, 4])
def test_trained_weights_ask_for_too_weak_a_prior_and_the_mode_does_not(seed: int) -> None:
    """Recommendation 1: at the trained weights the error bars are wider than the targets (figure 5.1)."""
    case = stopped_early(seed)
    posterior = full(case, lw.Isotropic(1.0))
    naive, right = (lw.tune(posterior, lw.EvidenceGradient(noise=False, at=at)) for at in ("weights", "mode"))
    assert 3 * naive.prior_precisions < right.prior_precisions
    wide, narrow = (it.predict(case.new).outputs.covariance.max().sqrt() for it in (naive, right))
    assert wide > 1.0 > narrow
    mode = mode_of(right)
    assert mode.weights.norm() < 0.5 * posterior.network.weights.norm()
    assert evidence_of(right, "mode") == pytest.approx(right.trace[-1].log_marginal, rel=1e-6)


@pytest.mark.parametrize(
    ("prior", "target"),
    [(lw.Isotropic(3.0), "simplified"), (lw.Layerwise((0.02, 40.0)), "affine"), (lw.Isotropic(0.02), "affine")],
)
def test_at_the_mode_it_is_the_density_of_the_data_under_the_tangent_model(prior: lw.priors.Prior, target: str) -> None:
    """``log N(y; offset, J A⁻¹ Jᵀ + B⁻¹ / s)``, with another noise than that of the fit."""
    case = problem("gaussian-per-output")
    posterior = full(case, prior)
    posterior = posterior.with_hyperparameters(prior, replace(posterior.likelihood, precision=(0.2, 1.2)))
    dense = Linearised(case, posterior.network)
    f, j = dense.outputs(case.x), dense.jacobian(case.x)
    offset = f - torch.einsum("ncd,d->nc", j, dense.theta) if target == "affine" else torch.zeros_like(f)
    noise = 1 / posterior.likelihood.precisions(f).expand(f.shape)
    rows = j.flatten(0, 1)
    covariance = (rows / posterior.prior_diagonal) @ rows.mT + torch.diag(noise.flatten())
    density = torch.distributions.MultivariateNormal(offset.flatten(), covariance).log_prob(case.y.flatten())
    assert evidence_of(posterior, "mode", target) == pytest.approx(float(density), rel=1e-9)


# ---- what a scale does ----------------------------------------------------------------------------------------------


def layer_normed(affine: bool = True) -> nn.Module:
    """Every weight but the head's is followed by a normalisation, where that is not affine."""

    def hidden(size: int) -> list[nn.Module]:
        return [nn.Linear(size, 5), nn.LayerNorm(5, EPS, elementwise_affine=affine), nn.Tanh()]

    return nn.Sequential(*hidden(3), *hidden(5), nn.Linear(5, 3))


def classes(affine: bool = True) -> Problem:
    x = normal(30, 3)
    return Problem(seeded(lambda: layer_normed(affine)), lw.Categorical(), x, labels(30, classes=3), normal(5, 3))


def numbers(affine: bool = True) -> Problem:
    x = normal(30, 3)
    return Problem(seeded(lambda: layer_normed(affine)), lw.Gaussian(4.0), x, normal(30, 3, seed=1), normal(5, 3))


@pytest.mark.parametrize(("build", "c"), [(classes, 5.0), (numbers, 0.2)])
def test_the_mode_and_its_evidence_move_with_the_scale_of_normalised_weights(
    build: Callable[[], Problem], c: float
) -> None:
    """Lemma 7: ``w'* + c w''*`` is the mode for ``A' + c⁻² A''``, and the evidence is the same: so are its maxima."""
    case = build()
    prior = normalised(case.model, case.x)
    assert prior.parts is not None and len(prior.parts) == 2
    factors = torch.tensor([c, 1 / c, 1.0]).double()
    other = Problem(rescaled(case.model, prior.parts, c), case.likelihood, case.x, case.y, case.new)
    precisions = torch.tensor([0.3, 2.0, 5.0]).double()
    one = full(case, prior.with_precisions(precisions))
    two = full(other, prior.with_precisions(precisions / factors.square()))
    group = one.prior.groups(one.network.uncertain)[0]
    first, second = mode_of(one), mode_of(two)
    torch.testing.assert_close(second.weights, factors[group] * first.weights, rtol=1e-6, atol=1e-8)
    assert second.nll == pytest.approx(first.nll, rel=1e-7)
    here, there = (
        at_mode(p.evidence, p.prior.square_norms(at.weights, p.network.uncertain), nll=at.nll, misfit=at.misfit)
        for p, at in ((one, first), (two, second))
    )
    torch.testing.assert_close(
        here.log_marginal(precisions, one.scale),
        there.log_marginal(precisions / factors.square(), two.scale),
        rtol=1e-8,
        atol=0,
    )


def parted(case: Problem) -> tuple[Linearised, Tensor, Tensor]:
    """The dense linear model, and which weights are normalised."""
    posterior = full(case, normalised(case.model, case.x))
    group, groups = posterior.prior.groups(posterior.network.uncertain)
    return Linearised(case, posterior.network), group < groups - 1, group


@pytest.mark.parametrize("affine", [False, True])
def test_normalised_weights_are_in_the_kernel_of_their_jacobian(affine: bool) -> None:
    """``J'' v'' = 0``, for every normalised group by itself."""
    dense, _, group = parted(classes(affine))
    jacobian = dense.jacobian(dense.case.x)
    assert int(group.max()) == 2
    for number in (0, 1):
        moved = torch.einsum("ncd,d->nc", jacobian[..., group == number], dense.theta[group == number])
        torch.testing.assert_close(moved, torch.zeros_like(moved), rtol=0, atol=1e-9)
    assert torch.einsum("ncd,d->nc", jacobian[..., group == 2], dense.theta[group == 2]).abs().max() > 0.1


def test_a_network_normalised_up_to_its_dense_head_is_its_own_tangent_without_offset() -> None:
    """``J v = g``, so both targets have one mode (section 5.4.1); scales and shifts of its last norm break that."""
    dense, normed, _ = parted(classes(affine=False))
    f, jacobian = dense.outputs(dense.case.x), dense.jacobian(dense.case.x)
    torch.testing.assert_close(torch.einsum("ncd,d->nc", jacobian, dense.theta), f, rtol=0, atol=1e-9)
    head = torch.einsum("ncd,d->nc", jacobian[..., ~normed], dense.theta[~normed])
    torch.testing.assert_close(head, f, rtol=0, atol=1e-9)
    posterior = full(dense.case, lw.Isotropic(0.7))
    affine, simplified = mode_of(posterior), mode_of(posterior, "simplified")
    torch.testing.assert_close(simplified.weights, affine.weights, rtol=1e-6, atol=1e-8)
    broken, _, _ = parted(classes(affine=True))
    off = torch.einsum("ncd,d->nc", broken.jacobian(broken.case.x), broken.theta) - broken.outputs(broken.case.x)
    assert off.abs().max() > 0.01


# ---- two views ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["weights", "mode"])
@pytest.mark.parametrize(
    ("name", "prior"),
    [
        ("gaussian", lw.Layerwise((0.3, 2.0))),
        ("categorical", lw.Isotropic(VALUES[0])),
        ("categorical", lw.Isotropic(VALUES[-1])),
    ],
)
def test_the_evidence_is_the_same_in_weights_and_in_functions(name: str, prior: lw.priors.Prior, at: str) -> None:
    one, two = (evidence_of(full(problem(name), prior, view), at) for view in ("weights", "functions"))
    assert one == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize("a", VALUES)
def test_three_forms_of_the_effective_dimension(a: float) -> None:
    """``tr(M H⁻¹) = d - tr(A H⁻¹) = tr(K (K + B⁻¹)⁻¹) = Σ λ / (λ + a)``."""
    case = problem("gaussian-per-output")
    weights, functions = (full(case, lw.Isotropic(a), view) for view in ("weights", "functions"))
    dense = Linearised(case, weights.network)
    rows = dense.jacobian(case.x).flatten(0, 1)
    noise = 1 / case.likelihood.precisions(dense.outputs(case.x)).repeat(len(case.x))
    kernel, precision = rows @ rows.mT / a, dense.ggn + a * torch.eye(rows.shape[1]).double()
    eigenvalues = torch.linalg.eigvalsh(dense.ggn).clamp_min(0)
    expected = float(torch.linalg.solve(precision, dense.ggn).trace())
    forms = [
        rows.shape[1] - a * float(torch.linalg.inv(precision).trace()),
        float(torch.linalg.solve(kernel + torch.diag(noise), kernel).trace()),
        float((eigenvalues / (eigenvalues + a)).sum()),
        weights.effective_dimension(),
        functions.effective_dimension(),
    ]
    assert forms == pytest.approx([expected] * 5, rel=1e-9)
    assert 1.0 < expected < rows.shape[1] - 1
