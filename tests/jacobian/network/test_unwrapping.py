"""A module is usable, alone while it is called, and known to be unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.jacobian.network.snapshot import digest_of
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import labels, normal, refused, seeded

X, Y = normal(5, 3), labels(5, classes=3)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.complex64, torch.int64, torch.int8, torch.bool)


def holding(value: Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("value", value)
    return module


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kind_of_number_is_read(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
    value = (4 * torch.randn(7, 251, generator=generator)).to(device, dtype)
    before = digest_of(holding(value.clone()))
    assert before == digest_of(holding(value.clone())), "the same bits give the same number"
    for place in ((0, 0), (6, 250)):
        other = value.clone()
        other[place] = 0 if bool(other[place]) else 1
        assert digest_of(holding(other)) != before
    assert digest_of(holding(torch.zeros((), dtype=dtype))) != digest_of(holding(torch.ones((), dtype=dtype)))


@pytest.mark.parametrize(
    "write",
    [Tensor.neg_, lambda x: x.copy_(x.flip(0)), lambda x: x.copy_(x.flip(1)), lambda x: x.copy_(x.roll(1, 0))],
    ids=["signs", "rows", "columns", "rolled"],
)
@pytest.mark.parametrize("shape", [(2, 1), (4, 3), (250, 502), (2, 2**16)], ids=str)
def test_what_norms_do_not_see(shape: tuple[int, int], write: Callable[[Tensor], object]) -> None:
    value = torch.arange(1.0, 1 + shape[0] * shape[1]).view(shape)
    value[1::2] *= -1  # as many of one sign as of the other
    original = value.clone()
    write(value)
    assert (digest_of(holding(value)) == digest_of(holding(original))) == torch.equal(value, original)


def test_threads_and_memory_formats_give_the_same_number(generator: torch.Generator) -> None:
    value = torch.randn(3, 5, 50, 70, generator=generator)
    before, threads = digest_of(holding(value)), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert digest_of(holding(value)) == before
    finally:
        torch.set_num_threads(threads)
    assert digest_of(holding(value.contiguous(memory_format=torch.channels_last))) == before
    assert digest_of(nn.Module()) == digest_of(nn.Sequential())


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_rescales_its_rows_is_refused_and_left_alone(kind: type[nn.Module]) -> None:
    model = nn.Sequential(kind(5, 3, max_norm=0.5), nn.Flatten(), nn.Linear(3, 2)).double()
    tokens, y = torch.arange(5)[:, None], labels(5, classes=2)
    with unchanged(model), refused(UnsupportedError, "leaves its weights alone"):
        lw.Laplace(lw.Categorical()).fit(model, (tokens, y))
    with unchanged(model), pytest.raises(UnsupportedError, match="max_norm"):
        lw.HessianFree(lw.Categorical()).fit(model, (tokens, y))
    with unchanged(model), pytest.raises(UnsupportedError, match="max_norm"):
        lw.train_marginal(model, (tokens, y), lw.Categorical(), epochs=3)
    table = model[0]
    before = nn.Sequential(*model)(tokens).detach()
    table.weight.data.renorm_(2.0, 0, 0.5)
    table.max_norm = None
    torch.testing.assert_close(model(tokens), before)
    assert lw.Laplace(lw.Categorical()).fit(model, (tokens, y)).network.size == 5 * 3 + 2 * 3 + 2


def test_weights_without_shapes_or_values_are_refused() -> None:
    x, y = normal(4, 3).float(), labels(4, classes=2)
    with refused(ConfigError, "have a shape"):
        lw.Laplace(lw.Categorical()).fit(nn.Sequential(nn.LazyLinear(2)), (x, y))
    with refused(ConfigError, "have a shape"):
        lw.Laplace(lw.Categorical()).fit(nn.LazyBatchNorm1d(affine=False), (x, y))
    with refused(ConfigError, "have values"):
        model = nn.Linear(3, 2)
        model.bias = nn.Parameter(torch.empty(2, device="meta"))
        lw.Laplace(lw.Categorical()).fit(model, (x, y))


def built(structure: Any, **weights: Any) -> Callable[[nn.Module], Tensor]:
    recipe = lw.Laplace(lw.Categorical(), structure=structure, **weights)
    return lambda model: recipe.fit(model, (X, Y)).predict(X).logits.variance


@pytest.mark.parametrize(
    "call",
    [
        *map(built, [lw.Full(), lw.KFAC(), lw.Diagonal(), lw.MatrixFree(), lw.Sampled(samples=3)]),
        built(lw.Full(), weights=lw.LastLayer()),
        lambda model: lw.baselines.PlainNetwork(model).predict(X).logits.variance,
        lambda model: (
            lw.HessianFree(lw.Categorical(), prior=lw.Isotropic(50.0), fits=lw.hessian_free.PerPoint())
            .fit(model, (X, Y), X[:1])
            .predict(X[:1])
            .logits.variance
        ),
    ],
)
def test_a_network_made_in_inference_mode_is_one_like_others(call: Callable[[nn.Module], Tensor]) -> None:
    def build() -> nn.Module:
        norm = nn.BatchNorm1d(4)
        norm.running_mean.normal_(generator=torch.Generator().manual_seed(1))
        return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 3))

    with torch.inference_mode():
        model = seeded(build)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert torch.equal(call(model), call(seeded(build)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.is_inference() and value.grad is None for value in model.parameters())


def test_but_cannot_be_trained() -> None:
    with torch.inference_mode():
        model = seeded(lambda: nn.Linear(3, 3))
    with refused(UnsupportedError, "Try copy.deepcopy(model) outside of it"):
        lw.train_marginal(model, (X, Y), lw.Categorical(), epochs=3)
    lw.train_marginal(copy.deepcopy(model), (X, Y), lw.Categorical(), epochs=3)
