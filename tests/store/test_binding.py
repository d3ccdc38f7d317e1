"""A file meets a network: only the one it was fitted to is accepted."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground.errors import MismatchError
from lapwing.store import load, save


def network(width: int = 4, *, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 2, bias=bias)).double()


@pytest.fixture
def model() -> nn.Sequential:
    return network()


@pytest.fixture
def path(model: nn.Sequential, tmp_path: Path) -> Path:
    x = torch.randn(12, 3, dtype=torch.float64)
    recipe = lw.Laplace(lw.Categorical(), weights=lw.LastLayer())
    save(recipe.fit(model, (x, torch.arange(12) % 2)), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def refusal(path: Path, model: nn.Module) -> str:
    with pytest.raises(MismatchError) as caught:
        load(path, model)
    return str(caught.value)


def test_a_copy_of_the_network_is_accepted(path: Path, model: nn.Sequential) -> None:
    loaded = load(path, copy.deepcopy(model))
    assert loaded.network.names == ("3.weight", "3.bias")
    assert loaded.network.module is not model


def test_wrappers_are_looked_through(path: Path, model: nn.Sequential) -> None:
    assert load(path, nn.DataParallel(model)).network.module is model


def test_frozen_and_training_networks_are_accepted_and_left_alone(path: Path, model: nn.Sequential) -> None:
    model.requires_grad_(False).train()
    load(path, model)
    assert model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_other_shapes_are_named_uncertain_ones_first(path: Path) -> None:
    message = refusal(path, network(5))
    assert "fitted to, a Sequential of 6 parameters" in message
    assert (
        "Got a Sequential of 6: '3.weight' has shape [2, 5], saved with [2, 4]; '0.weight' has shape [5, 3]" in message
    )
    assert "; and 1 more. Try a model built with the same options" in message


def test_missing_and_new_parameters_are_named(path: Path) -> None:
    assert "'3.bias' [2] is in the file and not in the model" in refusal(path, network(bias=False))
    longer = nn.Sequential(*network(), nn.Linear(2, 2))
    assert "'4.weight' [2, 2] is in the model and not in the file" in refusal(path, longer)


def test_another_dtype_is_named_with_its_cure(path: Path, model: nn.Sequential) -> None:
    message = refusal(path, model.float())
    assert "'3.weight' has dtype float32, saved with float64" in message
    assert message.endswith("Try model.to(torch.float64).")


@pytest.mark.parametrize("name", ["0.bias", "3.weight", "1.running_mean"])
def test_other_weights_or_buffers_are_refused_by_fingerprint(name: str, path: Path, model: nn.Sequential) -> None:
    with torch.no_grad():
        model.state_dict()[name].view(-1)[0] += 1e-12
    assert re.search(r"other weights or buffers \(SHA-256 [0-9a-f]{12}…\)", refusal(path, model))


def test_a_network_written_to_since_the_fit_is_not_saved(model: nn.Sequential, tmp_path: Path) -> None:
    posterior = lw.Laplace(lw.Categorical()).fit(model, (torch.randn(9, 3), torch.arange(9) % 2))
    with torch.no_grad():
        model[0].weight.add_(1.0)
    with pytest.raises(MismatchError, match="written to since"):
        save(posterior, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
