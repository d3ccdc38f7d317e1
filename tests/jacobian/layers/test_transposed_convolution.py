"""Transposed convolutions as matrices times windows of their spread input, in every geometry."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lapwing.jacobian.layers.capture import Capture
from lapwing.jacobian.layers.convolution import autocorrelation, slides
from lapwing.jacobian.layers.transposed_convolution import TransposedConvolution

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "plain": (lambda: nn.ConvTranspose1d(2, 3, 2), (4,)),
    "cut": (lambda: nn.ConvTranspose1d(2, 3, 2, padding=1), (4,)),
    "steps": (lambda: nn.ConvTranspose1d(2, 3, 2, stride=3, output_padding=2), (4,)),
    "dilated": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, dilation=3, output_padding=1), (4,)),
    "one pixel": (lambda: nn.ConvTranspose2d(3, 2, (2, 3), bias=False), (1, 1)),
    "groups": (lambda: nn.ConvTranspose2d(4, 6, (2, 1), stride=(1, 2), padding=(1, 0), groups=2), (3, 2)),
    "depthwise": (lambda: nn.ConvTranspose2d(3, 3, 2, stride=2, groups=3), (2, 3)),
    "3d": (lambda: nn.ConvTranspose3d(2, 3, (1, 2, 3), stride=(2, 1, 2), padding=(0, 1, 1)), (2, 3, 2)),
}


def factor(name: str) -> tuple[TransposedConvolution, nn.Module, Tensor]:
    """The factor of two examples with three cotangents, its layer, and their input."""
    build, space = LAYERS[name]
    module = build().double()
    x = torch.randn(2, module.in_channels, *space, dtype=torch.float64)
    params = dict(module.named_parameters())
    with Capture(params) as capture:
        outputs = module(x)
    (call,) = capture.calls
    assert call.kind is TransposedConvolution
    g = torch.randn(2, 3, module.groups, *outputs.shape[1:2], outputs[0, 0].numel(), dtype=torch.float64)
    g = g[:, :, :, : outputs.shape[1] // module.groups]
    bias = None if module.bias is None else "bias"
    return TransposedConvolution("weight", bias, g, call.input, call.options), module, x


@pytest.mark.parametrize("name", LAYERS)
def test_the_outputs_are_a_matrix_times_the_windows(name: str) -> None:
    made, module, x = factor(name)
    flat = torch.cat([value.detach().flatten() for value in module.parameters()])
    outputs = made.matrix(flat) @ made.columns
    torch.testing.assert_close(outputs.flatten(1, 2), module(x).flatten(2))
    assert made.width == made.inputs().shape[2]


@pytest.mark.parametrize("name", LAYERS)
def test_weights_become_matrices_and_back(name: str) -> None:
    made, module, _ = factor(name)
    flat = torch.arange(sum(value.numel() for value in module.parameters()), dtype=torch.float64)
    assert torch.equal(made.flat(made.matrix(flat)), flat)
    block = torch.stack([made.matrix(flat), made.matrix(2 * flat)])
    assert torch.equal(made.flat(block), torch.stack([flat, 2 * flat]))


@pytest.mark.parametrize("name", ["plain", "groups", "3d"])
def test_its_rows_are_the_gradients_of_its_outputs(name: str) -> None:
    made, module, x = factor(name)
    rows = made.rows()
    for example in range(2):
        outputs = module(x[example : example + 1])[0]
        for cotangent in range(3):
            target = (outputs.flatten() * made.g[example, cotangent].flatten()).sum()
            grads = torch.autograd.grad(target, list(module.parameters()), retain_graph=True)
            torch.testing.assert_close(rows[example, cotangent], torch.cat([grad.flatten() for grad in grads]))


@pytest.mark.parametrize("name", LAYERS)
def test_its_forward_pass_is_counted_without_the_zeros(name: str) -> None:
    made, module, x = factor(name)
    with FlopCounterMode(display=False) as counter:
        module(x[:1])
    assert 2 * made.cost(3).forward == counter.get_total_flops()


def test_the_windows_of_a_spread_image_slide_too() -> None:
    module = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1).double()
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    with Capture(dict(module.named_parameters())) as capture:
        module(x)
    (call,) = capture.calls
    assert slides(call.input, call.options)
    g = torch.zeros(3, 1, 1, 3, 8 * 10, dtype=torch.float64)
    columns = TransposedConvolution("weight", "bias", g, x, call.options).columns
    expected = torch.einsum("npit,npjt->pij", columns, columns)
    torch.testing.assert_close(autocorrelation(x, call.options, 1), expected, rtol=1e-12, atol=1e-12)
