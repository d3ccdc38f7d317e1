"""Probes: the right distribution, the same numbers from the same generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import ConfigError
from tests.checker import unchecked
from tests.posterior_cases import refused

every_kind = pytest.mark.parametrize("draw", [probes.gaussian, probes.rademacher])


@every_kind
def test_moments(draw: Callable[..., Tensor], generator: torch.Generator) -> None:
    x = draw([40_000, 2], like=torch.zeros(1, dtype=torch.float64), generator=generator)
    assert x.mean(0).abs().max() < 5 / 200
    torch.testing.assert_close(x.mT @ x / len(x), torch.eye(2, dtype=torch.float64), rtol=0, atol=5 * 2**0.5 / 200)


def test_kurtosis_tells_the_kinds_apart(generator: torch.Generator) -> None:
    like = torch.zeros(1, dtype=torch.float64)
    assert probes.rademacher([1000], like=like, generator=generator).pow(4).unique().tolist() == [1.0]
    assert probes.gaussian([40_000], like=like, generator=generator).pow(4).mean() == pytest.approx(3.0, abs=0.3)


def test_uniform_numbers_fill_the_interval(generator: torch.Generator) -> None:
    u = probes.uniform([20_000], like=torch.zeros(1, dtype=torch.float64), generator=generator)
    counts = torch.histc(u, 10, 0, 1)
    assert float(counts.sum()) == 20_000
    torch.testing.assert_close(counts, torch.full_like(counts, 2000), rtol=0, atol=200)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_follows_like_and_the_generator(draw: Callable[..., Tensor], dtype: torch.dtype, device: torch.device) -> None:
    like = torch.zeros(1, dtype=dtype, device=device)
    first, again, other = (draw((3, 5), like=like, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first.shape == (3, 5) and first.dtype == dtype and first.device.type == device.type
    assert torch.equal(first, again) and not torch.equal(first, other)
    here = draw((3, 5), like=like.cpu(), generator=torch.Generator().manual_seed(0))
    assert torch.equal(first.cpu(), here)


@every_kind
def test_without_a_generator_draws_from_the_global_one(draw: Callable[..., Tensor]) -> None:
    like = torch.zeros(1)
    torch.manual_seed(3)
    first = draw([8], like=like)
    torch.manual_seed(3)
    assert torch.equal(draw([8], like=like), first)
    assert not torch.equal(draw([8], like=like), first)


def test_a_seed_is_no_generator() -> None:
    seed: Any = 0
    for draw in (
        lambda: probes.gaussian([2], like=torch.zeros(1), generator=seed),
        lambda: probes.rademacher([2], like=torch.zeros(1), generator=seed),
        lambda: probes.permutation(3, generator=seed),
    ):
        with unchecked(), refused(ConfigError, "generator="):
            draw()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_poisson_counts_in_half_precision(dtype: torch.dtype, generator: torch.Generator) -> None:
    counts = probes.poisson(torch.full((4000,), 100.0, dtype=dtype), generator=generator)
    assert counts.dtype == dtype
    assert abs(float(counts.double().mean()) - 100) < 5 * 10 / 4000**0.5


def test_poisson_counts_are_normal_where_no_whole_number_is_as_large(generator: torch.Generator) -> None:
    means = torch.tensor([3.0, 1e16, 1e30, math.inf]).double().expand(4000, 4)
    counts = probes.poisson(means, generator=generator)
    assert bool((counts >= 0).all()) and bool(counts[:, 3].isinf().all())
    far = (counts - means)[:, :3] / means[:, :3].sqrt()
    assert float(far.mean(0).abs().max()) < 5 / 4000**0.5
    torch.testing.assert_close(far.std(0), torch.ones(3).double(), rtol=0.06, atol=0)
    assert counts[:, 0].unique().numel() < 15


def test_a_seed_at_the_door_makes_a_generator_and_a_generator_a_seed() -> None:
    like = torch.zeros(1)
    made, own = probes.generator_of(5), torch.Generator().manual_seed(5)
    assert torch.equal(probes.gaussian([4], like=like, generator=made), probes.gaussian([4], like=like, generator=own))
    assert probes.generator_of(own) is own and probes.generator_of(None) is None
    assert probes.seed_from(5) == 5
    first, again = (probes.seed_from(torch.Generator().manual_seed(5)) for _ in range(2))
    assert first == again != probes.seed_from(torch.Generator().manual_seed(6))
    for wrong in (True, -1, "5"):
        for door in (probes.generator_of, probes.seed_from):
            with unchecked(), refused(ConfigError, "generator"):
                door(wrong)  # type: ignore[arg-type]
