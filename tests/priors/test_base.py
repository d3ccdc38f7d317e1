"""Priors: precision of each weight, log density, groups for tuning, round trips."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.ground.layout import Layout
from lapwing.priors import DiagonalPrior, GPrior, Isotropic, Layerwise, Prior
from tests.checker import unchecked
from tests.posterior_cases import refused

LAYOUT = Layout(("a.weight", "a.bias", "scale"), ((2, 3), (2,), ()))
D = LAYOUT.size
PRIORS = [
    Isotropic(0.1),
    Layerwise(0.1),
    Layerwise((0.1, 2.0)),
    Layerwise((0.1, 2.0), parts=(("scale", "a.bias"),)),
    DiagonalPrior(0.1),
    DiagonalPrior(torch.linspace(0.1, 2.0, D, dtype=torch.float64)),
    GPrior(0.3, scale=torch.linspace(0.1, 2.0, D, dtype=torch.float64)),
]
LIKE = torch.zeros(1, dtype=torch.float64)


@pytest.fixture(params=PRIORS, ids=lambda prior: f"{type(prior).__name__}-{prior.precision!r:.9}")
def prior(request: pytest.FixtureRequest) -> Prior:
    return request.param


def test_log_density_is_a_product_of_normals(prior: Any) -> None:
    vector = torch.randn(D, dtype=torch.float64)
    std = prior.diagonal(LAYOUT, LIKE).rsqrt()
    expected = Normal(torch.zeros(D, dtype=torch.float64), std).log_prob(vector).sum()
    torch.testing.assert_close(prior.log_density(vector, LAYOUT), expected)


def test_gradient_of_the_log_density_is_minus_precision_times_weights(prior: Any) -> None:
    vector = torch.randn(D, dtype=torch.float64, requires_grad=True)
    prior.log_density(vector, LAYOUT).backward()
    torch.testing.assert_close(vector.grad, -prior.diagonal(LAYOUT, LIKE) * vector.detach())


def test_diagonal_is_the_precision_of_each_weights_group(prior: Any) -> None:
    index, groups = prior.groups(LAYOUT)
    precisions = prior.precisions(LAYOUT)
    assert precisions.shape == (groups,) and precisions.dtype == torch.float64
    assert index.dtype == torch.long and index.unique().tolist() == list(range(groups))
    relative = prior.relative(LAYOUT)
    expected = precisions[index] if relative is None else precisions[index] * relative
    torch.testing.assert_close(prior.diagonal(LAYOUT, LIKE), expected)
    single = prior.diagonal(LAYOUT, torch.zeros(1))
    assert single.dtype == torch.float32 and single.shape == (D,)


def test_operator_is_the_diagonal_precision(prior: Any) -> None:
    vector = torch.randn(D, dtype=torch.float64)
    torch.testing.assert_close(prior.operator(LAYOUT, LIKE) @ vector, prior.diagonal(LAYOUT, LIKE) * vector)


def test_with_precisions_keeps_the_kind_and_takes_the_numbers(prior: Any) -> None:
    precisions = prior.precisions(LAYOUT) * 3
    other = prior.with_precisions(precisions)
    assert type(other) is type(prior)
    assert other != prior
    torch.testing.assert_close(other.precisions(LAYOUT), precisions, rtol=0, atol=0)
    assert other.with_precisions(prior.precisions(LAYOUT)).diagonal(LAYOUT, LIKE).equal(prior.diagonal(LAYOUT, LIKE))


def test_priors_of_another_kind_or_precision_differ() -> None:
    again = [replace(prior) for prior in PRIORS]
    assert again == PRIORS and [hash(prior) for prior in again] == [hash(prior) for prior in PRIORS]
    assert all(one != other for one, other in itertools.combinations(PRIORS, 2))
    assert DiagonalPrior(1.0) != DiagonalPrior(2.0)
    assert DiagonalPrior(1.0) != "prior"


def test_square_norms_make_the_quadratic_form_of_the_prior(prior: Any) -> None:
    vector = torch.randn(D, dtype=torch.float64)
    expected = (prior.diagonal(LAYOUT, LIKE) * vector.square()).sum()
    norms = prior.square_norms(vector, LAYOUT)
    torch.testing.assert_close((prior.precisions(LAYOUT) * norms).sum(), expected)


def test_priors_that_differ_in_their_precisions_alone_share_the_rest(prior: Any) -> None:
    assert prior.shares(prior.with_precisions(2 * prior.precisions(LAYOUT)), LAYOUT)
    different = [other for other in PRIORS if type(other) is not type(prior)]
    assert not any(prior.shares(other, LAYOUT) for other in different)
    assert not Layerwise().shares(Layerwise(parts=(("scale",), ("a.bias",))), LAYOUT)


@pytest.mark.parametrize(
    "prior, shown",
    [
        (Isotropic(999999999999.999), "Isotropic(precision=1e+12)"),
        (Layerwise((0.1 + 0.2, 2.0), parts=(("a",),)), "Layerwise(precision=(0.3, 2), parts=(('a',),))"),
    ],
)
def test_numbers_are_shown_to_six_digits(prior: Any, shown: str) -> None:
    assert repr(prior) == shown


def test_layerwise_parts_of_ones_own() -> None:
    prior = Layerwise((1.0, 3.0, 5.0), parts=(("scale", "a.bias"), ("gone",), ("a.weight",)))
    assert prior.groups(LAYOUT)[1] == 2
    assert Layerwise((1.0, 3.0), parts=(("scale", "a.bias"), ("gone",))).diagonal(LAYOUT, LIKE).tolist() == [
        *[3.0] * 6,
        *[1.0] * 3,
    ]
    with pytest.raises(ShapeError, match=r"each of 2 parts\. Got \[3\]"):
        prior.diagonal(LAYOUT, LIKE)
    for parts in ((("scale",), ("scale",)), ((),)):
        with pytest.raises(ConfigError, match="share no parameter"):
            Layerwise(1.0, parts)


def test_layerwise_gives_every_layer_its_own() -> None:
    assert Layerwise((1.0, 3.0)).diagonal(LAYOUT, LIKE).tolist() == [1.0] * 8 + [3.0]
    assert Layerwise(2.0).precisions(LAYOUT).tolist() == [2.0, 2.0]


def test_a_prior_does_not_change_with_the_tensor_it_was_made_from() -> None:
    values = torch.ones(D)
    prior = DiagonalPrior(values)
    values.fill_(5.0)
    assert prior.diagonal(LAYOUT, LIKE).tolist() == [1.0] * D


def test_weight_decay_is_the_prior_whose_map_it_trains() -> None:
    # Ridge regression: the minimum of mean loss + wd/2 |θ|² is where the log joint is flat.
    n, weight_decay = 20, 0.03
    x, y = torch.randn(n, D, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    eye = torch.eye(D, dtype=torch.float64)
    weights = torch.linalg.solve(x.mT @ x / n + weight_decay * eye, x.mT @ y / n).requires_grad_()
    prior = Isotropic.from_weight_decay(weight_decay, n)
    log_joint = prior.log_density(weights, LAYOUT) - 0.5 * (y - x @ weights).square().sum()
    log_joint.backward()
    torch.testing.assert_close(weights.grad, torch.zeros(D, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", [Isotropic, Layerwise, DiagonalPrior, GPrior])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_precisions_must_be_positive_and_finite(kind: Any, bad: float) -> None:
    with pytest.raises(ConfigError, match=rf"positive finite prior precisions.*Got {bad:g}\. Try {kind.__name__}"):
        kind(bad)
    with pytest.raises(ConfigError, match=f"Got {bad:g}"):
        kind(1.0).with_precisions(torch.tensor([bad]))


def test_one_bad_precision_among_many_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Got -2\."):
        Layerwise((1.0, -2.0))
    with pytest.raises(ConfigError, match=r"Got shape \[0\]"):
        Layerwise(())
    with pytest.raises(ConfigError, match=r"Got -2\."):
        DiagonalPrior(torch.tensor([1.0, -2.0]))


def test_the_wrong_number_of_precisions_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"each of 2 layers\. Got \[3\]"):
        Layerwise((1.0, 2.0, 3.0)).diagonal(LAYOUT, LIKE)
    with pytest.raises(ShapeError, match=r"each of 9 weights\. Got \[2\]"):
        DiagonalPrior(torch.ones(2)).precisions(LAYOUT)
    with pytest.raises(ConfigError, match="one prior precision for all weights"):
        Isotropic().with_precisions(torch.ones(2))
    with pytest.raises(ShapeError, match=r"flat vector \[9\]\. Got shape \[8\]"):
        Isotropic().log_density(torch.zeros(8), LAYOUT)


@pytest.mark.parametrize("weight_decay, n", [(0.0, 10), (-1.0, 10), (math.nan, 10), (1.0, 0)])
def test_weight_decay_must_be_positive(weight_decay: float, n: int) -> None:
    with pytest.raises(ConfigError, match="positive weight_decay"):
        Isotropic.from_weight_decay(weight_decay, n)


@pytest.mark.parametrize("prior", [Isotropic, Layerwise, GPrior])
@pytest.mark.parametrize("bad", ["a", None, (1.0, (2.0, 3.0))])
def test_precisions_are_numbers(prior: Any, bad: object) -> None:
    with unchecked(), refused(ConfigError, "positive finite prior precisions"):
        prior(bad)


@pytest.mark.parametrize("prior", [Isotropic, GPrior])
def test_one_precision_is_one(prior: Any) -> None:
    with unchecked(), refused(ConfigError, "one prior precision"):
        prior((1.0, 2.0))


@pytest.mark.parametrize("parts", ["0.weight", ("0.weight",), ((),), ()])
def test_parts_that_are_no_lists_of_names_are_refused(parts: Any) -> None:
    with unchecked(), refused(ConfigError, "parts that are"):
        Layerwise(1.0, parts=parts)


def test_lists_do_for_parts() -> None:
    with unchecked():
        assert Layerwise(1.0, parts=[["a", "b"], ["c"]]) == Layerwise(1.0, parts=(("a", "b"), ("c",)))  # type: ignore[arg-type]


def test_a_misspelt_name_is_found_before_anything_is_computed() -> None:
    model, data = torch.nn.Linear(2, 2), (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    prior = Layerwise(1.0, parts=(("weight", "bais"),))
    for fit in (
        lambda: lw.Laplace(lw.Categorical(), prior=prior).fit(model, data),
        lambda: lw.HessianFree(lw.Categorical(), prior=prior).fit(model, data),
        lambda: lw.train_marginal(model, data, lw.Categorical(), prior=prior, epochs=1),
    ):
        with refused(ConfigError, "the network's 2 parameters"):
            fit()


def informed(prior: Any) -> Any:
    """The prior with a mean and what earlier data said."""
    root = torch.randn(D, 4, dtype=torch.float64)
    mean = LAYOUT.unflatten(torch.randn(D, dtype=torch.float64))
    return replace(prior, mean=mean, earlier=lw.linalg.Dense(root @ root.mT))


def test_log_density_with_a_mean_and_earlier_data_is_that_of_a_dense_normal(prior: Any) -> None:
    known = informed(prior)
    vector = torch.randn(D, dtype=torch.float64)
    precision = torch.diag(prior.diagonal(LAYOUT, LIKE)) + known.earlier.dense()
    normal = MultivariateNormal(LAYOUT.flatten(known.mean), precision_matrix=precision)
    torch.testing.assert_close(known.log_density(vector, LAYOUT), normal.log_prob(vector))


def test_the_penalty_of_a_network_is_what_its_log_density_loses() -> None:
    model = torch.nn.Linear(3, 2).double()
    root = torch.randn(8, 3, dtype=torch.float64)
    mean = {name: value + 1.0 for name, value in model.named_parameters()}
    prior = Isotropic(0.7, mean=mean, earlier=lw.linalg.Dense(root @ root.mT))
    penalty = prior.penalty(model)
    penalty.backward()
    layout = Layout.of(mean)
    there = layout.flatten(mean)
    here = layout.flatten({name: value for name, value in model.named_parameters()})
    torch.testing.assert_close(prior.log_density(there, layout) - prior.log_density(here, layout), penalty)
    precision = 0.7 * torch.eye(8, dtype=torch.float64) + root @ root.mT
    gradient = torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None])
    torch.testing.assert_close(gradient, precision @ (here - there).detach())


def test_the_penalty_is_weight_decay_where_there_is_no_mean() -> None:
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert Isotropic(0.5).penalty(model).item() == pytest.approx(0.25 * model.weight.square().sum().item(), rel=1e-6)


def test_a_mean_may_be_of_some_parameters() -> None:
    model = torch.nn.Linear(3, 2)
    prior = Isotropic(2.0, mean={"bias": model.bias + 1.0})
    assert prior.penalty(model).item() == pytest.approx(2.0, rel=1e-6)


def test_a_mean_of_another_network_is_refused() -> None:
    model = torch.nn.Linear(3, 2)
    with refused(ConfigError, "a mean of the network's 2 parameters. Got 'wait'. Try one of ['weight']"):
        Isotropic(mean={"wait": model.weight}).penalty(model)
    with refused(ShapeError, "a prior mean for the 2 weights of 'bias'. Got [2, 3]"):
        Isotropic(mean={"bias": model.weight}).penalty(model)
    with refused(ShapeError, "a prior mean for the 6 weights of 'weight'. Got one of ['bias']"):
        lw.Laplace(lw.Gaussian(), prior=Isotropic(mean={"bias": model.bias})).fit(
            model, (torch.zeros(1, 3), torch.zeros(1, 2))
        )
    with refused(DataError, "the prior mean of 'bias'"):
        Isotropic(mean={"bias": torch.full((2,), math.nan)})


def test_priors_with_a_mean_are_equal_by_their_numbers() -> None:
    mean = {"a": torch.ones(2)}
    assert Isotropic(mean=mean) == Isotropic(mean={"a": torch.ones(2)}) != Isotropic(mean={"a": torch.zeros(2)})
    assert hash(Isotropic(mean=mean)) == hash(Isotropic(mean={"a": torch.ones(2)}))
    assert repr(Isotropic(mean=mean)) == "Isotropic(precision=1, mean of 1 parameters)"
    split = Isotropic(mean=LAYOUT.unflatten(torch.ones(D))).split_off(["scale"], LAYOUT)
    assert split is not None and split.mean is not None


def test_a_prior_keeps_the_mean_it_was_given_when_training_goes_on() -> None:
    weight = torch.ones(2)
    prior = Isotropic(mean={"a": weight})
    weight.zero_()
    assert prior.mean is not None and prior.mean["a"].tolist() == [1.0, 1.0]
