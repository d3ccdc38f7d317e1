from __future__ import annotations

import pytest
import torch

from lapwing.evaluation.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, uniform

GREY = torch.full((40, 3, 17, 19), 0.4, dtype=torch.float64)


def test_gaussian_noise_has_its_size(generator: torch.Generator) -> None:
    noise = gaussian_noise(GREY, 0.3, generator) - GREY
    assert float(noise.mean()) == pytest.approx(0, abs=0.006)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)


def test_shot_noise_counts_photons(generator: torch.Generator) -> None:
    noisy = shot_noise(GREY, 25.0, generator)
    assert float(noisy.mean()) == pytest.approx(0.4, rel=0.01)
    assert float(noisy.var()) == pytest.approx(0.4 / 25, rel=0.04)
    torch.testing.assert_close(noisy * 25, (noisy * 25).round(), rtol=0, atol=1e-9)
    assert float(shot_noise(0 * GREY, 25.0, generator).max()) == 0


def test_impulses_replace_their_share(generator: torch.Generator) -> None:
    noisy = impulse_noise(GREY, 0.1, generator)
    assert float((noisy == 0).double().mean()) == pytest.approx(0.05, rel=0.08)
    assert float((noisy == 1).double().mean()) == pytest.approx(0.05, rel=0.08)
    assert bool(((noisy == 0) | (noisy == 1) | (noisy == 0.4)).all())


def test_uniform_numbers_fill_the_interval(generator: torch.Generator) -> None:
    u = uniform([20_000], like=GREY, generator=generator)
    counts = torch.histc(u, 10, 0, 1)
    assert float(counts.sum()) == 20_000
    torch.testing.assert_close(counts, torch.full_like(counts, 2000), rtol=0, atol=200)
