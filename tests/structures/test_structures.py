"""How the posterior is held: which is picked, what each computes, and what does not fit."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, TooLargeError, UnsupportedError
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker
from lapwing.methods.hessian_free import HessianFree
from lapwing.posteriors import FunctionPosterior, WeightPosterior
from lapwing.structures import AFFORDABLE, Structure, Task
from lapwing.structures.full import MANY, flops
from tests.checker import unchecked
from tests.posterior_cases import Linearised, Problem, labels, normal, problem, refused, seeded


def wide(width: int) -> Problem:
    """A classifier of few examples whose 2 · ``width`` weights are one linear layer."""
    model = seeded(lambda: nn.Linear(width, 2, bias=False))
    return Problem(model, lw.Categorical(), normal(4, width), labels(4, classes=2), normal(2, width, seed=1))


def fit(case: Problem, structure: Structure, **options: object) -> lw.Posterior:
    return case.fit(lw.Laplace(case.likelihood, structure=structure, **options))  # type: ignore[arg-type]


class TestAuto:
    def test_takes_the_weights_if_that_is_affordable_then_the_outputs_then_kfac(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert flops(2500, 7) > AFFORDABLE > flops(2000, 7)
        case = wide(6)  # 12 weights, 8 training outputs
        picked = {flops(12, 8): Dense, flops(8, 12): None, 0.99 * flops(8, 12): BlockDiagonal}
        for affordable, operator in picked.items():
            with caplog.at_level(logging.INFO, logger="lapwing"):
                posterior = fit(case, lw.Auto(max_flops=affordable))
            assert isinstance(posterior, FunctionPosterior if operator is None else WeightPosterior)
            assert operator is None or isinstance(posterior.held.operator, operator)
        words = ("Full(view='weights'", "Full(view='functions'", "KFAC(", "12 weights", "8 training outputs")
        assert all(word in caplog.text for word in words)

    def test_few_data_and_many_weights_are_held_by_their_outputs(self) -> None:
        assert isinstance(fit(wide(1600), lw.Auto()), FunctionPosterior)

    def test_the_data_are_counted_no_further_than_it_takes(self) -> None:
        case, read = wide(6), list[int]()

        class Loader:
            def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
                for i in range(9):
                    read.append(i)
                    yield case.x, case.y

        network, data = Network.of(case.model), Data(Loader())
        survey = find_layers(network, case.x)
        read.clear()
        task = Task(Model(network, survey, case.likelihood, data), lw.Isotropic(), lw.GGN(), None)
        picked = lw.Auto(max_flops=flops(8, 12)).pick(task)
        assert isinstance(picked, lw.KFAC) and read == [0, 1]

    @pytest.mark.parametrize("prior", [lw.GPrior(), lw.DiagonalPrior(torch.ones(12))])
    def test_picks_diagonal_for_a_prior_that_differs_from_weight_to_weight(self, prior: lw.GPrior) -> None:
        posterior = fit(wide(6), lw.Auto(max_flops=1), prior=prior)
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.held.operator, Diagonal)
        assert posterior.log_marginal() < 0

    def test_picks_diagonal_for_many_single_weights(self) -> None:
        posterior = fit(wide(6), lw.Auto(max_flops=1), weights=lw.Subnetwork(11, by="magnitude"))
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.held.operator, Diagonal)

    @pytest.mark.parametrize(
        "options", [{"curvature": lw.Hessian(damping=9.0)}, {"prior": lw.DiagonalPrior(torch.ones(12))}]
    )
    def test_what_the_outputs_do_not_know_is_not_held_by_them(self, options: dict[str, object]) -> None:
        posterior = fit(wide(6), lw.Auto(max_flops=flops(12, 8)), **options)
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.held.operator, Dense)

    def test_labels_are_sampled_where_backward_passes_are_too_many_by_their_count(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        case = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 11)))
        wide = Problem(case, lw.Categorical(), normal(9, 3), labels(9, classes=11), normal(2, 3, seed=1))
        exact, operations = fit(wide, lw.KFAC()), 3 * 11 * (2 * 6) * sum(p.numel() for p in case.parameters())
        for most in (MANY, operations):
            assert fit(wide, lw.Auto(max_flops=1, max_passes=most)).log_marginal() == exact.log_marginal()
        posterior = fit(wide, lw.Auto(max_flops=1, max_passes=operations - 1))
        assert "11 backward passes an example" in caplog.text and "MCFisher(16)" in caplog.text
        drawn = lw.Laplace(wide.likelihood, structure=lw.KFAC(), curvature=lw.MCFisher())
        again = drawn.fit(wide.model, wide.batches(), generator=torch.Generator().manual_seed(0))
        assert exact.log_marginal() != posterior.log_marginal() == again.log_marginal()

    def test_the_memory_of_draws_is_said_before(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        fit(wide(5), lw.Sampled(3))
        assert "draws" not in caplog.text
        monkeypatch.setattr("lapwing.structures.solved.MUCH", 9)
        fit(wide(5), lw.Sampled(3))
        assert "3 draws of 10 weights will take about 0 MiB" in caplog.text


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


class TestKFAC:
    def test_has_a_block_a_layer_and_exact_ones_for_norms(self) -> None:
        posterior = fit(problem("images"), lw.KFAC())
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.held.operator, BlockDiagonal)
        assert [type(block) for block in posterior.held.operator.blocks] == [Kronecker, Dense, Kronecker]
        assert posterior.held.partition[1] == ("1.weight", "1.bias")

    def test_refuses_single_weights(self) -> None:
        with refused(ConfigError, "whole parameters"):
            fit(problem("categorical"), lw.KFAC(), weights=lw.Subnetwork(5))

    @pytest.mark.parametrize(
        ("structure", "prior"),
        [
            (lw.KFAC(), lw.DiagonalPrior(torch.linspace(1, 2, 31, dtype=torch.float64))),
            (lw.KFAC(bias="separate"), lw.DiagonalPrior(1.0)),
            (lw.KFAC(), lw.Layerwise((1.0, 2.0), parts=(("0.weight", "3.weight"),))),
        ],
    )
    def test_refuses_several_precisions_in_a_layer_at_the_fit(self, structure: Structure, prior: object) -> None:
        case = problem("categorical")
        with refused(UnsupportedError, "one prior precision for all of 0.weight"):
            fit(case, structure, prior=prior)
        apart = lw.KFAC(bias="separate")
        parts = lw.Layerwise((1.0, 2.0), parts=(("0.weight", "3.weight"),))
        assert fit(case, apart, prior=parts).effective_dimension() > 0


@pytest.mark.parametrize(
    "structure", [lw.Full(view="weights"), lw.KFAC(), lw.Diagonal(), lw.MatrixFree(), lw.Sampled()]
)
def test_another_number_of_precisions_is_refused_at_the_fit(structure: Structure) -> None:
    with refused(ShapeError, "one precision for each of 2 layers"):
        fit(problem("categorical"), structure, prior=lw.Layerwise((1.0, 2.0, 3.0)))


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
}


@pytest.mark.parametrize("bad", ["a", 1.5, None, -1])
@pytest.mark.parametrize("name", SEEDED)
def test_seeds_are_whole_numbers(name: str, bad: object) -> None:
    with unchecked(), refused(ConfigError, "seed=0"):
        SEEDED[name](seed=bad)
