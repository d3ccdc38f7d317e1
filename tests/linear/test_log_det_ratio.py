"""``log det Λ / det A`` as a function of prior precisions and noise, against dense matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import NumericalError, UnsupportedError
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, LowRank, Structured
from lapwing.linear.log_det_ratio import (
    Determinant,
    Spectrum,
    complexity_of,
    complexity_of_compression,
    log_det_one_plus,
    thin_factor,
)
from tests.linalg.cases import spd
from tests.posterior_cases import normal, refused

D = 6
GROUP = torch.tensor([0, 0, 1, 1, 1, 0])
ALPHA, SCALE = torch.tensor([0.3, 2.0], dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64)
BLOCKS = (torch.tensor([0, 1, 5]), torch.tensor([2, 3, 4]))


def whole(*parts: Structured) -> BlockDiagonal:
    return BlockDiagonal(parts, BLOCKS)


CURVATURES: dict[str, tuple[Structured, type]] = {
    "diagonal": (Diagonal(normal(D).abs()), Spectrum),
    "dense": (Dense(spd(D, 100.0)), Determinant),
    "low rank": (LowRank(normal(D, 2), Diagonal(torch.ones(D, dtype=torch.float64))), Determinant),
    "a group a block": (whole(Dense(spd(3, 9.0)), Kronecker(spd(3, 9.0), spd(1, 1.0))), Spectrum),
    "two groups in a block": (BlockDiagonal((Dense(spd(4, 9.0)), Diagonal(normal(2).abs())), None), Determinant),
    "blocks that mix groups": (
        BlockDiagonal((Dense(spd(2, 9.0)), Dense(spd(4, 9.0))), (torch.tensor([1, 2]), torch.tensor([0, 3, 4, 5]))),
        Determinant,
    ),
}
every_curvature = pytest.mark.parametrize("name", CURVATURES)


def dense_ratio(curvature: Tensor, alpha: Tensor, scale: Tensor) -> Tensor:
    """``log det Λ / det A``."""
    prior = torch.diag(alpha[GROUP])
    return torch.logdet(scale * curvature + prior) - torch.logdet(prior)


@every_curvature
def test_complexity_is_the_ratio_of_determinants(name: str) -> None:
    operator, kind = CURVATURES[name]
    complexity = complexity_of(operator, GROUP)
    assert isinstance(complexity, kind)
    torch.testing.assert_close(
        complexity.log_det_ratio(ALPHA, SCALE), dense_ratio(operator.dense(), ALPHA, SCALE), rtol=1e-10, atol=1e-10
    )


@every_curvature
def test_one_group_needs_the_eigenvalues_alone(name: str) -> None:
    operator, _ = CURVATURES[name]
    complexity = complexity_of(operator, torch.zeros_like(GROUP))
    assert isinstance(complexity, Spectrum)
    expected = torch.logdet(SCALE * operator.dense() / ALPHA[0] + torch.eye(D, dtype=torch.float64))
    torch.testing.assert_close(complexity.log_det_ratio(ALPHA[:1], SCALE), expected, rtol=1e-10, atol=1e-10)


def test_grams_are_the_same_in_function_space() -> None:
    jacobian = normal(3, D)
    grams = torch.stack([part @ part.mT for part in (jacobian[:, GROUP < 1], jacobian[:, GROUP > 0])])
    expected = dense_ratio(jacobian.mT @ jacobian, ALPHA, SCALE)
    found = Determinant.of_grams(grams).log_det_ratio(ALPHA, SCALE)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_several_precisions_in_a_kronecker_block_are_refused() -> None:
    for operator in (Kronecker(spd(3, 9.0), spd(2, 9.0)), BlockDiagonal((Kronecker(spd(3, 9.0), spd(2, 9.0)),))):
        with refused(UnsupportedError, "one value"):
            complexity_of(operator, GROUP)


def test_log_det_of_one_plus_is_differentiable() -> None:
    root = normal(4, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: log_det_one_plus(r @ r.mT), root)


def test_an_indefinite_sum_has_neither_a_determinant_nor_effective_dimensions() -> None:
    curvature = Spectrum(torch.tensor([-2.0, 1.0], dtype=torch.float64), torch.zeros(2, dtype=torch.long))
    for ask in (curvature.log_det_ratio, curvature.determined):
        ask(torch.tensor([4.0], dtype=torch.float64), SCALE)
        with refused(NumericalError, "positive definite"):
            ask(torch.tensor([1.0], dtype=torch.float64), SCALE)


@pytest.mark.parametrize("relative", [False, True])
def test_a_compression_charges_for_its_span_alone_and_never_more_than_the_whole(relative: bool) -> None:
    factor, changes = normal(9, 7), normal(9, 4, seed=1)
    ggn = factor @ factor.mT
    curvature = changes.mT @ ggn @ changes
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    units = normal(9, seed=2).exp() if relative else None
    scale = torch.tensor(1.7).double()
    for groups, precisions in ((group, (0.3, 2.0, 40.0)), (torch.zeros_like(group), (0.8,))):
        form = complexity_of_compression(changes, curvature, groups, units)
        assert isinstance(form, Spectrum if len(precisions) == 1 else Determinant)
        values = torch.tensor(precisions).double().requires_grad_()
        found = form.log_det_ratio(values, scale)
        prior = values.detach()[groups] * (1.0 if units is None else units)
        metric = changes.mT @ (prior[:, None] * changes)
        expected = torch.logdet(metric + scale * curvature) - torch.logdet(metric)
        torch.testing.assert_close(found.detach(), expected)
        assert float(found) < float(torch.logdet(torch.diag(prior) + scale * ggn) - prior.log().sum())
        assert torch.autograd.gradcheck(lambda x, form=form: form.log_det_ratio(x, scale), values)


def test_a_compression_charges_right_where_precisions_are_far_apart() -> None:
    """On the span of everything it is the whole, whatever the directions."""
    factor, changes = normal(9, 7), normal(9, 9, seed=1)
    group = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1])
    form = complexity_of_compression(changes, changes.mT @ factor @ factor.mT @ changes, group)
    for precisions in ((1e8, 1e-8), (1e12, 1e-10)):
        values = torch.tensor(precisions).double()
        scaled = factor / values[group].sqrt()[:, None]
        expected = log_det_one_plus(scaled.mT @ scaled)
        torch.testing.assert_close(form.log_det_ratio(values, SCALE / SCALE), expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("held", ["dense", "low rank"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_curvature_of_few_data_is_decomposed_in_their_number(
    held: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eigenvalues of 20 examples' curvature of 5,000 weights took half a minute: they have few, whatever holds it."""
    factor, group = normal(24, 5), torch.arange(24) % groups
    curvature = Dense(factor @ factor.mT) if held == "dense" else LowRank(factor)
    precisions, scale = torch.tensor([0.3, 2.0])[:groups].double(), torch.tensor(1.7).double()
    expected = torch.logdet(torch.eye(24) + 1.7 * factor @ factor.mT / precisions[group])
    sizes: list[int] = []
    for name in ("eigh", "eigvalsh", "cholesky_ex"):
        kept = getattr(torch.linalg, name)

        def counted(matrix: Tensor, kept: Callable[..., Any] = kept) -> Any:
            sizes.append(len(matrix))
            return kept(matrix)

        monkeypatch.setattr(torch.linalg, name, counted)
    found = complexity_of(curvature, group, large=24)
    torch.testing.assert_close(found.log_det_ratio(precisions, scale), expected)
    assert all(size <= 5 for size in sizes)


def test_a_curvature_of_full_rank_or_none_has_no_thin_factor() -> None:
    few = normal(8, 2)
    noise = 1e-9 * spd(8, 9.0)
    mirrored = torch.zeros(8, 8).double()
    mirrored[0, 7] = mirrored[7, 0] = 1.0  # indefinite, with a diagonal of zeros
    for matrix in (spd(8, 9.0), few @ few.mT + noise, -few @ few.mT, mirrored):
        assert thin_factor(Dense(matrix), 2) is None
    assert thin_factor(LowRank(few, Diagonal(torch.ones(8).double()))) is None
