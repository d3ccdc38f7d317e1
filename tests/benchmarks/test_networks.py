"""The networks are the ones of the papers; with LAPWING_DATA set, so are the trained ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.data import CHECKPOINTS, Split, cifar10, generated_images, generated_tokens
from benchmarks.networks import BasicBlock, ResNet, Transformer, lenet, weight_count
from benchmarks.training import train

PUBLISHED = {"resnet20": (0.9164, 0.3779), "ella_resnet20": (0.9263, 0.2817)}


@pytest.mark.parametrize(
    ("network", "parameters"),
    [
        (lenet(), 29_282),
        (ResNet(3), 269_722),
        (ResNet(5), 464_154),
        (ResNet(3, projection=True, head="fc"), 272_474),
        (Transformer(), 73_866),
    ],
)
def test_the_networks_have_the_parameters_they_should(network: nn.Module, parameters: int) -> None:
    assert weight_count(network) == parameters


def test_the_padded_shortcut_subsamples_and_centres_the_channels() -> None:
    block = BasicBlock(16, 32, projection=False)
    nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 16, 8, 8)
    y = block.eval()(x)
    torch.testing.assert_close(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any() and not y[:, 24:].any()


def test_the_class_token_sees_every_other_token_and_its_place() -> None:
    torch.manual_seed(0)
    net = Transformer()
    tokens = torch.arange(1, 17).reshape(1, 16)
    swapped = tokens.flip(1)
    assert not torch.allclose(net(F.pad(tokens, (1, 0))), net(F.pad(swapped, (1, 0))))


@pytest.mark.parametrize(
    ("network", "generate"),
    [
        (lenet, partial(generated_images, 1, 28)),
        (Transformer, partial(generated_tokens, 64, 32)),
    ],
)
def test_generated_data_repeat_and_can_be_learned(
    network: Callable[[], nn.Module], generate: Callable[..., Split]
) -> None:
    torch.manual_seed(0)
    model, data = network(), generate(train=400, test=100)
    assert torch.equal(data.x_test, generate(train=400, test=100).x_test)
    first = F.cross_entropy(model(data.x_train), data.y_train).item()
    train(model, *data.train, epochs=3, rate=3e-3, schedule="constant")
    assert not model.training
    assert F.cross_entropy(model(data.x_train), data.y_train).item() < 0.95 * first


@pytest.mark.skipif("LAPWING_DATA" not in os.environ, reason="LAPWING_DATA names no data folder")
@pytest.mark.parametrize("name", PUBLISHED)
def test_trained_networks_score_what_their_readme_says(name: str) -> None:
    folder, checkpoint = Path(os.environ["LAPWING_DATA"]), CHECKPOINTS[name]
    data = cifar10(folder, checkpoint)
    with torch.no_grad():
        logits = checkpoint.load(folder)(data.x_test)
    accuracy = (logits.argmax(1) == data.y_test).double().mean().item()
    assert accuracy == pytest.approx(PUBLISHED[name][0], abs=5e-5)
    assert F.cross_entropy(logits, data.y_test).item() == pytest.approx(PUBLISHED[name][1], abs=5e-5)
