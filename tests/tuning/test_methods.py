"""What holds of every method of tuning: its trace, what it reads, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import ConvergenceWarning, UnsupportedError
from lapwing.tuning import Method
from tests.pairwise import in_turn, pairwise
from tests.posterior_cases import Problem, mlp, problem, refused
from tests.tuning.cases import (
    at_step,
    fit,
    held_out,
    point_of,
)


def methods(case: Problem) -> dict[str, Method]:
    """Every method, small."""
    small = lw.Validation(held_out(case), bounds=(1e-2, 1e2))
    return {"gradient": lw.EvidenceGradient(), "MacKay": lw.MacKay(), "validation": small}


WAYS = ("gradient", "MacKay", "validation")
every_way = pytest.mark.parametrize("method", WAYS)


class TestEveryMethod:
    @pytest.mark.parametrize(
        ("name", "structure", "method"),
        pairwise(["gaussian-per-output", "categorical"], ["full-functions", "kfac"], WAYS),
    )
    def test_the_trace_says_what_each_step_was(self, name: str, structure: str, method: str) -> None:
        case, posterior = fit(name, structure)
        tuned = lw.tune(posterior, methods(case)[method])
        assert posterior.trace == () and len(tuned.trace) > 2
        for step in tuned.trace:
            one = at_step(posterior, step)
            assert step.log_marginal == pytest.approx(one.log_marginal(), rel=1e-10)
            assert step.effective_dimension == pytest.approx(one.effective_dimension(), rel=1e-10)
            assert (step.noise_precision is None) == (name == "categorical")
        assert tuned.trace[-1].log_marginal == pytest.approx(tuned.log_marginal(), rel=1e-12)
        assert tuned.trace[-1].effective_dimension == pytest.approx(tuned.effective_dimension(), rel=1e-12)
        torch.testing.assert_close(torch.tensor(tuned.trace[-1].prior_precision).double(), tuned.prior_precisions)

    @every_way
    def test_the_trace_of_a_second_tuning_follows_the_first(self, method: str) -> None:
        case, posterior = fit("gaussian")
        with pytest.warns(ConvergenceWarning, match="after 3 steps"):
            once = lw.tune(posterior, lw.MacKay(steps=3))
        twice = lw.tune(once, methods(case)[method])
        assert twice.trace[: len(once.trace)] == once.trace
        assert len(twice.trace) > len(once.trace)
        if method != "validation":
            torch.testing.assert_close(
                point_of(twice), point_of(lw.tune(posterior, methods(case)[method])), rtol=0, atol=1e-5
            )

    @every_way
    def test_predictions_are_those_of_a_fit_with_the_tuned_values(self, method: str) -> None:
        case, posterior = fit("gaussian", "kfac")
        tuned = lw.tune(posterior, methods(case)[method])
        again = case.fit(lw.Laplace(tuned.likelihood, structure=lw.KFAC(), prior=tuned.prior))
        for one, other in [(tuned.predict(case.new), again.predict(case.new))]:
            torch.testing.assert_close(one.mean, other.mean)
            torch.testing.assert_close(one.variance, other.variance)
        assert tuned.log_marginal() == pytest.approx(again.log_marginal(), rel=1e-9)

    @every_way
    def test_no_data_are_read_again(self, method: str) -> None:
        """Held-out data are read once, whatever the number of points; the first training inputs for what is known."""
        case = problem("gaussian")
        train, held = Counted(case.batches()), Counted([held_out(case)])
        posterior = lw.Laplace(case.likelihood).fit(case.model, train)
        before = train.passes
        calls: list[int] = []
        hook = case.model.register_forward_hook(lambda *_: calls.append(1))
        lw.tune(
            posterior, replace(methods(case)[method], data=held) if method == "validation" else methods(case)[method]
        )
        hook.remove()
        assert train.passes - before == (0 if method == "validation" else 1) and before > 0
        assert held.passes == (1 if method == "validation" else 0)
        assert len(calls) <= (8 if method == "validation" else 3)

    @pytest.mark.parametrize(
        ("structure", "method"), in_turn(["full-weights", "full-functions", "kfac"], WAYS, whole=("full-weights",))
    )
    def test_the_curvature_is_decomposed_once(
        self, monkeypatch: pytest.MonkeyPatch, structure: str, method: str
    ) -> None:
        """Later predictions use the same decomposition; that of KFAC was computed in the fit."""
        case, posterior = fit("categorical", structure)
        sizes: list[int] = []
        for name in ("eigh", "eigvalsh"):
            kept = getattr(torch.linalg, name)

            def counted(matrix: Tensor, *args: Any, kept: Callable[..., Any] = kept, **options: Any) -> Any:
                sizes.append(matrix.shape[-1])
                return kept(matrix, *args, **options)

            monkeypatch.setattr(torch.linalg, name, counted)
        tuned = lw.tune(posterior, methods(case)[method])
        tuned.predict(case.new)
        tuned.log_marginal()
        assert len(sizes) == (0 if structure == "kfac" else 1)

    @every_way
    def test_is_quiet_unless_asked(self, method: str, capfd: pytest.CaptureFixture[str]) -> None:
        case, posterior = fit("categorical")
        lw.tune(posterior, methods(case)[method])
        assert capfd.readouterr() == ("", "")
        lw.tune(posterior, methods(case)[method], progress=True)
        assert {"gradient": "evidence"}.get(method, method) in capfd.readouterr().err

    @every_way
    def test_the_posterior_and_the_network_stay_as_they_were(self, method: str) -> None:
        case, posterior = fit("gaussian")
        before = (posterior.log_marginal(), posterior.predict(case.new).variance)
        weights = {name: value.clone() for name, value in case.model.state_dict().items()}
        tuned = lw.tune(posterior, methods(case)[method])
        assert posterior.log_marginal() == before[0] != tuned.log_marginal()
        assert torch.equal(posterior.predict(case.new).variance, before[1])
        assert posterior.prior == lw.Isotropic(1.0) and posterior.likelihood == case.likelihood
        assert all(torch.equal(value, weights[name]) for name, value in case.model.state_dict().items())
        assert case.model.training

    @every_way
    def test_single_precision_networks_agree_with_double(self, method: str) -> None:
        case, posterior = fit("gaussian", "kfac")
        single = replace(case, model=mlp().float(), x=case.x.float(), y=case.y.float())
        tuned = [
            lw.tune(one, methods(case)[method])
            for one in (posterior, single.fit(lw.Laplace(case.likelihood, structure=lw.KFAC())))
        ]
        torch.testing.assert_close(point_of(tuned[1]), point_of(tuned[0]), rtol=0, atol=1e-2)

    @every_way
    def test_works_where_gradients_are_off(self, method: str) -> None:
        case, posterior = fit("gaussian")
        with torch.no_grad():
            off = lw.tune(posterior, methods(case)[method])
        assert off.trace == lw.tune(posterior, methods(case)[method]).trace


@pytest.mark.parametrize("structure", ["full-weights", "full-functions", "kfac"])
def test_the_noise_of_an_empirical_fisher_matrix_is_fitted_again(structure: str, tmp_path: Path) -> None:
    """It grows with the square of the noise precision; tuning the prior alone gives what a fit with that prior does."""
    case, posterior = fit("gaussian", structure, curvature=lw.EmpiricalFisher())
    lw.save(posterior, tmp_path / "saved")
    for one in (posterior, lw.load(tmp_path / "saved", case.model, case.batches())):
        for method in (None, lw.EM(), *methods(case).values()):
            with refused(UnsupportedError, "noise precision"):
                lw.tune(one, method)
        with refused(UnsupportedError, "noise precision"):
            one.with_hyperparameters(one.prior, lw.Gaussian(3.0))
    tuned = lw.tune(posterior, lw.EvidenceGradient(noise=False))
    again = fit("gaussian", structure, curvature=lw.EmpiricalFisher(), prior=tuned.prior)[1]
    torch.testing.assert_close(tuned.predict(case.new).variance, again.predict(case.new).variance)


class Counted:
    """A loader that counts how often it is read."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.batches, self.passes = batches, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        return iter(self.batches)
