"""Tuning on mixtures of training inputs: what they are, and that they are the default of classifiers."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, UnsupportedError
from lapwing.posteriors import Posterior
from lapwing.tuning.held_out import mixup
from lapwing.tuning.held_out.mixup import (
    ERRORS,
    FACTORS,
    MOST,
    MOST_OF_IMAGES,
    SURE,
    blend,
    blending,
    images,
    natural_share,
    too_hard,
)
from lapwing.tuning.held_out.tokens import pairs_of_tokens
from lapwing.tuning.tune import default, tune
from tests.checker import unchecked
from tests.posterior_cases import STRUCTURES, limited, normal, problem, refused, seeded
from tests.tuning.cases import fit


class Reader(nn.Module):
    """Labels of three tokens of five kinds, of an embedding of their numbers or of their one-hot vectors."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed
        self.rest = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits, a row a token."""
        return self.rest(self.embed(ids))


def mixed(method: lw.Mixup, posterior: Posterior) -> Any:
    """The mixtures that a method tunes by."""
    with blending(posterior) as mix:
        return method.mixed(posterior, mix)


pytestmark = pytest.mark.filterwarnings("ignore:(Mixup|Validation):lapwing.ConvergenceWarning")


def test_every_mixture_is_of_two_classes_and_bears_the_label_of_the_larger_share() -> None:
    """Inputs say who they are: the integer part of a mixture of 100 i and j at .75."""
    x = torch.arange(12.0, dtype=torch.float64)[:, None].expand(12, 3) ** 2
    y = torch.arange(12) % 3
    posterior = lw.Laplace(lw.Categorical()).fit(seeded(lambda: nn.Linear(3, 3)), [(x[:7], y[:7]), (x[7:], y[7:])])
    batch = mixed(lw.Mixup(share=0.75, examples=50), posterior)
    assert len(batch) == 50 == len(batch.targets)
    seen = set()
    for z, label in zip(batch.inputs[:, 0].tolist(), batch.targets.tolist(), strict=True):
        fits = [(i, j) for i in range(12) for j in range(12) if abs(0.75 * i**2 + 0.25 * j**2 - z) < 1e-12]
        assert any(i % 3 == label != j % 3 for i, j in fits)
        seen |= {i for i, j in fits if i % 3 == label != j % 3}
    assert seen == set(range(12)), "every example is used"
    again = mixed(lw.Mixup(share=0.75, examples=50), posterior)
    assert torch.equal(again.inputs, batch.inputs)
    other = mixed(lw.Mixup(share=0.75, examples=50, seed=1), posterior)
    assert not torch.equal(other.inputs, batch.inputs)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "images", "pixels"])
def test_is_validation_on_the_mixtures(name: str) -> None:
    case, posterior = fit(name, "kfac")
    method = lw.Mixup(examples=30)
    batch = mixed(method, posterior)
    tuned = lw.tune(posterior, method)
    expected = lw.tune(posterior, lw.Validation([(batch.inputs, batch.targets)], bounds=FACTORS, temperature=False))
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
        patch.setattr(sys.modules[tune.__module__], "Mixup", lambda: lw.Mixup(examples=20))
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
    a, b = mixed(lw.Mixup(), posterior).inputs
    torch.testing.assert_close(b, 2 * a)
    posterior = lw.Laplace(lw.Categorical()).fit(model, [{"a": x, "b": 3 * x, "labels": y}])
    inputs: Any = mixed(lw.Mixup(), posterior).inputs
    torch.testing.assert_close(inputs["b"], 3 * inputs["a"])


@pytest.mark.parametrize("structure", ["full-weights", "kfac", "diagonal", "last layer"])
def test_tokens_are_mixed_behind_their_embedding(structure: str) -> None:
    """One-hot vectors before a linear layer are inputs that can be mixed as they are, and the same network."""
    kept: Any = {"weights": lw.LastLayer()} if structure == "last layer" else {"structure": STRUCTURES[structure]}
    recipe = lw.Laplace(lw.Categorical(event_dim=1), **kept)
    ids = torch.randint(5, (8, 3), generator=torch.Generator().manual_seed(3))
    module: Any = seeded(lambda: Reader(nn.Embedding(5, 4)))
    linear: Any = seeded(lambda: Reader(nn.Linear(5, 4, bias=False)))
    linear.embed.weight.data = module.embed.weight.data.T.contiguous()
    linear.rest.load_state_dict(module.rest.state_dict())
    one_hot = nn.functional.one_hot(ids, 5).double()
    posterior = recipe.fit(module, [(ids[:5], (ids[:5] + 1) % 3), (ids[5:], (ids[5:] + 1) % 3)])
    other = recipe.fit(linear, (one_hot, (ids + 1) % 3))
    with blending(posterior) as mix:
        (found,) = posterior.outputs_each(mix(ids[:4], ids[4:], 0.7), [posterior])
        torch.testing.assert_close(module(ids), linear(one_hot))
    (expected,) = other.outputs_each(0.7 * one_hot[:4] + 0.3 * one_hot[4:], [other])
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance, expected.covariance)
    assert default(posterior) == lw.Mixup()
    tuned, again = (lw.tune(one, lw.Mixup(examples=20)) for one in (posterior, other))
    torch.testing.assert_close(tuned.prior_precisions, again.prior_precisions, rtol=1e-6, atol=0)
    assert tuned.link == again.link
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_tokens_that_do_not_reach_their_embedding_in_pairs_are_not_mixed() -> None:
    """Sequences of two lengths make no pairs, nor do tokens that the network cuts before it embeds them."""

    class Cutting(Reader):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids[:, 1:])

    ids = torch.arange(12).view(4, 3) % 5
    recipe = lw.Laplace(lw.Categorical(event_dim=1), structure=lw.KFAC())
    module = seeded(lambda: Cutting(nn.Embedding(5, 4)))
    longer = torch.arange(8).view(2, 4) % 5
    whole = seeded(lambda: Reader(nn.Embedding(5, 4)))
    for posterior in (
        recipe.fit(module, (ids, ids[:, 1:] % 3)),
        recipe.fit(whole, [(ids, ids % 3), (longer, longer % 3)]),
    ):
        assert pairs_of_tokens(posterior) is None and default(posterior) == lw.ELBO()
        with refused(UnsupportedError, "Validation(loader)"):
            lw.tune(posterior, lw.Mixup())
        assert lw.tune(posterior, lw.ELBO(steps=1, solver=lw.solvers.CG())).trace


class Masked(Reader):
    """Tokens and their kinds, read by embeddings of their own; others by name, and numbers beside them."""

    def __init__(self, kinds: Any) -> None:
        super().__init__(nn.Embedding(5, 4))
        self.kinds = kinds

    def forward(self, input_ids: Any, token_type_ids: Any = None, attention_mask: Any = None, x: Any = None) -> Any:
        h = self.embed(input_ids)
        h = h if token_type_ids is None else h + self.kinds(token_type_ids)
        h = h if attention_mask is None else h * attention_mask[..., None]
        return self.rest(h if x is None else h + x[:, None, None])


@pytest.mark.parametrize("names", [["input_ids"], ["input_ids", "attention_mask", "token_type_ids", "x"]])
def test_tokens_in_a_mapping_of_any_number_of_entries_are_mixed(names: list[str]) -> None:
    """Behind each embedding that reads one; of a mask the first's counts, and numbers are mixed as they are."""
    generator = torch.Generator().manual_seed(2)
    every: Any = {
        "input_ids": torch.randint(5, (8, 3), generator=generator),
        "attention_mask": torch.randint(2, (8, 3), generator=generator),
        "token_type_ids": torch.randint(2, (8, 3), generator=generator),
        "x": normal(8),
    }
    inputs = {name: every[name] for name in names}
    module: Any = seeded(lambda: Masked(nn.Embedding(2, 4)))
    recipe = lw.Laplace(lw.Categorical(event_dim=1), structure=lw.KFAC())
    posterior = recipe.fit(module, (inputs, (every["input_ids"] + 1) % 3))
    one, other = ({name: value[part] for name, value in inputs.items()} for part in (slice(4), slice(4, 8)))
    with blending(posterior) as mix, torch.no_grad():
        found = posterior.network(mix(one, other, 0.7))
        torch.testing.assert_close(posterior.network(one), module(**one))
    h = 0.7 * module.embed(one["input_ids"]) + 0.3 * module.embed(other["input_ids"])
    if len(names) > 1:
        kinds = [module.kinds(part["token_type_ids"]) for part in (one, other)]
        h = (h + 0.7 * kinds[0] + 0.3 * kinds[1]) * one["attention_mask"][..., None]
        h = h + (0.7 * one["x"] + 0.3 * other["x"])[:, None, None]
    torch.testing.assert_close(found, module.rest(h))
    assert default(posterior) == lw.Mixup()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_where_mixtures_want_no_uncertainty_predictions_are_those_of_the_network() -> None:
    """Classes far apart, in single precision: at a share close to one the network is right and not sure enough."""
    y = torch.arange(30) % 3
    x = (normal(30, 3) + 6 * torch.eye(3, dtype=torch.float64)[y]).float()
    model = nn.Linear(3, 3).float()
    model.load_state_dict({"weight": 0.2 * torch.eye(3), "bias": torch.zeros(3)})
    posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, (x, y))
    with pytest.warns(lw.ConvergenceWarning, match="no added uncertainty"):
        tuned = lw.tune(posterior, lw.Mixup(share=0.95))
    assert tuned.link == "probit"
    torch.testing.assert_close(tuned.predict(x).probs, model(x).softmax(-1), rtol=1e-6, atol=0)


def test_what_cannot_be_mixed() -> None:
    _, regression = fit("gaussian")
    with refused(UnsupportedError, "classifier"):
        lw.tune(regression, lw.Mixup())
    x = normal(6, 3)
    posterior = lw.Laplace(lw.Categorical()).fit(seeded(lambda: nn.Linear(3, 3)), (x, torch.ones(6).long()))
    with refused(DataError, "two classes"):
        lw.tune(posterior)
    with pytest.raises(ConfigError, match="share"):
        lw.Mixup(share=0.5)


def test_a_posterior_from_a_file_says_that_it_has_no_data(tmp_path: Any) -> None:
    case, posterior = fit("categorical", "kfac")
    lw.save(posterior, tmp_path / "p.lapwing")
    loaded = lw.load(tmp_path / "p.lapwing", case.model)
    with refused(UnsupportedError, "training data"):
        lw.tune(loaded)


def test_images_are_mixed_with_a_smaller_share_than_tables() -> None:
    x = torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 2
    wrong = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    with torch.no_grad():
        wrong[1].weight.zero_()
        wrong[1].bias.copy_(torch.tensor([1.0, 0.0]))  # half of the mixtures are missed whatever the share
    for inputs, most in ((x, MOST_OF_IMAGES), (x.flatten(1), MOST)):
        posterior = lw.Laplace(lw.Categorical()).fit(wrong, (inputs, y))
        assert images(inputs) == (most == MOST_OF_IMAGES)
        assert natural_share(posterior, blend, inputs, inputs.flip(0), y) == pytest.approx(most, abs=0.01)


def test_of_many_outputs_no_evidence_is_measured_on_the_way() -> None:
    """They have a term for each weight, and took longer than the search."""
    _, posterior = fit("categorical", "kfac", weights=lw.LastLayer())
    posterior = limited(posterior, joint_outputs=2)
    tuned = lw.tune(posterior, lw.Mixup())
    assert posterior.wide and tuned.trace[-1].validation_nll is not None
    assert all(step.log_marginal is None and step.effective_dimension is None for step in tuned.trace)


@pytest.mark.parametrize("side", [-1, 1])
def test_a_share_is_hard_or_not_where_errors_are_further_from_their_part_than_chance(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``SURE`` standard deviations of so many trials: one error nearer, and all are read without an answer."""
    posterior: Any = None
    count = 800  # of which the first half is read
    labels, inputs = torch.zeros(count, dtype=torch.long), torch.zeros(count, 1)
    read = count // 2
    far = ERRORS * read + side * SURE * (read * ERRORS * (1 - ERRORS)) ** 0.5
    sure = math.ceil(far) if side > 0 else math.floor(far)
    for wrong, expected in ((sure, side > 0), (sure - side, None)):
        missed = torch.arange(read) < wrong
        monkeypatch.setattr(mixup, "errors", lambda *_, missed=missed: missed)
        with unchecked():  # nobody asks the posterior
            assert too_hard(posterior, inputs, labels, read, read) is expected
