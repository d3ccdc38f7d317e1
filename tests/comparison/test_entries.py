"""What can be compared, and what is by default."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.comparison.entries import Tuned, check_contender, common_likelihood, default_methods, recipes
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.errors import ConfigError
from tests.checker import unchecked


def test_small_tasks_have_their_full_covariance_and_large_ones_what_can_be_afforded() -> None:
    small = default_methods(lw.Categorical(), weights=1700, examples=300, outputs=10)
    few = default_methods(lw.Categorical(), weights=10_000, examples=50, outputs=10)
    assert list(small) == list(few) == list(recipes(lw.Categorical()))
    middle = default_methods(lw.Categorical(), weights=5000, examples=1000, outputs=10)
    assert list(middle)[4:] == ["Nyström", "64 draws", "subnetwork of 500"]
    assert list(default_methods(lw.Categorical(), weights=270_000, examples=1000, outputs=10)) == list(small)
    budgeted = default_methods(lw.Categorical(), weights=270_000, examples=1000, outputs=10, budgeted=True)
    assert list(budgeted) == list(middle)


def test_all_of_them_can_be_fitted() -> None:
    x, y = torch.randn(250, 20), torch.arange(250) % 10
    model = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 10))
    methods = default_methods(lw.Categorical(), weights=3110, examples=250, outputs=10)
    for name in list(methods)[4:]:
        assert methods[name].fit(model, (x, y)).network.size in (500, 3110)


def test_a_tuned_recipe_says_what_tunes_it() -> None:
    recipe = lw.Laplace(lw.Categorical())
    words = [Tuned(recipe, method).word for method in ("default", "validation", lw.MacKay(), lw.Validation([]))]
    assert words == ["default", "validation", "MacKay", "validation"]
    with unchecked(), pytest.raises(ConfigError, match="method="):
        Tuned(recipe, "evidence")  # type: ignore[arg-type]
    with unchecked(), pytest.raises(ConfigError, match="the recipe"):
        Tuned(lw.KFAC())  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [lw.KFAC(), lw.Laplace, 3, nn.Linear(2, 2).weight])
def test_what_makes_no_predictor_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"methods\['mine'\]"):
        check_contender("mine", wrong)


def test_functions_and_fitted_predictors_are_methods() -> None:
    plain = PlainNetwork(nn.Linear(2, 3), lw.Gaussian())
    for method in (plain, lambda task: task.network, Tuned(lw.Laplace(lw.Gaussian()))):
        check_contender("mine", method)
    assert common_likelihood([lambda task: task.network, plain]) == lw.Gaussian()
    assert common_likelihood([lambda task: task.network]) is None
