"""Which weights are uncertain."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.jacobian.network.network import Network
from lapwing.structures import Structure
from lapwing.structures.selection import Selection
from tests.checker import unchecked
from tests.posterior_cases import Linearised, Problem, convnet, labels, mlp, normal, problem, refused, seeded

X, Y = normal(10, 3), labels(10, classes=3)


def chosen(selection: Selection, model: nn.Module, x: Tensor = X, y: Tensor = Y, prior: Any = None) -> Network:
    return selection.choose(model, Data((x, y), like=x), lw.Categorical(), prior or lw.Isotropic(1.0))


def picked(network: Network) -> Tensor:
    """Positions of the uncertain weights among all parameters of the module."""
    case = Problem(network.module, lw.Categorical(), X, Y, X)
    return Linearised(case, network)._index


class TestAll:
    def test_is_what_requires_a_gradient(self) -> None:
        model = mlp(3)
        assert chosen(lw.All(), model).names == ("0.weight", "0.bias", "3.weight", "3.bias")
        model[0].requires_grad_(False)
        assert chosen(lw.All(), model).names == ("3.weight", "3.bias")


class Outputs(nn.Module):
    """A linear layer whose output is changed before it is returned."""

    def __init__(self, change: Any, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.head = layer or nn.Linear(4, 3)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.head(torch.tanh(self.first(x))))


class TestLastLayer:
    @pytest.mark.parametrize(
        "change",
        [
            lambda f: f,
            lambda f: f.view(-1, 3, 1).squeeze(-1),
            lambda f: f.reshape(-1, 1, 3).flatten(1),
            lambda f: f.mT.permute(1, 0).mT.transpose(0, 1),
            lambda f: f[:, :2].clone(),
            lambda f: (f[:, 2].fill_(-9.0), f)[1],
        ],
        ids=["nothing", "view", "reshape", "permute", "slice", "write"],
    )
    def test_is_found_behind_changes_of_shape(self, change: Any) -> None:
        network = chosen(lw.LastLayer(), seeded(lambda: Outputs(change)))
        assert network.names == ("head.weight", "head.bias")

    def test_is_found_whatever_requires_a_gradient(self) -> None:
        assert chosen(lw.LastLayer(), mlp(3).requires_grad_(False)).names == ("3.weight", "3.bias")

    def test_may_have_no_bias(self) -> None:
        model = seeded(lambda: Outputs(lambda f: f, nn.Linear(4, 3, bias=False)))
        assert chosen(lw.LastLayer(), model).names == ("head.weight",)

    def test_may_be_a_convolution(self) -> None:
        case = problem("pixels")
        assert chosen(lw.LastLayer(), case.model, case.x, case.y).names == ("2.weight", "2.bias")

    def test_may_be_of_numbers_that_are_paired(self) -> None:
        def paired(f: Tensor) -> Tensor:
            return torch.view_as_real(torch.view_as_complex(f.view(-1, 2, 2))).flatten(1)

        model = seeded(lambda: Outputs(paired, nn.Linear(4, 4)))
        assert chosen(lw.LastLayer(), model).names == ("head.weight", "head.bias")

    def test_may_be_named(self) -> None:
        assert chosen(lw.LastLayer("0"), mlp(3)).names == ("0.weight", "0.bias")

    def test_needs_a_name_that_exists(self) -> None:
        with refused(ConfigError, "name of a module"):
            chosen(lw.LastLayer("head"), mlp(3))

    @pytest.mark.parametrize("change", [torch.tanh, lambda f: f + f, lambda f: f * 2, lambda f: f + 1.0])
    def test_is_asked_for_where_outputs_are_made_by_something_else(self, change: Any) -> None:
        model = seeded(lambda: Outputs(change))
        with refused(ConfigError, "straight from a linear layer"):
            chosen(lw.LastLayer(), model)

    def test_needs_a_network_with_a_layer(self) -> None:
        model = nn.Sequential(nn.LayerNorm(3).double())
        with refused(ConfigError, "straight from a linear layer"):
            chosen(lw.LastLayer(), model)


class TestNames:
    @pytest.mark.parametrize(
        ("patterns", "names"),
        [
            (("3.*",), ("3.weight", "3.bias")),
            (("*.bias",), ("0.bias", "3.bias")),
            (("3.bias", "0.weight"), ("0.weight", "3.bias")),
        ],
    )
    def test_match_any_pattern_in_the_order_of_the_module(self, patterns: Any, names: Any) -> None:
        assert chosen(lw.Names(patterns), mlp(3)).names == names

    def test_must_match_something(self) -> None:
        with refused(ConfigError, "one of 4 parameters"):
            chosen(lw.Names(("layer9.*",)), mlp(3))


class Kept(nn.Module):
    """What adapters do to a head: a copy is trained, and the frozen original stays beside it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.original_module = module.requires_grad_(False)
        self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(module).requires_grad_()})

    def forward(self, x: Tensor) -> Tensor:
        return self.modules_to_save["default"](x)


class Adapted(nn.Module):
    """A frozen layer with an update of low rank, and a head that was trained; no example can be vectorised over."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 4).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(3, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.classifier = Kept(nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.0 if float(x.sum()) > -1e9 else 2.0
        return self.classifier(torch.tanh(scale * (self.base(x) + self.lora_B(self.lora_A(x)))))


class TestAdapters:
    ADAPTERS = ("*lora_*", "*classifier*")

    def test_the_frozen_twin_of_a_head_is_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        model = seeded(Adapted)
        with caplog.at_level("INFO", "lapwing.structures.selection"):
            posterior = lw.Laplace(lw.Categorical(), weights=lw.Names(self.ADAPTERS)).fit(model, (X, Y))
        head = "classifier.modules_to_save.default"
        assert posterior.network.names == ("lora_A.weight", "lora_B.weight", f"{head}.weight", f"{head}.bias")
        assert "classifier.original_module.weight" in caplog.text and "base" not in caplog.text
        every = lw.Laplace(lw.Categorical()).fit(model, (X, Y))
        assert posterior.log_marginal() == pytest.approx(float(every.log_marginal()), rel=1e-12)

    def test_what_is_frozen_and_used_can_be_named(self) -> None:
        model = seeded(Adapted)
        assert chosen(lw.Names("base.*"), model).names == ("base.weight", "base.bias")
        assert len(chosen(lw.Names("*"), model.requires_grad_(False)).names) == 6

    def test_something_named_must_have_a_part_in_the_outputs(self) -> None:
        model = seeded(Adapted)
        with refused(ConfigError, "outputs depend on"):
            chosen(lw.Names("*original*"), model)
        model.requires_grad_(False).classifier.original_module.requires_grad_()
        with refused(ConfigError, "outputs depend on"):
            lw.Laplace(lw.Categorical()).fit(model, (X, Y))

    def test_trained_weights_without_a_part_are_as_the_prior_has_them(self) -> None:
        model = seeded(Adapted)
        model.classifier.original_module.requires_grad_()
        posterior = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights")).fit(model, (X, Y))
        place = posterior.network.layout.slices["classifier.original_module.bias"]
        expected = torch.eye(posterior.network.size, dtype=torch.float64)[place]
        torch.testing.assert_close(posterior.precision.operator.dense()[place], expected)


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(5, 3), nn.Linear(3, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(ids))))


class TestTiedWeights:
    @pytest.mark.parametrize("selection", [lw.Names("head.*"), lw.LastLayer("embed")], ids=repr)
    def test_go_by_any_of_their_names(self, selection: Selection) -> None:
        ids, likelihood = labels(6, 4, classes=5, seed=0), lw.Categorical(event_dim=1)
        case = Problem(seeded(Tied), likelihood, ids, labels(6, 4, classes=5), labels(2, 4, classes=5, seed=2))
        posterior = case.fit(lw.Laplace(likelihood, structure=lw.Full(view="weights"), weights=selection))
        assert posterior.network.names == ("embed.weight",)
        reference = Linearised(case, posterior.network)
        covariance = reference.joint_covariance(reference.ggn + torch.eye(15, dtype=torch.float64))
        found = posterior.predict(case.new, joint=True).logits.covariance
        torch.testing.assert_close(found, covariance, rtol=1e-8, atol=1e-10)

    @pytest.mark.parametrize("structure", [lw.Full(view="weights"), lw.KFAC(), lw.Sampled(3)], ids=repr)
    @pytest.mark.parametrize("selection", [lw.LastLayer(), lw.LastLayer("head")], ids=repr)
    def test_a_last_layer_is_uncertain_as_such_alone(
        self, selection: Selection, structure: Structure, tmp_path: Path
    ) -> None:
        """The same as of a network whose head has weights of its own, with the same values."""
        ids, y, new = labels(6, 4, classes=5, seed=0), labels(6, 4, classes=5), labels(2, 4, classes=5, seed=2)
        tied, apart = seeded(Tied), seeded(Tied)
        apart.head.weight = nn.Parameter(tied.head.weight.detach().clone())
        recipe = lw.Laplace(lw.Categorical(event_dim=1), structure=structure, weights=selection)
        posterior, other = (recipe.fit(model, [(ids, y)]) for model in (tied, apart))
        assert posterior.network.names == ("head.weight",)
        expected = other.predict(new).logits.covariance
        torch.testing.assert_close(posterior.predict(new).logits.covariance, expected)
        lw.save(posterior, tmp_path / "tied.safetensors")
        loaded = lw.load(tmp_path / "tied.safetensors", tied)
        torch.testing.assert_close(loaded.predict(new).logits.covariance, expected)
        assert tied.head.weight is tied.embed.weight


class TestSubnetwork:
    def test_by_magnitude_takes_the_largest_weights(self) -> None:
        network = chosen(lw.Subnetwork(6, by="magnitude"), mlp(3))
        flat = torch.cat([value.detach().flatten() for value in network.module.parameters()])
        assert torch.equal(network.weights.abs().sort().values, flat.abs().topk(6).values.sort().values)

    def test_by_variance_takes_the_largest_variances_of_the_diagonal_posterior(self) -> None:
        model, prior = mlp(3), lw.Layerwise((0.1, 3.0))
        network = chosen(lw.Subnetwork(6), model, prior=prior)
        whole = lw.Laplace(lw.Categorical(), prior=prior, structure=lw.Diagonal()).fit(model, (X, Y))
        variance = 1 / whole.precision.operator.diagonal()
        assert torch.equal(picked(network), variance.topk(6).indices.sort().values)

    def test_by_chance_takes_the_same_weights_for_the_same_seed(self) -> None:
        first, again, other = (chosen(lw.Subnetwork(9, by="random", seed=s), mlp(3)) for s in (0, 0, 1))
        assert torch.equal(picked(first), picked(again)) and not torch.equal(picked(first), picked(other))
        assert len(set(picked(first).tolist())) == first.size == 9

    def test_drops_parameters_without_uncertain_weights(self) -> None:
        model = mlp(3)
        with torch.no_grad():
            model[3].weight.mul_(100.0)
        network = chosen(lw.Subnetwork(5, by="magnitude"), model)
        assert network.names == ("3.weight",)
        assert network.uncertain.shapes == ((5,),)

    @pytest.mark.parametrize("count", [0, -1, 2.5, "3"])
    def test_has_a_whole_number_of_weights(self, count: Any) -> None:
        with unchecked(), refused(ConfigError, "count"):
            lw.Subnetwork(count)

    def test_cannot_have_more_weights_than_the_network(self) -> None:
        with refused(ConfigError, "a count from 1 to 31 weights"):
            chosen(lw.Subnetwork(32), mlp(3))

    def test_of_all_weights_is_all(self) -> None:
        case = problem("categorical")
        options = {"structure": lw.Full(view="weights")}
        every = case.fit(lw.Laplace(case.likelihood, weights=lw.Subnetwork(31), **options))
        usual = case.fit(lw.Laplace(case.likelihood, **options))
        assert every.log_marginal() == pytest.approx(usual.log_marginal(), rel=1e-12)


class TestMask:
    def test_the_largest_of_some_numbers(self) -> None:
        values = torch.linspace(0, 1, 31)[torch.randperm(31, generator=torch.Generator().manual_seed(0))]
        network = chosen(lw.Mask.of_largest(values, 5), mlp(3))
        assert network.index is not None and network.size == 5
        with refused(ConfigError, "a vector of 32 numbers or more"):
            lw.Mask.of_largest(values, 32)
        values[4] = float("nan")
        with refused(DataError, "finite numbers of the weights. Got 1 NaN or infinite of 31"):
            lw.Mask.of_largest(values, 5)

    def test_marks_single_weights(self) -> None:
        mask = torch.zeros(31, dtype=torch.bool)
        mask[[2, 13, 30]] = True
        network = chosen(lw.Mask(mask), mlp(3))
        assert network.names == ("0.weight", "0.bias", "3.bias")
        assert picked(network).tolist() == [2, 13, 30]

    def test_counts_only_what_requires_a_gradient(self) -> None:
        model = mlp(3)
        model[0].requires_grad_(False)
        network = chosen(lw.Mask(torch.arange(15) == 14), model)
        assert picked(network).tolist() == [30]

    def test_is_a_tensor_of_one_entry_a_weight_that_marks_one(self) -> None:
        listed: Any = [True] * 31
        with unchecked(), refused(ConfigError, "mask to be of type Tensor"):
            lw.Mask(listed)
        with refused(ShapeError, "a boolean mask [31]"):
            chosen(lw.Mask(torch.ones(30, dtype=torch.bool)), mlp(3))
        with refused(ConfigError, "at least one uncertain weight"):
            chosen(lw.Mask(torch.zeros(31, dtype=torch.bool)), mlp(3))


@pytest.mark.parametrize("selection", [lw.All(), lw.LastLayer(), lw.Names(("*",)), lw.Subnetwork(5)])
def test_the_module_is_left_as_it_is(selection: Selection) -> None:
    model = convnet()
    modes = [part.training for part in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    chosen(selection, model, normal(6, 1, 5, 5), labels(6, classes=3))
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_transposed_convolution_can_be_the_last_layer() -> None:
    """The decoder of an image: the same posterior as by name."""
    model = nn.Sequential(nn.Conv2d(1, 3, 2, stride=2), nn.Tanh(), nn.ConvTranspose2d(3, 2, 2, stride=2)).double()
    x, y = torch.randn(5, 1, 4, 4, dtype=torch.float64), torch.randint(0, 2, (5, 4, 4))
    likelihood = lw.Categorical(event_dim=2, class_dim=1)
    found = [
        lw.Laplace(likelihood, weights=weights, structure=lw.Full(view="weights")).fit(model, (x, y))
        for weights in (lw.LastLayer(), lw.Names("2.*"))
    ]
    assert found[0].network.names == ("2.weight", "2.bias")
    torch.testing.assert_close(*(posterior.predict(x).probs for posterior in found))
