"""The table of the page on choosing: for each situation what was measured without the advice, and with it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

from benchmarks.report import Row
from studies import mirror_images
from studies.pages import calibration, knowledge
from studies.pages.reports import NOTHING, RESULTS, difference, fixed, grid, row, rows

SITUATIONS: dict[str, str] = {
    "held-out data, all weights affordable": "`lw.KFAC()`, `lw.tune(posterior, held_out)`",
    "held-out data, a large network": "`weights=lw.LastLayer()`",
    "no held-out data": "`lw.tune(posterior)`",
    "no held-out data, many wrong labels": "find some: `lw.tune(posterior, held_out)`",
    "real targets": "`lw.Gaussian()`, `lw.tune(posterior)`",
    "inputs from elsewhere": "`p.epistemic`, `p.unfamiliar`",
    "decisions about several inputs at once": "`joint=True`, `posterior.sample_functions`",
    "training on mirror images too": "`lw.TestTimeAugmentation(model, [mirrored])`",
    "probabilities alone, many labels to spare": "`lw.baselines.VectorScaling()`",
    "you can train five networks": "`lw.baselines.DeepEnsemble()`",
}
"""What the reader has, and what to take then, in the order of the page."""

NETWORK = "ella_resnet20"
NO_HELD_OUT = "MNIST 300, MLP, 100 epochs"
WRONG_LABELS = "generated table, 30% of labels at random, MLP, 100 epochs"


def tables() -> Iterator[str]:
    """In the order of the page."""
    heads = {"you have, or want": "<", "take": "<", "measured": "<", "without": ">", "with": ">", "difference": ">"}
    measured = (
        held_out("KFAC"),
        held_out("last layer"),
        default(),
        wrong_labels(),
        real_targets(),
        from_elsewhere(),
        together(),
        mirrored(),
        on_digits("vector scaling"),
        on_digits("deep ensemble"),
    )
    lines = [[*situation, *found] for situation, found in zip(SITUATIONS.items(), measured, strict=True)]
    yield grid(heads, lines)


def held_out(posterior: str) -> list[str]:
    """A ResNet-20 tuned on held-out images, beside temperature scaling."""
    found = row("links", summary=True, part=NETWORK, posterior=posterior, link="chosen")
    alone = calibration.nll(NETWORK, "none", "temperature scaling")
    gain = difference(found["difference"], found["difference_stderr"])
    return ["NLL of a ResNet-20; without: temperature scaling", fixed(alone, 3), fixed(found["nll"], 3), gain]


def default() -> list[str]:
    """A network that learnt few images by heart, tuned by its training data."""
    found = row("tuning", pair=NO_HELD_OUT, posterior="KFAC")
    gain = difference(found["from_plain"], found["from_plain_stderr"])
    return ["NLL of a perceptron, 300 images; without: plain", fixed(found["plain"], 3), fixed(found["nll"], 3), gain]


def wrong_labels() -> list[str]:
    """The default beside temperature scaling, which has held-out data."""
    found = row("tuning", pair=WRONG_LABELS, posterior="KFAC")
    gain = difference(-found["from_temperature"], found["from_temperature_stderr"])
    scores = [fixed(found["nll"], 3), fixed(found["temperature"], 3)]
    return ["NLL, 30 % of labels random; without: the default; with: temperature scaling", *scores, gain]


def real_targets() -> list[str]:
    """The mean over the UCI sets, beside Bayesian ridge regression."""
    found = {method: uci(method) for method in ("BayesianRidge", "lapwing")}
    below = sum(found["lapwing"][data] < nll for data, nll in found["BayesianRidge"].items())
    means = [fixed(statistics.fmean(scores.values()), 3) for scores in found.values()]
    what = "NLL, mean of ten UCI sets; without: BayesianRidge"
    return [what, *means, f"better on {below} of {len(found['lapwing'])}"]


def uci(method: str) -> dict[str, float]:
    """NLL by data set."""
    return {each["data"]: each["nll"] for each in rows("uci", summary=True, method=method)}


def from_elsewhere() -> list[str]:
    """Classes that the network has not seen, told by what the posterior knows."""
    plain = {each["network"]: each["unseen"] for each in knowledge.tested("none", "plain entropy")}
    ours = knowledge.tested("KFAC", "epistemic")
    scores = [
        statistics.fmean(plain[each["network"]] for each in ours),
        statistics.fmean(each["unseen"] for each in ours),
    ]
    gain = statistics.fmean(each["unseen_gain"] for each in ours)
    shown = [fixed(score, 3) for score in scores]
    what = f"AUROC of unseen classes, mean of {len(ours)} networks; without: plain entropy"
    return [what, *shown, f"{gain:+.3f}"]


def digits(method: str) -> Row:
    """The row of a method in the comparison on digits; of several ways to tune it the first."""
    report = json.loads((RESULTS / "side-by-side" / "digits" / "results.json").read_text(encoding="utf-8"))
    found = [each for each in report["rows"] if each["method"] == method]
    if not found:
        raise LookupError(f"side-by-side/digits has no row of {method}")
    return found[0]


def together() -> list[str]:
    """Labels of several inputs at once, tuned without held-out data."""
    scores = [digits(method)["joint"]["mean"] for method in ("temperature scaling", "KFAC, no validation data")]
    what = "joint log-likelihood on digits, nats a label, high is good; without: temperature scaling"
    return [what, *(fixed(score, 3) for score in scores), NOTHING]


def mirrored() -> list[str]:
    """A temperature on the average over mirror images, beside one on the images as they are."""
    method = "temperature scaling"
    both = row("mirror-images", network=NETWORK, method=method)
    one = row("mirror-images", network=NETWORK, method=method + mirror_images.ONE_VIEW)
    gain = difference(-one["difference"], one["difference_error"])
    what = "NLL of a ResNet-20 with a temperature; without: the images as they are"
    return [what, fixed(one["nll"], 3), fixed(both["nll"], 3), gain]


def on_digits(method: str) -> list[str]:
    """The NLL of a baseline beside temperature scaling."""
    found = digits(method)["nll"]
    gain = difference(found["difference"]["value"], found["difference"]["stderr"], 3)
    alone = digits("temperature scaling")["nll"]["mean"]
    return ["NLL on digits; without: temperature scaling", fixed(alone, 3), fixed(found["mean"], 3), gain]
