"""Small networks of every kind with data and a likelihood, in float64, built afresh and the same each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from tests.modules import (
    Bare,
    Branching,
    CrossAttention,
    Encoder,
    Folded,
    MergedRows,
    Positions,
    Recurrent,
    Reparametrised,
    Tagger,
    Tied,
    Twice,
    UNet,
    UpsampledTwice,
)

N = 4


class Case(NamedTuple):
    model: nn.Module
    inputs: Inputs
    targets: Tensor
    likelihood: Likelihood


def regression(model: nn.Module, inputs: Inputs, outputs: int = 2) -> Case:
    return Case(model, inputs, torch.randn(N, outputs), Gaussian(1.5))


def classification(model: nn.Module, inputs: Inputs, classes: int = 3) -> Case:
    return Case(model, inputs, torch.randint(0, classes, (N,)), Categorical())


def stir(model: nn.Module) -> nn.Module:
    """Away from the identity: affine parameters and running statistics as after training."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
            for value in part.parameters():
                nn.init.normal_(value, 0.5, 0.5)
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
    return model


def mlp() -> Case:
    return classification(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(N, 4))


def multi_label() -> Case:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.SiLU(), nn.Linear(4, 3))
    return Case(model, torch.randn(N, 3), torch.randint(0, 2, (N, 3)).double(), Bernoulli())


def counts() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2))
    return Case(model, torch.randn(N, 3), torch.poisson(torch.full((N, 2), 2.0)), Poisson())


def lenet() -> Case:
    """Stride, padding, dilation and groups, in-place activations."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=(1, 0)),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 2, dilation=(1, 2), groups=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    return classification(model, torch.randn(N, 2, 7, 9))


def conv1d_same() -> Case:
    model = nn.Sequential(
        nn.Conv1d(2, 3, 4, padding="same", dilation=2),
        nn.Tanh(),
        nn.Conv1d(3, 2, 3, padding="valid", bias=False),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
    )
    return regression(model, torch.randn(N, 2, 6))


def conv3d() -> Case:
    model = nn.Sequential(
        nn.Conv3d(1, 2, (2, 1, 2), stride=(1, 2, 1), padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)
    )
    return regression(model, torch.randn(N, 1, 3, 2, 2).double())


def conv_transpose1d() -> Case:
    """Without a bias; steps of three with pixels that no tap reaches."""
    model = nn.Sequential(
        nn.ConvTranspose1d(2, 3, 2, stride=3, padding=1, output_padding=1, dilation=2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(33, 2),
    )
    return regression(model, torch.randn(N, 2, 4))


def conv_transpose2d() -> Case:
    """Groups, steps and dilation of their own along each axis, and one that ends at the outputs."""
    model = nn.Sequential(
        nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), output_padding=(1, 0), groups=2),
        nn.Tanh(),
        nn.ConvTranspose2d(6, 2, (1, 2), padding=(0, 2), dilation=(1, 2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return regression(model, torch.randn(N, 4, 2, 4))


def conv_transpose3d() -> Case:
    model = nn.Sequential(
        nn.ConvTranspose3d(2, 3, (1, 3, 2), stride=(1, 2, 2), padding=(0, 2, 1)),
        nn.Tanh(),
        nn.Flatten(1),
        nn.Linear(18, 3),
    )
    return classification(model, torch.randn(N, 2, 3, 2, 2))


def upsampled_twice() -> Case:
    return regression(UpsampledTwice(), torch.randn(N, 2, 3))


def depthwise() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return regression(model, torch.randn(N, 3, 4, 4))


def circular_padding() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)
    )
    return regression(model, torch.randn(N, 1, 3, 3))


def batch_norm() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.BatchNorm1d(3),
        nn.Linear(3, 3),
    )
    return classification(stir(model), torch.randn(N, 1, 4, 4))


def group_norm() -> Case:
    model = nn.Sequential(nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))
    return regression(stir(model), torch.randn(N, 2, 5))


def layer_norm() -> Case:
    """Over two axes with positions in front, over one axis, and without a bias."""
    model = nn.Sequential(
        nn.Linear(3, 3), nn.LayerNorm((2, 3)), nn.Tanh(), nn.LayerNorm(3, bias=False), nn.Flatten(), nn.Linear(24, 2)
    )
    return regression(stir(model), torch.randn(N, 4, 2, 3))


def rms_norm() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.RMSNorm(4), nn.Linear(4, 2))
    return regression(model, torch.randn(N, 3))


def in_place() -> Case:
    model = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.LeakyReLU(inplace=True), nn.Linear(4, 2)
    )
    return regression(model, torch.randn(N, 3))


def transformer_batch_first() -> Case:
    return classification(stir(Encoder(batch_first=True)), torch.randint(0, 6, (N, 3)))


def transformer_sequence_first() -> Case:
    return classification(stir(Encoder(batch_first=False)), torch.randint(0, 6, (N, 3)))


def cross_attention() -> Case:
    hidden = torch.zeros(N, 4, dtype=torch.bool)
    hidden[1, 2:] = True
    return regression(CrossAttention(), (torch.randn(N, 2, 4), torch.randn(N, 4, 3), torch.randn(N, 4, 2), hidden))


def called_twice() -> Case:
    return regression(stir(Twice()), torch.randn(N, 1, 6))


def merged_rows() -> Case:
    return regression(MergedRows(), torch.randn(N, 5, 3))


def tied() -> Case:
    tokens = torch.randint(0, 5, (N, 3))
    return Case(Tied(), tokens, torch.randint(0, 5, (N, 3)), Categorical(event_dim=1))


def positions() -> Case:
    return classification(stir(Positions()), torch.randint(0, 5, (N, 3)))


def bare_parameter() -> Case:
    return regression(Bare(), torch.randn(N, 3))


def branching() -> Case:
    return regression(Branching(), torch.randn(N, 3))


def lstm() -> Case:
    return regression(Recurrent(), torch.randn(N, 3, 2))


def unet() -> Case:
    labels = torch.randint(0, 3, (N, 2, 2))
    labels[0, 1, 0] = -100
    return Case(UNet(), torch.randn(N, 1, 2, 2), labels, Categorical(event_dim=2, class_dim=1))


def tagger() -> Case:
    ids = torch.tensor([[1, 2, 3], [4, 5, 1], [2, 2, 0], [5, 0, 0]])
    labels = torch.tensor([[0, 1, 1], [1, -100, 0], [0, 0, -100], [1, -100, -100]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "scale": 1.5}
    return Case(Tagger(), inputs, labels, Categorical(event_dim=1))


def frozen_backbone() -> Case:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return classification(model, torch.randn(N, 4))


def folded() -> Case:
    return regression(stir(Folded()), torch.randn(N, 3, 3, 3))


def reparametrised() -> Case:
    return regression(Reparametrised(), torch.randn(N, 3))


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        mlp,
        multi_label,
        counts,
        lenet,
        conv1d_same,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
        upsampled_twice,
        depthwise,
        circular_padding,
        batch_norm,
        group_norm,
        layer_norm,
        rms_norm,
        in_place,
        transformer_batch_first,
        transformer_sequence_first,
        cross_attention,
        called_twice,
        merged_rows,
        tied,
        positions,
        bare_parameter,
        branching,
        lstm,
        unet,
        tagger,
        frozen_backbone,
        folded,
        reparametrised,
    )
}


def build(name: str) -> Case:
    """The case of that name in float64, whatever the state of the global generator; modules in training mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        case = CASES[name]()
    return Case(case.model.double(), as_double(case.inputs), as_double(case.targets), case.likelihood)


def as_double(values: Inputs) -> Inputs:
    if isinstance(values, dict):
        return {key: as_double(value) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(as_double(value) for value in values)
    return values.double() if isinstance(values, Tensor) and values.is_floating_point() else values
