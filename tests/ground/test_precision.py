"""Dtypes of products and sums."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lapwing
from lapwing.ground.errors import ConfigError
from lapwing.ground.precision import Precision, wide, wide_like
from tests.without_double import refused, without_double

CPU = torch.device("cpu")

SOURCE = Path(lapwing.__file__).parent

FACTORIES = {
    "arange",
    "empty",
    "eye",
    "fftfreq",
    "finfo",
    "full",
    "linspace",
    "ones",
    "rand",
    "randn",
    "rfftfreq",
    "tensor",
    "zeros",
}
"""Functions of torch that make a tensor on the CPU where no device is named, or none at all."""

WIDE_TYPES = ("torch.float64", "torch.complex128", "WIDE")
"""Float64, as a call asks for it."""

HOSTS = {"predictive/quadrature.py": {"draw"}}
"""Methods that make a tensor on the CPU: of Sobol points."""


def wide_calls(path: Path) -> Iterator[str]:
    """Calls in a file that make float64 on whatever device a tensor is, as line and name."""
    source = path.read_text(encoding="utf-8")
    if not any(word in source for word in (*WIDE_TYPES, ".double")):
        return  # most files: they need not be parsed
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        given = [*map(ast.unparse, node.args), *named.values()]
        asked = any(value in WIDE_TYPES for value in given)
        on_cpu = "'cpu'" in given
        of_torch = ast.unparse(node.func).startswith("torch.")
        made_on_cpu = of_torch and name in FACTORIES and "device" not in named
        known = name in HOSTS.get(path.relative_to(SOURCE).as_posix(), ())
        if name == "double" or (asked and not (on_cpu or made_on_cpu or known)):
            yield f"{path.relative_to(SOURCE)}:{node.lineno} {name}"


def test_default_is_double_where_float64_is_fast() -> None:
    assert Precision.of(None, CPU) == Precision.of("double", CPU) == Precision(torch.float64)
    assert Precision.of("single", CPU).products == torch.float32
    assert Precision.of(None, torch.device("mps")).products == torch.float32


def test_refuses_other_words() -> None:
    with pytest.raises(ConfigError, match="half"):
        Precision.of("half", CPU)


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


def test_nothing_but_the_policy_makes_float64_on_the_device_of_a_tensor() -> None:
    """``wide`` and ``wide_like`` do; on the CPU, where no tensor of the network's device has a part, anybody may."""
    files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE) != Path("ground/precision.py")]
    assert [call for path in files for call in wide_calls(path)] == []


def test_the_imitated_device_takes_wide_tensors_of_the_host_and_gradients_through_them() -> None:
    x = torch.ones(2, requires_grad=True)
    with without_double():
        total = wide(x).square().sum() + torch.tensor(1.0, dtype=torch.float64)
        narrow = torch.ones(2) * total.float()
        narrow.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), 4.0))


@pytest.mark.parametrize(
    ("card", "capability", "products"),
    [
        ("H100", (9, 0), torch.float64),
        ("A100", (8, 0), torch.float64),
        ("RTX 3090", (8, 6), torch.float32),
        ("RTX 4090", (8, 9), torch.float32),
        ("RTX 5090", (12, 0), torch.float32),
    ],
)
def test_the_precision_of_a_card_is_that_of_its_compute_capability(
    card: str, capability: tuple[int, int], products: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert Precision.of(None, torch.device("cuda")).products == products, card
    assert Precision.of("double", torch.device("cuda")).products == torch.float64
