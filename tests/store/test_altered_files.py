"""Whatever is written in place of a value, and sealed again, a file is loaded or refused in a sentence."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, LapwingError
from lapwing.ground.files.archive import Tensors
from lapwing.methods.hessian_free import PreTrained
from lapwing.store import load, read_header, save
from lapwing.store.files import POSTERIOR
from tests.posterior_cases import problem

KINDS: dict[str, Any] = {
    "kfac": lw.KFAC(),
    "diagonal": lw.Diagonal(),
    "low-rank": lw.LowRank(3),
    "functions": lw.Full(view="functions"),
    "sampled": lw.Sampled(2, lw.solvers.CG(preconditioner=lw.Diagonal())),
    "nystrom": lw.Nystrom(4, samples=20),
    "refits": lw.hessian_free.Probed(2, 2),
    "amortised": PreTrained(),
}

DEEP: Any = {}
for _ in range(100):
    DEEP = {"kind": "BlockDiagonal", "blocks": [{"tuple": [{"mapping": {"a": DEEP}}]}]}

VALUES: tuple[Any, ...] = (
    None, [], {}, "", "a", True, 0, -1, 7, 10**9, 10**400, -2.5, 1e300, math.nan, math.inf, [None], [1, "a"], DEEP,
    {"tensor": "absent"}, {"tensor": "totals.parts"}, {"kind": "Gaussian"},
)  # fmt: skip

VARIANTS = 30


def saved(kind: str, path: Path) -> nn.Module:
    """A file of one kind, and its network."""
    case = problem("gaussian")
    if kind in ("refits", "amortised"):
        recipe = lw.HessianFree(case.likelihood, prior=lw.Isotropic(50.0), fits=KINDS[kind])
        posterior = recipe.fit(case.model, (case.x, case.y), case.new)
    else:
        structure = KINDS[kind]
        posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Layerwise((1.0, 2.0)), structure=structure))
    save(posterior, path)
    return case.model


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a header stand."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*at, key)
        yield from places(part, (*at, key))


def changed(header: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A header with another value at a place; ``...`` for none."""
    header = copy.deepcopy(header)
    inner = header
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return header


@pytest.mark.parametrize("kind", KINDS)
def test_headers_with_another_value(kind: str, tmp_path: Path) -> None:
    model = saved(kind, tmp_path / "a")
    header = read_header(tmp_path / "a")
    tensors = POSTERIOR.tensors(tmp_path / "a", header)
    body = {name: value for name, value in header.items() if name not in ("format", "schema", "checksum")}
    chosen = random.Random(kind)
    known = [place for place in places(body) if place[0] != "versions"]
    variants = [(place, ...) for place in known] + [
        (place, value) for place in known for value in chosen.sample(VALUES, 3)
    ]
    refused = 0
    for place, value in chosen.sample(variants, min(VARIANTS, len(variants))):
        POSTERIOR.write(tmp_path / "b", changed(body, place, value), tensors)
        try:
            load(tmp_path / "b", model)
        except LapwingError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{place} = {value!r:.60}") from error
    assert refused > VARIANTS // 3


def test_axes_beyond_all_bounds_fill_no_memory(tmp_path: Path) -> None:
    model = saved("diagonal", tmp_path / "a")
    header = read_header(tmp_path / "a")
    tensors = POSTERIOR.tensors(tmp_path / "a", header)
    body = {name: value for name, value in header.items() if name not in ("format", "schema", "checksum")}
    for name in ("likelihood", "fitted"):
        body = changed(body, (name, "event_dim"), 10**9)
    POSTERIOR.write(tmp_path / "b", body, tensors)
    with pytest.raises(ConfigError, match="event_dim of at most 62"):
        load(tmp_path / "b", model)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_another_type_or_with_nan_are_refused(kind: str, tmp_path: Path) -> None:
    model = saved(kind, tmp_path / "a")
    header = read_header(tmp_path / "a")
    kept = POSTERIOR.tensors(tmp_path / "a", header).named
    body = {name: value for name, value in header.items() if name not in ("format", "schema", "checksum")}
    real = {name: value for name, value in kept.items() if value.is_floating_point() and value.numel()}
    assert real
    for name, value in real.items():
        missing = value.clone()
        missing.view(-1)[0] = math.nan
        for other in (missing, value.half(), value.int()):
            POSTERIOR.write(tmp_path / "b", body, Tensors(kept | {name: other}))
            with pytest.raises(DataError, match=r"saving it again"):
                load(tmp_path / "b", model)
