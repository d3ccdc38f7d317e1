"""How the posterior is held: which is picked, what each computes, and what does not fit."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.errors import ConfigError, NumericalError, TooLargeError, UnsupportedError
from lapwing.hessian_free import HessianFree, TopEigen
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker
from lapwing.posteriors import FunctionPosterior, WeightPosterior
from lapwing.structures import AUTO_FULL, Structure
from tests.checker import unchecked
from tests.posterior_cases import Linearised, Problem, labels, normal, problem, refused, seeded


def wide(width: int) -> Problem:
    """A classifier of few examples whose 2 · ``width`` weights are one linear layer."""
    model = seeded(lambda: nn.Linear(width, 2, bias=False))
    return Problem(model, lw.Categorical(), normal(4, width), labels(4, classes=2), normal(2, width, seed=1))


def fit(case: Problem, structure: Structure, **options: object) -> lw.Posterior:
    return case.fit(lw.Laplace(case.likelihood, structure=structure, **options))  # type: ignore[arg-type]


class TestAuto:
    @pytest.mark.parametrize(("width", "operator"), [(AUTO_FULL // 2, Dense), (AUTO_FULL // 2 + 1, BlockDiagonal)])
    def test_picks_full_up_to_a_size_and_says_so(
        self, width: int, operator: type, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, logger="lapwing"):
            posterior = fit(wide(width), lw.Auto())
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.held.operator, operator)
        assert f"Auto picked {'Full' if operator is Dense else 'KFAC'}" in caplog.text
        assert f"for {2 * width} uncertain weights" in caplog.text

    @pytest.mark.parametrize("prior", [lw.GPrior(), lw.DiagonalPrior(torch.ones(3000))])
    def test_picks_diagonal_for_a_prior_that_differs_from_weight_to_weight(self, prior: lw.GPrior) -> None:
        posterior = fit(wide(1500), lw.Auto(), prior=prior)
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.held.operator, Diagonal)
        assert posterior.log_marginal() < 0

    def test_picks_diagonal_for_many_single_weights(self) -> None:
        posterior = fit(wide(1500), lw.Auto(), weights=lw.Subnetwork(AUTO_FULL + 1, by="magnitude"))
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.held.operator, Diagonal)


class TestFull:
    @pytest.mark.parametrize(("width", "kind"), [(4, WeightPosterior), (5, FunctionPosterior)])
    def test_takes_the_view_with_the_smaller_matrix(self, width: int, kind: type) -> None:
        assert isinstance(fit(wide(width), lw.Full()), kind)

    def test_is_the_same_posterior_from_either_view(self) -> None:
        case = wide(5)
        weights, functions = (fit(case, lw.Full(view=view)) for view in ("weights", "auto"))
        assert weights.log_marginal() == pytest.approx(functions.log_marginal(), rel=1e-10)

    @pytest.mark.parametrize(
        ("view", "size", "copies", "prior"),
        [
            ("weights", 26, 1, lw.Isotropic()),
            ("functions", 20, 1, lw.Isotropic()),
            ("functions", 20, 2, lw.Layerwise()),
            ("auto", 20, 1, lw.Isotropic()),
        ],
    )
    def test_refuses_what_does_not_fit(self, view: str, size: int, copies: int, prior: object) -> None:
        case, needed = problem("gaussian"), size * size * (copies * 8 + 16)
        with refused(
            TooLargeError,
            expected=f"at most {needed - 1:,} bytes",
            got=f"{size} rows, which need {needed:,} bytes",
            hint="KFAC() or Diagonal(), weights LastLayer() or Subnetwork(1000)",
        ):
            fit(case, lw.Full(view=view, max_bytes=needed - 1), prior=prior)  # type: ignore[arg-type]
        fit(case, lw.Full(view=view, max_bytes=needed), prior=prior)  # type: ignore[arg-type]

    def test_refuses_a_precision_a_weight_in_function_space(self) -> None:
        with refused(UnsupportedError, expected="Isotropic or Layerwise", got="one precision a weight", hint="weights"):
            fit(problem("gaussian"), lw.Full(view="functions"), prior=lw.DiagonalPrior())

    @pytest.mark.parametrize("curvature", [lw.GGN(), lw.EmpiricalFisher(), lw.MCFisher(3)])
    def test_both_views_know_every_curvature(self, curvature: object, generator: torch.Generator) -> None:
        case = problem("categorical")
        posteriors = []
        for view in ("weights", "functions"):
            recipe = lw.Laplace(case.likelihood, structure=lw.Full(view=view), curvature=curvature)  # type: ignore[arg-type]
            posteriors.append(recipe.fit(case.model, case.batches(), generator=torch.Generator().manual_seed(0)))
        weights, functions = posteriors
        assert weights.log_marginal() == pytest.approx(functions.log_marginal(), rel=1e-10)
        a, b = (posterior.predict(case.new).logits.covariance for posterior in posteriors)
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


class TestHessian:
    @pytest.mark.parametrize("prior", [lw.Isotropic(5.0), lw.Layerwise((5.0, 6.0))])
    def test_is_held_in_full(self, prior: object) -> None:
        case = problem("categorical")
        posterior = fit(case, lw.Full(view="weights"), curvature=lw.Hessian(), prior=prior)
        assert isinstance(posterior, WeightPosterior)
        model = Linearised(case, posterior.network)
        precisions = posterior.prior.diagonal(posterior.network.uncertain, case.x)

        def loss(theta: torch.Tensor) -> torch.Tensor:
            f = model._at(theta, case.x)
            return case.likelihood.nll(f, case.likelihood.canonical_targets(f, case.y)).sum()

        expected = torch.func.hessian(loss)(model.theta) + torch.diag(precisions)
        torch.testing.assert_close(posterior.precision.operator.dense(), expected, rtol=1e-9, atol=1e-9)
        assert posterior.log_marginal() == pytest.approx(model.log_marginal(expected, precisions), rel=1e-9)

    def test_an_indefinite_one_is_refused_and_damped_on_request(self) -> None:
        case, structure = problem("gaussian"), lw.Full(view="weights")
        plain = fit(case, structure, curvature=lw.Hessian(), prior=lw.Isotropic(30.0)).precision.operator.dense()
        lowest = float(torch.linalg.eigvalsh(plain)[0]) - 30
        assert lowest < -0.5
        prior = lw.Isotropic(0.1)
        with refused(NumericalError, expected="positive definite", got="smallest eigenvalue", hint="Hessian(damping="):
            fit(case, structure, curvature=lw.Hessian(), prior=prior)
        damped = fit(case, structure, curvature=lw.Hessian(damping=30.0), prior=prior).precision.operator.dense()
        torch.testing.assert_close(damped, plain + 0.1 * torch.eye(len(plain), dtype=plain.dtype))
        with refused(ConfigError, expected="not negative", got="-1.0", hint="damping"):
            lw.Hessian(damping=-1.0)

    @pytest.mark.parametrize("structure", [lw.Diagonal(), lw.KFAC(), lw.Full(view="functions")])
    def test_is_held_no_other_way(self, structure: Structure) -> None:
        with refused(UnsupportedError, expected="sum of outer products", got="the exact Hessian", hint="GGN()"):
            fit(problem("categorical"), structure, curvature=lw.Hessian())


class TestKFAC:
    def test_has_a_block_a_layer_and_exact_ones_for_norms(self) -> None:
        posterior = fit(problem("images"), lw.KFAC())
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.held.operator, BlockDiagonal)
        assert [type(block) for block in posterior.held.operator.blocks] == [Kronecker, Dense, Kronecker]
        assert posterior.held.partition[1] == ("1.weight", "1.bias")

    def test_refuses_single_weights(self) -> None:
        with refused(ConfigError, expected="whole parameters", got="single weights", hint="Full or Diagonal"):
            fit(problem("categorical"), lw.KFAC(), weights=lw.Subnetwork(5))

    def test_refuses_a_precision_a_weight(self) -> None:
        case = problem("categorical")
        prior = lw.DiagonalPrior(torch.linspace(1, 2, 31, dtype=torch.float64))
        posterior = fit(case, lw.KFAC(), prior=prior)
        for ask in (lambda: posterior.predict(case.new), posterior.log_marginal):
            with refused(UnsupportedError, expected="Kronecker product", got="values from", hint="Isotropic"):
                ask()


def test_diagonal_is_the_diagonal_of_full() -> None:
    case = problem("images")
    diagonal, full = (fit(case, structure) for structure in (lw.Diagonal(), lw.Full(view="weights")))
    assert isinstance(diagonal, WeightPosterior) and isinstance(full, WeightPosterior)
    values = diagonal.held.operator.diagonal()
    torch.testing.assert_close(values, full.held.operator.diagonal(), rtol=1e-12, atol=1e-12)


SEEDED: dict[str, Callable[..., object]] = {
    "Sampled": lw.Sampled,
    "LowRank": lw.LowRank,
    "Nystrom": lw.Nystrom,
    "SGD": lw.SGD,
    "Subnetwork": functools.partial(lw.Subnetwork, 3),
    "PivotedCholesky": functools.partial(lw.PivotedCholesky, 3),
    "HessianFree": functools.partial(HessianFree, lw.Gaussian()),
    "TopEigen": functools.partial(TopEigen, lw.Gaussian()),
}


@pytest.mark.parametrize("bad", ["a", 1.5, None, -1])
@pytest.mark.parametrize("name", SEEDED)
def test_seeds_are_whole_numbers(name: str, bad: object) -> None:
    with unchecked(), refused(ConfigError, expected="seed", got=f"{bad!r}", hint="seed=0"):
        SEEDED[name](seed=bad)
