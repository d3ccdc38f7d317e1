"""The kernel of categories against scikit-learn's of zeros and ones, its derivatives, and signs of categories."""

from __future__ import annotations

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

import lapwing as lw
from lapwing.gp import RBF, Columns, Hamming, Kernel
from tests.posterior_cases import normal

SCALES = (0.6, 1.7, 4.0)


def categories(n: int, seed: int = 0) -> Tensor:
    """Of three columns: 2, 3 and 4 of them."""
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(count, (n,), generator=generator) for count in (2, 3, 4)]
    return torch.stack(columns, 1).double()


def zeros_and_ones(x: Tensor) -> Tensor:
    """A column a category."""
    encoded = [torch.nn.functional.one_hot(x[:, j].long(), j + 2) for j in range(3)]
    return torch.cat(encoded, 1).double()


def test_it_is_scikit_learns_kernel_of_zeros_and_ones() -> None:
    a, b = categories(9), categories(7, seed=1)
    roots = [SCALES[j] ** 0.5 for j in range(3) for _ in range(j + 2)]
    theirs = sk.RBF(roots)(zeros_and_ones(a), zeros_and_ones(b))
    torch.testing.assert_close(Hamming(SCALES)(a, b), torch.as_tensor(theirs), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kernel", [Hamming(SCALES), Hamming(1.3)], ids=str)
def test_its_gradient_is_that_of_automatic_differentiation(kernel: Hamming) -> None:
    a, b, weight = categories(9), categories(7, seed=1), normal(9, 7)
    torch.testing.assert_close(kernel.gradient(a, b, weight), Kernel.gradient(kernel, a, b, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_tell_categories_apart_whatever_their_numbers(dtype: torch.dtype) -> None:
    """Those of a table that was standardised, and those that the data do not have."""
    x = (categories(5) - 1.3) / 0.7
    new = torch.cat([x[:2], torch.tensor([[-0.0, 1e6, 0.1], [0.0, 1e6, -17.0]], dtype=torch.float64)]).to(dtype)
    count = 100_000
    features = Hamming(SCALES).features(count, x.to(dtype), torch.Generator().manual_seed(0))
    found = features(new) @ features(x.to(dtype)).mT
    torch.testing.assert_close(found, Hamming(SCALES)(new, x.to(dtype)), rtol=0, atol=5 / count**0.5)
    among = features(new) @ features(new).mT
    torch.testing.assert_close(among, Hamming(SCALES)(new, new), rtol=0, atol=5 / count**0.5)


def test_a_process_of_numbers_and_categories_is_that_of_scikit_learn() -> None:
    """Both as it is solved exactly and, from draws of its functions, as many rows are."""
    numbers, labels, noise = normal(40, 1), categories(40), 30.0
    x = torch.cat([numbers, labels], 1)
    y = torch.sin(2 * numbers[:, 0]) + labels[:, 1] + 0.2 * normal(40, 1, seed=1)[:, 0]
    kernel = 1.5 * Columns(RBF(0.9), active=(0,)) * Columns(Hamming(SCALES), active=(1, 2, 3))
    roots = [0.9, *(SCALES[j] ** 0.5 for j in range(3) for _ in range(j + 2))]
    encoded = torch.cat([numbers, zeros_and_ones(labels)], 1)
    theirs = GaussianProcessRegressor(1.5 * sk.RBF(roots), alpha=1 / noise, optimizer=None).fit(encoded, y)
    mean, std = theirs.predict(encoded[:9] + 0.1 * torch.eye(1, encoded.shape[1]), return_std=True)
    new = x[:9] + 0.1 * torch.eye(1, 4)
    recipe = lw.GP(kernel, lw.Gaussian(noise), mean="zero")
    exact = recipe.fit((x, y))
    torch.testing.assert_close(exact.predict(new).outputs.mean[:, 0], torch.as_tensor(mean), rtol=1e-8, atol=1e-8)
    found = exact.predict(new).outputs.marginal().variance[:, 0].sqrt()
    torch.testing.assert_close(found, torch.as_tensor(std), rtol=1e-7, atol=1e-8)
    assert exact.log_marginal() == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-9)
    drawn = exact.sample_functions(new, 500, generator=0)
    torch.testing.assert_close(drawn.std(0)[:, 0], torch.as_tensor(std), rtol=0.15, atol=0)


def test_a_category_meets_itself_in_another_dtype() -> None:
    """Of numbers that float32 rounds, of whole ones that it does not have, and of both in the signs."""
    single = torch.tensor([[0.1], [0.2], [0.7]])
    double = torch.tensor([[0.1], [0.2], [0.7]], dtype=torch.float64)
    kernel = Hamming(1.0)
    torch.testing.assert_close(kernel(single.double(), double), kernel(double, double))
    slope = kernel.gradient(single.double(), double, torch.eye(3, dtype=torch.float64))
    assert slope.tolist() == [0.0]
    features = kernel.features(50, double, torch.Generator().manual_seed(0))
    assert torch.equal(features(single.double()), features(double))
    large = torch.tensor([[2.0**24], [2.0**24 + 1]], dtype=torch.float64)
    assert kernel(large, large)[0, 1] < 1


def test_columns_of_categories_are_known() -> None:
    smooth = Columns(RBF(1.0), active=(0, 2))
    alike = Columns(Hamming(1.0), active=(3, 1))
    assert (2.0 * smooth * alike).categorical(4) == {1, 3}
    assert smooth.categorical(4) == set() and Hamming(1.0).categorical(2) == {0, 1}
