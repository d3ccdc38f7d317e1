"""Standard deviations of single weights under each method: their intervals, and what removing the unsure ones costs.

*Intervals* of one standard deviation of 30 random weights, as the source's figure 3. The Hessian-free variances are
``|P⁻¹ sign(θ)|``, row sums of the covariance with signs and not its diagonal; the rows say how far the two are apart.

*Sparsification*: every weight whose interval covers 0 is set to 0. ``error`` is the mean absolute error of the pruned
network on the test targets in distribution (the source's figure 4), ``trained`` that of the network before. Along the
curve, ``error_at_SHARE``, a given share of the weights is pruned, those of least ``|θ| / std`` first. "magnitude" gives
every weight the same standard deviation: its curve is that of pruning without any uncertainty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.report import Row, attempt, by_panel
from lapwing.ground import probes
from lapwing.ground.canvas import colour
from studies.hessian_free.curves import CURVES
from studies.hessian_free.methods import DEVIATIONS
from studies.hessian_free.shallow import Fitted, fitted, flat

SHOWN = 30
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
INTERVALS = ("median", "covers_zero", "ratio", "correlation")
PRUNED = ("trained", "error", "pruned", "error_at_0.3", "error_at_0.5", "error_at_0.7")


def each(
    setting: Setting, methods: Mapping[str, Callable[[Fitted], Tensor]]
) -> Iterator[tuple[Row, Fitted, Float[Tensor, " d"] | None]]:
    """What a row begins with, a network, and the deviations of its weights by every method."""
    for name in setting.among(CURVES):
        for network in fitted(name, setting):
            for method, of in methods.items():
                std, failure = attempt(lambda own=of, net=network: own(net))
                row: Row = {"part": name, "data": name, "method": method, "seed": network.seed, "failure": failure}
                yield row, network, std


def intervals(setting: Setting) -> Iterator[Row]:
    """A row a data set and method, of the first seed for the intervals, of all for the numbers."""
    exact = torch.empty(0)
    for row, network, std in each(setting, DEVIATIONS):
        if std is None:
            yield row
            continue
        exact = std if row["method"] == "full Hessian" else exact
        row |= compared(std, exact, network.weights)
        if network.seed == 0:
            chosen = sorted(probes.permutation(len(exact), generator=generator(network.seed))[:SHOWN])
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


def magnitude(network: Fitted) -> Float[Tensor, " d"]:
    """The same for every weight: no uncertainty at all."""
    return network.weights.abs().median().expand(len(network.weights))


def sparsification(setting: Setting) -> Iterator[Row]:
    """Every method on every seed of every data set, pruned by one standard deviation and by share."""
    for row, network, std in each(setting, DEVIATIONS | {"magnitude": magnitude}):
        row["trained"] = mean_absolute_error(network.model, network.data.inside)
        yield row | ({} if std is None else pruned(network, std))


def pruned(network: Fitted, std: Float[Tensor, " d"]) -> Row:
    """What is left when every weight within ``std`` of 0 is removed, and when given shares of the weights are."""
    smaller = lw.hessian_free.prune_uncertain(network.model, std)
    row: Row = {"pruned": float((flat(smaller) == 0).double().mean())}
    row["error"] = mean_absolute_error(smaller, network.data.inside)
    for share in SHARES:
        smaller = lw.hessian_free.prune_uncertain(network.model, std, share=share)
        row[f"error_at_{share:.1f}"] = mean_absolute_error(smaller, network.data.inside)
    return row


def mean_absolute_error(model: nn.Module, pair: Pair) -> float:
    """On the targets."""
    with torch.no_grad():
        return float((model(pair[0]) - pair[1]).abs().mean())


def draw_intervals(found: Sequence[Row]) -> Any:
    """A panel a data set, a weight a column, the methods side by side."""
    made, panels = by_panel([row for row in found if "weights" in row], "data", 5.0, 4.2)
    for panel, name, own in panels:
        panel.axhline(0, color="#333333", linewidth=0.8)
        for number, row in enumerate(own):
            places = torch.arange(len(row["std"])) + (number - (len(own) - 1) / 2) * 0.8 / len(own)
            look: dict[str, Any] = {"color": colour(number), "label": row["method"], "linewidth": 1.2}
            panel.errorbar(places, row["values"], row["std"], fmt="o", markersize=2.5, **look)
        panel.set(title=name, xticks=[], xlabel="weight number", ylabel="weight ± std")
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return made


def draw_sparsification(found: Sequence[Row]) -> Any:
    """Error against share pruned, mean over the seeds; a square where one standard deviation prunes."""
    made, panels = by_panel([row for row in found if row.get("summary")], "data", 4.2, 4.2)
    for panel, name, own in panels:
        for number, row in enumerate(own):
            errors, color = [row[f"error_at_{share:.1f}"] for share in SHARES], colour(number)
            panel.plot(SHARES, errors, "o-", markersize=3, linewidth=1.4, color=color, label=row["method"])
            if row["method"] != "magnitude":
                panel.plot(row["pruned"], row["error"], "s", color=color, markersize=7)
        panel.set(title=name, yscale="log", xlabel="share of weights removed", ylabel="mean absolute error")
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return made
