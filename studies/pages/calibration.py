"""What tuning and links do: the networks with validation data, without, and the regressions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from benchmarks.report import Row
from studies.pages.reports import difference, fixed, grid, row, rows
from studies.uci_structures import PLAIN

ALONE = {
    "plain": "plain network",
    "temperature": "temperature scaling",
    "without its penalty": "temperature scaling without its penalty",
    "SVS": "structured vector scaling",
    "SMS": "structured matrix scaling",
}
"""Columns of the network alone, and what the report calls them."""

LINKS = {"probit": "probit", "pairwise": "pairwise", "qmc": "qmc", "no temperature": "chosen, no temperature"}
CHOSEN = "chosen"
METHODS = ("lapwing", "plain network", "BayesianRidge")


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield networks_alone()
    yield posterior_by_links("KFAC")
    yield posterior_by_links("last layer")
    yield without_held_out_data(chooses=False)
    yield without_held_out_data(chooses=True)
    yield regressions()
    yield structures()


def networks() -> list[str]:
    """The networks of the report on links, in its order."""
    return list(dict.fromkeys(row["part"] for row in rows("links", summary=True)))


def nll(network: str, posterior: str, link: str) -> float | None:
    """Mean negative log-likelihood; ``None`` where that was not run."""
    found = rows("links", summary=True, part=network, posterior=posterior, link=link)
    return found[0]["nll"] if found else None


def networks_alone() -> str:
    """The plain network and its calibrators."""
    lines = [[name, *(fixed(nll(name, "none", called), 3) for called in ALONE.values())] for name in networks()]
    return grid({"network": "<"} | dict.fromkeys(ALONE, ">"), lines)


def posterior_by_links(posterior: str) -> str:
    """A posterior by each link with a precision of its own, and what is chosen of all."""
    heads = ("temperature", *LINKS, "chosen", "chosen − temperature")
    lines = []
    for name in networks():
        chosen = row("links", summary=True, part=name, posterior=posterior, link=CHOSEN)
        by_links = [nll(name, posterior, link) for link in LINKS.values()]
        scores = [nll(name, "none", "temperature scaling"), *by_links, chosen["nll"]]
        shown = [fixed(score, 3) for score in scores]
        lines.append([name, *shown, difference(chosen["difference"], chosen["difference_stderr"])])
    return grid({"network": "<"} | dict.fromkeys(heads, ">"), lines)


def without_held_out_data(*, chooses: bool) -> str:
    """The default tuning of each network beside the network itself."""
    heads = {"network": "<", "posterior": "<", "link": "<", "NLL": ">", "plain": ">", "difference": ">"}
    heads |= {"unlabelled inputs": ">", "temperature scaling": ">", "tuning, s": ">"}
    found = [each for each in rows("tuning", chooses=chooses) if "pair" in each]
    return grid(heads, [tuned_line(each) for each in found])


def tuned_line(found: Row) -> list[str]:
    """A row of the report on tuning as a line of the page."""
    gain = "tie" if is_tie(found) else difference(found["from_plain"], found["from_plain_stderr"])
    scores = [fixed(found["nll"], 4), fixed(found["plain"], 4), gain]
    scores += [fixed(found.get(name), 4) for name in ("unlabelled", "temperature")]
    return [found["pair"], found["posterior"], found["link"], *scores, fixed(found["tune_seconds"], 1)]


def is_tie(found: Row) -> bool:
    """Whether tuning left predictions as they are."""
    return bool(found["strongest_prior"]) and abs(found["from_plain"]) < 1e-3 * found["plain"]


def regressions() -> str:
    """The ten tables of numbers."""
    heads = ("NLL", "plain network", "BayesianRidge", "95 % cover", "noise / residuals", "seconds")
    lines = []
    for name in dict.fromkeys(each["data"] for each in rows("uci", summary=True)):
        of = {method: row("uci", summary=True, data=name, method=method) for method in METHODS}
        ours = of["lapwing"]
        scores = [fixed(each["nll"], 3) for each in of.values()]
        rest = [f"{100 * ours['coverage']:.1f} %", fixed(ours["noise_ratio"], 2), fixed(ours["seconds"], 2)]
        lines.append([name, *scores, *rest])
    return grid({"data": "<"} | dict.fromkeys(heads, ">"), lines)


def structures() -> str:
    """Every structure tuned by default, over all sets and splits, less the network with the noise of its residuals."""
    heads = {"network": "<", "structure": "<", "NLL − plain": ">", "median": ">", "better": ">", "95 % cover": ">"}
    lines = []
    for network in dict.fromkeys(each["network"] for each in of_each(PLAIN)):
        for method in dict.fromkeys(each["method"] for each in rows("uci-structures") if "seed" in each):
            found = [each for each in of_each(method) if each["network"] == network]
            apart = [each["difference"] for each in found]
            cover = f"{100 * statistics.fmean(each['picp'] for each in found):.1f} %"
            if method == PLAIN:
                lines.append([network, method, "0", "0", "–", cover])
                continue
            error = statistics.stdev(apart) / math.sqrt(len(apart))
            better = f"{sum(gain < 0.0 for gain in apart)} of {len(apart)}"
            median = fixed(statistics.median(apart), 3)
            lines.append([network, method, difference(statistics.fmean(apart), error), median, better, cover])
    return grid(heads, lines)


def of_each(method: str) -> list[Row]:
    """The rows of one structure that has numbers, of every set and split."""
    found = rows("uci-structures", method=method)
    return [each for each in found if "seed" in each and "nll" in each and not each.get("summary")]
