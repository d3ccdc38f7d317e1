"""Positive definite operators with their matrices, built independently of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, LowRank, Structured
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose_root

Case = tuple[Structured, Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spectrum(d: int, condition: float) -> Tensor:
    """``d`` numbers from 3 down to ``3 / condition``, evenly on a logarithmic scale."""
    exponents = torch.linspace(0, 1, d, dtype=torch.float64) if d > 1 else torch.zeros(1, dtype=torch.float64)
    return 3 * condition**-exponents


def spd(d: int, condition: float, seed: int = 0) -> Tensor:
    """A random symmetric matrix with the eigenvalues ``spectrum(d, condition)``."""
    vectors = torch.linalg.qr(normal(d, d, seed=seed)).Q
    matrix = vectors @ torch.diag(spectrum(d, condition)) @ vectors.mT
    return (matrix + matrix.mT) / 2


def eye(d: int) -> Tensor:
    return torch.eye(d, dtype=torch.float64)


def shuffled(d: int, seed: int) -> Tensor:
    return spectrum(d, 10.0)[torch.randperm(d, generator=torch.Generator().manual_seed(seed))]


def converted(operator: Structured, change: Callable[[Tensor], Tensor]) -> Structured:
    """The operator rebuilt from its changed tensors, without what it has computed."""

    def visit(value: object) -> object:
        if isinstance(value, Tensor):
            return change(value)
        if isinstance(value, tuple):
            return tuple(visit(item) for item in value)
        if isinstance(value, Eigenbasis):
            return replace(value, values=change(value.values), vectors=change(value.vectors))
        return converted(value, change) if isinstance(value, Structured) else value

    names = [field.name for field in fields(operator) if field.name not in ("copy_of", "partition")]
    return type(operator)(**{name: visit(getattr(operator, name)) for name in names})


def diagonal(condition: float, seed: int) -> Case:
    values = spectrum(6, condition)
    return Diagonal(values), torch.diag(values)


def dense(condition: float, seed: int) -> Case:
    matrix = spd(7, condition, seed)
    return Dense(matrix), matrix


def dense_in_its_eigenbasis(condition: float, seed: int) -> Case:
    matrix = spd(7, condition, seed)
    operator = Dense(matrix)
    operator.eigenvalues()
    return operator.scaled(0.5).shifted(0.25), 0.5 * matrix + 0.25 * eye(7)


def dense_singular_and_shifted(condition: float, seed: int) -> Case:
    root = normal(7, 3, seed=seed)
    return Dense(root @ root.mT).shifted(10 / condition), root @ root.mT + 10 / condition * eye(7)


def dense_and_diagonal(condition: float, seed: int) -> Case:
    matrix, values = spd(7, condition, seed), shuffled(7, seed)
    return Dense(matrix).plus_diagonal(values), matrix + torch.diag(values)


def low_rank(condition: float, seed: int) -> Case:
    root, base = normal(8, 3, seed=seed), spectrum(8, condition)
    return LowRank(root, Diagonal(base)), root @ root.mT + torch.diag(base)


def low_rank_shifted(condition: float, seed: int) -> Case:
    root = normal(8, 3, seed=seed)
    return LowRank(root).scaled(4.0).shifted(10 / condition), 4 * root @ root.mT + 10 / condition * eye(8)


def low_rank_of_high_rank(condition: float, seed: int) -> Case:
    root = normal(4, 6, seed=seed) * spectrum(6, condition).sqrt()
    return LowRank(root).plus_diagonal(torch.ones(4).double()), root @ root.mT + eye(4)


def kronecker(condition: float, seed: int) -> Case:
    left, right = spd(3, condition**0.5, seed), spd(4, condition**0.5, seed + 1)
    return Kronecker(left, right), torch.kron(left, right)


def kronecker_scaled_and_shifted(condition: float, seed: int) -> Case:
    left, right = spd(3, condition, seed), spd(4, condition, seed + 1)
    operator = Kronecker(left, right).shifted(1.0).scaled(2.0).shifted(0.5)
    return operator, 2 * torch.kron(left, right) + 2.5 * eye(12)


def kronecker_singular_and_shifted(condition: float, seed: int) -> Case:
    left, right = normal(3, 1, seed=seed), normal(5, 2, seed=seed + 1)
    left, right = left @ left.mT, right @ right.mT
    return Kronecker(left, right).shifted(10 / condition), torch.kron(left, right) + 10 / condition * eye(15)


def kronecker_in_groups(condition: float, seed: int) -> Case:
    left = torch.stack([spd(2, condition**0.5, seed + group) for group in range(3)])
    right = torch.stack([spd(4, condition**0.5, seed + 9 + group) for group in range(3)])
    return Kronecker(left, right), torch.block_diag(*map(torch.kron, left, right))


def kronecker_with_shared_factor(condition: float, seed: int) -> Case:
    left = spd(4, condition**0.5, seed)
    right = torch.stack([spd(2, condition**0.5, seed + 9 + group) for group in range(3)])
    return Kronecker(left, right).shifted(0.1), torch.block_diag(*(torch.kron(left, r) for r in right)) + 0.1 * eye(24)


def kronecker_of_low_rank(condition: float, seed: int) -> Case:
    left, right = normal(3, 1, seed=seed), normal(7, 2, seed=seed + 1)
    matrix = torch.kron(left @ left.mT, right @ right.mT) + 10 / condition * eye(21)
    return Kronecker(decompose_root(left), decompose_root(right)).shifted(10 / condition), matrix


def kronecker_of_leading_pairs(condition: float, seed: int) -> Case:
    left, basis = torch.stack([spd(2, 9.0, seed), spd(2, 9.0, seed + 1)]), torch.linalg.qr(normal(5, 2, seed=seed)).Q
    values = spectrum(2, condition**0.5)
    right = basis @ values.diag() @ basis.mT + 0.1 * (eye(5) - basis @ basis.mT)
    matrix = torch.block_diag(*(torch.kron(each, right) for each in left))
    return Kronecker(left, Eigenbasis(values, basis, 0.1)), matrix


def kronecker_with_diagonal_right(condition: float, seed: int) -> Case:
    left, right = spd(3, condition**0.5, seed), spectrum(5, condition**0.5)
    return Kronecker(left, right), torch.kron(left, torch.diag(right))


def kronecker_with_diagonal_left(condition: float, seed: int) -> Case:
    left, right = spectrum(5, condition**0.5), torch.stack([spd(3, condition**0.5, seed + g) for g in (0, 1)])
    return Kronecker(left, right), torch.block_diag(*(torch.kron(torch.diag(left), r) for r in right))


def kronecker_with_corrected_eigenvalues(condition: float, seed: int) -> Case:
    left, right = spd(3, 9.0, seed), torch.stack([spd(4, 9.0, seed + 1), spd(4, 9.0, seed + 2)])
    values = spectrum(24, condition)[torch.randperm(24, generator=torch.Generator().manual_seed(seed))].view(2, 3, 4)
    q = torch.linalg.eigh(left).eigenvectors
    turns = [torch.kron(q, torch.linalg.eigh(each).eigenvectors) for each in right]
    blocks = [turn @ own.flatten().diag() @ turn.mT for turn, own in zip(turns, values, strict=True)]
    return Kronecker(left, right, corrected=values), torch.block_diag(*blocks)


def blocks_in_a_row(condition: float, seed: int) -> Case:
    first, second = kronecker(condition, seed), diagonal(condition, seed)
    return BlockDiagonal((first[0], second[0])), torch.block_diag(first[1], second[1])


def blocks_interleaved(condition: float, seed: int) -> Case:
    parts = [kronecker(condition, seed), low_rank(condition, seed), dense(condition, seed)]
    sizes = [len(matrix) for _, matrix in parts]
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed))
    matrix = torch.empty(sum(sizes), sum(sizes), dtype=torch.float64)
    matrix[order[:, None], order] = torch.block_diag(*(matrix for _, matrix in parts))
    return BlockDiagonal(tuple(operator for operator, _ in parts), order.split(sizes)), matrix


CASES: dict[str, Callable[[float, int], Case]] = {
    case.__name__: case
    for case in (
        diagonal,
        dense,
        dense_in_its_eigenbasis,
        dense_singular_and_shifted,
        dense_and_diagonal,
        low_rank,
        low_rank_shifted,
        low_rank_of_high_rank,
        kronecker,
        kronecker_scaled_and_shifted,
        kronecker_singular_and_shifted,
        kronecker_in_groups,
        kronecker_with_shared_factor,
        kronecker_of_low_rank,
        kronecker_of_leading_pairs,
        kronecker_with_diagonal_right,
        kronecker_with_diagonal_left,
        kronecker_with_corrected_eigenvalues,
        blocks_in_a_row,
        blocks_interleaved,
    )
}
