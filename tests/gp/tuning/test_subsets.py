"""Optima on parts of the data against the exact ones on the same parts."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.gp import GP, RBF, GPPosterior, Matern
from lapwing.gp.regression.posterior import SMALL
from lapwing.gp.tuning.evidence import Evidence
from lapwing.gp.tuning.subsets import Centroids, Subset
from lapwing.ground import probes
from lapwing.ground.errors import ConvergenceWarning, NumericalError
from tests.gp.regression.test_posterior import data
from tests.posterior_cases import normal


def test_a_part_has_the_optimum_of_those_observations() -> None:
    process = GP(1.0 * RBF(1.0), lw.Gaussian(10.0)).fit(data(90))
    order = torch.tensor(probes.permutation(90, generator=torch.Generator().manual_seed(3)))
    part = process.select(order[:60])
    exact, found = Evidence().tune(part), Subset(60, seed=3).tune(process)
    torch.testing.assert_close(found.log_hyperparameters(), exact.log_hyperparameters(), rtol=0, atol=0.05)
    assert len(found.data) == 90


def test_repeats_that_are_measurements_are_chosen_from_like_others() -> None:
    x = normal(30, 3).repeat(3, 1)
    y = torch.sin(2 * x[:, 0]) + 0.2 * normal(90, seed=1)
    process = GP(1.0 * RBF(1.0), lw.Gaussian(10.0)).fit((x, y))
    part = process.select(torch.tensor([7, 37, 2, 67, 5])).first(2)
    torch.testing.assert_close(part.data.inputs, x[[7, 37, 2, 67]])
    torch.testing.assert_close(part.distinct.targets[:, 0], torch.stack([y[[7, 37, 67]].mean(), y[2]]))
    torch.testing.assert_close(
        Subset(30).tune(process).log_hyperparameters(), Evidence().tune(process).log_hyperparameters(), rtol=0, atol=0.1
    )


def test_the_first_of_copies_are_taken_and_none_after_the_last_new_input() -> None:
    x, y = normal(4, 2)[[0, 1, 0, 1, 0, 2, 0, 3]], torch.tensor([1.0, 2, 1, 2, 1, 3, 5, 4]).double()
    relative = torch.tensor([1.0, 1, 1, 1, 2, 1, 1, 1]).double()
    process = GP(RBF(1.0)).fit((x, y), relative_noise=relative)
    assert process.first(9).data.targets[:, 0].tolist() == [1, 2, 1, 3, 5, 4]
    assert process.first(3).data.targets[:, 0].tolist() == [1, 2, 1, 3, 5]
    assert process.first(2).data.relative.tolist() == [1, 1, 2]
    assert process.select(torch.tensor([0, 5, 7, 6])).first(2).data.targets[:, 0].tolist() == [1, 3]


def test_rows_that_stand_twice_in_a_table_do_not_hide_the_noise() -> None:
    x = normal(400, 2)
    y = torch.sin(2 * x[:, 0]) + 0.3 * normal(400, seed=1)
    process = GP(1.0 * Matern(1.0), lw.Gaussian(10.0)).fit((x.repeat(2, 1), y.repeat(2)))
    assert 1 / Subset(400).tune(process).likelihood.noise == pytest.approx(0.09, rel=0.5)
    copied = process.select(torch.cat([torch.arange(100), 400 + torch.arange(100)]))
    with pytest.warns(ConvergenceWarning, match="noise"):
        assert 1 / Evidence().tune(copied).likelihood.noise < 1e-6


def test_the_noise_stays_above_what_the_dtype_resolves() -> None:
    x = normal(40, 1).float()
    with pytest.warns(ConvergenceWarning, match="noise"):
        found = Subset(40).tune(
            GP(1.0 * Matern(1.0), lw.Gaussian(10.0), solver=lw.solvers.CG(), dtype=torch.float32).fit((x, 3 * x))
        )
    floor = 10 * torch.finfo(torch.float32).eps * float((3 * x).double().var(correction=0))
    assert 1 / found.likelihood.noise == pytest.approx(floor, rel=1e-3)


def test_a_neighbourhood_of_all_observations_has_their_optimum() -> None:
    process = GP(1.0 * RBF(1.0), lw.Gaussian(10.0)).fit(data(50))
    found = Centroids(5, 50).tune(process)
    torch.testing.assert_close(found.log_hyperparameters(), Evidence().tune(process).log_hyperparameters())
    assert len(found.trace) == len(Evidence().tune(process).trace) + 1


def test_a_neighbourhood_is_what_is_near_with_every_repeat() -> None:
    x = torch.cat([normal(20, 2), 50 + normal(20, 2, seed=1)])
    y = x[:, 0].sin() + torch.linspace(0, 1, 40).double()
    process = GP(1.0 * RBF(1.0), lw.Gaussian(10.0)).fit((x.repeat(2, 1), torch.cat([y, y + 0.1])))
    centre = probes.permutation(40, generator=torch.Generator().manual_seed(0))[0]
    near = torch.arange(20) + 20 * (centre >= 20)
    exact = Evidence().tune(process.select(torch.cat([near, near + 40])))
    torch.testing.assert_close(Centroids(1, 20).tune(process).log_hyperparameters(), exact.log_hyperparameters())


def test_neighbourhoods_interrupted_are_averaged_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    process, looks = GP(1.0 * RBF(1.0), lw.Gaussian(10.0)).fit(data(60)), list[int]()
    first = Centroids(1, 40).tune(process)

    look = GPPosterior.evidence_and_gradient

    def interrupting(process: GPPosterior) -> tuple[float, torch.Tensor]:
        looks.append(len(process.trace))
        if len(looks) == last:
            raise KeyboardInterrupt
        return look(process)

    monkeypatch.setattr(GPPosterior, "evidence_and_gradient", interrupting)
    last = -1
    Centroids(1, 40).tune(process)
    last = len(looks) + 2
    looks.clear()
    with pytest.warns(ConvergenceWarning, match="interrupted after 0 steps"):
        found = Centroids(3, 40).tune(process)
    assert len(looks) == last
    second = {name: value for name, value in found.trace[-2].values.items()}
    expected = {name: (value * second[name]) ** 0.5 for name, value in first.trace[-1].values.items()}
    assert found.trace[-1].values == pytest.approx(expected)


def test_a_step_that_fails_is_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    process, calls = GP(1.0 * RBF(1.0), lw.Gaussian(10.0)).fit(data(40)), list[int]()

    look = GPPosterior.evidence_and_gradient

    def failing(process: GPPosterior) -> tuple[float, torch.Tensor]:
        calls.append(1)
        if len(calls) == 3:
            raise NumericalError("a matrix", "none", "another")
        return look(process)

    exact = Evidence().tune(process)
    monkeypatch.setattr(GPPosterior, "evidence_and_gradient", failing)
    torch.testing.assert_close(
        Evidence().tune(process).log_hyperparameters(), exact.log_hyperparameters(), rtol=0, atol=1e-3
    )


def test_many_observations_are_tuned_on_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Subset] = []
    monkeypatch.setattr(Subset, "tune", lambda self, posterior, progress: seen.append(self) or posterior)
    lw.tune(GP().fit((torch.arange(SMALL + 1.0)[:, None], torch.zeros(SMALL + 1))))
    assert seen == [Subset()]
