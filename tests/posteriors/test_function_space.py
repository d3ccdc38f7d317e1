"""Gaussians over the outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground import probes
from lapwing.ground.errors import UnsupportedError
from lapwing.linear.log_det_ratio import Determinant, Spectrum
from lapwing.linear.tangent import Tangent
from lapwing.posteriors import FunctionPosterior, WeightPosterior
from tests.posterior_cases import PROBLEMS, Linearised, Problem, limited, problem, refused


def fit(name: str, prior: lw.priors.Prior | None = None) -> tuple[Problem, FunctionPosterior]:
    case = problem(name)
    recipe = lw.Laplace(case.likelihood, prior=prior or lw.Isotropic(), structure=lw.Full(view="functions"))
    posterior = case.fit(recipe)
    assert isinstance(posterior, FunctionPosterior)
    return case, posterior


@pytest.mark.parametrize("name", PROBLEMS)
def test_holds_the_tangent_kernel_between_training_rows(name: str) -> None:
    """Its Gram matrix has the nonzero eigenvalues of the GGN."""
    case, posterior = fit(name)
    eigenvalues = torch.linalg.eigvalsh(posterior.grams[0])
    ggn = torch.linalg.eigvalsh(Linearised(case, posterior.network).ggn)
    size = min(len(eigenvalues), len(ggn))
    torch.testing.assert_close(eigenvalues[-size:], ggn[-size:], rtol=1e-9, atol=1e-9)
    rest = eigenvalues[: len(eigenvalues) - size]
    torch.testing.assert_close(rest, torch.zeros_like(rest), rtol=0, atol=1e-9)


def test_holds_a_gram_matrix_a_group() -> None:
    _, one = fit("categorical")
    _, two = fit("categorical", lw.Layerwise((1.0, 1.0)))
    assert len(one.grams) == 1 and len(two.grams) == 2
    torch.testing.assert_close(two.grams.sum(0), one.grams[0], rtol=1e-10, atol=1e-10)
    assert isinstance(one.evidence.complexity, Spectrum) and isinstance(two.evidence.complexity, Determinant)


@pytest.mark.parametrize("name", ["gaussian", "categorical", "tokens", "pixels"])
def test_weights_are_drawn_with_the_dense_covariance(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are linear in their noise: all unit vectors in its place give a root of the covariance."""
    case, posterior = fit(name, lw.Layerwise(0.7))
    likelihood = lw.Gaussian(4.0) if isinstance(case.likelihood, lw.Gaussian) else case.likelihood
    posterior = posterior.with_hyperparameters(posterior.prior, likelihood)
    d, m = posterior.network.size, posterior.grams.shape[-1]
    precision = posterior.noise_scale * Linearised(case, posterior.network).ggn + 0.7 * torch.eye(d).double()
    torch.testing.assert_close(posterior.precision_operator @ torch.eye(d).double(), precision)
    noise = iter(torch.eye(d + m).double().split([d, m]))
    with monkeypatch.context() as patched:
        patched.setattr(probes, "gaussian", lambda *_, **__: next(noise))
        root = posterior.sample(d + m) - posterior.network.weights
    torch.testing.assert_close(root.mT @ root, torch.linalg.inv(precision), rtol=1e-8, atol=1e-9)


def test_networks_with_drawn_weights_are_averaged(generator: torch.Generator) -> None:
    case, posterior = fit("categorical", lw.Isotropic(1e8))
    found = posterior.predict(case.new, linearised=False, samples=3, generator=generator)
    torch.testing.assert_close(found.probs, posterior.predict(case.new).probs, rtol=1e-3, atol=1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("before", "after"),
    [(lw.Isotropic(), lw.Layerwise(2.0)), (lw.Layerwise(), lw.Isotropic(2.0)), (lw.Isotropic(), lw.DiagonalPrior(2.0))],
)
def test_refuses_a_prior_with_other_groups(before: lw.priors.Prior, after: lw.priors.Prior) -> None:
    case, posterior = fit("categorical", before)
    with refused(UnsupportedError, "as the kernel was computed for it"):
        posterior.with_hyperparameters(after, case.likelihood)


def test_predicts_in_pieces_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    case, posterior = fit("images")
    usual = posterior.predict(case.new).logits.covariance
    sizes: list[int] = []
    cross = FunctionPosterior._cross

    def watched(self: FunctionPosterior, inputs: torch.Tensor) -> torch.Tensor:
        sizes.append(len(inputs))
        return cross(self, inputs)

    monkeypatch.setattr(FunctionPosterior, "_cross", watched)
    few = limited(posterior, training=8 * 3 * 30 * 2)
    torch.testing.assert_close(few.predict(case.new).logits.covariance, usual, rtol=1e-12, atol=1e-13)
    assert sizes == [2, 2]


def test_interpolates_certain_data() -> None:
    """With hardly any noise, the outputs at the training inputs are known."""
    case, posterior = fit("gaussian")
    sharp = posterior.with_hyperparameters(lw.Isotropic(), lw.Gaussian(1e10))
    assert float(sharp.predict(case.x).outputs.std.max()) < 1e-3 < float(posterior.predict(case.x).outputs.std.min())


@pytest.mark.parametrize("prior", [lw.Isotropic(3.0), lw.Layerwise((0.2, 5.0))], ids=lambda p: type(p).__name__)
def test_a_newton_step_ends_at_the_mode_of_the_linear_model(prior: lw.Layerwise) -> None:
    case = problem("gaussian-per-output")
    weights, functions = (
        case.fit(lw.Laplace(case.likelihood, prior=prior, structure=lw.Full(view=view)))
        for view in ("weights", "functions")
    )
    assert isinstance(weights, WeightPosterior) and isinstance(functions, FunctionPosterior)
    louder = case.likelihood.scaled(4.0)
    step = functions.with_hyperparameters(prior, louder).mode_step()
    assert weights.mode_shift is not None and step is not None
    alpha = weights.prior_precisions
    torch.testing.assert_close(step, weights.mode_shift.step(alpha, alpha.new_tensor(4.0)), rtol=1e-9, atol=1e-11)
    tangent = Tangent(functions.training)
    mode = tangent.mode(prior, 4.0, initial=functions.network.weights + step, rtol=1e-9)
    assert mode.converged and mode.iterations == 0


class TestLastLayer:
    def fitted(self) -> tuple[Problem, lw.Posterior]:
        case = problem("gaussian")
        recipe = lw.Laplace(case.likelihood, weights=lw.LastLayer(), structure=lw.Full(view="functions"))
        return case, case.fit(recipe)

    def test_no_training_input_goes_through_the_network_again(self) -> None:
        (case, posterior), sizes = self.fitted(), list[int]()
        first = next(case.model.children())
        first.register_forward_hook(lambda _module, inputs, _output: sizes.append(len(inputs[0])))
        posterior.predict(case.new)
        posterior.predict(case.new, joint=True)
        posterior.sample(2)
        assert set(sizes) == {len(case.new)} != {len(case.x)}

    def test_what_is_kept_is_said(self) -> None:
        case, posterior = self.fitted()
        assert "features of the training inputs kept" in repr(posterior)
        everything = case.fit(lw.Laplace(case.likelihood, structure=lw.Full(view="functions")))
        assert ", training inputs kept" in repr(everything)


def test_variances_far_below_the_priors_keep_their_digits_in_float32() -> None:
    """What is left of the prior's variance is a difference in float64: float32 has nothing of it, 2e-5 of 600."""
    x = torch.linspace(-2, 2, 60)[:, None]
    y = torch.sin(3 * x)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    recipe = lw.Laplace(lw.Gaussian(1e4), structure=lw.Full(view="functions"), prior=lw.Isotropic(0.01))
    found = recipe.fit(model, (x, y)).outputs(x + 0.01).variance
    exact = recipe.fit(model.double(), (x.double(), y.double())).outputs((x + 0.01).double()).variance
    assert float(exact.max()) < 1e-4
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=0.0)
