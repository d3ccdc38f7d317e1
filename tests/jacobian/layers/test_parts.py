"""Products with each layer's Jacobian, from rows and from factors, against its explicit rows; and what they take."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lapwing.jacobian.layers.columns import DenseColumns
from lapwing.jacobian.layers.factors import Factor, Lookup, Outer, Rows
from lapwing.jacobian.layers.parts import Explicit, Factored, Looked, count, part_of


def outer(k: int, t: int, *, p: int = 1, i: int = 5, bias: bool = True, weight: bool = True) -> Outer:
    a = DenseColumns(torch.randn(3, p, i, t, dtype=torch.float64))
    g = torch.randn(3, k, p, 2, t, dtype=torch.float64)
    return Outer("w" if weight else None, "b" if bias else None, a, g)


def lookup() -> Lookup:
    index = torch.tensor([[0, 1, 1], [2, 3, 0], [1, 2, 2]])
    return Lookup("w", (4, 2), index, torch.randn(3, 5, 3, 2, dtype=torch.float64), padding=2)


FACTORS: dict[str, tuple[Factor, type]] = {
    "one position": (outer(4, 1), Factored),
    "few positions": (outer(6, 2), Factored),
    "one position, no bias": (outer(4, 1, bias=False), Factored),
    "many positions": (outer(3, 7), Explicit),
    "many positions, no bias": (outer(3, 7, bias=False), Explicit),
    "a bias alone": (outer(3, 2, weight=False), Explicit),
    "groups": (outer(6, 1, p=3), Explicit),
    "norm": (Rows(("w", "b"), torch.randn(3, 2, 8, dtype=torch.float64)), Explicit),
    "embedding": (lookup(), Looked),
}


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", FACTORS)
def test_products_equal_those_of_the_rows(name: str, columns: int) -> None:
    factor, kind = FACTORS[name]
    part, rows = part_of(factor), factor.rows()
    assert isinstance(part, kind) and part.names == factor.names
    block = torch.randn(rows.shape[2], columns, dtype=torch.float64)
    cotangents = torch.randn(*rows.shape[:2], columns, dtype=torch.float64)
    torch.testing.assert_close(part.push(block), rows @ block)
    torch.testing.assert_close(part.pull(cotangents), torch.einsum("nkd,nkc->dc", rows, cotangents))


@pytest.mark.parametrize("name", ["one position", "few positions", "many positions", "norm"])
def test_what_a_column_costs_is_what_was_counted(name: str) -> None:
    factor = FACTORS[name][0]
    part, rows, columns = part_of(factor), factor.rows(), 3
    counted = count(factor, rows.shape[1])
    with FlopCounterMode(display=False) as counter:
        part.push(torch.randn(rows.shape[2], columns, dtype=torch.float64))
    multiplications = columns * len(rows) * (counted.rows if isinstance(part, Explicit) else counted.factors)
    assert counter.get_total_flops() == 2 * multiplications


@pytest.mark.parametrize("name", FACTORS)
def test_what_is_held_is_what_was_counted(name: str) -> None:
    factor = FACTORS[name][0]
    k = factor.values.shape[1] if isinstance(factor, Rows) else factor.g.shape[1]
    counted = count(factor, k)
    held = sum(tensor.numel() for tensor in part_of(factor).held)
    slack = 60 if isinstance(factor, Lookup) else 0  # a padding row is not held
    assert held <= 3 * counted.held <= held + slack
    assert (counted.rows > 0) == isinstance(part_of(factor), Explicit)
