"""Every structured operator obeys the laws of its matrix, up to condition numbers of 1e8."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.linalg import Kronecker, Structured
from tests.linalg.cases import CASES, converted, normal, spectrum
from tests.operators import check_adjoint, check_matches_dense, check_structured

EPS = torch.finfo(torch.float64).eps
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
every_seed = pytest.mark.parametrize("seed", [0, 1])


@every_case
@every_seed
@pytest.mark.parametrize("condition", [10.0, 1e4, 1e8])
def test_structured(case, condition: float, seed: int) -> None:
    operator, matrix = case(condition, seed)
    generator = torch.Generator().manual_seed(seed)
    check_matches_dense(operator, matrix, tolerance=100 * EPS, generator=generator)
    check_structured(operator, tolerance=300 * EPS * condition, generator=generator)


@every_case
@every_seed
def test_scaled_shifted_and_summed_copies(case, seed: int) -> None:
    operator, matrix = case(1e4, seed)
    identity = torch.eye(len(matrix), dtype=torch.float64)
    operator.logdet()  # a copy must not depend on what was computed before
    copies: list[tuple[Structured, Tensor]] = [
        (operator.scaled(0.3), 0.3 * matrix),
        (operator.shifted(0.2), matrix + 0.2 * identity),
        (operator.scaled(2.0).shifted(0.2).scaled(0.5), matrix + 0.1 * identity),
        (operator.shifted(0.2).shifted(-0.2), matrix),
        (operator.plus_diagonal(0.2 * identity.diagonal()), matrix + 0.2 * identity),
    ]
    for copy, expected in copies:
        check_matches_dense(copy, expected, tolerance=1e-13)
        check_structured(copy, tolerance=1e-9)


@every_case
def test_inverse_root_has_the_covariance_of_the_inverse(case) -> None:
    operator, matrix = case(10.0, 0)
    covariance = operator.inverse_root().dense() @ operator.inverse_root().T.dense()
    torch.testing.assert_close(covariance, torch.linalg.inv(matrix), rtol=1e-11, atol=1e-11)


@every_case
def test_roots_are_not_the_operator_itself(case) -> None:
    operator, _ = case(10.0, 0)
    v = normal(operator.shape[0], 2)
    assert not torch.allclose(operator.root().T @ v, operator @ v)


@every_case
def test_columns_of_a_block_are_independent(case) -> None:
    operator, _ = case(10.0, 0)
    block = normal(operator.shape[0], 5)
    for product in (operator.__matmul__, operator.solve, operator.root().T.__matmul__):
        together = product(block)
        torch.testing.assert_close(together[:, 3], product(block[:, 3]), rtol=1e-12, atol=1e-12)
        assert product(block[:, :0]).shape == (len(together), 0)


@every_case
def test_questions_in_any_order_have_the_same_answers(case) -> None:
    first, _ = case(1e4, 0)
    second, _ = case(1e4, 0)
    noise = normal(first.root().shape[1], 1)
    second.eigenvalues()
    second.logdet()
    torch.testing.assert_close(first.root() @ noise, second.root() @ noise, rtol=0, atol=0)
    torch.testing.assert_close(first.logdet(), second.logdet(), rtol=1e-10, atol=1e-10)


@every_case
def test_float32_in_float32_out_float64_between(case) -> None:
    operator, matrix = case(1e4, 0)
    single = converted(operator, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)
    check_adjoint(single, tolerance=1e-6)
    v = normal(len(matrix), 2).float()
    for answer in (single @ v, single.solve(v), single.root().T @ v, single.inverse_root().T @ v):
        assert answer.dtype == torch.float32
    assert single.diagonal().dtype == torch.float32
    assert {single.logdet().dtype, single.trace().dtype, single.eigenvalues().dtype} == {torch.float64}
    exact = torch.linalg.solve(single.dense().double(), v.double())  # the float32 matrix, solved in float64
    assert (single.solve(v) - exact).norm() < 1e-2 * exact.norm()
    torch.testing.assert_close(single.logdet(), operator.logdet(), rtol=0, atol=0.05)


@every_case
def test_gradients_reach_scale_and_shift(case) -> None:
    operator, matrix = case(10.0, 0)
    b = normal(len(matrix), 2)

    def answers(scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        copy = operator.scaled(scale).shifted(shift)
        return (
            copy.logdet(),
            copy.trace(),
            copy.solve(b),
            copy @ b,
            copy.root().T @ b,
            copy.inverse_root().T @ b,
        )

    point = (torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64))
    assert torch.autograd.gradcheck(answers, tuple(x.requires_grad_() for x in point))


def test_a_kronecker_product_is_never_written_out() -> None:
    o, i = 200, 300
    operator = Kronecker(torch.diag(spectrum(o, 1e3)), torch.diag(spectrum(i, 1e3))).shifted(1e-3)
    v = normal(o * i, 2)
    torch.testing.assert_close(operator.solve(operator @ v), v, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(operator.root() @ (operator.root().T @ v), operator @ v)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_case
def test_structured_on_cuda(case) -> None:
    operator, _ = case(1e4, 0)
    moved = converted(operator, lambda tensor: tensor.cuda())
    assert moved.solve(normal(operator.shape[0], 2).cuda()).is_cuda
    check_structured(moved, tolerance=1e-9)
