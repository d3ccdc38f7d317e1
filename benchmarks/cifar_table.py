"""Two trained ResNet-20 on CIFAR-10: what each structure does to calibration, tuned in three ways.

``python -m benchmarks.cifar_table --data DIR --json FILE --markdown docs/cifar10.md``

The curvature is that of the training images in the data folder, part of the 50 000 the networks were trained
on. The first 300 test images tune what is tuned by validation; every method is scored on the other 717.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

import lapwing as lw
from benchmarks.cost import timed
from benchmarks.data import CHECKPOINTS, cifar10
from benchmarks.measure import Row, write_json
from lapwing.evaluation.baselines import Temperature
from lapwing.evaluation.metrics import accuracy, brier, ece, nll

NETWORKS = {"resnet20": "ResNet-20, zero-padded shortcuts", "ella_resnet20": "ResNet-20 of the ELLA paper"}
VALIDATION = 300
AT_WEIGHTS = "evidence at the weights"
BATCH = 128
RECIPES: dict[str, Callable[[], lw.Laplace]] = {
    "last layer": lambda: lw.Laplace(lw.Categorical(), structure=lw.Full(), weights=lw.LastLayer()),
    "diagonal": lambda: lw.Laplace(lw.Categorical(), structure=lw.Diagonal()),
    "KFAC": lambda: lw.Laplace(lw.Categorical(), structure=lw.KFAC()),
}


@dataclass(frozen=True)
class Score:
    """One line of the table.

    Args:
        network: Key of ``NETWORKS``.
        method: The structure, or a method without a posterior.
        tuned: By what: ``"default"``, ``AT_WEIGHTS``, ``"validation"`` or nothing.
        value: The tuned prior precision or temperature, if there is one.
        probs: Probabilities of the test images.
        seconds: Seconds of each step that was needed: fit, tune, predict.
    """

    network: str
    method: str
    tuned: str
    value: float | None
    probs: Tensor
    seconds: dict[str, float]

    def metrics(self, labels: Tensor) -> dict[str, float]:
        """The four scores of the probabilities."""
        scores = {"accuracy": accuracy, "nll": nll, "ece": ece, "brier": brier}
        return {name: score(self.probs, labels) for name, score in scores.items()}


@dataclass(frozen=True)
class Task:
    """One trained network and what it is fitted to, tuned on and scored on.

    Args:
        name: Key of ``NETWORKS``.
        model: The network.
        train: Loader of the images behind the curvature.
        validation: Images and labels that tune.
        test: Images and labels that score.
    """

    name: str
    model: nn.Module
    train: DataLoader[tuple[Tensor, ...]]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def read(cls, name: str, folder: Path, count: int) -> Task:
        """Read a network and its images; ``count`` training images are used."""
        checkpoint = CHECKPOINTS[name]
        data = cifar10(folder, checkpoint)
        train = DataLoader(TensorDataset(data.x_train[:count], data.y_train[:count]), batch_size=BATCH)
        validation = data.x_test[:VALIDATION], data.y_test[:VALIDATION]
        test = data.x_test[VALIDATION:], data.y_test[VALIDATION:]
        return cls(name, checkpoint.load(folder), train, validation, test)

    def logits(self, x: Tensor) -> Tensor:
        """The plain network, in batches."""
        with torch.no_grad():
            return torch.cat([self.model(batch) for batch in x.split(BATCH)])


def scores(task: Task) -> list[Score]:
    """Every method on one network, the plain network first."""
    return [*_baselines(task), *(score for method in RECIPES for score in _laplace(task, method))]


def _baselines(task: Task) -> tuple[Score, Score]:
    logits, predicting = timed(lambda: task.logits(task.test[0]))
    plain = Score(task.name, "plain", "", None, logits.softmax(-1), {"predict": predicting})
    held_out = task.logits(task.validation[0])
    scaling, tuning = timed(lambda: Temperature.fit(held_out, task.validation[1]))
    seconds = {"tune": tuning, "predict": predicting}
    value, probs = float(scaling.temperature), scaling.probs(logits)
    return plain, Score(task.name, "temperature scaling", "validation", value, probs, seconds)


def _laplace(task: Task, method: str) -> Iterator[Score]:
    fitted, fitting = timed(lambda: RECIPES[method]().fit(task.model, task.train, progress=True))
    ways = {"default": None, AT_WEIGHTS: lw.EvidenceGradient(), "validation": lw.Validation(task.validation)}
    for name, way in ways.items():
        tuned, tuning = timed(partial(lw.tune, fitted, way, progress=True))
        probs, predicting = timed(partial(_predict, tuned, task.test[0]))
        seconds = {"fit": fitting, "tune": tuning, "predict": predicting}
        yield Score(task.name, method, name, float(tuned.prior_precisions[0]), probs, seconds)


def _predict(posterior: lw.Posterior, x: Tensor) -> Tensor:
    return torch.cat([posterior.predict(batch).probs for batch in x.split(BATCH)])


def rows(found: list[Score], labels: Tensor) -> list[Row]:
    """Lines of the table as rows of a report, the plain network in the place of the peer."""
    plain = found[0].metrics(labels)
    report: list[Row] = []
    for score in found:
        work = "/".join(word.replace(" ", "_") for word in (score.network, score.method, score.tuned) if word)
        for quantity, value in score.metrics(labels).items():
            report.append(Row(work, quantity, value, plain[quantity], "plain network"))
        for step, seconds in score.seconds.items():
            report.append(Row(f"{work}/{step}", "seconds", seconds, None, "plain network", "ours alone"))
        if score.value is not None:
            quantity = "temperature" if score.method.startswith("temperature") else "prior_precision"
            report.append(Row(work, quantity, score.value, None, "plain network", "what was tuned"))
    return report


def table(found: list[Score], labels: Tensor) -> str:
    """One network as a Markdown table; the best of each score in bold."""
    header = "| method | tuned by | tuned to | accuracy | NLL | NLL − plain | ECE | Brier |"
    lines = [header + " fit s | tune s | predict s |", "|---|---|" + "---:|" * 9]
    metrics = [score.metrics(labels) for score in found]
    best = {name: (max if name == "accuracy" else min)(m[name] for m in metrics) for name in metrics[0]}
    for score, metric in zip(found, metrics, strict=True):
        shown = {k: f"**{v:.4f}**" if v == best[k] else f"{v:.4f}" for k, v in metric.items()}
        cells = [score.method, score.tuned or "–", "–" if score.value is None else f"{score.value:.3g}"]
        cells += [shown["accuracy"], shown["nll"], _difference(score, found[0], labels)]
        cells += [shown["ece"], shown["brier"]]
        seconds = (score.seconds.get(step) for step in ("fit", "tune", "predict"))
        cells += ["–" if value is None else f"{value:.2f}" for value in seconds]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _difference(score: Score, plain: Score, labels: Tensor) -> str:
    if score is plain:
        return "–"
    ours, theirs = (F.nll_loss(s.probs.double().log(), labels, reduction="none") for s in (score, plain))
    change = ours - theirs
    return f"{change.mean():+.4f} ± {change.std() / len(labels) ** 0.5:.4f}"


def page(sections: dict[str, str], *, command: str, count: int) -> str:
    """The Markdown page: what was done, by which command, and a table a network."""
    text = f"""# CIFAR-10: two trained ResNet-20

Made by `{command}`; do not edit by hand.

Two networks trained elsewhere, taken as they are. The curvature is that of {count} training images (the
networks saw 50 000); all parameters, batch norm included, are uncertain, except in the rows of the last layer
(full covariance). The first {VALIDATION} test images choose the temperature and, in the rows tuned by
validation, the prior precision; every row is scored on the other 717. Default is what lw.tune does by itself:
mixtures of training images; evidence at the weights is Laplace's, at the trained weights. Predictions are
linearised, by the link of each posterior. NLL in nats, ECE with 15 bins, ± one standard error
of the difference on the same images. Seconds are for fitting, tuning and predicting the 717 images.
"""
    return text + "".join(f"\n## {NETWORKS[name]}\n\n{body}\n" for name, body in sections.items())


def main() -> None:
    """Measure both networks, write the report and the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cifar_table", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--markdown", type=Path, help="page to write")
    parser.add_argument("--train", type=int, default=5438, help="training images for the curvature")
    args = parser.parse_args()
    report: list[Row] = []
    sections: dict[str, str] = {}
    for network in tqdm(NETWORKS, unit="network"):
        task = Task.read(network, args.data, args.train)
        found, labels = scores(task), task.test[1]
        report += rows(found, labels)
        sections[network] = table(found, labels)
        write_json(args.json, report)
    options = f"--train {args.train} " if args.train != parser.get_default("train") else ""
    place = args.markdown or Path("docs/cifar10.md")
    command = f"python -m benchmarks.cifar_table --data DIR {options}--json FILE --markdown {place}"
    text = page(sections, command=command, count=args.train)
    if args.markdown:
        args.markdown.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
