"""The evidence as a function of prior precisions and noise, against dense matrices and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import NumericalError, UnsupportedError
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, LowRank, Structured
from lapwing.linear import evidence
from lapwing.linear.evidence import (
    Complexity,
    Determinant,
    LogEvidence,
    NewtonStep,
    Spectrum,
    complexity_of,
    complexity_of_compression,
    log_det_one_plus,
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


def evidence_of(complexity: Complexity, shift: NewtonStep | None = None) -> LogEvidence:
    sizes = torch.bincount(GROUP).double()
    return LogEvidence(complexity, torch.tensor([1.5, 4.0], dtype=torch.float64), sizes, 12.5, 9.0, 8.0, shift)


@every_curvature
def test_gradients_of_the_evidence(name: str) -> None:
    evidence = evidence_of(complexity_of(CURVATURES[name][0], GROUP))
    point = (ALPHA.clone().requires_grad_(), SCALE.clone().requires_grad_())
    assert torch.autograd.gradcheck(evidence.log_marginal, point)


@every_curvature
def test_effective_dimensions_of_each_group(name: str) -> None:
    operator, _ = CURVATURES[name]
    inverse = torch.linalg.inv(SCALE * operator.dense() + torch.diag(ALPHA[GROUP]))
    expected = torch.bincount(GROUP) - torch.bincount(GROUP, ALPHA[GROUP] * inverse.diagonal())
    with torch.no_grad():
        actual = evidence_of(complexity_of(operator, GROUP)).effective_dimensions(ALPHA, SCALE)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    assert not actual.requires_grad


def test_an_indefinite_sum_has_neither_a_determinant_nor_effective_dimensions() -> None:
    curvature = Spectrum(torch.tensor([-2.0, 1.0], dtype=torch.float64), torch.zeros(2, dtype=torch.long))
    for ask in (curvature.log_det_ratio, curvature.determined):
        ask(torch.tensor([4.0], dtype=torch.float64), SCALE)
        with refused(NumericalError, "positive definite"):
            ask(torch.tensor([1.0], dtype=torch.float64), SCALE)


def test_noise_scales_misfit_and_constant() -> None:
    """log N(y; f, 1/sρ) = s/1 of the squared error, and ½ log s an observation more."""
    residual, rho = normal(8), 1.4
    nll = 0.5 * (rho * residual.square() + math.log(2 * math.pi / rho)).sum()
    misfit = rho * residual.square().sum()
    evidence = replace(evidence_of(Determinant.of_grams(torch.zeros(2, 1, 1))), nll=float(nll), misfit=float(misfit))
    scaled = -0.5 * (SCALE * rho * residual.square() - torch.log(SCALE * rho / (2 * math.pi))).sum()
    torch.testing.assert_close(evidence.log_likelihood(misfit, SCALE), scaled)
    torch.testing.assert_close(evidence.log_likelihood(misfit, torch.ones_like(SCALE)), -nll)


@pytest.mark.parametrize("name", ["diagonal", "dense", "a group a block"])
def test_the_shift_reaches_the_mode_of_the_linear_model(name: str) -> None:
    """With residual r at the weights θ, the linear model's mode minimises s |r − J δ|² + |θ + δ|²_A over δ."""
    operator = CURVATURES[name][0]
    curvature, theta, score = operator.dense(), normal(D, seed=1), normal(D, seed=2)
    shift = NewtonStep(operator, score, theta, GROUP)
    prior = torch.diag(ALPHA[GROUP])
    step = torch.linalg.solve(SCALE * curvature + prior, SCALE * score - prior @ theta)
    torch.testing.assert_close(shift.step(ALPHA, SCALE), step, rtol=1e-9, atol=1e-10)
    misfit, norms = shift.fit(9.0, ALPHA, SCALE)
    torch.testing.assert_close(misfit, 9.0 - 2 * score @ step + step @ curvature @ step, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(norms, torch.bincount(GROUP, (theta + step).square()), rtol=1e-9, atol=1e-10)


def test_gradients_of_the_evidence_at_the_mode() -> None:
    """The shift is held fixed in the backward pass; finite differences, which move it, agree: it is a mode."""
    operator = Dense(spd(D, 20.0))
    evidence = evidence_of(complexity_of(operator, GROUP), NewtonStep(operator, normal(D), normal(D, seed=1), GROUP))
    point = (ALPHA.clone().requires_grad_(), SCALE.clone().requires_grad_())
    assert torch.autograd.gradcheck(evidence.log_marginal, point)


def test_the_evidence_at_the_mode_is_larger() -> None:
    operator = Dense(spd(D, 20.0))
    weights = normal(D, seed=1)
    norms = torch.bincount(GROUP, weights.square())
    usual = replace(evidence_of(complexity_of(operator, GROUP)), square_norms=norms)
    moved = replace(usual, shift=NewtonStep(operator, normal(D), weights, GROUP))
    assert moved.log_marginal(ALPHA, SCALE) > usual.log_marginal(ALPHA, SCALE)


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
        assert evidence.thin_factor(Dense(matrix), 2) is None
    assert evidence.thin_factor(LowRank(few, Diagonal(torch.ones(8).double()))) is None
