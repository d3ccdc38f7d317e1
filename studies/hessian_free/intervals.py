"""One-standard-deviation intervals of 30 random weights under each method, as the source's figure 3.

The Hessian-free variances are ``|P⁻¹ sign(θ)|``, row sums of the covariance with signs and not its diagonal; the rows
say how far the two are apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.show.plots import plot_intervals
from studies.hessian_free.curves import CURVES
from studies.hessian_free.deviations import DEVIATIONS
from studies.hessian_free.shallow import fitted
from studies.report import Row, attempt, figure
from studies.sampled.setting import Setting
from studies.seeds import generator

SHOWN = 30
COLUMNS = ("median", "covers_zero", "ratio", "correlation")
COUNTS = ()


def rows(setting: Setting) -> Iterator[Row]:
    """A row a data set and method, of the first seed for the intervals, of all for the numbers."""
    for name in setting.among(tuple(CURVES)):
        for network in fitted(name, setting):
            exact = DEVIATIONS["full Hessian"](network)
            chosen = sorted(probes.permutation(len(exact), generator=generator(network.seed))[:SHOWN])
            for method, of in DEVIATIONS.items():
                std, failure = attempt(lambda own=of, net=network: own(net))
                row: Row = {"study": "intervals", "part": name, "data": name, "method": method, "seed": network.seed}
                row |= {"failure": failure} | ({} if std is None else compared(std, exact, network.weights))
                if std is not None and network.seed == 0:
                    row |= {"weights": chosen, "values": network.weights[chosen].tolist(), "std": std[chosen].tolist()}
                yield row


def compared(std: Float[Tensor, " d"], exact: Float[Tensor, " d"], weights: Float[Tensor, " d"]) -> Row:
    """Over all weights: how many intervals cover 0, and how the deviations go with the full Hessian's."""
    logs = torch.stack([std.clamp_min(1e-12).log(), exact.log()])
    return {
        "median": float(std.median()),
        "covers_zero": float((weights.abs() <= std).double().mean()),
        "ratio": float((std / exact).median()),
        "correlation": float(torch.corrcoef(logs)[0, 1]),
    }


def draw(found: Sequence[Row]) -> Any:
    """A panel a data set, a weight a column, the methods side by side."""
    shown = [row for row in found if "weights" in row]
    names = list(dict.fromkeys(row["data"] for row in shown))
    made = figure(5.0 * len(names), 4.2, len(names))
    for panel, name in zip(made.axes, names, strict=True):
        own = [row for row in shown if row["data"] == name]
        deviations = {row["method"]: torch.tensor(row["std"]) for row in own}
        plot_intervals(torch.tensor(own[0]["values"]), deviations, ax=panel)
        panel.get_legend().remove()
        panel.set(title=name, xticks=[])
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return made
