"""Layout: names and shapes on one side, flat vectors on the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lapwing.ground.errors import DataError, ShapeError
from lapwing.ground.layout import Layout


@pytest.fixture
def params() -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Linear(4, 2)).double()
    return {"scale": torch.randn((), dtype=torch.float64), **dict(net.named_parameters())}


def test_sizes_and_slices_cover_the_vector(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    assert layout.size == sum(value.numel() for value in params.values())
    covered = torch.cat([torch.arange(layout.size)[layout.slices[name]] for name in params])
    assert torch.equal(covered, torch.arange(layout.size))


def test_flatten_then_unflatten_is_the_identity(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    vector = layout.flatten(params)
    assert torch.equal(vector, nn.utils.parameters_to_vector(list(params.values())))
    back = layout.unflatten(vector)
    assert list(back) == list(params)
    assert all(torch.equal(back[name], params[name]) for name in params)


def test_flatten_does_not_depend_on_the_order_of_the_dict(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    shuffled = {name: params[name] for name in reversed(params)}
    assert torch.equal(layout.flatten(shuffled), layout.flatten(params))


def test_flatten_is_differentiable(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    layout.flatten(params).square().sum().backward()
    weight = params["2.weight"]
    torch.testing.assert_close(weight.grad, 2 * weight.detach())


def test_unflatten_gives_views_of_the_vector(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    vector = torch.zeros(layout.size)
    layout.unflatten(vector)["1.bias"].fill_(1.0)
    assert float(vector.sum()) == 3.0


def test_a_block_holds_one_vector_a_column(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    block = torch.randn(layout.size, 4)
    columns = layout.unflatten(block)
    for j in range(4):
        for name, value in layout.unflatten(block[:, j]).items():
            assert torch.equal(columns[name][..., j], value)


def test_layers_group_by_owner_in_order_of_appearance(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    expected = (("scale",), ("0.weight", "0.bias"), ("1.weight", "1.bias"), ("2.weight", "2.bias"))
    assert layout.layers == expected
    assert layout.layer_index.tolist() == [0] + [1] * 27 + [2] * 6 + [3] * 10


def test_layers_with_a_bare_name_like_a_module_stay_apart() -> None:
    layout = Layout.of({"a": torch.zeros(1), "b.w": torch.zeros(2), "a.w": torch.zeros(3), "b.v": torch.zeros(4)})
    assert layout.layers == (("a",), ("b.w", "b.v"), ("a.w",))
    assert layout.layer_index.tolist() == [0, 1, 1, 2, 2, 2, 1, 1, 1, 1]


def test_layouts_compare_and_hash_by_names_and_shapes(params: dict[str, Tensor]) -> None:
    layout, same = Layout.of(params), Layout.of({name: value * 0 for name, value in params.items()})
    assert layout.size == same.size
    assert layout == same and hash(layout) == hash(same)
    assert layout != Layout.of({"scale": params["scale"]})


def test_works_inside_vmap(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    samples = torch.randn(3, layout.size)
    out = torch.vmap(lambda v: layout.flatten(layout.unflatten(v)))(samples)
    assert torch.equal(out, samples)


def test_bad_input_is_named(params: dict[str, Tensor]) -> None:
    layout = Layout.of(params)
    with pytest.raises(DataError, match="at least one parameter"):
        Layout.of({})
    with pytest.raises(ShapeError, match=r"\[44\] or a block \[44, k\]\. Got shape \[43\]"):
        layout.unflatten(torch.zeros(43))
