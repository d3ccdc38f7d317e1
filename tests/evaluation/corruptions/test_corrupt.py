from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.evaluation.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from lapwing.evaluation.corruptions.kinds import KINDS
from lapwing.ground.errors import ConfigError, DataError, LapwingError, ShapeError
from tests.checker import unchecked

every = pytest.mark.parametrize("name", CORRUPTIONS)


def images(n: int = 8, channels: int = 3, h: int = 32, w: int = 32, dtype: torch.dtype = torch.float64) -> Tensor:
    """Bright and dark shapes, in [0, 1]."""
    rows, columns = torch.arange(h, dtype=dtype)[:, None] / h, torch.arange(w, dtype=dtype) / w
    waves = [torch.sin(2 * math.pi * ((k + 1) * rows + (2 * k - 3) * columns) + k) for k in range(n * channels)]
    return (0.5 + 0.45 * torch.stack(waves).sign() * torch.stack(waves).abs().sqrt()).reshape(n, channels, h, w)


def seeded(device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(3)


def test_there_are_a_dozen_and_they_differ() -> None:
    assert len(CORRUPTIONS) >= 12
    x = images(2)
    results = [corrupt(x, name, 3, generator=seeded()) for name in CORRUPTIONS]
    for i, first in enumerate(results):
        assert all(float((first - other).abs().mean()) > 1e-3 for other in results[:i])


@every
def test_images_get_worse_with_severity_and_stay_images(name: str) -> None:
    x = images()
    before = x.clone()
    distances = []
    for severity in SEVERITIES:
        worse = corrupt(x, name, severity, generator=seeded())
        assert worse.shape == x.shape
        assert 0 <= float(worse.min()) <= float(worse.max()) <= 1
        distances.append(float((worse - x).square().mean()))
    assert distances == sorted(distances)
    assert distances[-1] > 1.15 * distances[0] > 0
    torch.testing.assert_close(x, before, rtol=0, atol=0)


@every
def test_it_is_deterministic_given_a_generator(name: str) -> None:
    x = images(9)
    first, again = (corrupt(x, name, 4, generator=seeded()) for _ in range(2))
    assert torch.equal(first, again)
    if not torch.equal(first, corrupt(x, name, 4, generator=torch.Generator().manual_seed(4))):
        copies = corrupt(x[:1].expand(9, -1, -1, -1), name, 4, generator=seeded())
        assert not all(torch.equal(copies[0], copy) for copy in copies)  # each image has its own


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types_are_kept(name: str, dtype: torch.dtype) -> None:
    x = images(2, 1, 28, 28).to(dtype)
    worse = corrupt(x, name, 5, generator=seeded())
    assert worse.dtype == dtype
    assert bool(torch.isfinite(worse).all())
    expected = corrupt(x.float(), name, 5, generator=seeded())
    torch.testing.assert_close(worse.float(), expected, rtol=0.01, atol=1e-3)


@every
@pytest.mark.parametrize("shape", [(1, 1, 9, 14), (2, 3, 40, 33), (1, 2, 1, 1)])
def test_sizes_are_free(name: str, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 0.25)
    worse = corrupt(x, name, 5, generator=seeded())
    assert worse.shape == x.shape
    assert bool(torch.isfinite(worse).all())


@every
def test_devices_agree(name: str, device: torch.device) -> None:
    x = images(2)
    here = corrupt(x, name, 3, generator=seeded())
    there = corrupt(x.to(device), name, 3, generator=seeded())
    assert there.device.type == device.type
    if name != "jpeg":
        torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-6)
    assert float((there.cpu() - here).abs().mean()) < 1e-3
    own = corrupt(x.to(device), name, 3, generator=seeded(device))
    assert bool(torch.isfinite(own).all())


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.length])
def test_lengths_grow_with_the_image(name: str) -> None:
    small, large = images(1), images(1, h=64, w=64)
    ratios = [float((corrupt(x, name, 3, generator=seeded()) - x).square().mean() / x.var()) for x in (small, large)]
    assert ratios[1] == pytest.approx(ratios[0], rel=0.25)


X = torch.full((2, 1, 4, 4), 0.5)


@pytest.mark.parametrize(
    ("x", "name", "severity", "error", "message"),
    [
        (X, "snow", 1, ConfigError, "name= to be one of 'gaussian_noise'"),
        (X, "fog", 0, ConfigError, "severity= to be one of 1, 2, 3, 4, 5"),
        (X[0], "fog", 1, ShapeError, r"images \[n, ch, h, w\]. Got shape \[1, 4, 4\]"),
        (X[:0], "fog", 1, ShapeError, r"at least one image.*Got nothing, of shape \[0, 1, 4, 4\]. Try a batch"),
        (X, "fog", 2.0, ConfigError, "severity to be a whole number.*Got 2.0"),
        (X.numpy(), "fog", 1, ConfigError, r"Got .*ndarray.*torch.from_numpy\(x\)"),
        ((255 * X).byte(), "fog", 1, DataError, "x / 255"),
        (255 * X, "fog", 1, DataError, r"intensities in \[0, 1\]. Got 128 to 128.*transform="),
        (X - 1, "fog", 1, DataError, "Got -0.5 to -0.5"),
        (X * torch.nan, "fog", 1, DataError, "finite images"),
    ],
)
def test_bad_input_costs_a_sentence(x: Any, name: str, severity: Any, error: type[LapwingError], message: str) -> None:
    with unchecked(), pytest.raises(error, match=message):
        corrupt(x, name, severity)
