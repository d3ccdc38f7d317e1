from __future__ import annotations

import pytest
import torch

from lapwing.evaluation.diagnosis.directions import directions_of, inner
from lapwing.linalg import Dense, Diagonal


def test_stiff_and_sloppy_directions_are_the_ends_of_the_spectrum(generator: torch.Generator) -> None:
    size, values = 90, torch.logspace(-1, 2, 90, dtype=torch.float64)
    q = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator)).Q
    found = directions_of(Dense(q @ torch.diag(values) @ q.mT), 4, generator=generator)
    assert list(found) == ["random", "stiff", "sloppy"]
    curvature = {name: (q.mT @ u).square().mT @ values / u.square().sum(0) for name, u in found.items()}
    torch.testing.assert_close(curvature["stiff"].sort().values, values[-4:], rtol=1e-3, atol=0)
    assert float(curvature["sloppy"].max()) < float(values[20])
    assert float(values[20]) < float(curvature["random"].min()) < float(curvature["stiff"].min())


def test_a_flat_spectrum_has_directions_too(generator: torch.Generator) -> None:
    found = directions_of(Diagonal(torch.full((9,), 2.0)), 3, generator=generator)
    assert all(u.shape[0] == 9 and u.shape[1] >= 1 and bool(u.isfinite().all()) for u in found.values())


@pytest.mark.parametrize("rows", [5, 2**16 + 3])
def test_sums_in_slabs_are_those_of_the_whole(rows: int, generator: torch.Generator) -> None:
    a, b = torch.randn(rows, 2, generator=generator), torch.randn(rows, 3, generator=generator)
    torch.testing.assert_close(inner(a, b), a.double().mT @ b.double())
