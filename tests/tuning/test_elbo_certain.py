"""The search for the largest bound where a network is certain of its data: the curvature at its weights says little."""

from __future__ import annotations

import weakref
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lapwing as lw
from lapwing.ground.progress import Bar
from lapwing.metrics import nll
from lapwing.tuning import elbo
from lapwing.tuning.elbo import BoundSearch
from lapwing.tuning.em.expectation import Expectation
from lapwing.tuning.em.state import State
from tests.posterior_cases import normal


@cache
def digits() -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A linear classifier, trained until it is certain of its 400 digits; and others."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels).double() / 16, torch.tensor(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        cross_entropy(model(x[:400]), y[:400]).backward()
        optimiser.step()
    return model, (x[:400], y[:400]), (x[400:], y[400:])


@pytest.mark.no_cover
def test_a_certain_network_becomes_better_where_laplaces_evidence_makes_it_worse() -> None:
    model, train, (x, y) = digits()
    posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, train)
    plain = nll(model(x).detach().softmax(-1), y)
    bound, mode, naive = (
        nll(lw.tune(posterior, method).predict(x).probs, y)
        for method in (lw.ELBO(), lw.EM(target="simplified"), lw.EvidenceGradient())
    )
    assert bound < 0.99 * plain < mode < naive


@pytest.mark.no_cover
def test_draws_choose_what_the_exact_posterior_chooses() -> None:
    model, train, _ = digits()
    exact = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights")).fit(model, train)
    sampled = lw.Laplace(
        lw.Categorical(), structure=lw.Sampled(8, lw.solvers.CG(preconditioner=lw.preconditioners.TopRows(100)))
    )
    ours = lw.tune(sampled.fit(model, train), lw.ELBO(samples=32)).prior_precisions
    theirs = lw.tune(exact, lw.ELBO()).prior_precisions
    assert 0.6 < float(ours / theirs) < 1.7


def uphill(posterior: lw.Posterior) -> BoundSearch:
    """A search that has ended."""
    expectation = Expectation(posterior, "simplified", None, 16, "auto", 1e-3, 0)
    way = BoundSearch(expectation, 1000, 0, Bar("ELBO"))
    assert way.run(20) is way.best
    return way


def test_the_vertex_of_the_parabola_is_higher_than_what_it_goes_through() -> None:
    model, train, _ = digits()
    *points, vertex = uphill(lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, train)).bounds.values()
    assert vertex > max(points) + elbo.LITTLE


def certain() -> tuple[nn.Module, Tensor, Tensor]:
    """Two classes far apart, and a network that is sure of them: at its weights the loss is flat."""
    x = torch.cat([normal(20, 2, seed=1) - 4.0, normal(20, 2, seed=2) + 4.0])
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-5.0, -5.0], [5.0, 5.0]]))
        model.bias.zero_()
    return model, x, torch.arange(40) // 20


@pytest.mark.parametrize("structure", [lw.Full(view="weights"), lw.MatrixFree(lw.solvers.CG())])
def test_it_climbs_where_the_curvature_at_the_weights_is_next_to_nothing(structure: lw.Full | lw.MatrixFree) -> None:
    model, x, y = certain()
    posterior = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1e-6), structure=structure).fit(model, (x, y))
    way = uphill(posterior)
    assert way.best is not None and len(way.trace) > 4 and way.best.found.gamma < 0.02
    assert way.best.bound == max(way.bounds.values())
    assert 0.0 < way.best.log_factor < max(way.bounds)


def test_draws_are_kept_of_few_of_the_precisions_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each new precision: those of the first, and of the last and the best, which are one on the way up."""
    made: list[weakref.ref] = []
    alive: list[int] = []
    expect = Expectation.expect

    def counted(expectation: Expectation, state: State, progress: bool | None = None):
        alive.append(sum(draws() is not None for draws in made))
        found = expect(expectation, state, progress)
        made.append(weakref.ref(found.state.draws))
        return found

    monkeypatch.setattr(Expectation, "expect", counted)
    model, x, y = certain()
    laplace = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1e-6), structure=lw.Sampled(4))
    lw.tune(laplace.fit(model, (x, y)), lw.ELBO(samples=4, examples=10))
    assert len(made) > 4 and max(alive) <= 2
