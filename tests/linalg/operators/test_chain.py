"""Chains of blocks against matrices written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import NumericalError, ShapeError
from lapwing.linalg import Dense, KroneckerChain
from lapwing.linalg.operators.chain import Link
from tests.linalg.cases import normal
from tests.operators import check_structured
from tests.posterior_cases import chained, refused

SIDES = ((2, 3), (1, 4), (3, 2), (2, 2))
"""Rows of the left and of the right factor of each block."""


def products() -> tuple[list[Tensor], list[Tensor]]:
    """Gram matrices of what all blocks have in common, left and right."""
    lefts = list(normal(2, sum(o for o, _ in SIDES)).split([o for o, _ in SIDES], 1))
    rights = list(normal(3, sum(i for _, i in SIDES), seed=1).split([i for _, i in SIDES], 1))
    return lefts, rights


def chain(untied: int | None = None) -> KroneckerChain:
    """Four blocks whose coordinates are mixed, of which two neighbours may be untied."""
    lefts, rights = products()
    pairs = [(left.mT @ left, right.mT @ right) for left, right in zip(lefts, rights, strict=True)]
    blocks = tuple(Dense(torch.kron(*pair)) for pair in pairs)
    links: list[Link | None] = []
    for i in range(3):
        tie = Link(lefts[i].mT @ lefts[i + 1], rights[i].mT @ rights[i + 1])
        links.append(None if i == untied else tie)
    order = torch.randperm(sum(o * i for o, i in SIDES), generator=torch.Generator().manual_seed(2))
    return KroneckerChain(blocks, tuple(links), order.split([o * i for o, i in SIDES]))


def whole(operator: KroneckerChain) -> Tensor:
    """All blocks, those of neighbours further away too, which are Kronecker products of the same kind."""
    lefts, rights = products()
    rows = [
        torch.cat([torch.kron(a.mT @ b, c.mT @ d) for b, d in zip(lefts, rights, strict=True)], 1)
        for a, c in zip(lefts, rights, strict=True)
    ]
    matrix = torch.empty(operator.shape, dtype=torch.float64)
    order = torch.cat(operator.index)
    matrix[order[:, None], order] = torch.cat(rows)
    return matrix


def test_a_chain_has_the_blocks_on_and_beside_the_diagonal_and_an_inverse_that_ends_there() -> None:
    operator = chain().scaled(0.7).shifted(0.3)
    matrix = 0.7 * whole(chain()) + 0.3 * torch.eye(20, dtype=torch.float64)
    torch.testing.assert_close(operator.dense(), chained(matrix, chain().index))
    one, other = chain().index[0], chain().index[2]
    assert torch.linalg.inv(operator.dense())[one[:, None], other].abs().max() < 1e-12


@pytest.mark.parametrize("untied", [None, 1])
def test_a_chain_answers_what_its_matrix_does(untied: int | None, generator: torch.Generator) -> None:
    added = torch.linspace(0.5, 2.0, 20, dtype=torch.float64)
    check_structured(chain(untied).shifted(0.3).plus_diagonal(added), generator=generator)


def test_of_a_singular_chain_there_are_products_and_a_root() -> None:
    operator = chain()
    dense = operator.dense()
    torch.testing.assert_close(operator.diagonal(), dense.diagonal())
    root = operator.root().dense()
    torch.testing.assert_close(root @ root.mT, dense)
    limit = operator.shifted(1e-9).dense()
    torch.testing.assert_close(dense, limit, rtol=1e-5, atol=1e-5)
    with refused(NumericalError, "a chain that is singular up to rounding"):
        operator.logdet()


def test_the_log_determinant_is_differentiable_in_what_is_added() -> None:
    added = torch.linspace(0.5, 2.0, 20, dtype=torch.float64, requires_grad=True)
    operator = chain().plus_diagonal(added)
    (gradient,) = torch.autograd.grad(operator.logdet(), added)
    torch.testing.assert_close(gradient, torch.linalg.inv(operator.dense().detach()).diagonal())


def test_links_must_fit() -> None:
    operator = chain()
    with refused(ShapeError, "3 links"):
        KroneckerChain(operator.blocks, operator.links[:2], operator.index)
    wrong = (operator.links[1], *operator.links[1:])
    with refused(ShapeError, "a link of shape [6, 4]. Got [4, 6]"):
        KroneckerChain(operator.blocks, wrong, operator.index)
