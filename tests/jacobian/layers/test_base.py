"""Each kind of layer factor answers the three questions as its explicit Jacobian does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lapwing.jacobian.layers.base import NUMBERS, ROWS, Explicit, Factor, contracted, row_products
from lapwing.jacobian.layers.convolution import Convolution, ConvolutionGeometry, with_zeros_between
from lapwing.jacobian.layers.embedding import Embedding
from lapwing.jacobian.layers.linear import Linear, OuterProducts
from lapwing.jacobian.layers.moments import sum_of_groups
from lapwing.jacobian.layers.norm import Norm
from lapwing.jacobian.layers.tied_embedding import TiedEmbedding
from lapwing.jacobian.layers.transposed_convolution import TransposedConvolution
from tests.curvature import naive
from tests.meter import Meter

N, K = 3, 4


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def linear(positions: int, groups: int = 1) -> tuple[OuterProducts, Tensor]:
    a, g = normal(N, groups, 5, positions), normal(N, K, groups, 2, positions)
    return Linear("w", "b", g, a), naive_outer(a, g)


def convolution() -> tuple[OuterProducts, Tensor]:
    image, options = normal(N, 4, 3, 3), ConvolutionGeometry((2, 2), (1, 1), ((1, 0), (0, 0)), (1, 1), 2)
    columns = naive.patches(image, options)
    g = normal(N, K, 2, 3, columns.shape[-1])
    return Convolution("w", "b", g, image, options), naive_outer(columns, g)


def transposed() -> tuple[OuterProducts, Tensor]:
    image = normal(N, 4, 2, 2)
    geometry = ConvolutionGeometry((2, 2), (1, 1), ((1, 1), (0, 1)), (1, 1), 2, spacing=(2, 1))
    g = normal(N, K, 2, 3, 4 * 2)
    windows = naive.patches(with_zeros_between(image, (2, 1)), geometry)
    rows = naive_outer(windows, g)
    weight = rows[..., :-6].view(N, K, 2, 3, 2, 4).flip(-1).transpose(3, 4)
    return TransposedConvolution("w", "b", g, image, geometry), torch.cat([weight.flatten(2), rows[..., -6:]], -1)


def naive_outer(a: Tensor, g: Tensor) -> Tensor:
    """``sum_t g_t a_tᵀ`` then ``sum_t g_t``, by explicit loops."""
    n, k, p, o, t = g.shape
    weight = torch.zeros(n, k, p, o, a.shape[2], dtype=torch.float64)
    for example in range(n):
        for direction in range(k):
            for group in range(p):
                for position in range(t):
                    weight[example, direction, group] += torch.outer(
                        g[example, direction, group, :, position], a[example, group, :, position]
                    )
    return torch.cat([weight.flatten(2), g.sum(-1).flatten(2)], dim=-1)


def part(
    build: Callable[[], tuple[OuterProducts, Tensor]], weight: str | None, bias: str | None
) -> tuple[OuterProducts, Tensor]:
    factor, rows = build()
    biases = factor.g.shape[2] * factor.g.shape[3]
    kept = (rows[..., :-biases] if weight else rows[..., :0], rows[..., -biases:] if bias else rows[..., :0])
    return replace(factor, weight=weight, bias=bias), torch.cat(kept, dim=-1)


def lookup() -> tuple[Embedding, Tensor]:
    index, g = torch.tensor([[1, 3, 1], [0, 3, 2], [3, 3, 3]]), normal(N, K, 3, 2)
    rows = torch.zeros(N, K, 5, 2, dtype=torch.float64)
    for example in range(N):
        for position in range(3):
            rows[example, :, index[example, position]] += g[example, :, position]
    return Embedding("w", None, g, (5, 2), index), rows.flatten(2)


def padded_lookup() -> tuple[Embedding, Tensor]:
    factor, rows = lookup()
    table = rows.view(N, K, 5, 2).clone()
    table[:, :, 3] = 0.0
    return replace(factor, padding=3), table.flatten(2)


def tied() -> tuple[TiedEmbedding, Tensor]:
    table, rows = lookup()
    h, a = normal(N, K, 1, 5, 3), normal(N, 1, 2, 3)
    products = naive_outer(a, h)[..., : 5 * 2]
    return TiedEmbedding("w", None, table.g, table.index, h, a), rows + products


def explicit() -> tuple[Explicit, Tensor]:
    values = normal(N, K, 6)
    return Explicit("w", "b", values), values


FACTORS: dict[str, Callable[[], tuple[Factor, Tensor]]] = {
    "linear": lambda: linear(1),
    "linear-groups": lambda: linear(1, 2),
    "linear-positions": lambda: linear(3),
    "linear-many-positions": lambda: linear(20),
    "linear-weight": lambda: part(lambda: linear(1), "w", None),
    "linear-bias": lambda: part(lambda: linear(1), None, "b"),
    "positions-weight": lambda: part(lambda: linear(3), "w", None),
    "positions-bias": lambda: part(lambda: linear(3), None, "b"),
    "convolution": convolution,
    "convolution-weight": lambda: part(convolution, "w", None),
    "transposed": transposed,
    "transposed-weight": lambda: part(transposed, "w", None),
    "transposed-bias": lambda: part(transposed, None, "b"),
    "convolution-bias": lambda: part(convolution, None, "b"),
    "lookup": lookup,
    "padded-lookup": padded_lookup,
    "tied-lookup": tied,
    "rows": explicit,
}


@pytest.mark.parametrize("name", FACTORS)
def test_rows_are_the_explicit_jacobian(name: str) -> None:
    factor, rows = FACTORS[name]()
    assert factor.rows().shape == rows.shape
    torch.testing.assert_close(factor.rows(), rows)


@pytest.mark.parametrize("name", FACTORS)
def test_square_sum_is_that_of_the_columns(name: str) -> None:
    factor, rows = FACTORS[name]()
    torch.testing.assert_close(factor.square_sum(), rows.square().sum((0, 1)))


@pytest.mark.parametrize("name", FACTORS)
def test_covariance_is_that_of_independent_weights(name: str) -> None:
    factor, rows = FACTORS[name]()
    variance = torch.rand(rows.shape[-1], dtype=torch.float64) + 0.1
    variance[0] = 0.0
    torch.testing.assert_close(factor.covariance(variance), rows @ torch.diag(variance) @ rows.mT)


@pytest.mark.parametrize("name", [name for name in FACTORS if "lookup" not in name and name != "rows"])
def test_weights_become_matrices_and_back(name: str) -> None:
    factor, rows = FACTORS[name]()
    assert isinstance(factor, OuterProducts)
    flat = torch.arange(rows.shape[-1], dtype=torch.float64)
    assert torch.equal(factor.flat(factor.matrix(flat)), flat)


def test_names_are_those_of_what_is_uncertain() -> None:
    factor, _ = linear(1)
    assert factor.names == ("w", "b")
    assert replace(factor, weight=None).names == ("b",) and replace(factor, bias=None).names == ("w",)
    assert lookup()[0].names == ("w",)


def outer(k: int, t: int, *, p: int = 1, i: int = 5, bias: bool = True, weight: bool = True) -> Linear:
    a = torch.randn(3, p, i, t, dtype=torch.float64)
    g = torch.randn(3, k, p, 2, t, dtype=torch.float64)
    return Linear("w" if weight else None, "b" if bias else None, g, a)


def embedding() -> Embedding:
    index = torch.tensor([[0, 1, 1], [2, 3, 0], [1, 2, 2]])
    return Embedding("w", None, torch.randn(3, 5, 3, 2, dtype=torch.float64), (4, 2), index, padding=2)


def tied_embedding(k: int, t: int) -> TiedEmbedding:
    index = torch.tensor([[0, 1, 1], [2, 3, 0], [1, 2, 2]])
    g, h, a = normal(3, k, 3, 5), normal(3, k, 1, 4, t), normal(3, 1, 5, t)
    return TiedEmbedding("w", None, g, index, h, a, padding=2)


FORMS: dict[str, tuple[Factor, type]] = {
    "one position": (outer(4, 1), Linear),
    "few positions": (outer(6, 2), Linear),
    "one position, no bias": (outer(4, 1, bias=False), Linear),
    "many positions": (outer(3, 7), Explicit),
    "many positions, no bias": (outer(3, 7, bias=False), Explicit),
    "a bias alone": (outer(3, 2, weight=False), Explicit),
    "groups": (outer(6, 1, p=3), Explicit),
    "norm": (Explicit("w", "b", torch.randn(3, 2, 8, dtype=torch.float64)), Explicit),
    "norm of a layer": (Norm("w", "b", torch.randn(3, 2, 8, dtype=torch.float64)), Norm),
    "embedding": (embedding(), Embedding),
    "tied": (tied_embedding(5, 2), TiedEmbedding),
    "tied, many positions": (tied_embedding(3, 7), Explicit),
}


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("count", [3, 6])
def test_rows_are_contracted_a_few_blocks_and_columns_at_a_time(own: bool, count: int) -> None:
    """Under fewer variances than a block has rows, and under more."""
    rows = normal(5, 4, 701)
    variances = torch.rand(*([5] if own else []), count, 701, dtype=torch.float64)
    expected = torch.einsum("nkd,nmd,nld->mnkl", rows, variances.expand(5, count, 701), rows)
    for numbers in (1, 2 * 10 * 512, NUMBERS):
        torch.testing.assert_close(contracted(rows, variances, numbers), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["many positions", "groups", "norm", "embedding", "tied"])
def test_rows_of_a_few_examples_at_a_time_have_the_products_of_all(name: str) -> None:
    factor, _ = FORMS[name]
    rows = factor.rows().flatten(0, 1)
    variance = torch.rand(rows.shape[1], dtype=torch.float64)
    few = factor.taken(slice(0, 2))
    expected = (rows * variance) @ few.rows().flatten(0, 1).mT
    torch.testing.assert_close(row_products(factor, few, variance, max_bytes=1), expected)
    torch.testing.assert_close(row_products(factor, factor, variance, max_bytes=1), (rows * variance) @ rows.mT)
    most: list[int] = []
    for max_bytes in (1, ROWS):
        with Meter() as meter:
            row_products(factor, factor, variance, max_bytes=max_bytes)
        most.append(meter.most)
    assert most[0] < most[1]


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", FORMS)
def test_products_equal_those_of_the_rows(name: str, columns: int) -> None:
    factor, kind = FORMS[name]
    part, rows = factor.for_products(), factor.rows()
    assert isinstance(part, kind) and part.names == factor.names
    block = torch.randn(rows.shape[2], columns, dtype=torch.float64)
    cotangents = torch.randn(*rows.shape[:2], columns, dtype=torch.float64)
    torch.testing.assert_close(part.push(block), rows @ block)
    torch.testing.assert_close(part.pull(cotangents), torch.einsum("nkd,nkc->dc", rows, cotangents))


@pytest.mark.parametrize("name", ["one position", "few positions", "many positions", "norm"])
def test_what_a_column_costs_is_what_was_counted(name: str) -> None:
    factor = FORMS[name][0]
    part, rows, columns = factor.for_products(), factor.rows(), 3
    counted = factor.cost(rows.shape[1])
    with FlopCounterMode(display=False) as counter:
        part.push(torch.randn(rows.shape[2], columns, dtype=torch.float64))
    multiplications = columns * len(rows) * (counted.rows if isinstance(part, Explicit | Norm) else counted.factors)
    assert counter.get_total_flops() == 2 * multiplications


@pytest.mark.parametrize("name", FORMS)
def test_what_is_held_is_what_was_counted(name: str) -> None:
    factor = FORMS[name][0]
    k = factor.g.shape[1]
    counted = factor.cost(k)
    held = sum(tensor.numel() for tensor in factor.for_products().tensors.values())
    slack = 60 if isinstance(factor, Embedding | TiedEmbedding) else 0  # a padding row is not held, an index is short
    assert held <= 3 * counted.held <= held + slack
    assert (counted.rows > 0) == isinstance(factor.for_products(), Explicit | Norm)


@pytest.mark.parametrize("shape", [(3, 2, 2, 5), (3, 2, 5, 2), (1, 1, 4, 4)], ids=["wide", "tall", "square"])
def test_outer_products_add_up_over_examples_and_positions(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(sum_of_groups(x), torch.einsum("npit,npjt->pij", x, x))
