"""Tuning on mixtures of training inputs: what they are, and that they are the default of classifiers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.errors import ConfigError, DataError, UnsupportedError
from lapwing.tuning.method import default
from tests.posterior_cases import STRUCTURES, normal, problem, refused, seeded
from tests.tuning.cases import fit

pytestmark = pytest.mark.filterwarnings("ignore:(Mixup|Validation):lapwing.ConvergenceWarning")


def test_every_mixture_is_of_two_classes_and_bears_the_label_of_the_larger_share() -> None:
    """Inputs say who they are: the integer part of a mixture of 100 i and j at .75."""
    x = torch.arange(12.0, dtype=torch.float64)[:, None].expand(12, 3) ** 2
    y = torch.arange(12) % 3
    posterior = lw.Laplace(lw.Categorical()).fit(seeded(lambda: nn.Linear(3, 3)), [(x[:7], y[:7]), (x[7:], y[7:])])
    batch = lw.Mixup(share=0.75, examples=50).mixed(posterior)
    assert len(batch) == 50 == len(batch.targets)
    seen = set()
    for z, label in zip(batch.inputs[:, 0].tolist(), batch.targets.tolist(), strict=True):
        fits = [(i, j) for i in range(12) for j in range(12) if abs(0.75 * i**2 + 0.25 * j**2 - z) < 1e-12]
        assert any(i % 3 == label != j % 3 for i, j in fits)
        seen |= {i for i, j in fits if i % 3 == label != j % 3}
    assert seen == set(range(12)), "every example is used"
    again = lw.Mixup(share=0.75, examples=50).mixed(posterior)
    assert torch.equal(again.inputs, batch.inputs)
    other = lw.Mixup(share=0.75, examples=50, seed=1).mixed(posterior)
    assert not torch.equal(other.inputs, batch.inputs)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "images", "pixels"])
def test_is_validation_on_the_mixtures(name: str) -> None:
    case, posterior = fit(name, "kfac")
    method = lw.Mixup(examples=30)
    batch = method.mixed(posterior)
    tuned = lw.tune(posterior, method)
    expected = lw.tune(posterior, lw.Validation([(batch.inputs, batch.targets)]))
    assert tuned.trace == expected.trace and tuned.link == expected.link
    assert tuned.likelihood == case.likelihood


@pytest.mark.parametrize("structure", [*STRUCTURES, "sampled", "matrix-free"])
def test_is_the_default_of_every_structure(structure: str) -> None:
    case = problem("categorical")
    extra: Any = {"sampled": lw.Sampled(5), "matrix-free": lw.MatrixFree()}
    recipe = lw.Laplace(case.likelihood, structure=extra.get(structure, STRUCTURES.get(structure)))
    posterior = case.fit(recipe)
    assert default(posterior) == lw.Mixup()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapwing.tuning.method.Mixup", lambda: lw.Mixup(examples=20))
        tuned = lw.tune(posterior)
    assert tuned.trace[-1].validation_nll is not None


def test_inputs_in_a_mapping_or_a_tuple_are_mixed_where_all_are_numbers() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 3)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.out(a + b)

    x, y = normal(9, 3), torch.arange(9) % 3
    model = seeded(Two)
    posterior = lw.Laplace(lw.Categorical()).fit(model, [(x, 2 * x, y)])
    a, b = lw.Mixup().mixed(posterior).inputs
    torch.testing.assert_close(b, 2 * a)
    posterior = lw.Laplace(lw.Categorical()).fit(model, [{"a": x, "b": 3 * x, "labels": y}])
    inputs: Any = lw.Mixup().mixed(posterior).inputs
    torch.testing.assert_close(inputs["b"], 3 * inputs["a"])


def test_what_cannot_be_mixed() -> None:
    _, tokens = fit("tokens", "kfac")
    assert default(tokens) == lw.ELBO()
    with refused(UnsupportedError, expected="mixed", got="others", hint="Validation(loader)"):
        lw.tune(tokens, lw.Mixup())
    _, regression = fit("gaussian")
    with refused(UnsupportedError, expected="classifier", got="Gaussian", hint="ELBO()"):
        lw.tune(regression, lw.Mixup())
    x = normal(6, 3)
    posterior = lw.Laplace(lw.Categorical()).fit(seeded(lambda: nn.Linear(3, 3)), (x, torch.ones(6).long()))
    with refused(DataError, expected="two classes", got="one", hint="Validation(loader)"):
        lw.tune(posterior)
    with pytest.raises(ConfigError, match="share"):
        lw.Mixup(share=0.5)


def test_a_posterior_from_a_file_says_that_it_has_no_data(tmp_path: Any) -> None:
    case, posterior = fit("categorical", "kfac")
    lw.save(posterior, tmp_path / "p.lapwing")
    loaded = lw.load(tmp_path / "p.lapwing", case.model)
    with refused(UnsupportedError, expected="training data", got="from a file", hint="Validation(loader)"):
        lw.tune(loaded)
