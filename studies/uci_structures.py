"""Every structure on ten UCI sets, tuned by default: which keep intervals honest, of two networks that fit unequally.

    python -m studies.uci_structures --data DIR --seeds 3 --json FILE

The networks of ``studies.uci``, with its weight decay and with a tenth of it, so that the residuals of the second say
little of its errors. Nothing is held out to tune by. Scores are those of ``studies.uci``, beside the network with the
noise of its residuals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.report import Row, timed
from studies.uci import SETS, Split, read, scores, trained

DECAYS = {"the same decay": 3e-3, "a tenth of it": 3e-4}
"""Weight decay of each network, by name."""

RECIPES: dict[str, dict[str, Any]] = {
    "Full": {"structure": lw.Full()},
    "KFAC": {"structure": lw.KFAC()},
    "EKFAC": {"structure": lw.EKFAC()},
    "Diagonal": {"structure": lw.Diagonal()},
    "LowRank(20)": {"structure": lw.LowRank(20)},
    "Nystrom(20)": {"structure": lw.Nystrom(20)},
    "last layer": {"weights": lw.LastLayer(), "structure": lw.Full()},
}
"""Options of ``Laplace``, by name."""

PLAIN = "plain network"

COLUMNS = ("nll", "coverage", "rmse", "noise_ratio", "seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """The network and every structure, for each set, split and decay."""
    for name in setting.among(SETS, SETS[:2] if setting.quick else ()):
        for number in setting.repeats:
            data = read(name, number, setting)
            for network, decay in DECAYS.items():
                for row in by_structure(data, number, decay, setting.quick):
                    yield {"data": name, "seed": number, "network": network} | row


def by_structure(data: Split, seed: int, decay: float, quick: bool) -> Iterator[Row]:
    """One trained network with the noise of its residuals, and under every structure."""
    (x, y), (new, truth) = data.train, data.test
    size = {"units": 5, "iterations": 20} if quick else {}
    model = trained(data.train, seed, decay=decay, **size)
    with torch.no_grad():
        residual = float((model(x) - y).square().mean().sqrt())
        mean = model(new)
    yield {"method": PLAIN} | scores(mean, torch.full_like(mean, residual), residual, truth)
    for name, options in RECIPES.items():
        recipe = lw.Laplace(lw.Gaussian(), **options)
        posterior, seconds = timed(lambda recipe=recipe: lw.tune(recipe.fit(model, (x, y))))
        found = posterior.predict(new)
        row = {"method": name, "seconds": seconds}
        yield row | scores(found.mean, found.std, posterior.likelihood.noise_std, truth)


STUDY = Study(rows, COLUMNS, seeds=3, needs="the UCI sets")

if __name__ == "__main__":
    main({"uci_structures": STUDY})
