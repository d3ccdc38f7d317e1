from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.comparison import likelihood_of, recipes
from lapwing.comparison.methods import calibrated, plain
from lapwing.evaluation.baselines import Map
from lapwing.ground.errors import DataError, DataWarning, UnsupportedError


def test_default_recipes_all_have_the_likelihood() -> None:
    found = recipes(lw.Poisson())
    assert list(found) == ["last layer", "diagonal", "KFAC", "full"]
    assert {recipe.likelihood for recipe in found.values()} == {lw.Poisson()}
    assert found["last layer"].weights == lw.LastLayer()


@pytest.mark.parametrize(
    ("targets", "likelihood"),
    [
        (torch.zeros(4, dtype=torch.long), lw.Categorical()),
        (torch.zeros(4, 7, dtype=torch.long), lw.Categorical(event_dim=1)),
        (torch.zeros(4, 1), lw.Gaussian()),
    ],
)
def test_likelihood_follows_the_targets(targets: torch.Tensor, likelihood: object) -> None:
    assert likelihood_of((torch.zeros(4, 2), targets)) == likelihood


@pytest.mark.parametrize("columns", [(), (3,)])
def test_labels_written_as_real_numbers_are_not_taken_without_a_word(columns: tuple[int, ...]) -> None:
    targets = (torch.arange(12) % 2).double().reshape(-1, *columns)
    with pytest.warns(DataWarning, match=r"Gaussian\(\).*likelihood=Bernoulli\(\)"):
        assert likelihood_of((torch.zeros(len(targets), 2), targets)) == lw.Gaussian()


def test_likelihood_does_not_eat_the_first_batch_of_an_iterator() -> None:
    with pytest.raises(DataError, match="again and again"):
        likelihood_of(iter([(torch.zeros(4, 2), torch.zeros(4))]))


def test_noise_of_the_plain_network_is_that_of_its_residuals() -> None:
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    network = plain(nn.Identity(), lw.Gaussian(7.0), (x, x + torch.tensor([[1.0], [3.0]])), None)
    assert network.likelihood == lw.Gaussian(1 / 5)  # mean of 1 and 9
    assert calibrated(network, (x, x + 2), None).likelihood == lw.Gaussian(1 / 4)


def test_plain_network_of_classes_is_as_it_is() -> None:
    pair = torch.zeros(2, 3), torch.tensor([0, 1])
    assert plain(nn.Identity(), lw.Categorical(), pair, None).temperature is None


def test_counts_have_nothing_to_calibrate() -> None:
    with pytest.raises(UnsupportedError, match="Poisson"):
        calibrated(Map(nn.Identity(), lw.Poisson()), (torch.zeros(2, 1), torch.ones(2, 1)), None)
