"""What is known and what is not: are inputs from elsewhere told from familiar ones, and errors from right answers?

    python -m studies.elsewhere --data DIR --json FILE

Networks are trained without three of ten classes, which come from elsewhere then; for ResNets on CIFAR-10 these are
images of CIFAR-100. Noise has pixels from the whole range, shifted inputs are test inputs under a corruption. A row a
network, posterior and score: the AUROC of the score on test inputs against each of them, and of right against wrong
answers, and by how much it is above that of the entropy of the plain network, with the paired standard error of DeLong.

The rule by which ``lw.tune`` chooses the scale of knowledge was chosen on the networks of the part "chooses". Those of
the part "tests" chose none of its numbers, but two earlier rules had been tried on them before they were given up: one
of the temperature 1, and one with the same factor for all layers, which told unseen classes worse on three networks
with batch norm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import CHECKPOINTS, Pair, cifar10, digits, generator, mnist
from benchmarks.networks import seeded
from benchmarks.report import Row
from benchmarks.training import train
from lapwing import metrics
from lapwing.baselines import Energy, Mahalanobis, NearestNeighbours, ScoredNetwork, Task
from lapwing.evaluation.corruptions import corrupt
from lapwing.predictive import Classification
from studies.pairs import cnn, flat

SHIFT = ("gaussian_noise", 3)
"""The corruption of shifted inputs, and its severity."""

AGAINST = ("unseen", "noise", "shift")
"""What is told from test inputs."""

GAINS = {"unseen": 0.01, "noise": 0.03}
"""By how much ``epistemic`` is to be above the entropy of the plain network in the mean."""

CLASSES = 7
NEIGHBOURS = 10

CHOOSING = (
    ("digits", 30, (7, 8, 9)),
    ("digits", 31, (0, 3, 5)),
    ("digits", 32, (2, 4, 6)),
    ("MNIST", 35, (0, 3, 5)),
    ("MNIST", 36, (4, 7, 8)),
)
TESTING = (("digits", 20, (1, 4, 6)), ("MNIST", 2, (1, 4, 6)), ("MNIST", 3, (2, 8, 9)))
"""Data, seed and the classes that are held out."""

POSTERIORS: dict[str, Callable[[lw.Categorical], lw.Laplace]] = {
    "KFAC": lambda likelihood: lw.Laplace(likelihood, structure=lw.KFAC()),
    "last layer": lambda likelihood: lw.Laplace(likelihood, weights=lw.LastLayer(), structure=lw.Full(view="weights")),
    "diagonal": lambda likelihood: lw.Laplace(likelihood, structure=lw.Diagonal()),
    "Nyström": lambda likelihood: lw.Laplace(likelihood, structure=lw.Nystrom(50)),
    "32 draws": lambda likelihood: lw.Laplace(likelihood, structure=lw.Sampled(32)),
}

ON_MNIST = ("KFAC", "last layer", "diagonal")
ON_RESNETS = ("KFAC", "last layer")
"""Posteriors that are looked at there; all of them on digits."""


@dataclass(frozen=True)
class Case:
    """A trained network, its data, and inputs from elsewhere.

    Args:
        model: The network, in evaluation mode.
        train: What it was trained on, or a part of that.
        test: Test inputs and labels.
        elsewhere: Inputs of each kind of ``AGAINST``.
        examples: How many training examples there were.
        posteriors: Those that are looked at, by name.
    """

    model: nn.Module
    train: Pair
    test: Pair
    elsewhere: Mapping[str, Tensor]
    examples: int
    posteriors: tuple[str, ...]


def cases(setting: Setting) -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Part, name, and what makes the case."""
    kinds = {"CNN": partial(cnn, False), "CNN with batch norm": partial(cnn, True), "MLP": None}
    for part, several in (("tests", TESTING), ("chooses", CHOOSING)):
        for data, seed, held_out in several:
            for kind, build in kinds.items():
                name = f"{data} without {', '.join(map(str, held_out))}, {kind}"
                known = ("KFAC",)
                if part == "tests":
                    known = ON_MNIST if data == "MNIST" else tuple(POSTERIORS)
                yield part, name, partial(small, setting, data, seed, held_out, build, known)
        if setting.data is not None:
            for name in ("resnet20", "resnet32") if part == "tests" else ("ella_resnet20",):
                yield part, name, partial(resnet, setting, name, ON_RESNETS)


def small(
    setting: Setting,
    data: str,
    seed: int,
    held_out: Sequence[int],
    build: Callable[[int], nn.Module] | None,
    posteriors: tuple[str, ...],
) -> Case:
    """A network trained here on seven of ten classes.

    Args:
        setting: Has the data folder, for MNIST.
        data: ``"digits"`` or ``"MNIST"``.
        seed: Of the split, the weights and the noise.
        held_out: The other three classes.
        build: Makes the network of so many classes; ``None`` for a perceptron.
        posteriors: Those that are looked at.
    """
    split = mnist(setting.folder) if data == "MNIST" else digits(None, 1797)
    size, epochs = (800, 30) if data == "MNIST" else (500, 50)
    x, y = split.train
    unseen = torch.isin(y, torch.tensor(held_out))
    order = generator(seed)
    inputs = x[~unseen]
    labels = torch.unique(y[~unseen], return_inverse=True)[1]
    places = torch.randperm(len(labels), generator=order)
    training, test = places[:size], places[size : size + 300]
    strangers = x[unseen][torch.randperm(int(unseen.sum()), generator=order)[:200]]
    make = partial(flat, x[0].numel(), CLASSES) if build is None else partial(build, CLASSES)
    options: dict[str, Any] = {"rate": 3e-3, "batch": 32, "schedule": "constant", "seed": seed}
    epochs = 2 if setting.quick else epochs
    model = train(seeded(make, seed), inputs[training], labels[training], epochs=epochs, **options)
    elsewhere = {
        "unseen": strangers,
        "noise": torch.rand(200, *x.shape[1:], generator=order),
        "shift": corrupt(inputs[test][:200], *SHIFT, generator=order),
    }
    return Case(model, (inputs[training], labels[training]), (inputs[test], labels[test]), elsewhere, size, posteriors)


def resnet(setting: Setting, name: str, posteriors: tuple[str, ...]) -> Case:
    """A ResNet of the data folder, with CIFAR-100 for what it has not seen."""
    checkpoint = CHECKPOINTS[name]
    data = cifar10(setting.folder, checkpoint)
    with np.load(setting.folder / "cifar10" / "cifar100_some.npz") as file:
        strangers = checkpoint.normalise(torch.from_numpy(file["x"][:120]))
    with np.load(setting.folder / "cifar10" / "cifar10_subset.npz") as file:
        pixels = torch.from_numpy(file["x_test"][300:360]) / 255
    order = generator(5)
    noise = torch.rand(60, 3, 32, 32, generator=order)
    shifted = corrupt(pixels, *SHIFT, generator=order)
    elsewhere = {
        "unseen": strangers,
        "noise": checkpoint.normalise((255 * noise).to(torch.uint8)),
        "shift": checkpoint.normalise((255 * shifted).to(torch.uint8)),
    }
    images = setting.images or 300
    train_pair = (data.x_train[:images], data.y_train[:images])
    test = (data.x_test[300:450], data.y_test[300:450])
    return Case(checkpoint.load(setting.folder), train_pair, test, elsewhere, 50_000, posteriors)


def rows(setting: Setting) -> Iterator[Row]:
    """Every score of every posterior on every network."""
    found = list(cases(setting))
    if setting.quick:
        found = [each for each in found if each[1].startswith("digits without 7")]
    wanted = setting.among([name for _, name, _ in found])
    for part, name, make in found:
        if name not in wanted:
            continue
        case = make()
        base = plain_scores(case)
        reference = base["plain entropy"]
        for score, values in base.items():
            yield {"part": part, "network": name, "posterior": "none", "score": score} | scored(case, values, reference)
        for posterior in case.posteriors[:1] if setting.quick else setting.among(case.posteriors):
            for score, values, more in posterior_scores(case, posterior):
                row = {"part": part, "network": name, "posterior": posterior, "score": score}
                yield row | more | scored(case, values, reference)


def inputs_of(case: Case) -> dict[str, Tensor]:
    """Test inputs, and those from elsewhere."""
    return {"test": case.test[0], **case.elsewhere}


def plain_scores(case: Case) -> dict[str, dict[str, Tensor]]:
    """Scores of the network alone, larger for what is unknown, of the inputs of each set."""
    task = Task(case.model, case.train)
    entries: dict[str, Energy | NearestNeighbours | Mahalanobis] = {
        "energy": Energy(),
        "nearest neighbours": NearestNeighbours(NEIGHBOURS),
        "Mahalanobis": Mahalanobis(),
    }
    inputs = inputs_of(case)
    logits = {name: network_outputs(case.model, x)[0] for name, x in inputs.items()}
    found = {"plain entropy": {name: entropy(f.softmax(-1)) for name, f in logits.items()}}
    for score, entry in entries.items():
        predictor = entry.fit(task)
        found[score] = {name: strangeness_of(predictor, x) for name, x in inputs.items()}
    known = network_outputs(case.model, case.train[0])[1]
    labels = case.train[1]
    means = torch.stack([known[labels == label].mean(0) for label in labels.unique()])
    features = {name: network_outputs(case.model, x)[1] for name, x in inputs.items()}
    return found | {"distance of features": {name: torch.cdist(f, means).amin(1) for name, f in features.items()}}


def strangeness_of(predictor: ScoredNetwork, x: Tensor) -> Tensor:
    """The score of inputs, a hundred at a time."""
    parts: list[Tensor] = []
    for part in x.split(100):
        strangeness = predictor.predict(part).strangeness
        assert strangeness is not None
        parts.append(strangeness)
    return torch.cat(parts)


def network_outputs(model: nn.Module, x: Tensor) -> Pair:
    """Logits, and the features that the last linear layer takes, in float64."""
    seen: list[Tensor] = []
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    handle = last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        logits = torch.cat([model(part) for part in x.split(100)])
    handle.remove()
    return logits.double(), torch.cat(seen).double()


def entropy(probs: Tensor) -> Tensor:
    """In nats."""
    return -torch.xlogy(probs, probs).sum(-1)


def posterior_scores(case: Case, name: str) -> Iterator[tuple[str, dict[str, Tensor], Row]]:
    """Entropy and knowledge of a posterior tuned by default, with what tuning chose."""
    likelihood = lw.Categorical(weight=case.examples / len(case.train[1]))
    posterior = POSTERIORS[name](likelihood).fit(case.model, case.train, generator=generator())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = lw.tune(posterior)
    assert tuned.knowledge is not None
    found = {key: predicted(tuned, x) for key, x in inputs_of(case).items()}
    precision = float(tuned.prior_precisions[0])
    more: Row = {"precision": precision, "knowledge_precision": precision * tuned.knowledge.factor}
    if tuned.knowledge.head:
        more["knowledge_precision_of_head"] = precision * tuned.knowledge.head_factor
    more["unfamiliar_test"] = float(found["test"]["unfamiliar"].median())
    more["unfamiliar_noise"] = float(found["noise"]["unfamiliar"].median())
    for score in ("entropy", "epistemic"):
        yield score, {key: each[score] for key, each in found.items()}, more


def predicted(posterior: lw.Posterior, x: Tensor) -> dict[str, Tensor]:
    """What a posterior says of inputs, a hundred at a time."""
    columns: dict[str, list[Tensor]] = {"entropy": [], "epistemic": [], "unfamiliar": []}
    for part in x.split(100):
        prediction = posterior.predict(part)
        assert isinstance(prediction, Classification)
        for name, values in columns.items():
            values.append(getattr(prediction, name))
    return {name: torch.cat(values) for name, values in columns.items()}


def scored(case: Case, values: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Row:
    """AUROC of a score on test inputs against each kind from elsewhere and of its own errors, and its gains."""
    row: Row = {}
    for kind in AGAINST:
        row[kind] = metrics.auroc(values["test"], values[kind])
        row |= gain(kind, (values["test"], values[kind]), (reference["test"], reference[kind]))
    wrong: Bool[Tensor, " n"] = network_outputs(case.model, case.test[0])[0].argmax(-1) != case.test[1]
    row["wrong"] = int(wrong.sum())
    if bool(wrong.any()):
        parts = [(of["test"][~wrong], of["test"][wrong]) for of in (values, reference)]
        row["errors"] = metrics.auroc(*parts[0])
        row |= gain("errors", *parts)
    return row


def gain(kind: str, ours: Pair, theirs: Pair) -> Row:
    """Difference of two AUROC on the same inputs, and its standard error (DeLong et al. 1988)."""
    placed = [placements(*pair) for pair in (ours, theirs)]
    of_familiar = placed[0][0] - placed[1][0]
    of_others = placed[0][1] - placed[1][1]
    variance = of_familiar.var() / len(of_familiar)
    if len(of_others) > 1:
        variance = variance + of_others.var() / len(of_others)
    return {f"{kind}_gain": float(of_familiar.mean()), f"{kind}_gain_stderr": float(variance.sqrt())}


def placements(familiar: Tensor, others: Tensor) -> Pair:
    """Of each familiar input the share of others above it; of each other the share of familiar ones below it."""
    gaps = others.double()[:, None] - familiar.double()
    above = (gaps > 0).double() + 0.5 * (gaps == 0).double()
    return above.mean(0), above.mean(1)


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Means over the networks of each part, posterior and score; how often it is worse than the plain network."""
    groups = dict.fromkeys((row["part"], row["posterior"], row["score"]) for row in found)
    for part, posterior, score in groups:
        key = {"part": part, "posterior": posterior, "score": score}
        some = [row for row in found if key.items() <= row.items()]
        yield {"verdict": True} | key | means(some)
    first = [row for row in found if row["score"] == "epistemic" and row["posterior"] in ("KFAC", "last layer")]
    of_networks = {(row["part"], row["network"]): row for row in reversed(first)}
    for part in ("tests", "chooses"):
        some = [row for row in of_networks.values() if row["part"] == part]
        if some:
            worse = [row["network"] for row in some if is_worse(row)]
            yield {"verdict": True, "part": part, "score": "epistemic of each network"} | means(some) | {"worse": worse}


def is_worse(row: Row) -> bool:
    """Whether it is below the plain network by more than a standard error on any of what it is to tell."""
    return any(row[f"{kind}_gain"] < -row[f"{kind}_gain_stderr"] for kind in GAINS)


def means(some: Sequence[Row]) -> Row:
    """Of each number over networks that have it."""
    row: Row = {"networks": len(some)}
    for name in (*AGAINST, "errors", *(f"{kind}_gain" for kind in (*AGAINST, "errors")), "unfamiliar_noise"):
        values = [each[name] for each in some if name in each]
        if values:
            row[name] = sum(values) / len(values)
    return row


STUDY = Study(rows, verdict=verdict, needs="MNIST, CIFAR-10 and the trained networks")

if __name__ == "__main__":
    main({"elsewhere": STUDY})
