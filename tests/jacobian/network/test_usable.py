"""Modules that are refused before anything runs, and what they are told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, UnsupportedError
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import labels, normal, refused


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_rescales_its_rows_is_refused_and_left_alone(kind: type[nn.Module]) -> None:
    model = nn.Sequential(kind(5, 3, max_norm=0.5), nn.Flatten(), nn.Linear(3, 2)).double()
    tokens, y = torch.arange(5)[:, None], labels(5, classes=2)
    with (
        unchanged(model),
        refused(UnsupportedError, expected="leaves its weights alone", got="max_norm=0.5", hint="0.w"),
    ):
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
    with refused(ConfigError, expected="have a shape", got="'0.weight' of a lazy module", hint="model(x)"):
        lw.Laplace(lw.Categorical()).fit(nn.Sequential(nn.LazyLinear(2)), (x, y))
    with refused(ConfigError, expected="have a shape", got="'running_mean' of a lazy", hint="model(x)"):
        lw.Laplace(lw.Categorical()).fit(nn.LazyBatchNorm1d(affine=False), (x, y))
    with refused(ConfigError, expected="have values", got="'bias' on the meta device", hint="load_state_dict"):
        model = nn.Linear(3, 2)
        model.bias = nn.Parameter(torch.empty(2, device="meta"))
        lw.Laplace(lw.Categorical()).fit(model, (x, y))
