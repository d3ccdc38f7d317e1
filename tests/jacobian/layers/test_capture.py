"""What a forward pass is seen to do: which layer function used which watched weights, on what."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.layers.base import Call
from lapwing.jacobian.layers.capture import Capture, origin
from lapwing.jacobian.layers.convolution import ConvolutionGeometry, each_axis, patches
from lapwing.jacobian.layers.embedding import Embedding
from lapwing.jacobian.layers.linear import Linear
from lapwing.jacobian.layers.norm import Norm


def watched(*names: str, shape: tuple[int, ...] = (3, 3)) -> dict[str, Tensor]:
    return {name: torch.randn(shape).requires_grad_() for name in names}


def seen(model: nn.Module, *inputs: Tensor) -> list[Call]:
    with Capture(dict(model.named_parameters())) as capture:
        model(*inputs)
    return capture.calls


def test_modules_and_functions_are_seen_alike() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1, bias=False))
    x = torch.randn(4, 2)
    first, second = seen(model, x)
    assert (first.kind, first.weight, first.bias, first.shape) == (Linear, "0.weight", "0.bias", (4, 3))
    assert (second.weight, second.bias) == ("2.weight", None)
    assert torch.equal(first.input, x) and not first.input.requires_grad
    with Capture({"w": model[0].weight}) as capture:
        F.linear(input=x, weight=model[0].weight)
        torch.nn.functional.linear(x, model[0].weight, bias=None)
    assert [(call.weight, call.bias) for call in capture.calls] == [("w", None)] * 2


def test_every_layer_function_has_a_kind() -> None:
    w, x = watched("w")["w"], torch.randn(3, 3)
    with Capture({"w": w}) as capture:
        F.linear(x, w)
        F.embedding(torch.tensor([0, 2]), w)
        F.conv1d(x[None], w[..., None])
        F.layer_norm(x, (3,), w[0])
    assert [call.kind for call in capture.calls] == [Linear, Embedding]  # a view of a weight is another tensor
    v = watched("v", shape=(3,))["v"]
    with Capture({"v": v}) as capture:
        F.layer_norm(x, (3,), weight=v)
        F.batch_norm(x, torch.zeros(3), torch.ones(3), v)
        F.group_norm(x, 3, bias=v)
    kinds = [(call.kind, call.weight, call.bias) for call in capture.calls]
    assert kinds == [(Norm, "v", None), (Norm, "v", None), (Norm, None, "v")]


def test_what_is_not_watched_or_not_differentiable_is_not_recorded() -> None:
    model = nn.Linear(2, 3)
    assert [(c.weight, c.bias) for c in seen(model.requires_grad_(False), torch.randn(1, 2))] == []
    model.bias.requires_grad_(True)
    with Capture({"b": model.bias}) as capture:
        model(torch.randn(1, 2))
        with torch.no_grad():
            model(torch.randn(1, 2))
    assert [(call.weight, call.bias) for call in capture.calls] == [(None, "b")]


def test_gradients_arrive_at_the_edge_even_through_in_place_operations() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True))
    x = torch.randn(4, 2)
    with Capture(dict(model.named_parameters())) as capture:
        outputs = model(x)
    (gradient,) = torch.autograd.grad(outputs.sum(), [capture.calls[0].edge])
    assert torch.equal(gradient, (model[0](x) > 0).float())


def test_norms_record_their_normalised_input() -> None:
    x = torch.randn(5, 4, dtype=torch.float64)
    for norm in (nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4).eval()):
        norm.double()
        for value in norm.parameters():
            nn.init.normal_(value)
        (call,) = seen(norm, x)
        torch.testing.assert_close(norm(x), call.input * norm.weight + norm.bias)


def test_convolutions_record_their_geometry() -> None:
    x = torch.randn(1, 4, 6, 6)
    (call,) = seen(nn.Conv2d(4, 4, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), groups=2), x)
    assert call.options == ConvolutionGeometry((3, 2), (2, 2), ((1, 1), (0, 0)), (1, 2), 2)
    (call,) = seen(nn.Conv2d(4, 4, (5, 3), padding="same", dilation=(1, 2)), x)
    assert call.options is not None and call.options.padding == ((2, 2), (2, 2))
    (call,) = seen(nn.Conv1d(6, 1, 3, padding="valid"), x[0])
    assert call.options == ConvolutionGeometry((3,), (1,), ((0, 0),), (1,), 1)
    with Capture(watch := {"w": torch.randn(2, 6, 3).requires_grad_()}) as capture:
        F.conv1d(x[0], watch["w"], stride=(2,), padding=(1,))
    assert capture.calls[0].options == ConvolutionGeometry((3,), (2,), ((1, 1),), (1,), 1)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_is_placed_as_the_convolution_places_it(kernel: int, dilation: int) -> None:
    conv = nn.Conv1d(2, 3, kernel, padding="same", dilation=dilation, bias=False).double()
    x = torch.randn(2, 2, 6, dtype=torch.float64)
    (call,) = seen(conv, x)
    assert call.options is not None
    columns = patches(call.input, call.options).squeeze(1)
    torch.testing.assert_close(conv.weight.flatten(1) @ columns, conv(x))


def test_an_option_is_given_once_or_for_each_axis() -> None:
    assert each_axis(2, 3) == (2, 2, 2)
    assert each_axis((2,), 3) == (2, 2, 2)
    assert each_axis((1, 2, 3), 3) == (1, 2, 3)


def test_attention_is_seen_as_the_linear_maps_inside() -> None:
    attention = nn.MultiheadAttention(4, 2)
    x = torch.randn(3, 2, 4)
    with Capture(dict(attention.named_parameters())) as capture:
        inside, _ = attention(x, x, x)
    assert [call.weight for call in capture.calls] == ["in_proj_weight", "out_proj.weight"]
    torch.testing.assert_close(inside, attention(x, x, x)[0])


def test_a_norm_over_the_batch_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="track_running_stats"):
        seen(nn.BatchNorm1d(3, track_running_stats=False).eval(), torch.randn(4, 3))


def test_values_are_traced_back_to_the_node_before_they_were_moved() -> None:
    w, x = watched("w")["w"], torch.randn(4, 3)
    made = F.linear(x, w)
    layer = get_gradient_edge(made).node
    for moved in (made, made.mT, made.unsqueeze(1)[:, 0, :2], made.clone() + 1.0):
        assert origin(moved, {layer: "linear"}) is layer
        assert origin(moved, ()) is layer
    for changed in (torch.tanh(made), made * 2.0, made + made):
        assert origin(changed, (layer,)) is changed.grad_fn
    filled = made.clone()
    filled[:, 0] = 0.0
    assert origin(filled, ()) is filled.grad_fn
    assert origin(x, ()) is None
