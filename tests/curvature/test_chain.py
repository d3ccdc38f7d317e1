"""What neighbouring layers have in common, against sums over examples written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.linalg import KroneckerChain
from lapwing.posteriors import WeightPosterior
from tests.posterior_cases import Linearised, Problem, chained, labels, normal, seeded

WIDTHS = (3, 4, 2, 3)


def deep(examples: int, *, linear: bool = False, outputs: int = 3) -> Problem:
    """Three layers."""

    def build() -> nn.Module:
        between = nn.Identity if linear else nn.Tanh
        first, second, third = (nn.Linear(i, o) for i, o in ((3, 4), (4, 2), (2, outputs)))
        return nn.Sequential(first, between(), second, between(), third)

    x = normal(examples, 3)
    if outputs == 1:
        return Problem(seeded(build), lw.Gaussian(2.0), x, normal(examples, 1, seed=1), normal(4, 3, seed=2))
    return Problem(seeded(build), lw.Categorical(), x, labels(examples, classes=outputs), normal(4, 3, seed=2))


def fit(case: Problem, structure: object) -> WeightPosterior:
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.3), structure=structure)  # type: ignore[arg-type]
    posterior = case.fit(recipe)
    assert isinstance(posterior, WeightPosterior)
    return posterior


def all_products(case: Problem, posterior: WeightPosterior) -> Tensor:
    """``Σ g gᵀ ⊗ E[a aᵀ]`` between all layers, from gradients of each output and inputs of each layer, one by one."""
    model = case.model.eval()
    n = len(case.x)
    outputs = model(case.x)
    roots = case.likelihood.root(outputs.detach())
    inputs: list[Tensor] = []
    gradients: list[Tensor] = []
    layers = [part for part in model if isinstance(part, nn.Linear)]
    before: list[Tensor] = []
    after: list[Tensor] = []
    h = case.x
    for part in model:
        if isinstance(part, nn.Linear):
            before.append(torch.cat([h, torch.ones(n, 1).double()], 1))
            h = part(h)
            after.append(h)
        else:
            h = part(h)
    assert len(layers) == len(after)
    for column in range(roots.shape[-1]):
        pulled = torch.autograd.grad((h * roots[..., column]).sum(), after, retain_graph=True)
        gradients.append(torch.cat(pulled, 1))
    inputs = [a.detach() for a in before]
    g = torch.cat(gradients)
    outputs_of = [layer.out_features for layer in layers]
    g_parts = g.split(outputs_of, 1)
    rows = [
        torch.cat([torch.kron(a.mT @ b, c.mT @ d / n) for b, d in zip(g_parts, inputs, strict=True)], 1)
        for a, c in zip(g_parts, inputs, strict=True)
    ]
    operator = posterior.curvature.operator
    assert isinstance(operator, KroneckerChain)
    order = torch.cat(operator.index)
    matrix = torch.empty(operator.shape, dtype=torch.float64)
    matrix[order[:, None], order] = torch.cat(rows)
    return matrix


@pytest.mark.parametrize("examples", [1, 7])
def test_the_chain_is_that_of_the_products_of_all_layers(examples: int) -> None:
    case = deep(examples)
    posterior = fit(case, lw.structures.TridiagonalKFAC())
    operator = posterior.curvature.operator
    assert isinstance(operator, KroneckerChain)
    precision = all_products(case, posterior) + 0.3 * torch.eye(operator.shape[0], dtype=torch.float64)
    torch.testing.assert_close(posterior.precision_operator.dense(), chained(precision, operator.index))


@pytest.mark.parametrize("linear", [True, False])
def test_of_two_layers_and_one_example_it_is_the_dense_posterior(linear: bool) -> None:
    case = deep(1, linear=linear, outputs=1)
    kept = lw.Names(("0.*", "2.*"))
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.3), weights=kept)
    chain, full = (
        case.fit(lw.Laplace(recipe.likelihood, prior=recipe.prior, weights=kept, structure=structure))
        for structure in (lw.structures.TridiagonalKFAC(), lw.Full(view="weights"))
    )
    torch.testing.assert_close(chain.precision_operator.dense(), full.precision_operator.dense())  # type: ignore[attr-defined]
    assert chain.log_marginal() == pytest.approx(full.log_marginal(), rel=1e-10)
    there, here = chain.predict(case.new), full.predict(case.new)
    torch.testing.assert_close(there.latent.covariance, here.latent.covariance)  # type: ignore[union-attr]


def test_of_a_deep_linear_chain_all_but_the_outermost_blocks_are_those_of_the_dense_matrix() -> None:
    case = deep(1, linear=True, outputs=1)
    posterior = fit(case, lw.structures.TridiagonalKFAC())
    operator = posterior.curvature.operator
    assert isinstance(operator, KroneckerChain)
    exact = Linearised(case, posterior.network).ggn + 0.3 * torch.eye(operator.shape[0], dtype=torch.float64)
    found = posterior.precision_operator.dense()
    first, second, third = operator.index
    for one, other in ((first, first), (first, second), (second, second), (second, third), (third, third)):
        torch.testing.assert_close(found[one[:, None], other], exact[one[:, None], other])
    inverse = torch.linalg.inv(found)
    assert inverse[first[:, None], third].abs().max() < 1e-12
    apart = fit(case, lw.KFAC()).precision_operator.dense()
    assert divergence(exact, found) < divergence(exact, apart)
    assert (found - exact).norm() < (apart - exact).norm()


@pytest.mark.parametrize("examples", [2, 9])
def test_it_is_nearer_than_blocks_alone(examples: int) -> None:
    case = deep(examples)
    posterior = fit(case, lw.structures.TridiagonalKFAC())
    size = posterior.network.size
    products = all_products(case, posterior) + 0.3 * torch.eye(size, dtype=torch.float64)
    found, apart = posterior.precision_operator.dense(), fit(case, lw.KFAC()).precision_operator.dense()
    assert divergence(products, found) < divergence(products, apart)
    assert (found - products).norm() < (apart - products).norm()


class Pooled(nn.Module):
    """Two layers at every position of a sequence, and two of their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 3)
        self.head = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3))

    def pooled(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pooled(x))


@pytest.mark.parametrize("lengths", [(2, 2), (1, 3), (3, 1)])
def test_tied_are_layers_of_one_position_in_every_example(lengths: tuple[int, int]) -> None:
    """Layers of sequences stand alone, also where some are of one token; those of their mean are a chain."""
    model = seeded(Pooled)
    batches = [(normal(4, length, 3, seed=length), labels(4, classes=3, seed=length)) for length in lengths]
    features = torch.cat([model.pooled(x).detach() for x, _ in batches])
    y = torch.cat([targets for _, targets in batches])
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(0.3), structure=lw.structures.TridiagonalKFAC())
    whole, blocks = (
        replace(recipe, structure=structure).fit(model, batches) for structure in (recipe.structure, lw.KFAC())
    )
    head = fit(Problem(model.head, lw.Categorical(), features, y, features), recipe.structure)
    assert isinstance(whole, WeightPosterior) and isinstance(blocks, WeightPosterior)
    found, apart = whole.precision_operator.dense(), blocks.precision_operator.dense()
    before = whole.network.size - head.network.size
    torch.testing.assert_close(found[before:, before:], head.precision_operator.dense())
    torch.testing.assert_close(found[:before], apart[:before])


def divergence(exact: Tensor, other: Tensor) -> float:
    """``KL(N(0, P) | N(0, Q))`` for P and Q in place of precisions, nats."""
    quotient = torch.linalg.solve(other, exact)
    return 0.5 * float(quotient.trace() - len(exact) - torch.logdet(exact) + torch.logdet(other))
