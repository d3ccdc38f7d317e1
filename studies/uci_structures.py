"""Every structure on ten UCI sets, tuned by default: which keep intervals honest, of two networks that fit unequally.

    python -m studies.uci_structures --data DIR --seeds 3 --json FILE [--resume FILE]

The networks of ``studies.uci``, with its weight decay and with a tenth of it, so that the residuals of the second say
little of its errors. Nothing is held out to tune by. Scores are those of ``lw.compare``, and differences are from the
network with the noise of its residuals.
"""

from __future__ import annotations

from collections.abc import Iterator

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.report import Row
from studies.compared import compared
from studies.uci import SETS, read, trained

DECAYS = {"the same decay": 3e-3, "a tenth of it": 3e-4}
"""Weight decay of each network, by name."""

RECIPES = {
    "Full": lw.Laplace(lw.Gaussian(), structure=lw.Full()),
    "KFAC": lw.Laplace(lw.Gaussian(), structure=lw.KFAC()),
    "EKFAC": lw.Laplace(lw.Gaussian(), structure=lw.EKFAC()),
    "Diagonal": lw.Laplace(lw.Gaussian(), structure=lw.Diagonal()),
    "LowRank(20)": lw.Laplace(lw.Gaussian(), structure=lw.LowRank(20)),
    "Nystrom(20)": lw.Laplace(lw.Gaussian(), structure=lw.Nystrom(20)),
    "last layer": lw.Laplace(lw.Gaussian(), weights=lw.LastLayer(), structure=lw.Full()),
}

PLAIN = "plain network"

COLUMNS = ("nll", "difference", "picp", "rmse", "crps", "fit_seconds", "tune_seconds", "peak_mib")


def rows(setting: Setting) -> Iterator[Row]:
    """The network and every structure, for each set, split and decay."""
    size = {"units": 5, "iterations": 20} if setting.quick else {}
    for name in setting.among(SETS, SETS[:2] if setting.quick else ()):
        for number in setting.repeats:
            data = read(name, number, setting)
            for network, decay in DECAYS.items():
                model = trained(data.train, number, decay=decay, **size)
                found = compared(model, data.train, data.test, seed=number, methods=RECIPES, out=setting.resume)
                yield from ({"data": name, "seed": number, "network": network} | row for row in found)


STUDY = Study(rows, COLUMNS, seeds=3, needs="the UCI sets")

if __name__ == "__main__":
    main({"uci_structures": STUDY})
