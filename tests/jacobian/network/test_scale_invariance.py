"""Which weights have no scale, in networks of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lapwing.ground.errors import ConfigError, DataError, UnsupportedError
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.scale_invariance import normalised, scale_invariant
from lapwing.priors import Layerwise
from tests.checker import unchecked
from tests.posterior_cases import labels, normal, portrait, refused, seeded

IMAGES = normal(20, 2, 5, 5)
ROWS = normal(20, 3)


class PreNorm(nn.Module):
    """A residual network that normalises within its branches, as pre-activation ResNets do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(5))
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i in (0, 2):
            inner = self.convs[i](torch.relu(self.norms[i](x)))
            x = x + self.convs[i + 1](torch.relu(self.norms[i + 1](inner)))
        return self.head(torch.relu(self.norms[4](x)).mean((2, 3)))


class Attending(nn.Module):
    """One transformer layer that normalises after each branch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.5, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)).mean(1))


def block(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor, tuple[tuple[str, ...], ...]]] = {
    "no normalisation": (lambda: block(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), ROWS, ()),
    "saturating": (lambda: block(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Sigmoid()), ROWS, ()),
    "layer norm takes weight and bias together": (
        lambda: block(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)),
        ROWS,
        (("0.weight", "0.bias"),),
    ),
    "group norm": (
        lambda: block(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 2)),
        IMAGES,
        (("0.weight", "0.bias"),),
    ),
    "batch norm, its own affine part before a convolution without bias": (
        lambda: block(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 3, 2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2),
        ),
        IMAGES,
        (("0.weight", "0.bias"), ("1.weight", "1.bias"), ("3.weight",)),
    ),
    "normalised across a residual stream": (
        PreNorm,
        IMAGES,
        (
            ("stem.weight", "convs.1.weight", "convs.3.weight"),
            ("norms.0.weight", "norms.0.bias"),
            ("norms.2.weight", "norms.2.bias"),
            ("convs.0.weight",),
            ("convs.2.weight",),
        ),
    ),
    "a norm without parameters": (
        lambda: block(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.LayerNorm(4, elementwise_affine=False),
                      nn.Linear(4, 2)),
        ROWS,
        (("2.weight", "2.bias"),),
    ),
    "from a norm across the biases of its branch to the next": (
        Attending,
        normal(20, 5, 3),
        (("layer.linear1.bias", "layer.linear2.bias", "layer.norm1.weight", "layer.norm1.bias"),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_finds_what_has_no_scale(name: str) -> None:
    build, inputs, expected = CASES[name]
    model = seeded(build)
    before = portrait(model)
    assert scale_invariant(Network.of(model), inputs) == expected
    assert portrait(model) == before


def test_zeros_and_single_precision_do_not_deceive() -> None:
    model = block(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).eval()
    for part in (model[0], model[3]):
        nn.init.zeros_(part.bias)  # type: ignore[arg-type]
    assert scale_invariant(Network.of(model), ROWS.float()) == (("0.weight", "0.bias"),)


def test_frozen_parameters_are_left_out_and_what_has_no_effect_is_no_group() -> None:
    model = seeded(lambda: block(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)))
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    assert scale_invariant(Network.of(model), ROWS) == ()


def test_the_prior_has_a_precision_for_each_and_one_for_the_rest() -> None:
    model = seeded(lambda: block(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)))
    prior = normalised(model, ROWS, precision=2.0)
    assert prior == Layerwise(2.0, (("0.weight", "0.bias"),))
    group, groups = prior.groups(Network.of(model).layout)
    assert groups == 2 and group.tolist() == [0] * 16 + [1] * 18


def test_batch_statistics_need_a_batch() -> None:
    model = seeded(lambda: block(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    with refused(DataError, "two examples"):
        normalised(model, ROWS[:1])


def test_inputs_of_every_kind() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.out = nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.norm(self.table(ids)).mean(1))

    assert normalised(seeded(Named), {"ids": labels(9, 6, classes=5)}).parts == (("table.weight",),)


def test_a_network_without_normalised_weights_is_told_of() -> None:
    with refused(UnsupportedError, "without a scale"):
        normalised(seeded(lambda: nn.Linear(3, 2)), ROWS)


def test_what_are_no_inputs() -> None:
    model = seeded(lambda: block(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)))
    nothing: Any = None
    with refused(DataError, "finite inputs"):
        normalised(model, ROWS * torch.nan)
    with refused(DataError, "Try x alone, of (x, y)"):
        normalised(model, (ROWS, labels(20, classes=2)))
    with unchecked(), refused(DataError, "NoneType"):
        normalised(model, nothing)
    with unchecked(), refused(ConfigError, "nn.Module"):
        normalised(nothing, ROWS)
