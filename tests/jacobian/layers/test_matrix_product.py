"""Products with a matrix of rows of inputs: products of the factor, and what is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lapwing.jacobian.layers.base import Explicit
from lapwing.jacobian.layers.matrix_product import MatrixProduct
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers


@pytest.mark.parametrize("bias", ["b", None])
@pytest.mark.parametrize("t", [1, 2, 40])
def test_products_are_those_of_the_rows(generator: torch.Generator, bias: str | None, t: int) -> None:
    g = torch.randn(3, 4, 1, 5, t, generator=generator, dtype=torch.float64)
    a = torch.randn(3, 1, 30, t, generator=generator, dtype=torch.float64)
    factor = MatrixProduct("w", bias, g, a)
    rows = factor.rows()
    ready = factor.for_products()
    assert isinstance(ready, Explicit) == (t == 40)
    block = torch.randn(rows.shape[2], 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(ready.push(block), rows @ block, rtol=1e-12, atol=1e-12)
    back = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    expected = torch.einsum("nkd,nkc->dc", rows, back)
    torch.testing.assert_close(ready.pull(back), expected, rtol=1e-12, atol=1e-12)


class Odd(nn.Module):
    """Products of rows that are no layers of examples.

    Args:
        how: Which.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(3, 2))
        self.bias = nn.Parameter(torch.randn(1))
        self.inner = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "scaled":
            return torch.addmm(self.bias.expand(2), x, self.weight, beta=0.5, alpha=2.0)
        if self.how == "one bias for all outputs":
            return torch.addmm(self.bias, x, self.weight)
        if self.how == "no axis of examples":
            return x @ torch.mm(self.inner, self.weight)
        positions_first = x.view(-1, 1, 3).expand(-1, 2, -1).transpose(0, 1).reshape(-1, 3)
        return positions_first.mm(self.weight).view(2, -1, 2).prod(0)


HOW = {
    "scaled": {"weight", "bias"},
    "one bias for all outputs": {"bias"},
    "no axis of examples": {"weight", "inner"},
    "positions first": {"weight"},
}


@pytest.mark.parametrize("how", HOW)
def test_what_is_no_layer_of_examples_is_left_to_automatic_differentiation(how: str) -> None:
    model = Odd(how).double()
    for name, value in model.named_parameters():
        value.requires_grad_(name in HOW[how] | {"weight"})
    survey = find_layers(Network.of(model), torch.randn(4, 3, dtype=torch.float64))
    assert set(survey.without_factors) == HOW[how]
