"""The README's picture: a curve with a gap in its data, the network's line, and the band of its posterior.

python -m studies.picture --figure docs/figures/gap.png
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.report import Row, figure
from lapwing.demo.gap import curve, fitted, gap
from lapwing.predictive import Regression
from lapwing.show.plots import plot_band


def rows(setting: Setting) -> Iterator[Row]:
    """Train the demo's network, give it a full posterior by the two default lines, predict: the curves to draw."""
    data = gap(0)
    model = fitted(data.train, 0, steps=20 if setting.quick else 1000)
    posterior = lw.tune(lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, data.train))
    x = torch.linspace(-5.5, 5.5, 300, dtype=torch.float64)
    prediction = posterior.predict(x[:, None])
    assert isinstance(prediction, Regression)
    noise = prediction.noise.expand_as(prediction.mean).sqrt()
    curves = {"mean": prediction.mean, "std": prediction.outputs.std, "noise": noise}
    row: Row = {"x": x.tolist(), "train": [column[:, 0].tolist() for column in data.train]}
    yield row | {name: curve[:, 0].tolist() for name, curve in curves.items()}


def draw(found: Sequence[Row]) -> Any:
    """The band of the posterior around the network, the truth, and the data."""
    (row,) = found
    x, mean, std, noise = (torch.tensor(row[name]) for name in ("x", "mean", "std", "noise"))
    made = figure(8.0, 3.4, 1)
    (ax,) = made.axes
    plot_band(x, mean, std, noise_std=noise, label="the network", ax=ax)
    ax.plot(x, curve(x), color="#D55E00", linestyle=":", linewidth=1.2, label="truth")
    ax.plot(*row["train"], "k.", markersize=4, label="training data")
    ax.set_ylim(-4.5, 4.5)
    ax.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return made


STUDY = Study(rows, draw=draw)

if __name__ == "__main__":
    main({"picture": STUDY})
