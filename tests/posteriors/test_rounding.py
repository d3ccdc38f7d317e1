"""Curvatures of products in float32: as good as said, and warned of where the prior is weaker than they resolve."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from tests.posterior_cases import convnet, labels, mlp, normal, seeded

X, Y, NEW = normal(20, 3), labels(20, classes=3), normal(5, 3, seed=2)
IMAGES = normal(20, 1, 5, 5)

CASES: dict[str, Any] = {
    "KFAC": lw.KFAC(),
    "KFAC, separate biases": lw.KFAC(sharing="reduce", bias="separate"),
    "full over weights": lw.Full(view="weights"),
    "full over functions": lw.Full(view="functions"),
    "Nyström": lw.Nystrom(12, samples=60),
}
every_case = pytest.mark.parametrize("name", CASES)


def fitted(name: str, precision: Any, prior: float = 1.0, scale: float = 1.0, **options: Any) -> Any:
    """A posterior whose curvature is as large as the square of a scale of the inputs."""
    recipe = lw.Laplace(
        lw.Categorical(), structure=CASES[name], prior=lw.Isotropic(prior), precision=precision, **options
    )
    return recipe.fit(mlp(3), (scale * X, Y))


def real(name: str, precision: Any, prior: float) -> Any:
    """A posterior of real outputs."""
    recipe = lw.Laplace(lw.Gaussian(), structure=CASES[name], prior=lw.Isotropic(prior), precision=precision)
    return recipe.fit(mlp(3), (X, X.sin()))


def variances(posterior: Any, x: Tensor = NEW) -> Tensor:
    return posterior.outputs(x).marginal().variance


@every_case
def test_products_in_float32_give_the_variances_of_those_in_float64(name: str) -> None:
    double, single = (variances(fitted(name, word)) for word in ("double", "single"))
    assert not torch.equal(double, single)
    torch.testing.assert_close(single, double, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weights", [lw.All(), lw.LastLayer()])
def test_images_too(weights: Any) -> None:
    def of(precision: Any) -> Tensor:
        recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=weights, precision=precision)
        return variances(recipe.fit(convnet(), (IMAGES, Y)), IMAGES[:4])

    torch.testing.assert_close(of("single"), of("double"), rtol=1e-5, atol=1e-7)


def test_a_convolution_that_moves_by_one_pixel_has_its_moments_too() -> None:
    model = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)))
    images = normal(20, 1, 8, 8)

    def of(precision: Any) -> Tensor:
        recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), precision=precision)
        return variances(recipe.fit(model, (images, Y)), images[:4])

    torch.testing.assert_close(of("single"), of("double"), rtol=1e-5, atol=1e-7)


def test_the_default_on_a_processor_is_double() -> None:
    assert torch.equal(variances(fitted("KFAC", None)), variances(fitted("KFAC", "double")))
    with pytest.raises(lw.LapwingError, match="half"):
        fitted("KFAC", "half")


@pytest.mark.parametrize("name", ["KFAC", "full over weights"])
def test_a_prior_that_products_do_not_resolve_is_warned_of(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strong = fitted(name, "single")
        fitted(name, "double", 1e-7)
    with pytest.warns(lw.PrecisionWarning, match='precision="double"') as fit:
        fitted(name, "single", 1e-7)
    with pytest.warns(lw.PrecisionWarning, match="prior precision of 1e-07") as moved:
        strong.with_hyperparameters(lw.Isotropic(1e-7), strong.likelihood)
    assert len(fit) == len(moved) == 1


@pytest.mark.parametrize("name", ["KFAC", "full over functions", "Nyström"])
def test_a_weak_prior_that_no_variance_depends_on_is_not_warned_of(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        single = fitted(name, "single", 1e-7) if name != "KFAC" else real(name, "single", 1e-12)
    double = fitted(name, "double", 1e-7) if name != "KFAC" else real(name, "double", 1e-12)
    torch.testing.assert_close(variances(single), variances(double), rtol=1e-2, atol=0.0)


def said(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and its warnings of precision."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = call()
    return result, [str(each.message) for each in told if issubclass(each.category, lw.PrecisionWarning)]


@pytest.mark.parametrize(("strongest", "warnings_at_its_end"), [(1.0, 0), (1e-8, 1)])
def test_a_search_warns_of_its_end_alone(strongest: float, warnings_at_its_end: int) -> None:
    """It tries priors that products do not resolve; where it ends at one, that is said as if it had begun there."""
    posterior = fitted("KFAC", "single")
    held_out = lw.Validation((NEW, labels(5, classes=3)), bounds=(1e-9, strongest))
    tuned, of_search = said(lambda: lw.tune(posterior, held_out))
    _, of_end = said(lambda: posterior.with_hyperparameters(tuned.prior, tuned.likelihood))
    assert of_search == of_end
    assert len(of_end) == warnings_at_its_end


def test_variances_of_single_weights_have_no_such_error() -> None:
    recipe = lw.Laplace(lw.Categorical(), structure=lw.Diagonal(), prior=lw.Isotropic(1e-7), precision="single")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = recipe.fit(mlp(3), (X, Y))
    assert posterior.predict(NEW).probs.isfinite().all()


@pytest.mark.parametrize("name", ["KFAC", "full over weights", "full over functions"])
def test_the_precision_is_kept_in_files_and_said(name: str, tmp_path: Path) -> None:
    posterior = fitted(name, "single")
    assert "single" in repr(posterior) and "single" not in repr(fitted(name, "double"))
    lw.save(posterior, tmp_path / "posterior.safetensors", training_inputs=True)
    again: Any = lw.load(tmp_path / "posterior.safetensors", posterior.network.module)
    assert again.model.precision == posterior.model.precision
    assert torch.equal(variances(again), variances(posterior))
    assert lw.store.read_header(tmp_path / "posterior.safetensors")["precision"] == "single"


def test_a_weak_prior_is_borne_where_float32_left_negative_eigenvalues() -> None:
    with pytest.warns(lw.PrecisionWarning):
        posterior = fitted("full over weights", "single", 1e-5)
    assert bool((variances(posterior) > 0).all())
    assert bool(torch.isfinite(posterior.sample(2)).all())


def test_differences_of_logits_that_drown_in_what_all_share_are_warned_of() -> None:
    """The error said is that of the same posterior in float64; its variances, one by one, are right to seven digits."""
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5)))
    x, y = 30 * normal(300, 3), labels(300, classes=5)

    def of(dtype: torch.dtype, prior: float) -> Any:
        recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=lw.LastLayer(), prior=lw.Isotropic(prior))
        return recipe.fit(copy.deepcopy(model).to(dtype), (x.to(dtype), y))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of(torch.float32, 1.0)
        exact = of(torch.float64, 1e-6)
    with pytest.warns(lw.PrecisionWarning, match="variances of differences"):
        single = of(torch.float32, 1e-6)
    centring = torch.eye(5, dtype=torch.float64) - 0.2
    seen, true = (one.outputs(x[:4].to(one.network.like)).covariance.double() for one in (single, exact))
    torch.testing.assert_close(variances(single, x[:4].float()).double(), variances(exact, x[:4]), rtol=1e-5, atol=0.0)
    wrong = (centring @ (seen - true) @ centring).diagonal(dim1=1, dim2=2) / (centring @ true @ centring).diagonal(
        dim1=1, dim2=2
    )
    assert float(wrong.abs().max()) > 0.01
