"""A module read as a function of its uncertain weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MappingProxyType

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jvp

from lapwing.ground.errors import ConfigError, DataError, MismatchError
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.serving import serving
from tests.cases import CASES, build
from tests.curvature.naive import call, known
from tests.curvature.unchanged import unchanged


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).double()


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_module_in_eval_mode(name: str) -> None:
    case, network = known(name).case, known(name).network
    with unchanged(case.model):
        outputs = network(case.inputs)
    torch.testing.assert_close(outputs, call(case.model, case.inputs).detach(), rtol=1e-12, atol=1e-12)


def test_the_parameters_that_require_a_gradient_are_uncertain() -> None:
    model = small()
    model[0].weight.requires_grad_(False)
    network = Network.of(model)
    assert network.names == ("0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    assert network.size == network.layout.size == len(network.weights) == 9
    assert network.uncertain == network.layout
    torch.testing.assert_close(network.weights[:2], model[0].bias.detach())
    assert set(network.fixed) == {"0.weight"}
    assert set(network.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_a_frozen_network_has_nothing_to_be_uncertain_about() -> None:
    with pytest.raises(ConfigError, match="requires_grad_"):
        Network.of(small().requires_grad_(False))
    with pytest.raises(ConfigError, match="at least one uncertain weight"):
        Network(small(), ())
    with pytest.raises(ConfigError, match="at least one uncertain weight"):
        Network(small(), ("0.bias",), torch.empty(0, dtype=torch.long))


def test_weights_that_are_not_finite_are_refused_by_name() -> None:
    model = small()
    model[2].weight.data[0, 1] = torch.nan
    with pytest.raises(DataError, match=r"2\.weight"):
        Network.of(model)


def test_single_weights_can_be_uncertain() -> None:
    model = small()
    index = torch.tensor([1, 2, 7])
    network = Network(model, ("0.weight", "0.bias"), index)
    assert network.size == 3
    assert network.uncertain.names == ("0.weight", "0.bias") and network.uncertain.sizes == (2, 1)
    assert Network(model, ("0.weight", "0.bias"), torch.tensor([0])).uncertain.names == ("0.weight",)
    everything = network.layout.flatten(network.params)
    assert torch.equal(network.weights, everything[index])
    moved = network.layout.flatten(network.with_weights(network.weights + 1))
    assert torch.equal((moved - everything).nonzero().squeeze(1), index)


def test_other_weights_give_the_outputs_of_a_module_that_has_them() -> None:
    model, x = small(), torch.randn(4, 3, dtype=torch.float64)
    network = Network.of(model)
    weights = torch.randn(network.size, dtype=torch.float64)
    other = copy.deepcopy(model).eval()
    nn.utils.vector_to_parameters(weights, other.parameters())
    torch.testing.assert_close(network(x, network.with_weights(weights)), other(x).detach())


def test_inputs_are_one_tensor_positional_or_keyword_arguments() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.scale * (a - b)

    a, b, network = torch.ones(2, 1), torch.zeros(2, 1), Network.of(Sum())
    for inputs in ((a, b), {"b": b, "a": a}, MappingProxyType({"a": a, "b": b})):
        assert torch.equal(network(inputs), torch.ones(2, 1))


def test_buffers_are_frozen_even_where_the_module_writes_to_its_own() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.scale * x + self.calls

    model, x = Counter(), torch.zeros(1, 1)
    network = Network.of(model)
    with unchanged(model):
        assert [float(network(x)) for _ in range(3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].weight.data.add_(1.0),
        lambda model: torch.nn.init.zeros_(model[0].bias),
        lambda model: model.load_state_dict(small().state_dict()),
        lambda model: model[1].running_mean.fill_(2.0),
        lambda model: setattr(model[0].weight, "data", torch.ones(2, 3).double()),
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(2, 3).double())),
        lambda model: model.__setitem__(2, nn.Linear(2, 1).double()),
        lambda model: model.float(),
        lambda model: model[0].weight.data.neg_(),
        lambda model: model[0].weight.data.copy_(model[0].weight.data.flip(0)),
        lambda model: model[1].running_mean.data.add_(1.0),
    ],
    ids=[
        "data",
        "in-place",
        "load",
        "buffer",
        "data-replaced",
        "parameter-replaced",
        "layer-replaced",
        "dtype",
        "sign",
        "rows",
        "buffer-data",
    ],
)
def test_a_module_that_was_written_to_is_refused(change: Callable[[nn.Sequential], object]) -> None:
    model = small()
    network = Network.of(model)
    network.check_unchanged()
    change(model)
    with pytest.raises(MismatchError, match="deepcopy"):
        network.check_unchanged()


def test_using_the_module_does_not_count_as_a_change() -> None:
    model, x = small(), torch.randn(4, 3, dtype=torch.float64)
    network = Network.of(model)
    model.eval()(x).sum().backward()
    model.requires_grad_(False).zero_grad()
    network.check_unchanged()


def test_a_copy_has_a_module_of_its_own() -> None:
    model, x = small(), torch.randn(4, 3, dtype=torch.float64)
    torch.nn.init.normal_(model[0].weight)
    network = Network(model, ("0.weight",), torch.tensor([1, 3]))
    other = copy.deepcopy(network)
    other.check_unchanged()
    assert other.module is not model and torch.equal(other.weights, network.weights)
    expected = network(x)
    torch.nn.init.zeros_(model[0].weight)
    assert torch.equal(other(x), expected)
    with pytest.raises(MismatchError):
        copy.deepcopy(network)


def test_the_fingerprint_follows_values_and_names() -> None:
    model = small()
    first = Network.of(model).fingerprint()
    assert Network.of(copy.deepcopy(model)).fingerprint() == first
    model[1].running_mean[0] += 1e-9
    assert Network.of(model).fingerprint() != first
    assert Network.of(nn.Sequential(*model, nn.Identity())).fingerprint() != first


def test_the_fingerprint_ignores_state_that_is_not_a_tensor() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"epoch": 3}

        def set_extra_state(self, state: object) -> None:
            del state

    assert len(Network.of(Extra(1, 1)).fingerprint()) == 64


def test_modes_are_restored_even_when_interrupted() -> None:
    model = small()
    model[0].eval()
    with pytest.raises(KeyboardInterrupt), serving(model):
        assert not any(part.training for part in model.modules())
        raise KeyboardInterrupt
    assert [part.training for part in model.modules()] == [True, False, True, True]


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_compiled_parts_have_modes_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Dropout())).train()
    network, x = Network.of(model), torch.ones(3, 2)
    assert torch.equal(network(x), network(x))
    assert model.training and model[1].training


def test_what_a_forward_pass_assigns_to_the_module_is_gone_afterwards() -> None:
    class Remembers(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.last, self.count = x, getattr(self, "count", 0) + 1
            return super().forward(x)

    model = Remembers(2, 1)
    with unchanged(model):
        Network.of(model)(torch.ones(3, 2))
    assert not hasattr(model, "last") and not hasattr(model, "count")


@pytest.mark.parametrize("name", ["mlp", "lstm", "unet"])
def test_an_interrupted_call_leaves_the_module_as_it_was(name: str) -> None:
    case = build(name)
    network = Network.of(case.model)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with unchanged(case.model):
        last = list(case.model.modules())[-1]
        handle = last.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            network(case.inputs)
        handle.remove()


def test_parts_of_the_flat_vector_come_apart_and_together() -> None:
    network = Network.of(small())
    flat = torch.arange(2.0 * network.size).view(-1, 2)
    parts = [
        (pair, network.part(pair, flat))
        for pair in (("2.weight", "0.bias"), ("2.bias", "1.bias", "1.weight", "0.weight"))
    ]
    assert torch.equal(network.joined(parts, 0), flat)
    assert torch.equal(network.joined((names, part.mT) for names, part in parts), flat.mT)
    few = Network(network.module, network.names, torch.tensor([1, 4]))
    assert torch.equal(few.joined(parts, 0), flat[[1, 4]])
    spread = few.spread(torch.tensor([7.0, 8.0]), -1.0)
    assert spread[[1, 4]].tolist() == [7.0, 8.0] and int((spread == -1.0).sum()) == network.size - 2


def test_parameters_without_a_number_are_left_out() -> None:
    module = small()
    module.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    assert Network.of(module).names == Network.of(small()).names
    with pytest.raises(ConfigError, match=r"a network without parameters"):
        Network.of(nn.Tanh())


def test_attention_has_second_derivatives_where_it_is_asked_for_them(generator: torch.Generator) -> None:
    key, query = torch.randn(2, 5, 8, dtype=torch.float64, generator=generator)[:, None]

    def loss(at: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(at, key, key).square().sum()

    with twice_differentiable():
        moved = jvp(grad(loss), (query,), (key,))[1]
        step = 1e-5 * key
        torch.testing.assert_close(
            moved, (grad(loss)(query + step) - grad(loss)(query - step)) / 2e-5, rtol=1e-6, atol=1e-8
        )
