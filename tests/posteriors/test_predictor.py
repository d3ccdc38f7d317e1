"""Every posterior predicts by the link that it carries, unless it is told another."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.posteriors import Posterior
from tests.checker import unchecked
from tests.posterior_cases import STRUCTURES, Problem, problem, refused


def every_kind(case: Problem) -> list[Posterior]:
    kinds = [*STRUCTURES.values(), lw.Sampled(samples=6), lw.MatrixFree(), lw.Nystrom(rank=5)]
    seeds = [torch.Generator().manual_seed(2) for _ in kinds]
    return [
        case.fit(lw.Laplace(case.likelihood, structure=kind), generator=seed)
        for kind, seed in zip(kinds, seeds, strict=True)
    ]


def test_every_posterior_predicts_by_its_own_link_unless_told() -> None:
    case = problem("categorical")
    for posterior in every_kind(case):
        assert (posterior.link, posterior.temperature) == ("qmc", 1.0)
        changed = posterior.with_link("pairwise", 1.5)
        moved = changed.with_hyperparameters(lw.Isotropic(2.0), case.likelihood)
        for one in (changed, moved):
            (moments,) = one.outputs_each(case.new, [one])
            expected = case.likelihood.predictive(moments, "pairwise", temperature=1.5)
            torch.testing.assert_close(one.predict(case.new).probs, expected.probs)
            told = case.likelihood.predictive(moments, "probit", temperature=1.5)
            torch.testing.assert_close(one.predict(case.new, "probit").probs, told.probs)
        assert not torch.allclose(posterior.predict(case.new).probs, changed.predict(case.new).probs, atol=1e-3)
        assert "link qmc" in repr(posterior) and "link pairwise, temperature 1.5" in repr(changed)


def test_another_link_keeps_what_was_computed() -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, structure=lw.Sampled(samples=6))
    posterior = case.fit(recipe, generator=torch.Generator().manual_seed(2))
    assert posterior.with_link("probit").draws is not None
    solved = posterior.draws
    assert posterior.with_link("probit").draws is solved


def test_a_posterior_goes_to_a_device_and_not_to_a_dtype() -> None:
    case = problem("categorical")
    with unchecked(), refused(ConfigError, "fitting model.double()"):
        case.fit(lw.Laplace(case.likelihood)).to(torch.float32)  # pyright: ignore[reportArgumentType]


def test_what_is_no_link_is_refused() -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood))
    with pytest.raises(ConfigError, match="one of probit, pairwise, bridge, qmc, mc"), unchecked():
        posterior.with_link("softmax")
    with pytest.raises(ConfigError, match="a temperature > 0"):
        posterior.with_link("qmc", 0.0)
    plain = problem("gaussian")
    assert "link" not in repr(plain.fit(lw.Laplace(plain.likelihood)))
