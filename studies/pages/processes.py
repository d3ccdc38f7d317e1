"""Gaussian processes: what the studies and the benchmark beside GPyTorch find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.report import Row
from studies.gp.table import PUBLISHED
from studies.pages.reports import NOTHING, estimate, fixed, grid, grouped_digits, mean_of, row, rows, significant

SETS = ("pol", "elevators", "bike", "smooth", "protein", "keggdirected")
REGIMES = ("infill", "large domain")

DESCENTS = (
    ("objective, all rows", "dual", "objective", "dual, {} of its longest", ("0.01", "0.1", "0.9")),
    ("", "primal", "objective", "primal, {} of its longest", ("0.01", "0.1", "0.9")),
    ("estimator", "128 coordinates", "estimator", "coordinates, {} of the longest", ("0.005", "0.05", "0.5")),
    ("", "100 random features", "estimator", "features, {} of the longest", ("0.005", "0.05", "0.5")),
    ("", "K alone on 128 coordinates", "estimator", "partial, {} of the longest", ("0.005", "0.05", "0.5")),
    ("coordinates, half the longest step", "without momentum", "momentum", "0", ("0.5",)),
    ("", "arithmetic average of the last half", "average", "arithmetic", ("0.5",)),
    ("", "no average", "average", "none", ("0.5",)),
    ("", "Adam", "optimiser", "Adam", (NOTHING,)),
    ("", "Adagrad", "optimiser", "Adagrad", (NOTHING,)),
    ("", "RMSprop", "optimiser", "RMSprop", (NOTHING,)),
)
"""How a group and a method are called on the page and in the report, and their steps."""

HYPER = {
    ("lapwing subset, then pathwise", 1): "`gp.Subset`",
    ("lapwing subset, then pathwise", 2): "and then `gp.Pathwise`",
    ("GPyTorch Adam", 3): "GPyTorch",
    ("GPyTorch Adam", 4): "GPyTorch",
    ("GPyTorch Adam", 6): "GPyTorch",
    ("lapwing exact, from the best of both", 0): "`gp.Evidence`, from there",
}
"""Side and point of the search of hyper-parameters, and how the page calls it."""

MOLECULES = {"Tanimoto process": "Tanimoto process, tuned", "ridge": "ridge", "forest": "random forest"}
GROWTH = {
    "step of dual descent": "a step of dual descent, 65 columns",
    "product": "a product",
    "mean and 64 functions, two steps of conjugate gradients": "two steps of conjugate gradients, 65 columns",
}
SEARCHES = {"auto": "`gp.thompson`", "SVGP": "SVGP, GPyTorch", "random": "random"}
STARVED = {"features": "500 random features", "functions": "64 functions"}
SIDES = {
    "lapwing auto": "`lw.GP`",
    "GPyTorch CG, fast_pred_var": "GPyTorch CG",
    "GPyTorch CG, fast_pred_var, float64": "GPyTorch CG, float64",
    "GPyTorch SVGP 1024, 10 epochs": "GPyTorch SVGP, 10 epochs",
}
FUNCTIONS = {"Branin": "Branin", "Ackley": "Ackley, 2 dimensions", "Hartmann": "Hartmann, 6 dimensions"}
SURROGATES = ("SingleTaskGP", "process", "network")


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield uci()
    yield search()
    yield regimes()
    yield descents()
    yield thompson()
    yield molecules()
    yield starvation()
    yield low_noise()
    yield peers()
    yield growth()
    yield optimisation()


def uci() -> str:
    """The defaults on each set, the published scores beside, and dual descent's own."""
    heads = {"data": "<"}
    heads |= dict.fromkeys(("rows", "RMSE", "NLL", "coverage", "published RMSE", "published NLL"), ">")
    heads |= dict.fromkeys(("dual: NLL", "dual: coverage", "steps", "error"), ">")
    lines = []
    for name in SETS:
        found = row("gp-uci", summary=True, data=name)
        published = PUBLISHED.get(name, (None, None))
        scores = [fixed(found[score], 3) for score in ("rmse", "nll", "coverage")]
        scores += [fixed(value, 2) for value in published]
        dual = [NOTHING] * 4
        if "dual_nll" in found:
            steps, error = grouped_digits(found["dual_steps"]), f"{100 * found['dual_error']:.1f} %"
            dual = [fixed(found["dual_nll"], 3), fixed(found["dual_coverage"], 3), steps, error]
        lines.append([name, grouped_digits(found["rows"]), *scores, *dual])
    return grid(heads, lines)


def search() -> str:
    """Evidence against seconds, beside GPyTorch's search."""
    heads = {"side": "<", "seconds": ">", "evidence a row, nats": ">", "gap": ">"}
    lines = []
    for (side, point), called in HYPER.items():
        found = row("gp-hyper", summary=True, side=side, point=point)
        gap = f"{100 * found['gap']:.2g} %" if found["gap"] else "0"
        lines.append([called, fixed(found["seconds"], 0), fixed(found["evidence"], 3), gap])
    return grid(heads, lines)


def regimes() -> str:
    """Distance to the exact marginals by region."""
    heads = {"regime": "<", "method": "<", "interior": ">", "edges": ">", "far": ">", "residual": ">"}
    found = [each for regime in REGIMES for each in rows("gp-regimes", summary=True, regime=regime)]
    numbers = ("interior", "edges", "far", "residual")
    return grid(heads, [[each["regime"], each["method"], *(mean_of(each, name) for name in numbers)] for each in found])


def descents() -> str:
    """What each descent has come to."""
    heads = {"": "<", "method": "<", "step": ">", "error in K": ">", "in K²": ">", "RMSE": ">"}
    lines = []
    for group, method, part, called, steps in DESCENTS:
        for step in steps:
            first = step == steps[0]
            found = row("gp-descents", summary=True, part=part, method=called.format(step))
            errors = [mean_of(found, "k_norm"), mean_of(found, "k2_norm"), fixed(found["rmse"], 3)]
            lines.append([group if first else "", method if first else "", step, *errors])
    return grid(heads, lines)


def thompson() -> str:
    """Gains of Thompson sampling by length-scale."""
    heads = {"length-scale": ">", "method": "<", "gain": ">", "seconds": ">"}
    lines = []
    for scale in dict.fromkeys(each["lengthscale"] for each in rows("gp-thompson", summary=True)):
        for method, called in SEARCHES.items():
            found = row("gp-thompson", summary=True, lengthscale=scale, method=method)
            seconds = NOTHING if method == "random" else mean_of(found, "seconds")
            lines.append([scale, called, mean_of(found, "gain"), seconds])
    return grid(heads, lines)


def molecules() -> str:
    """Made-up molecules."""
    heads = {"method": "<"} | dict.fromkeys(("R²", "coverage", "coverage by functions", "seconds"), ">")
    numbers = ("r2", "coverage", "drawn_coverage", "seconds")
    found = rows("gp-molecules", summary=True)
    lines = [[MOLECULES[each["method"]], *(mean_of(each, name) for name in numbers)] for each in found]
    return grid(heads, lines)


def starvation() -> str:
    """Standard deviations and means in the gap."""
    heads = {"method": "<", "standard deviation over the exact": ">", "error of the mean": ">"}
    lines = []
    for method, called in STARVED.items():
        found = row("gp-starvation", summary=True, method=method)
        lines.append([called, mean_of(found, "std_ratio"), mean_of(found, "mean_error")])
    return grid(heads, lines)


def low_noise() -> str:
    """The noise that was found, and hardly any."""
    heads = {"data": "<", "noise variance": "<", "method": "<", "RMSE": ">", "from the exact mean": ">"}
    heads |= {"residual": ">", "seconds": ">"}
    found = rows("gp-noise", summary=True)
    lines: list[list[str]] = []
    for before, each in zip([{}, *found], found, strict=False):
        same_set = each["data"] == before.get("data")
        same_noise = same_set and each["noise"] == before.get("noise")
        noise = f"{each['noise_variance']:.2g}, found" if each["noise"] == "found" else "1e-6"
        numbers = [fixed(each[name], 3) for name in ("rmse", "rmse_to_exact", "residual")]
        head = ["" if same_set else each["data"], "" if same_noise else noise, each["method"]]
        lines.append([*head, *numbers, fixed(each["seconds"], 0)])
    return grid(heads, lines)


def peers() -> str:
    """Beside GPyTorch, the first split."""
    heads = {"data": "<", "rows": ">", "method": "<"} | dict.fromkeys(("seconds", "peak MiB", "RMSE", "NLL"), ">")
    lines = []
    first = rows("gp-peers", part="peers", seed=0)
    for name in dict.fromkeys(each["data"] for each in first):
        for count in dict.fromkeys(each["observations"] for each in first if each["data"] == name):
            some = [each for each in first if each["data"] == name and each["observations"] == count]
            lines += [peer_line(each) for each in some if each["side"] in SIDES]
    return grid(heads, without_repeats(lines, 2))


def growth() -> str:
    """Seconds and memory against the rows."""
    found = rows("gp-peers", part="growth", summary=True)
    sizes = sorted({each["observations"] for each in found})
    lines = []
    for quantity, unit in (("peak_mib", "MiB"), ("seconds", "seconds")):
        for work, called in GROWTH.items():
            of = {each["observations"]: each[quantity] for each in found if each["work"] == work}
            numbers = [significant(of[size]) if size in of else NOTHING for size in sizes]
            lines.append([f"{called}, {unit}", *numbers])
    return grid({"rows": "<"} | {grouped_digits(size): ">" for size in sizes}, lines)


def peer_line(found: Row) -> list[str]:
    """One side on one set."""
    head = [found["data"], grouped_digits(found["observations"]), SIDES[found["side"]]]
    if found.get("failure"):
        why = "not positive definite" if "NotPSD" in found["failure"] else "out of memory"
        return [*head, f"failed: {why}", "", "", ""]
    nll = found["nll"]
    scores = [f"{found['rmse']:.3g}", grouped_digits(nll) if nll > 100 else fixed(nll, 2)]
    return [*head, fixed(found["seconds"], 1), grouped_digits(found["peak_mib"]), *scores]


def without_repeats(lines: Sequence[Sequence[str]], columns: int) -> list[list[str]]:
    """Lines in which the first columns are left empty where they repeat the line above."""
    shown: list[list[str]] = []
    before: Sequence[str] = ()
    for line in lines:
        kept = list(line)
        for i in range(columns):
            if list(line[: i + 1]) == list(before[: i + 1]):
                kept[i] = ""
        shown.append(kept)
        before = line
    return shown


def optimisation() -> str:
    """Regrets of BoTorch's loop."""
    heads = {"function": "<", "values": ">"} | {f"`{model}`": ">" for model in SURROGATES}
    heads |= {f"{model} / `SingleTaskGP`": ">" for model in SURROGATES[1:]}
    lines = []
    for name, called in FUNCTIONS.items():
        of = {each: row("bayesian_optimisation", summary=True, function=name, model=each) for each in SURROGATES}
        base = of["SingleTaskGP"]
        regrets = [estimate(each["regret"], each["regret_stderr"]) for each in of.values()]
        ratios = [significant(of[model]["regret"] / base["regret"]) for model in SURROGATES[1:]]
        lines.append([called, fixed(base["evaluations"], 0), *regrets, *ratios])
    return grid(heads, lines)
