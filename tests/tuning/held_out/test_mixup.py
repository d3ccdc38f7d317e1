"""Tuning on mixtures of training inputs: what they are, and that they are the default of classifiers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, DataError, ShapeError, UnsupportedError
from lapwing.likelihoods import IGNORED
from lapwing.posteriors import Posterior
from lapwing.tuning.held_out.mixup import FACTORS, blending
from lapwing.tuning.held_out.neighbours import either
from lapwing.tuning.held_out.tokens import pairs_of_tokens
from lapwing.tuning.tune import default, tune
from tests.checker import unchecked
from tests.pairwise import in_turn
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
    data = method.examples_to_mix(posterior)
    with blending(posterior, data) as mix:
        return method.mixed(posterior, data, mix)


def training(posterior: Posterior) -> Data:
    """The data a posterior was fitted to."""
    assert posterior.data is not None
    return posterior.data


pytestmark = pytest.mark.filterwarnings("ignore:(Mixup|Validation):lapwing.ConvergenceWarning")


def test_every_mixture_is_halfway_to_the_nearest_other_and_bears_both_labels() -> None:
    x = normal(40, 3)
    x[17] = x[4]  # the same example again is no other one
    y = torch.arange(40) % 3
    posterior = lw.Laplace(lw.Categorical()).fit(seeded(lambda: nn.Linear(3, 3)), [(x[:15], y[:15]), (x[15:], y[15:])])
    batch = mixed(lw.Mixup(), posterior)
    columns = x / x.std(0, correction=0)
    apart = torch.cdist(columns, columns)
    apart[4, 17] = apart[17, 4] = torch.inf
    near = apart.fill_diagonal_(torch.inf).argmin(1)
    torch.testing.assert_close(batch.inputs, (x + x[near]) / 2)
    assert torch.equal(batch.targets, torch.stack([y, y[near]], 1))
    some = mixed(lw.Mixup(examples=20), posterior)
    assert len(some) == 20 == len(some.targets)
    assert torch.equal(mixed(lw.Mixup(examples=20), posterior).inputs, some.inputs)
    assert not torch.equal(mixed(lw.Mixup(examples=20, seed=1), posterior).inputs, some.inputs)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "images", "pixels"])
def test_is_validation_on_the_mixtures_with_either_label(name: str) -> None:
    case, posterior = fit(name, "kfac")
    batch = mixed(lw.Mixup(), posterior)
    tuned = lw.tune(posterior, lw.Mixup())
    twice = [(batch.inputs, batch.targets[:, 0]), (batch.inputs, batch.targets[:, 1])]
    expected = lw.tune(posterior, lw.Validation(twice, bounds=FACTORS, link=tuned.link, temperature=False))
    torch.testing.assert_close(tuned.prior_precisions, expected.prior_precisions, rtol=1e-2, atol=0)
    assert tuned.trace[-1].validation_nll == pytest.approx(expected.trace[-1].validation_nll, rel=1e-6)
    assert tuned.likelihood == case.likelihood


@pytest.mark.parametrize(
    ("name", "seed"), in_turn(["categorical", "bernoulli", "images", "pixels"], range(2), whole=("categorical",))
)
def test_is_never_worse_than_the_network_on_the_mixtures(name: str, seed: int) -> None:
    _, posterior = fit(name, "kfac")
    tuned = lw.tune(posterior, lw.Mixup(examples=12, seed=seed))
    batch = mixed(lw.Mixup(examples=12, seed=seed), posterior)
    plain = PlainNetwork(posterior.network.module, posterior.likelihood).predict(batch.inputs)
    losses = [-plain.log_prob(batch.targets[:, k]).mean() for k in range(2)]
    assert float(tuned.trace[-1].validation_nll) <= float(sum(losses) / 2) * (1 + 1e-6)
    assert lw.tune(posterior, lw.Mixup(examples=12, seed=seed)).trace == tuned.trace


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
    with blending(posterior, training(posterior)) as mix:
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


def test_a_table_that_is_a_head_too_is_mixed_where_examples_are_vectorised(caplog: pytest.LogCaptureFixture) -> None:
    """As that of one-hot vectors; nothing is done example by example, and nothing said of it."""

    class Tied(nn.Module):
        def __init__(self, one_hot: bool) -> None:
            super().__init__()
            self.one_hot = one_hot
            self.embed = nn.Embedding(5, 4)
            self.between = nn.Linear(4, 4)
            self.shift = nn.Parameter(torch.zeros(5))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            h = ids @ self.embed.weight if self.one_hot else self.embed(ids)
            return self.between(h).tanh() @ self.embed.weight.T + self.shift

    recipe = lw.Laplace(lw.Categorical(event_dim=1), structure=lw.Diagonal())
    ids = torch.randint(5, (8, 3), generator=torch.Generator().manual_seed(3))
    posterior = recipe.fit(seeded(lambda: Tied(one_hot=False)), (ids, (ids + 1) % 3))
    assert "embed.weight" in posterior.model.survey.without_factors
    one_hot = nn.functional.one_hot(ids, 5).double()
    other = recipe.fit(seeded(lambda: Tied(one_hot=True)), (one_hot, (ids + 1) % 3))
    caplog.set_level("INFO")
    with blending(posterior, training(posterior)) as mix:
        (found,) = posterior.outputs_each(mix(ids[:4], ids[4:], 0.7), [posterior])
    assert "vectorise" not in caplog.text
    (expected,) = other.outputs_each(0.7 * one_hot[:4] + 0.3 * one_hot[4:], [other])
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance, expected.covariance)


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
        assert pairs_of_tokens(posterior, training(posterior)) is None and default(posterior) == lw.ELBO()
        with refused(UnsupportedError, "Validation(loader)"):
            lw.tune(posterior, lw.Mixup())
        assert lw.tune(posterior, lw.ELBO(steps=1, solver=lw.solvers.CG())).trace


class Corner(nn.Module):
    """The four pixels in a corner of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images in, smaller images out."""
        return x[:, :, :2, :2]


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
    with blending(posterior, training(posterior)) as mix, torch.no_grad():
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
    """Classes far apart, in single precision: between neighbours the network is right and not sure enough."""
    y = torch.arange(30) % 3
    x = (normal(30, 3) + 6 * torch.eye(3, dtype=torch.float64)[y]).float()
    model = nn.Linear(3, 3).float()
    model.load_state_dict({"weight": 0.2 * torch.eye(3), "bias": torch.zeros(3)})
    posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, (x, y))
    with pytest.warns(lw.ConvergenceWarning, match=r"predictions stay the network's.*held-out data"):
        tuned = lw.tune(posterior, lw.Mixup())
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
    with pytest.raises(ConfigError, match="examples"):
        lw.Mixup(examples=0)


def test_a_posterior_from_a_file_says_that_it_has_no_data(tmp_path: Any) -> None:
    case, posterior = fit("categorical", "kfac")
    lw.save(posterior, tmp_path / "p.lapwing")
    loaded = lw.load(tmp_path / "p.lapwing", case.model)
    with refused(UnsupportedError, "training data"):
        lw.tune(loaded)


def test_noisy_labels_that_were_learnt_are_not_believed() -> None:
    """Half of the labels are random, and the network knows them by heart: neighbours tell."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=generator)
    truth = (x[:, 0] > 0).long()
    y = torch.where(torch.rand(120, generator=generator) < 0.5, torch.randint(2, (120,), generator=generator), truth)
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))).float()
    descent = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(600):
        descent.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        descent.step()
    posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, (x, y))
    with torch.no_grad():
        assert float((model(x).argmax(-1) == y).double().mean()) > 0.9
    new = torch.randn(400, 4, generator=generator)
    labels = (new[:, 0] > 0).long()
    tuned = lw.tune(posterior)
    ours = lw.metrics.nll(tuned.predict(new).probs, labels)
    with torch.no_grad():
        plain = lw.metrics.nll(model(new).softmax(-1), labels)
    assert ours < 0.7 * plain


def test_images_are_near_by_their_pixels_where_such_neighbours_agree_and_else_by_outputs() -> None:
    """A network that reads the mean alone, and images whose other pixels are noise, little or much of it."""
    mean = torch.linspace(0, 3, 40, dtype=torch.float64)
    y = (mean > 1.5).long()
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(1, 2)).double()
    noise = normal(40, 1, 4, 4)
    noise -= noise.mean((1, 2, 3), keepdim=True)
    for much, by_outputs in ((0.001, False), (100.0, True)):
        x = mean.view(40, 1, 1, 1) + much * noise
        posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
        batch = mixed(lw.Mixup(), posterior)
        assert batch.targets.ne(y[:, None]).double().mean() < 0.1, "neighbours by the mean"
        near = 2 * batch.inputs - x
        pixels = torch.cdist(x.flatten(1), x.flatten(1)).fill_diagonal_(torch.inf).argmin(1)
        same = torch.isclose(near, x[pixels]).flatten(1).all(1)
        assert bool(same.all()) != by_outputs


def test_where_neighbours_agree_no_better_than_any_two_each_stands_for_its_own() -> None:
    """A network that reads one pixel, and labels that follow another."""
    x = normal(40, 1, 2, 2)
    y = (x[:, 0, 1, 1] > 0).long()
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    with torch.no_grad():
        model[1].weight[:, 1:] = 0.0
    many = x.repeat(1, 1, 6, 6)
    model = nn.Sequential(Corner(), *model)
    many[:, :, 2:, :] = normal(40, 1, 10, 12, seed=3)
    posterior = lw.Laplace(lw.Categorical()).fit(model, (many, y))
    batch = mixed(lw.Mixup(), posterior)
    assert torch.equal(batch.inputs, many) and torch.equal(batch.targets, torch.stack([y, y], 1))


def test_a_label_that_is_ignored_leaves_nothing_of_the_other() -> None:
    y = torch.tensor([[0, IGNORED], [1, 2]])
    near = torch.tensor([[1, 1], [IGNORED, 2]])
    expected = [[[0, IGNORED], [1, IGNORED]], [[IGNORED, 2], [IGNORED, 2]]]
    assert either(y, near, IGNORED).tolist() == expected


def test_of_many_outputs_no_evidence_is_measured_on_the_way() -> None:
    """They have a term for each weight, and took longer than the search."""
    _, posterior = fit("categorical", "kfac", weights=lw.LastLayer())
    posterior = limited(posterior, joint_outputs=2)
    tuned = lw.tune(posterior, lw.Mixup())
    assert posterior.wide and tuned.trace[-1].validation_nll is not None
    assert all(step.log_marginal is None and step.effective_dimension is None for step in tuned.trace)


def classifier() -> tuple[Posterior, torch.Tensor]:
    """A posterior of three classes, and inputs without labels."""
    x = normal(40, 3)
    posterior = lw.Laplace(lw.Categorical()).fit(seeded(lambda: nn.Linear(3, 3)), (x, torch.arange(40) % 3))
    return posterior, normal(30, 3, seed=5)


def test_inputs_without_labels_are_mixed_with_each_other_and_have_the_labels_of_the_network() -> None:
    posterior, x = classifier()
    batch = mixed(lw.Mixup(unlabelled=x), posterior)
    columns = x / x.std(0, correction=0)
    near = torch.cdist(columns, columns).fill_diagonal_(torch.inf).argmin(1)
    labels = posterior.network.module(x).argmax(-1)
    torch.testing.assert_close(batch.inputs, (x + x[near]) / 2)
    assert torch.equal(batch.targets, torch.stack([labels, labels[near]], 1))
    with_targets = [(x[:10], torch.full((10,), 77)), (x[10:], torch.full((20,), -1))]  # which nobody reads
    again = mixed(lw.Mixup(unlabelled=with_targets), posterior)
    assert torch.equal(again.inputs, batch.inputs) and torch.equal(again.targets, batch.targets)


def test_inputs_without_labels_serve_several_labels_at_once() -> None:
    case, posterior = fit("bernoulli", "kfac")
    inputs = training(posterior).first()
    tuned = lw.tune(posterior, unlabelled=inputs)
    assert tuned.trace == lw.tune(posterior, lw.Mixup(unlabelled=inputs)).trace != ()
    assert tuned.likelihood == case.likelihood


def test_a_posterior_from_a_file_is_tuned_by_inputs_without_labels(tmp_path: Path) -> None:
    posterior, x = classifier()
    lw.save(posterior, tmp_path / "posterior.safetensors")
    loaded = lw.load(tmp_path / "posterior.safetensors", posterior.network.module)
    with pytest.raises(UnsupportedError, match="unlabelled=inputs"):
        lw.tune(loaded, lw.Mixup())
    tuned = lw.tune(loaded, unlabelled=x)
    expected = lw.tune(posterior, unlabelled=x)
    torch.testing.assert_close(tuned.prior_precisions, expected.prior_precisions, rtol=1e-3, atol=0)


def test_views_have_the_label_of_their_input() -> None:
    posterior, _ = classifier()
    method = lw.Mixup(views=lambda x: x + 0.1 * torch.randn_like(x), examples=20)
    state = torch.random.get_rng_state()
    batch: Any = method.viewed(training(posterior))
    assert torch.equal(torch.random.get_rng_state(), state)
    again: Any = method.viewed(training(posterior))
    assert torch.equal(again.inputs, batch.inputs)
    x: Any = training(posterior).first()
    near = torch.cdist(batch.inputs, x).argmin(1)
    labels = torch.arange(40)[near] % 3
    assert torch.equal(batch.targets, torch.stack([labels, labels], 1)) and len(near) == 20
    tuned = lw.tune(posterior, method)
    data = (batch.inputs, batch.targets[:, 0])
    expected = lw.Validation(data, bounds=FACTORS, link=tuned.link, temperature=False, seconds=None)
    assert tuned.trace[-1].validation_nll == pytest.approx(lw.tune(posterior, expected).trace[-1].validation_nll)


def test_views_and_inputs_without_labels_are_checked() -> None:
    posterior, x = classifier()
    with pytest.raises(ShapeError, match="a view of each of 40"):
        lw.tune(posterior, lw.Mixup(views=lambda x: x[1:]))
    with unchecked(), pytest.raises(ConfigError, match="views="):
        lw.Mixup(views=3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="finite"):
        lw.tune(posterior, unlabelled=torch.full_like(x, torch.nan))
    with pytest.raises(ConfigError, match="unlabelled"):
        lw.tune(posterior, lw.Mixup(), unlabelled=x)
    regression = lw.Laplace(lw.Gaussian()).fit(nn.Linear(3, 1), (x, x[:, :1]))
    with pytest.raises(UnsupportedError, match="classifier"):
        lw.tune(regression, unlabelled=x)


def test_inputs_without_labels_are_refused_where_positions_may_be_padding() -> None:
    x, y = normal(12, 4, 3), torch.arange(48).view(12, 4) % 3
    y[3, 2:] = IGNORED
    recipe = lw.Laplace(lw.Categorical(event_dim=1))
    posterior = recipe.fit(seeded(lambda: nn.Linear(3, 3)), (x, y))
    with pytest.raises(UnsupportedError, match="all positions count"):
        lw.tune(posterior, unlabelled=x)
