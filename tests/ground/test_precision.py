"""Dtypes of products and sums."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError
from lapwing.ground.precision import Precision, wide, wide_like
from tests.without_double import refused, without_double

CPU = torch.device("cpu")


def test_default_is_double_where_float64_is_fast() -> None:
    assert Precision.of(None, CPU) == Precision.of("double", CPU) == Precision(torch.float64)
    assert Precision.of("single", CPU).products == torch.float32
    assert Precision.of(None, torch.device("mps")).products == torch.float32


def test_refuses_other_words() -> None:
    with pytest.raises(ConfigError, match="half"):
        Precision.of("half", CPU)  # type: ignore[arg-type]


def test_wide_tensors_are_on_the_cpu_where_a_device_has_no_float64() -> None:
    meta = torch.ones(2, device="meta")
    assert wide_like(meta) == {"device": torch.device("meta"), "dtype": torch.float64}
    with without_double():
        assert wide(torch.ones(2)).dtype == torch.float64


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.ones(2).double(),
        lambda: torch.zeros(2, dtype=torch.float64, device=CPU),
        lambda: torch.ones(2).sum(dtype=torch.float64),
        lambda: torch.ones(2) * wide(torch.ones(2)),
        lambda: torch.ones(2).new_zeros(2, dtype=torch.float64),
    ],
)
def test_the_imitated_device_refuses_float64(work: object) -> None:
    assert callable(work)
    assert refused(work)


def test_the_imitated_device_takes_wide_tensors_of_the_host_and_gradients_through_them() -> None:
    x = torch.ones(2, requires_grad=True)
    with without_double():
        total = wide(x).square().sum() + torch.tensor(1.0, dtype=torch.float64)
        narrow = torch.ones(2) * total.float()
        narrow.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), 4.0))
