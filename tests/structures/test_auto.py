"""What is picked where nobody picks rests on counts: the same on every machine, whatever its clock says."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers
from lapwing.linalg import BlockDiagonal, Dense, Diagonal
from lapwing.posteriors import FunctionPosterior, WeightPosterior
from lapwing.structures import AFFORDABLE, FitTask
from lapwing.structures.auto import MANY
from lapwing.structures.full import flops
from tests.posterior_cases import Problem, labels, normal, seeded
from tests.structures.cases import fit, wide


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
            assert operator is None or isinstance(posterior.curvature.operator, operator)
        words = ("Full(view='weights'", "Full(view='functions'", "KFAC(", "12 weights", "8 training outputs")
        assert all(word in caplog.text for word in words)
        assert "inf" not in caplog.text and "max_" not in caplog.text  # limits that are none

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
        task = FitTask(Model(network, survey, case.likelihood, data), lw.Isotropic(), lw.GGN(), None)
        picked = lw.Auto(max_flops=flops(8, 12)).pick(task)
        assert isinstance(picked, lw.KFAC) and read == [0, 1]

    @pytest.mark.parametrize("prior", [lw.GPrior(), lw.DiagonalPrior(torch.ones(12))])
    def test_picks_diagonal_for_a_prior_that_differs_from_weight_to_weight(self, prior: lw.GPrior) -> None:
        posterior = fit(wide(6), lw.Auto(max_flops=1.0), prior=prior)
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.curvature.operator, Diagonal)
        assert posterior.log_marginal() < 0

    def test_picks_diagonal_for_many_single_weights(self) -> None:
        posterior = fit(wide(6), lw.Auto(max_flops=1.0), weights=lw.Subnetwork(11, by="magnitude"))
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.curvature.operator, Diagonal)

    @pytest.mark.parametrize(
        "options", [{"curvature": lw.Hessian(damping=9.0)}, {"prior": lw.DiagonalPrior(torch.ones(12))}]
    )
    def test_what_the_outputs_do_not_know_is_not_held_by_them(self, options: dict[str, object]) -> None:
        posterior = fit(wide(6), lw.Auto(max_flops=flops(12, 8)), **options)
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.curvature.operator, Dense)

    def test_labels_are_sampled_where_backward_passes_are_too_many_by_their_count(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        case = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 11)))
        wide = Problem(case, lw.Categorical(), normal(9, 3), labels(9, classes=11), normal(2, 3, seed=1))
        exact = fit(wide, lw.KFAC())
        operations = 3.0 * 11 * (2 * 6) * sum(p.numel() for p in case.parameters())
        for most in (MANY, operations):
            assert fit(wide, lw.Auto(max_flops=1.0, max_passes=most)).log_marginal() == exact.log_marginal()
        posterior = fit(wide, lw.Auto(max_flops=1.0, max_passes=operations - 1))
        assert "11 backward passes an example" in caplog.text and "MCFisher(16)" in caplog.text
        drawn = lw.Laplace(wide.likelihood, structure=lw.KFAC(), curvature=lw.MCFisher())
        again = drawn.fit(wide.model, wide.batches(), generator=torch.Generator().manual_seed(0))
        assert exact.log_marginal() != posterior.log_marginal() == again.log_marginal()


def test_a_slow_clock_changes_no_choice(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    seconds = itertools.count(step=1000)
    monkeypatch.setattr("lapwing.structures.base.clock", lambda: float(next(seconds)))
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 11)))
    case = Problem(model, lw.Categorical(), normal(9, 3), labels(9, classes=11), normal(2, 3, seed=1))
    exact = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC()))
    picked = case.fit(lw.Laplace(case.likelihood, structure=lw.Auto(max_flops=1e-9)))
    assert picked.log_marginal() == exact.log_marginal() and "exact GGN would take" not in caplog.text
