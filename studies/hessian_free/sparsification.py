"""Every weight whose interval covers 0 is set to 0: what that costs, and the curve of error against weights removed.

``error`` is the mean absolute error of the pruned network on the test targets in distribution (the source's figure 4),
``trained`` that of the network before. Along the curve, ``error_at_SHARE``, a given share of the weights is pruned,
those of least ``|θ| / std`` first. "magnitude" gives every weight the same standard deviation: its curve is that of
pruning without any uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from lapwing.show.plots import plot_pruning
from studies.hessian_free.curves import CURVES, Pair
from studies.hessian_free.deviations import DEVIATIONS
from studies.hessian_free.shallow import Fitted, fitted, flat
from studies.report import Row, attempt, figure
from studies.sampled.setting import Setting

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
COLUMNS = ("trained", "error", "pruned", "error_at_0.3", "error_at_0.5", "error_at_0.7")
COUNTS = ()


def magnitude(network: Fitted) -> Float[Tensor, " d"]:
    """The same for every weight: no uncertainty at all."""
    return network.weights.abs().median().expand(len(network.weights))


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every seed of every data set, pruned by one standard deviation and by share."""
    for name in setting.among(tuple(CURVES)):
        for network in fitted(name, setting):
            before = mean_absolute_error(network.model, network.data.inside)
            for method, of in (DEVIATIONS | {"magnitude": magnitude}).items():
                std, failure = attempt(lambda own=of, net=network: own(net))
                head: Row = {"study": "sparsification", "part": name, "data": name, "method": method}
                head |= {"seed": network.seed, "failure": failure, "trained": before}
                yield head | ({} if std is None else pruned(network, std))


def pruned(network: Fitted, std: Float[Tensor, " d"]) -> Row:
    """What is left when every weight within ``std`` of 0 is removed, and when given shares of the weights are."""
    smaller = lw.prune_uncertain(network.model, std)
    row: Row = {"pruned": float((flat(smaller) == 0).double().mean())}
    row["error"] = mean_absolute_error(smaller, network.data.inside)
    for share in SHARES:
        smaller = lw.prune_uncertain(network.model, std, share=share)
        row[f"error_at_{share:.1f}"] = mean_absolute_error(smaller, network.data.inside)
    return row


def mean_absolute_error(model: nn.Module, pair: Pair) -> float:
    """On the targets."""
    with torch.no_grad():
        return float((model(pair[0]) - pair[1]).abs().mean())


def draw(found: Sequence[Row]) -> Any:
    """Error against share pruned, mean over the seeds; a square where one standard deviation prunes."""
    means = [row for row in found if row.get("summary")]
    names = list(dict.fromkeys(row["data"] for row in means))
    made = figure(4.2 * len(names), 4.2, len(names))
    for panel, name in zip(made.axes, names, strict=True):
        own = [row for row in means if row["data"] == name]
        curves = {row["method"]: (SHARES, [row[f"error_at_{share:.1f}"] for share in SHARES]) for row in own}
        plot_pruning(curves, ax=panel)
        panel.get_legend().remove()
        for row, line in zip(own, panel.get_lines(), strict=True):
            if row["method"] != "magnitude":
                panel.plot(row["pruned"], row["error"], "s", color=line.get_color(), markersize=7)
        panel.set(title=name, yscale="log")
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return made
