"""What a posterior by products does beside the laws: chunks, warnings, refusals, what its roots are asked."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, MismatchError, NumericalError, UnsupportedError
from lapwing.linear.solvers import sampling
from lapwing.posteriors import MatrixFreePosterior
from tests.meter import Meter
from tests.posterior_cases import limited, normal, problem, refused, seeded


def fitted(solver: lw.solvers.CG | None = None, sqrt: Any = None, name: str = "images") -> MatrixFreePosterior:
    case = problem(name)
    structure = lw.MatrixFree(solver or lw.solvers.CG(rtol=1e-10), sqrt or lw.solvers.Perturb())
    posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=structure))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior


def test_inputs_in_several_chunks_have_the_same_variances() -> None:
    posterior, x = fitted(), problem("images").new
    whole = posterior.solved_outputs(x)
    pieces = limited(posterior, training=1).solved_outputs(x)
    torch.testing.assert_close(pieces.moments.covariance, whole.moments.covariance, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(pieces.moments.mean, whole.moments.mean)
    assert pieces.residual.shape == whole.moments.mean.shape
    assert pieces.solution.converged and pieces.solution.matvecs >= whole.solution.matvecs


def test_a_joint_covariance_holds_the_rows_of_a_few_inputs_at_a_time() -> None:
    posterior, x = fitted(lw.solvers.CG(rtol=1e-13)), problem("images").new
    most, found = [], []
    for budget in (2**27, 1):
        few = limited(posterior, training=budget)
        with Meter() as meter:
            found.append(few._joint_moments(x).covariance)
        most.append(meter.most)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10 * float(found[0].abs().max()))
    assert most[1] < 0.6 * most[0]


@pytest.mark.parametrize("ask", ["predict", "joint", "sample", "effective dimension"])
def test_a_solve_that_stops_short_warns_with_its_residual(ask: str) -> None:
    posterior, x = fitted(lw.solvers.CG(rtol=1e-10, max_iterations=1)), problem("images").new
    assert not posterior.solved_outputs(x).solution.converged
    with pytest.warns(lw.ConvergenceWarning, match="relative residual of"):
        match ask:
            case "predict":
                posterior.predict(x)
            case "joint":
                posterior.predict(x, joint=True)
            case "sample":
                posterior.sample(2)
            case _:
                posterior.effective_dimension(4)


@pytest.mark.parametrize(
    ("structure", "cure"),
    [
        (lw.MatrixFree(lw.solvers.SGD(epochs=1)), "SGD with more epochs"),
        (lw.MatrixFree(lw.solvers.CG(), sqrt=lw.solvers.Lanczos(1)), "Lanczos with more steps"),
        (lw.MatrixFree(lw.solvers.CG(), sqrt=lw.solvers.Contour(max_iterations=1)), r"Contour\(preconditioner"),
    ],
)
def test_the_cure_is_that_of_what_stopped_short(structure: lw.MatrixFree, cure: str) -> None:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=structure))
    assert isinstance(posterior, MatrixFreePosterior)
    with pytest.warns(lw.ConvergenceWarning, match=f"above its tolerance.* Try {cure}"):
        posterior.sample(2)


def test_a_solve_that_gets_nowhere_is_no_certainty() -> None:
    x, y = normal(12, 3).float(), torch.arange(12) % 3
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    recipe = lw.Laplace(lw.Categorical(), structure=lw.MatrixFree(), prior=lw.Isotropic(1e-12))
    with refused(NumericalError, "comes nearer than 0"):
        recipe.fit(model, (x, y)).predict(x)


def test_an_interval_that_is_none_is_refused() -> None:
    with refused(ConfigError, "0 < smallest <= largest"):
        lw.solvers.Contour(interval=(2.0, 1.0))


def test_float32_reaches_its_default_tolerance_without_a_warning() -> None:
    x, y = normal(200, 4).float(), (normal(200, seed=1) > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    posterior = lw.Laplace(lw.Categorical(), structure=lw.MatrixFree()).fit(model, (x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("error", lw.ConvergenceWarning)
        prediction = posterior.predict(x[:5])
    assert float(prediction.logits.variance.min()) > 0


@pytest.mark.parametrize("ask", ["predict", "sample", "solve", "log_det", "product"])
def test_a_network_that_was_written_to_is_refused(ask: str) -> None:
    posterior, x = fitted(), problem("images").new
    posterior.predict(x)
    v = torch.zeros_like(posterior.network.weights)
    with torch.no_grad():
        next(posterior.network.module.parameters()).add_(1.0)
    with pytest.raises(MismatchError, match="written to since"):
        match ask:
            case "predict":
                posterior.predict(x)
            case "sample":
                posterior.sample(2)
            case "solve":
                posterior.solve(v)
            case "log_det":
                posterior.log_det(2)
            case _:
                _ = posterior.precision_operator @ v


def test_other_choices_share_what_products_keep() -> None:
    posterior = fitted()
    posterior.predict(problem("images").new)
    changed = posterior.with_hyperparameters(lw.Isotropic(3.0), posterior.likelihood)
    assert changed.problem.curvature is posterior.problem.curvature
    assert (
        changed.problem.curvature_cache is posterior.problem.curvature_cache
        and changed.problem.prior.values.max() == 3.0
    )


def test_an_effective_dimension_knows_the_noise() -> None:
    """Rademacher probes over a single output row each: ``bᵀ Λ⁻¹ b`` of one example is exact."""
    x = normal(1, 3)
    recipe = lw.Laplace(lw.Gaussian(2.0), structure=lw.MatrixFree())
    posterior = recipe.fit(seeded(lambda: nn.Linear(3, 1)).double(), (x, x[:, :1]))
    assert isinstance(posterior, MatrixFreePosterior)
    quieter = posterior.with_hyperparameters(lw.Isotropic(1.0), lw.Gaussian(7.0))
    size = 7.0 * (float(x.square().sum()) + 1)
    assert quieter.effective_dimension(2).value == pytest.approx(size / (1 + size), rel=1e-5)


def test_no_draws() -> None:
    with refused(ConfigError, "samples of at least 1"):
        fitted().sample(0)


def test_a_contour_uses_the_interval_and_the_solver_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    usual = sampling.contour_inverse_root

    def spy(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return usual(*args, **options)

    monkeypatch.setattr(sampling, "contour_inverse_root", spy)
    own = lw.solvers.Contour(points=4, interval=(0.7, 1e4), shifts="minres")
    fitted(sqrt=own).sample(2)
    fitted(sqrt=lw.solvers.Contour(points=4)).sample(2)
    assert seen[0]["interval"] == (0.7, 1e4) and seen[0]["method"] == "minres"
    assert seen[1]["interval"][0] == pytest.approx(0.7) and seen[1]["method"] == "cg"
    largest = float(torch.linalg.eigvalsh(fitted().precision_operator.dense())[-1])
    assert largest <= seen[1]["interval"][1] <= 3 * largest


def test_data_that_change_between_passes_are_refused() -> None:
    x, y = normal(12, 3), (normal(12, seed=1) > 0).long()
    model = torch.nn.Linear(3, 2).double()
    noisy = DataLoader(TensorDataset(x, y), batch_size=4, collate_fn=jitter)
    recipe = lw.Laplace(lw.Categorical(), structure=lw.MatrixFree(lw.solvers.CG()))
    with refused(DataError, "same data in every pass"):
        recipe.fit(model, noisy)
    recipe.fit(model, DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)).predict(x)


def jitter(items: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = zip(*items, strict=True)
    return torch.stack(x) + torch.randn(len(x), 3).double(), torch.stack(y)


def test_cannot_be_saved() -> None:
    with refused(UnsupportedError, "holds its curvature"):
        lw.save(fitted(), "nowhere.safetensors")


def test_can_be_tuned_by_the_evidence_only_where_draws_are_enough() -> None:
    assert lw.tune(fitted()).prior != fitted().prior
    for method in (lw.EvidenceGradient(), lw.MacKay()):
        with refused(UnsupportedError, "evidence is exact"):
            lw.tune(fitted(), method)


def test_comparisons_of_choices_are_those_of_predictions() -> None:
    posterior, x = fitted(), problem("images").new
    other = posterior.with_hyperparameters(lw.Isotropic(5.0), posterior.likelihood)
    found = posterior.outputs_each(x, [posterior, other])
    expected = other.solved_outputs(x).moments.covariance
    torch.testing.assert_close(found[1].covariance, expected, rtol=1e-8, atol=1e-10)
    assert (found[0].covariance.diagonal(dim1=-2, dim2=-1) > found[1].covariance.diagonal(dim1=-2, dim2=-1)).all()


def test_an_effective_dimension_from_solves_that_got_nowhere_is_refused() -> None:
    """Single precision, a prior of no weight beside the curvature: the first step of every solve is rounding."""
    x = normal(40, 3).float()
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))).float()
    recipe = lw.Laplace(lw.Gaussian(1e10), structure=lw.MatrixFree(), prior=lw.Isotropic(1e-4))
    posterior = recipe.fit(model, (x, x[:, :1]))
    assert isinstance(posterior, MatrixFreePosterior)
    with refused(NumericalError, "effective dimension"):
        posterior.effective_dimension(generator=torch.Generator().manual_seed(0))
