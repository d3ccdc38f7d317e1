"""The lower bound on the evidence of the tangent model, against dense matrices and against the evidence itself."""

from __future__ import annotations

import math
import weakref
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn.functional import cross_entropy

import lapwing as lw
from lapwing.ground.errors import ConfigError, ConvergenceWarning
from lapwing.ground.progress import Bar
from lapwing.metrics import nll
from lapwing.structures.selection import Selection
from lapwing.tuning import evidence_at
from lapwing.tuning.elbo import DRAWN, LITTLE, OUTPUTS, BoundPoint, BoundSearch, natural_target
from lapwing.tuning.em.expectation import Expectation
from lapwing.tuning.em.state import State
from lapwing.tuning.tune import default
from tests.meter import Meter
from tests.posterior_cases import Linearised, normal, portrait, problem
from tests.tuning.cases import fit, point_of

NAMES = ("categorical", "bernoulli", "poisson", "negative-binomial", "student-t", "images", "tokens")


def search_of(posterior: lw.Posterior, examples: int = 1000, samples: int = 16, **options: int) -> BoundSearch:
    expectation = Expectation(posterior, "simplified", None, samples, "auto", 1e-6, 0)
    return BoundSearch(expectation, examples, 0, Bar("ELBO"), **options)


def tried(posterior: lw.Posterior, log_factors: tuple[float, ...] = (0.0,), samples: int = 16) -> list[BoundPoint]:
    """The bound at some precisions, each from the one before."""
    search = search_of(posterior, samples=samples)
    points: list[BoundPoint] = []
    for log_factor in log_factors:
        points.append(search.attempt(log_factor, points[-1] if points else None))
    return points


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.no_cover
def test_the_bound_is_the_expected_likelihood_less_the_divergence_from_the_prior(name: str) -> None:
    case, posterior = fit(name)
    dense = Linearised(case, posterior.network)
    (found,) = tried(posterior)
    prior = torch.diag(float(found.found.state.precisions[0]) * torch.ones(len(dense.theta)).double())
    mode = found.found.mode.weights
    q = MultivariateNormal(mode, precision_matrix=dense.ggn + prior)
    divergence = kl_divergence(q, MultivariateNormal(torch.zeros_like(mode), precision_matrix=prior))
    j = dense.jacobian(case.x)
    draws = mode[:, None] + torch.linalg.cholesky(q.covariance_matrix) @ normal(len(mode), 4000, seed=7)
    y = case.likelihood.canonical_targets(dense.outputs(case.x), case.y)
    outputs = (j @ draws).movedim(-1, 0)
    losses = case.likelihood.nll(outputs, y.expand(4000, *y.shape)).flatten(1).sum(1)
    spread = losses.std() * (1 / 4000 + 1 / 64) ** 0.5
    assert abs(found.bound + float(losses.mean() + divergence)) < 4 * float(spread)


def blobs(n: int = 40) -> tuple[Tensor, Tensor]:
    """Two overlapping classes on a line."""
    y = torch.arange(n) % 2
    return normal(n, 1) + 1.5 * y[:, None].double(), y


def test_it_is_a_lower_bound_of_the_evidence() -> None:
    x, y = blobs()
    model = nn.Linear(1, 1).double()
    with torch.no_grad():
        model.weight.fill_(2.0)
        model.bias.fill_(-1.0)
    posterior = lw.Laplace(lw.Bernoulli()).fit(model, (x, y[:, None].double()))
    grid = torch.linspace(-12, 12, 400, dtype=torch.float64)
    w = torch.cartesian_prod(grid, grid)
    f = (x @ w[:, :1].mT + w[:, 1]).mT
    likelihood = -lw.Bernoulli().nll(f[..., None], y.double().expand(f.shape)[..., None]).sum(1)
    for found in tried(posterior, (0.0, 1.0, 2.0, 4.0)):
        a = float(found.found.state.precisions[0])
        log_prior = math.log(a / (2 * math.pi)) - 0.5 * a * w.square().sum(1)
        log_evidence = float((likelihood + log_prior).logsumexp(0)) + 2 * math.log(24 / 399)
        assert log_evidence - 1.0 < found.bound < log_evidence + 0.05


def test_the_charge_by_draws_is_that_of_the_determinant() -> None:
    case = problem("categorical")
    sampled = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(8, lw.solvers.CG(rtol=1e-10))))
    points = tried(sampled, (0.0, 0.5, 1.0), samples=4000)
    exact = evidence_at(case.fit(lw.Laplace(case.likelihood, structure=lw.Full(view="weights"))), "weights")
    charges = [
        float(exact.complexity.log_det_ratio(it.found.state.precisions, torch.tensor(1.0).double())) for it in points
    ]
    for point, charge in zip(points, charges, strict=True):
        assert point.charge - points[0].charge == pytest.approx(charge - charges[0], rel=0.03, abs=0.02)


@pytest.mark.parametrize(
    ("name", "structure"),
    [("categorical", "full-weights"), ("tokens", "full-functions"), ("categorical", "kfac"), ("tokens", "kfac"),
     ("tokens", "diagonal"), ("categorical", "low-rank")],
)  # fmt: skip
@pytest.mark.no_cover
def test_the_chosen_precision_has_the_largest_bound_of_all_tried(name: str, structure: str) -> None:
    _, posterior = fit(name, structure)
    tuned = lw.tune(posterior, lw.ELBO())
    values = [step.bound for step in tuned.trace if step.bound is not None]
    assert len(values) == len(tuned.trace) and values[-1] == max(values)
    assert all(step.log_marginal is None for step in tuned.trace)
    torch.testing.assert_close(torch.tensor(tuned.trace[-1].prior_precision).double(), tuned.prior_precisions)
    *before, last = [step.prior_precision[0] for step in tuned.trace]
    nothing_learnt = tuned.trace[-1].effective_dimension < 0.1
    assert min(before) < last < max(before) or (name == "categorical" and nothing_learnt)


def test_gaussian_noise_is_left_to_em() -> None:
    _, posterior = fit("gaussian")
    torch.testing.assert_close(
        point_of(lw.tune(posterior, lw.ELBO())), point_of(lw.tune(posterior, lw.EM(target="affine")))
    )


def test_it_is_the_default_where_targets_are_no_labels() -> None:
    _, posterior = fit("poisson")
    assert lw.tune(posterior).trace == lw.tune(posterior, lw.ELBO()).trace
    _, varied = fit("heteroscedastic")
    assert lw.tune(varied).trace == lw.tune(varied, lw.EvidenceGradient()).trace


def test_the_draws_of_the_search_are_those_of_the_posterior() -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(4, lw.solvers.CG(rtol=1e-8))))
    tuned = lw.tune(posterior, lw.ELBO(samples=4))
    assert tuned.perturbation is posterior.perturbation and tuned.initial is not None
    torch.testing.assert_close(tuned.initial, tuned.draws, rtol=1e-5, atol=1e-7)
    exact = torch.linalg.solve(tuned.precision_operator.dense(), tuned.perturbation.right_hand_side(tuned.problem))
    torch.testing.assert_close(tuned.draws, exact, rtol=1e-5, atol=1e-7)


@pytest.mark.no_cover
def test_the_module_and_the_posterior_are_left_alone() -> None:
    case, posterior = fit("images")
    before = portrait(case.model)
    lw.tune(posterior, lw.ELBO(), progress=True)
    assert portrait(case.model) == before and posterior.trace == ()


def test_the_same_seed_gives_the_same_numbers() -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(4)))
    assert lw.tune(posterior, lw.ELBO(seed=3)).trace == lw.tune(posterior, lw.ELBO(seed=3)).trace


def test_too_few_steps_are_said() -> None:
    case = problem("categorical")
    sampled = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(1e-6), structure=lw.Sampled(4)))
    with pytest.warns(ConvergenceWarning, match="still growing after 2 precisions"):
        lw.tune(sampled, lw.ELBO(steps=2))


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="examples"):
        lw.ELBO(examples=0)


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
@pytest.mark.parametrize("start", [1e6, 1e8])
@pytest.mark.no_cover
def test_far_too_strong_a_prior_is_no_place_to_stay(start: float) -> None:
    x, y = blobs()
    model = nn.Linear(1, 2).double()
    ends = [
        lw.tune(
            lw.Laplace(lw.Categorical(), prior=lw.Isotropic(a), structure=lw.Sampled(8)).fit(model, (x, y)), lw.ELBO()
        )
        for a in (1.0, start)
    ]
    assert float(ends[1].prior_precisions / ends[0].prior_precisions) == pytest.approx(1.0, rel=0.3)


def test_ignored_labels_count_for_nothing() -> None:
    case = problem("categorical")
    kept = torch.arange(len(case.y)) % 3 > 0
    ignored = torch.where(kept, case.y, -100)
    recipe = lw.Laplace(case.likelihood, structure=lw.Full(view="weights"))
    whole, part = (recipe.fit(case.model, data) for data in ((case.x, ignored), (case.x[kept], case.y[kept])))
    assert tried(whole)[0].bound == pytest.approx(tried(part)[0].bound, rel=1e-9)


def test_a_few_examples_stand_for_all_of_their_label() -> None:
    """All examples of a label are the same one: two of them tell all of unequal classes."""
    y = (torch.arange(30) < 5).long()
    x = torch.tensor([[-0.5, 1.0], [1.0, 0.3]]).double()[y]
    posterior = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights")).fit(nn.Linear(2, 2).double(), (x, y))
    excesses = []
    for k in (2, 30):
        search = search_of(posterior, k, outputs=4000)
        excesses.append(search._excess(search.attempt(-2.0, None).found))
    assert excesses[0] == pytest.approx(excesses[1], rel=0.1)


def test_noise_that_varies_is_no_obstacle_to_draws() -> None:
    case = problem("heteroscedastic")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(4)))
    tuned = lw.tune(posterior, lw.ELBO(steps=3))
    assert tuned.trace[-1].bound is not None
    assert isinstance(default(posterior), lw.ELBO)


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.Diagonal()], ids=repr)
def test_more_outputs_than_uncertain_directions_in_single_precision(structure: lw.KFAC | lw.Diagonal) -> None:
    """The covariance of the outputs is singular, and its smallest eigenvalues are what float32 rounds, not faults."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 30))
    module[1].requires_grad_(False)
    data = (torch.randn(15, 4), torch.arange(15))
    posterior = lw.Laplace(lw.Categorical(), structure=structure).fit(module, data)
    assert float(lw.tune(posterior, lw.ELBO()).prior.precision) > 0  # pyright: ignore[reportAttributeAccessIssue]


def test_of_many_outputs_the_bound_makes_no_covariance_and_few_examples_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a covariance is not to be made, outputs are drawn without one; budgets decide how many at once."""
    x, y = normal(5, 2), torch.arange(5)
    posterior = lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(nn.Linear(2, 300).double(), (x, y))
    (whole,) = tried(posterior)
    sizes: list[int] = []
    excess_of = BoundSearch._excess_of
    monkeypatch.setattr(BoundSearch, "_excess_of", lambda *args: sizes.append(len(args[3])) or excess_of(*args))
    with Meter() as meter:
        found = search_of(posterior, max_bytes=2 * OUTPUTS * 300 * DRAWN).attempt(0.0, None)
    assert sizes == [2, 2, 1] and meter.largest < 2 * 8 * 300**2
    assert found.charge == whole.charge and abs(found.bound - whole.bound) < 0.01 * abs(whole.bound)


@pytest.mark.parametrize(
    ("weights", "target"),
    [
        (lw.All(), "simplified"),
        (lw.LastLayer(), "simplified"),
        (lw.Names("0.*"), "affine"),
        (lw.Subnetwork(7, by="magnitude"), "affine"),
    ],
)
def test_an_offset_is_left_out_where_the_last_layer_makes_the_outputs(weights: Selection, target: str) -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, weights=weights, structure=lw.Full(view="weights")))
    assert natural_target(posterior) == target
    assert lw.tune(posterior, lw.ELBO()).trace == lw.tune(posterior, lw.ELBO(target=target)).trace  # type: ignore[arg-type]


def test_an_offset_is_kept_where_outputs_do_not_come_from_a_linear_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    posterior = lw.Laplace(lw.Categorical()).fit(model, (normal(10, 3), torch.arange(10) % 3))
    assert natural_target(posterior) == "affine"


@cache
def digits() -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A linear classifier, trained until it is certain of its 200 digits; and others."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels).double() / 16, torch.tensor(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 10)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        cross_entropy(model(x[:200]), y[:200]).backward()
        optimiser.step()
    return model, (x[:200], y[:200]), (x[200:], y[200:])


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
    assert vertex > max(points) + LITTLE


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
