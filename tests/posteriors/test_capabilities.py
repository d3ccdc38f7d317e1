"""What posteriors say they can do, they can; what they say they cannot is refused or ``None``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import UnsupportedError
from lapwing.posteriors import Capabilities
from tests.posterior_cases import STRUCTURES, problem, refused

KINDS: dict[str, Any] = {**STRUCTURES, "sampled": lw.Sampled(5), "matrix-free": lw.MatrixFree()}

every_kind = pytest.mark.parametrize("kind", KINDS)


def fit(kind: str, name: str = "categorical") -> lw.Posterior:
    case = problem(name)
    return case.fit(lw.Laplace(case.likelihood, structure=KINDS[kind]))


@every_kind
def test_a_posterior_has_an_exact_evidence_or_solves(kind: str) -> None:
    posterior = fit(kind)
    assert posterior.exact == (posterior.evidence is not None)
    assert posterior.exact == (posterior.system is None)
    if posterior.evidence is not None:
        value = float(posterior.evidence.log_marginal(posterior.prior_precisions, posterior.scale))
        assert value == pytest.approx(posterior.log_marginal(), rel=1e-12)
    if posterior.system is not None:
        dense = posterior.system.problem.precision.dense()
        torch.testing.assert_close(dense, posterior.precision_operator.dense())


@every_kind
def test_a_stored_curvature_is_the_precision_without_the_prior(kind: str) -> None:
    posterior = fit(kind)
    if posterior.stored_curvature is None:
        assert not posterior.leaves_out_correlations
        return
    whole = posterior.stored_curvature.dense() + torch.diag(posterior.prior_diagonal)
    torch.testing.assert_close(whole, posterior.precision_operator.dense().to(whole))


@every_kind
def test_outputs_at_some_positions_are_those_of_all_or_refused(kind: str) -> None:
    case = problem("tokens")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=KINDS[kind]))
    places = torch.tensor([1, 0])
    if not posterior.separate_places:
        with refused(UnsupportedError, "outputs_each"):
            posterior.outputs_at(case.new, places, [posterior])
        return
    (some,) = posterior.outputs_at(case.new, places, [posterior])
    (whole,) = posterior.outputs_each(case.new, [posterior])
    torch.testing.assert_close(some.mean, whole.mean.flatten(1, -2)[:, places])
    torch.testing.assert_close(some.variance, whole.variance.flatten(1, -2)[:, places])


@every_kind
def test_only_draws_have_noise_of_their_own_and_start_from_others(kind: str) -> None:
    posterior = fit(kind)
    near = torch.ones(posterior.network.size, 3).double()
    if kind != "sampled":
        assert posterior.draw_noise is None and posterior.stored_draws is None
        assert posterior.starting_from(near) is posterior
        return
    assert posterior.draw_noise is not None and posterior.stored_draws == 5
    started = posterior.starting_from(near)
    assert started.draw_noise is posterior.draw_noise
    torch.testing.assert_close(started.initial[:, :3], near / posterior.prior_diagonal.sqrt()[:, None])


def test_modes_are_known_at_once_where_they_are_for_gaussian_noise() -> None:
    moves = {kind for kind in KINDS if fit(kind, "gaussian").mode_shift is not None}
    steps = {kind for kind in KINDS if fit(kind, "gaussian").mode_step() is not None}
    assert "full-functions" in steps and not moves & steps
    assert moves >= {"full-weights", "kfac", "diagonal"} and moves.isdisjoint({"sampled", "matrix-free", "nystrom"})


def test_who_can_do_nothing_says_so() -> None:
    nothing = Capabilities()
    assert not nothing.exact and nothing.evidence is None and nothing.system is None
    assert nothing.starting_from(torch.ones(2, 1)) is nothing
    with refused(UnsupportedError, "leaving out data="):
        nothing.with_training_data([])
