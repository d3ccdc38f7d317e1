"""Molecules: the Tanimoto kernel on made-up fingerprints, beside ridge regression and a random forest.

A molecule is a few of ``--fragments`` fragments, each of which counts up some of ``--bits`` substructures, and some
substructures of its own. Its activity is the sum of the effects of its fragments and of some pairs of them, and noise.
The Gaussian process has the Tanimoto kernel, a learnt mean, variance and noise; functions for its intervals are drawn
by random hashes. R² and coverage of 95 % intervals on held-out molecules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study
from benchmarks.data import generator
from benchmarks.report import Row, timed
from lapwing.gp import GP, Tanimoto

COLUMNS = ("r2", "coverage", "drawn_coverage", "noise_variance", "seconds")
OPTIONS: Mapping[str, tuple[Any, str]] = {
    "molecules": (1500, "molecules, a fifth of which are held out"),
    "bits": (256, "substructures that are counted"),
    "fragments": (40, "fragments molecules are made of"),
}
PARTS, EACH, OWN, NOISE = 5, 10, 6, 0.3
"""Fragments of a molecule, substructures of a fragment, ones of its own; noise over the activity's deviation."""


def generated(molecules: int, bits: int, fragments: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Counts and activities of mean 0 and variance 1, the noise apart."""

    def places(rows: int, of: int, count: int) -> Tensor:
        chosen = torch.rand(rows, of, generator=source, dtype=torch.float64).topk(count, 1).indices
        return torch.zeros(rows, of, dtype=torch.float64).scatter_(1, chosen, 1.0)

    has = places(molecules, fragments, PARTS)
    counts = has @ places(fragments, bits, min(EACH, bits)) + places(molecules, bits, min(OWN, bits))
    effects, pairs = (torch.randn(*s, generator=source, dtype=torch.float64) for s in ((fragments,), (fragments,) * 2))
    activity = has @ effects + torch.einsum("nf,fg,ng->n", has, pairs, has) / PARTS**0.5
    return counts, ((activity - activity.mean()) / activity.std())[:, None]


def rows(setting: Setting) -> Iterator[Row]:
    """A row a method and seed."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import RidgeCV

    molecules, bits, fragments = (setting.more[name] for name in OPTIONS)
    if setting.quick:
        molecules, bits, fragments = 60, 20, 8
    for seed in setting.repeats:
        source = generator(seed)
        x, truth = generated(molecules, bits, fragments, source)
        y = truth + NOISE * torch.randn(len(truth), 1, generator=source, dtype=torch.float64)
        train, test = slice(molecules // 5, None), slice(molecules // 5)
        case: Row = {"molecules": molecules, "bits": bits, "fragments": fragments, "seed": seed}

        def fitted(pair: tuple[Tensor, Tensor] = (x[train], y[train])) -> Any:
            recipe = GP(1.0 * Tanimoto(), lw.Gaussian(10.0), features=50 if setting.quick else 2000)
            return lw.tune(recipe.fit(pair))

        process, seconds = timed(fitted)
        found = process.predict(x[test])
        with torch.no_grad():
            spread = (process.functions(x[test]) - found.mean).square().mean(0) + 1 / process.likelihood.noise
        row: Row = {"r2": _r2(found.mean, y[test]), "seconds": seconds, "noise_variance": 1 / process.likelihood.noise}
        row |= {"coverage": _covered(found.mean, found.std, y[test])}
        row |= {"drawn_coverage": _covered(found.mean, spread.sqrt(), y[test])}
        yield case | {"method": "Tanimoto process"} | row
        forest = RandomForestRegressor(10 if setting.quick else 200, random_state=seed)
        for name, model in {"ridge": RidgeCV([0.1, 1.0, 10.0, 100.0]), "forest": forest}.items():
            predicted, seconds = timed(partial(_predicted, model, x[train], y[train, 0], x[test]))
            r2 = _r2(torch.as_tensor(predicted)[:, None], y[test])
            yield case | {"method": name, "r2": r2, "seconds": seconds}


def _predicted(model: Any, x: Tensor, y: Tensor, new: Tensor) -> Any:
    return model.fit(x, y).predict(new)


def _r2(mean: Tensor, y: Tensor) -> float:
    return 1 - float((y - mean).square().sum() / (y - y.mean()).square().sum())


def _covered(mean: Tensor, std: Tensor, y: Tensor) -> float:
    return float(((y - mean).abs() < 1.959964 * std).double().mean())


STUDY = Study(rows, COLUMNS, seeds=5, options=OPTIONS)
