"""Products whose sums are in float64: as precise as their operands, and of every digit they have."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.precision import without_tf32
from lapwing.linalg.products import add_outer, add_product, mirror, outer_sum, product

KINDS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def operands(generator: torch.Generator, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    left = torch.randn(3, 7, generator=generator, dtype=torch.float64).to(dtype)
    return left, torch.randn(7, 4, generator=generator, dtype=torch.float64).to(dtype)


@KINDS
def test_products_are_given_in_float64(generator: torch.Generator, dtype: torch.dtype) -> None:
    left, right = operands(generator, dtype)
    expected = left.double() @ right.double()
    rounding = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(product(left, right), expected, rtol=rounding, atol=rounding)
    torch.testing.assert_close(outer_sum(left), left.double() @ left.double().mT, rtol=rounding, atol=rounding)
    total = torch.ones(3, 4, dtype=torch.float64)
    add_product(total, left, right)
    torch.testing.assert_close(total, 1.0 + expected, rtol=rounding, atol=rounding)


@KINDS
def test_a_triangle_is_added_to_and_mirrored(generator: torch.Generator, dtype: torch.dtype) -> None:
    """Tile by tile, of which the last is narrower."""
    _, columns = operands(generator, dtype)
    before = torch.randn(7, 7, generator=generator, dtype=torch.float64)
    before = before + before.mT
    total = before.clone()
    for _ in range(2):
        add_outer(total, columns, tile=3)
    mirror(total, tile=3)
    expected = before + 2.0 * columns.double() @ columns.double().mT
    rounding = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(total, expected, rtol=rounding, atol=rounding)


def test_sums_of_products_in_float32_do_not_round_as_float32_does() -> None:
    total = torch.zeros(1, 1, dtype=torch.float64)
    for value in (1e4, 1e-2):
        add_product(total, torch.tensor([[value]]), torch.tensor([[1.0]]))
    assert float(total) == pytest.approx(10000.01, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("choice", ["highest", "high"])
def test_the_users_choice_of_fewer_digits_is_put_aside_and_back(choice: str) -> None:
    def inside() -> str:
        backend: object = torch.backends.cuda.matmul
        return getattr(backend, "fp32_precision", "ieee")  # before PyTorch 2.9 there is none

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(choice)
        with without_tf32():
            assert inside() == "ieee"
        assert torch.get_float32_matmul_precision() == choice
        with pytest.raises(ZeroDivisionError), without_tf32():
            _ = 1 / 0
        assert torch.get_float32_matmul_precision() == choice
    finally:
        torch.set_float32_matmul_precision(before)
