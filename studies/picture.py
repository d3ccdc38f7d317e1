"""The README's picture: a curve with a gap in its data, the network's line, and the band of its posterior.

python -m studies.picture --figure docs/figures/gap.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import lapwing as lw
from demo.gap import curve, fitted, gap
from lapwing.predictive import Regression
from lapwing.show.plots import plot_band
from studies.report import figure


def main(arguments: list[str] | None = None) -> None:
    """Train the demo's network, give it a full posterior by the two default lines, draw both."""
    parser = argparse.ArgumentParser(prog="python -m studies.picture", description=__doc__)
    parser.add_argument("--figure", type=Path, required=True, help="figure to draw")
    parser.add_argument("--quick", action="store_true", help="a network that is trained for a moment only")
    args = parser.parse_args(arguments)
    data = gap(0)
    model = fitted(data.train, 0, steps=20 if args.quick else 1000)
    posterior = lw.tune(lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, data.train))
    x = torch.linspace(-5.5, 5.5, 300, dtype=torch.float64)
    prediction = posterior.predict(x[:, None])
    assert isinstance(prediction, Regression)
    made = figure(8.0, 3.4, 1)
    (ax,) = made.axes
    noise = prediction.noise.expand_as(prediction.mean).sqrt()[:, 0]
    plot_band(x, prediction.mean[:, 0], prediction.outputs.std[:, 0], noise_std=noise, label="the network", ax=ax)
    ax.plot(x, curve(x), color="#D55E00", linestyle=":", linewidth=1.2, label="truth")
    ax.plot(*(column[:, 0].numpy() for column in data.train), "k.", markersize=4, label="training data")
    ax.set_ylim(-4.5, 4.5)
    ax.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    args.figure.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(args.figure)


if __name__ == "__main__":
    main()
