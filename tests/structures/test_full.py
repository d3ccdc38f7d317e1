"""The whole covariance in either view, and with the exact Hessian."""

from __future__ import annotations

import re

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, NumericalError, TooLargeError, UnsupportedError
from lapwing.posteriors import FunctionPosterior, WeightPosterior
from lapwing.structures import Structure
from lapwing.structures.full import flops
from tests.posterior_cases import Linearised, problem, refused
from tests.structures.cases import fit, wide


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
        with refused(TooLargeError, f"at most {needed - 1:,} bytes"):
            fit(case, lw.Full(view=view, max_bytes=needed - 1), prior=prior)  # type: ignore[arg-type]
        fit(case, lw.Full(view=view, max_bytes=needed), prior=prior)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("view", "sides"), [("weights", (26, 20)), ("functions", (20, 26)), ("auto", (20, 26))])
    def test_refuses_what_takes_too_many_operations_and_counts_them(self, view: str, sides: tuple[int, int]) -> None:
        case, needed = problem("gaussian"), flops(*sides)
        with refused(TooLargeError, f"which take {needed:,.0f}"):
            fit(case, lw.Full(view=view, max_flops=needed - 1))  # type: ignore[arg-type]
        fit(case, lw.Full(view=view, max_flops=needed))  # type: ignore[arg-type]

    def test_what_takes_too_much_reads_so(self) -> None:
        """Of a limit that is missed by one the two numbers differ."""
        with pytest.raises(TooLargeError) as error:
            fit(problem("gaussian"), lw.Full(view="weights", max_flops=flops(26, 20) - 1))
        most, takes = (int(number.replace(",", "")) for number in re.findall(r"\d[\d,]{3,}", str(error.value))[:2])
        assert (most, takes) == (flops(26, 20) - 1, flops(26, 20))

    def test_refuses_a_precision_a_weight_in_function_space(self) -> None:
        with refused(UnsupportedError, "Isotropic or Layerwise"):
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
        with refused(NumericalError, "positive definite"):
            fit(case, structure, curvature=lw.Hessian(), prior=prior)
        damped = fit(case, structure, curvature=lw.Hessian(damping=30.0), prior=prior).precision.operator.dense()
        torch.testing.assert_close(damped, plain + 0.1 * torch.eye(len(plain), dtype=plain.dtype))
        for damping in (-1.0, float("nan")):
            with refused(ConfigError, "a positive damping"):
                lw.Hessian(damping=damping)

    @pytest.mark.parametrize("structure", [lw.Diagonal(), lw.KFAC(), lw.Full(view="functions")])
    def test_is_held_no_other_way(self, structure: Structure) -> None:
        with refused(UnsupportedError, "sum of outer products"):
            fit(problem("categorical"), structure, curvature=lw.Hessian())
