"""Products with the output Hessian equal its matrix, also where one class has nearly all probability."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lapwing.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)

LIKELIHOODS = [
    Categorical(),
    Bernoulli(),
    Gaussian(0.7),
    HeteroscedasticGaussian(),
    Poisson(),
    NegativeBinomial(0.4),
    StudentT(),
]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_products_equal_the_matrix(likelihood: Likelihood, generator: torch.Generator) -> None:
    f, u = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    y = likelihood.canonical_targets(f, likelihood.draw(f, generator=generator))
    expected = (likelihood.hessian(f, y) @ u.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(likelihood.hessian_product(f, y)(u), expected)


def test_ignored_positions_have_no_curvature(generator: torch.Generator) -> None:
    f, u = (torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    y = torch.tensor([[0, -100, 1], [2, 3, -100]])
    likelihood = Categorical(event_dim=1)
    expected = (likelihood.hessian(f, y) @ u.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(likelihood.hessian_product(f, y)(u), expected)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_a_diagonal_and_a_vector_beside_it_make_the_matrix(likelihood: Likelihood, generator: torch.Generator) -> None:
    likelihood = replace(likelihood, weight=1.7)
    f = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    y = likelihood.canonical_targets(f, likelihood.draw(f, generator=generator))
    if isinstance(likelihood, Categorical):
        y[1] = -100
    entries = likelihood.hessian_entries(f, y)
    assert entries is not None
    diagonal, beside = entries
    matrix = torch.zeros(5, 4, 4).to(f) if beside is None else -beside[:, :, None] * beside[:, None, :]
    torch.testing.assert_close(matrix.diagonal_scatter(diagonal, 0, -2, -1), likelihood.hessian(f, y))


def test_entries_in_float32_are_those_of_float64_to_its_rounding(generator: torch.Generator) -> None:
    f, y = 5 * torch.randn(6, 4, generator=generator), torch.tensor([0, 1, -100, 3, 0, 1])
    f[0, 2] += 40.0  # all but certain
    for found, expected in zip(
        Categorical().hessian_entries(f, y), Categorical().hessian_entries(f.double(), y), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=3e-6, atol=0.0)
    diagonal, p = Categorical().hessian_entries(f)
    torch.testing.assert_close(diagonal, p * (p.sum(-1, keepdim=True) - p), rtol=1e-12, atol=1e-16)


def test_nothing_cancels_where_a_class_is_certain() -> None:
    f, u = torch.tensor([[30.0, 0.0, 1.0]]), torch.tensor([[1e3, 1e3 + 1, 1e3 - 2]])
    exact = Categorical().hessian_product(f.double(), torch.tensor([0]))(u.double())
    torch.testing.assert_close(
        Categorical().hessian_product(f, torch.tensor([0]))(u).double(), exact, rtol=1e-5, atol=0.0
    )


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_a_thin_root_is_a_root(likelihood: Likelihood, scale: float, generator: torch.Generator) -> None:
    f = scale * torch.randn(5, 4, generator=generator, dtype=torch.float64)
    root = likelihood.thin_root(f)
    assert root.shape[-1] == (3 if isinstance(likelihood, Categorical) else 4)
    torch.testing.assert_close(root @ root.mT, likelihood.hessian(f), rtol=1e-10, atol=1e-14)


def test_a_thin_root_is_exact_where_a_class_is_certain_whichever_it_is() -> None:
    for certain in range(3):
        f = torch.zeros(1, 3)
        f[0, certain] = 40.0
        root, exact = Categorical().thin_root(f), Categorical().thin_root(f.double())
        product, expected = (root @ root.mT).double(), exact @ exact.mT
        torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_products_with_a_thin_root_equal_it(likelihood: Likelihood, generator: torch.Generator) -> None:
    likelihood = replace(likelihood, weight=1.7)
    f = 3 * torch.randn(5, 4, generator=generator, dtype=torch.float64)
    y = likelihood.canonical_targets(f, likelihood.draw(f, generator=generator))
    if isinstance(likelihood, Categorical):
        y[1] = -100
    root = likelihood.thin_root(f, y)
    assert root.shape[-1] == likelihood.rank(4)
    noise, moved = (torch.randn(5, rows, 3, generator=generator, dtype=torch.float64) for rows in (root.shape[-1], 4))
    torch.testing.assert_close(likelihood.root_product(f, y, noise), root @ noise)
    torch.testing.assert_close(likelihood.root_adjoint(f, y, moved), root.mT @ moved)


def test_products_with_a_thin_root_are_exact_where_a_class_is_certain_whichever_it_is(
    generator: torch.Generator,
) -> None:
    noise, moved = torch.randn(1, 2, 3, generator=generator), 1e3 + torch.randn(1, 3, 3, generator=generator)
    for certain in range(3):
        f = torch.zeros(1, 3)
        f[0, certain] = 40.0
        products = Categorical().root_product(f, None, noise), Categorical().root_adjoint(f, None, moved)
        root = Categorical().thin_root(f.double())
        for found, expected in zip(products, (root @ noise.double(), root.mT @ moved.double()), strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-16)


def test_products_with_the_root_of_many_classes_make_no_matrix() -> None:
    """Of 50,257 classes it would take 10 GB a position."""
    f, noise = torch.zeros(2, 50257), torch.ones(2, 50256, 1)
    product = Categorical().root_product(f, None, noise)
    assert Categorical().root_adjoint(f, None, product).shape == noise.shape


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(2.0), Poisson()])
def test_changes_may_lead_with_further_axes(likelihood: Likelihood, generator: torch.Generator) -> None:
    f = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, -100, 1, 2]) if isinstance(likelihood, Categorical) else torch.ones_like(f)
    u = torch.randn(2, 5, 4, 3, generator=generator, dtype=torch.float64)
    expected = torch.einsum("ncd,ijnd->ijnc", likelihood.hessian(f, y), u)
    torch.testing.assert_close(likelihood.hessian_product(f, y)(u), expected)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_a_basis_of_what_the_likelihood_sees(classes: int, generator: torch.Generator) -> None:
    f = torch.randn(4, classes, generator=generator, dtype=torch.float64)
    eye = torch.eye(classes, dtype=torch.float64)
    assert torch.equal(Gaussian().basis(f), eye)
    seen = Categorical().basis(f)
    if classes == 1:
        assert torch.equal(seen, eye)
        return
    torch.testing.assert_close(seen.mT @ seen, eye[1:, 1:])
    torch.testing.assert_close(seen @ seen.mT, eye - 1.0 / classes)
