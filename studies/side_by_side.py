"""Every method on one network, and what nobody should wait for: baselines and posteriors side by side.

    python -m studies.side_by_side digits --out FOLDER [--seeds 5]
    python -m studies.side_by_side ella_resnet20 --data DIR --out FOLDER

Each writes ``run.jsonl``, a row a method and seed, as it goes, and goes on where it was stopped; then ``results.json``,
figures and ``report.html`` of all rows. ``lapwing compare studies.side_by_side:setup`` does the first seed of digits.

Digits are those of the demo, three of ten unseen, other ones for each seed; the network has a layer of dropout, and a
deep ensemble of five is trained anew. The ResNet was trained elsewhere on CIFAR-10: what is fitted takes the first
thousand training images at hand, 300 test images validate, 717 are scored, 120 of CIFAR-100 are from elsewhere. It was
trained on images and their mirror images, and some methods have another row for the network that averages its outputs
over both. All recipes are tuned by the same validation data as the calibrators, and by default too where
``ALSO_BY_DEFAULT`` says so. Shifted are the test images, at the worst severity. Three entries are there to be stopped:
by their own error, by their bytes, and by their seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.data import CHECKPOINTS, cifar10, generator
from benchmarks.networks import seeded
from benchmarks.tasks import EXAMPLES, VALIDATION
from benchmarks.training import train
from lapwing import baselines
from lapwing.comparison import Comparison, Contender, Task, Tuned, read_comparison
from lapwing.comparison.journal import told_on_page
from lapwing.demo.digits import CLASSES, UNSEEN, digits
from lapwing.demo.digits import network as demonstrated
from lapwing.evaluation.corruptions import corrupt
from lapwing.evaluation.evaluate import Predictor
from lapwing.show.report import comparison_page, write_json, write_report
from studies.mirror_images import mirrored

SHIFTS = (("gaussian_noise", 5), ("fog", 5))
"""Corruptions of the test images, and their severity."""

SECONDS = {"digits": 60.0, "ella_resnet20": 1800.0}
"""What a method may take, one run."""

BYTES = 3 * 2**30

DRAWS = 64
"""Functions for the joint log-likelihood."""

IMAGES = 1000
"""Training images of the ResNet that methods are fitted to."""

ALSO_BY_DEFAULT = ("last layer", "KFAC")

STOPPED = ("raises an error", "takes too many bytes", "takes too many seconds")


def raises(task: Task) -> Predictor:
    """A method with a mistake in it."""
    raise RuntimeError("a mistake of the method's own")


def too_many_bytes(task: Task) -> Predictor:
    """A method that takes more memory than any may."""
    kept = list[Tensor]()
    while True:
        kept.append(torch.ones(2**24))  # 64 MiB


def too_many_seconds(task: Task) -> Predictor:
    """A method that never ends."""
    while True:
        torch.ones(1000).sum()


def posteriors(likelihood: lw.Likelihood, draws: int, subnetwork: int) -> dict[str, lw.Laplace]:
    """The recipes, by name.

    Args:
        likelihood: p(y | f).
        draws: Of the one by draws.
        subnetwork: Weights of the subnetwork.
    """
    full = lw.Full(view="weights")
    return {
        "last layer": lw.Laplace(likelihood, weights=lw.LastLayer(), structure=full),
        "KFAC": lw.Laplace(likelihood, structure=lw.KFAC()),
        "diagonal": lw.Laplace(likelihood, structure=lw.Diagonal()),
        "Nyström": lw.Laplace(likelihood, structure=lw.Nystrom(20, 500)),
        f"{draws} draws": lw.Laplace(likelihood, structure=lw.Sampled(draws)),
        f"subnetwork of {subnetwork}": lw.Laplace(likelihood, weights=lw.Subnetwork(subnetwork), structure=full),
    }


def entries(
    likelihood: lw.Likelihood,
    validation: tuple[Tensor, Tensor],
    *,
    draws: int,
    epochs: int,
    subnetwork: int = 500,
    ensemble: baselines.DeepEnsemble | None = None,
) -> dict[str, Contender]:
    """Everything that is compared beside the plain network and temperature scaling.

    Args:
        likelihood: p(y | f).
        validation: What recipes are tuned by, all of it whatever it takes.
        draws: Of the posterior by draws.
        epochs: Of what trains on.
        subnetwork: Weights of the subnetwork.
        ensemble: A deep ensemble, where one can be trained.
    """
    found: dict[str, Contender] = {
        "vector scaling": baselines.VectorScaling(),
        "matrix scaling": baselines.MatrixScaling(),
        "dropout": baselines.MonteCarloDropout(),
        "SWAG": baselines.SWAG(epochs=epochs, rank=min(20, epochs)),
        "mean field": baselines.MeanField(epochs),
        "Mahalanobis": baselines.Mahalanobis(),
        "energy": baselines.Energy(),
        "nearest neighbours": baselines.NearestNeighbours(),
    }
    if ensemble is not None:
        found["deep ensemble"] = ensemble
    for name, recipe in posteriors(likelihood, draws, subnetwork).items():
        found[name] = Tuned(recipe, lw.Validation(validation, seconds=None))
        if name in ALSO_BY_DEFAULT:
            found[f"{name}, no validation data"] = Tuned(recipe)
    stopped = (raises, too_many_bytes, too_many_seconds)
    return found | dict(zip(STOPPED, stopped, strict=True))


@dataclass(frozen=True)
class OnMirrored:
    """A method on the network that averages its outputs over images and mirror images.

    Args:
        recipe: Of a posterior; ``None`` for the network with a temperature.
        by_default: Whether the posterior is tuned by default, and not by the validation data.
    """

    recipe: lw.Laplace | None = None
    by_default: bool = False

    def fit(self, task: Task) -> Predictor:
        """The predictor for a task.

        Args:
            task: The network and its data.
        """
        own = replace(task, model=lw.TestTimeAugmentation(task.model, [mirrored]))
        held_out = task.held_out("mirror images")
        if self.recipe is None:
            return own.network.calibrated(held_out)
        posterior = self.recipe.fit(own.model, own.train, generator=own.generator)
        return lw.tune(posterior, None if self.by_default else lw.Validation(held_out, seconds=None))


def on_mirrored(likelihood: lw.Likelihood) -> dict[str, OnMirrored]:
    """What is compared with the average over mirror images too, by name.

    Args:
        likelihood: p(y | f).
    """
    diagonal = lw.Laplace(likelihood, structure=lw.Diagonal())
    kfac = lw.Laplace(likelihood, structure=lw.KFAC())
    return {
        "temperature scaling, mirror images": OnMirrored(),
        "diagonal, mirror images": OnMirrored(diagonal),
        "KFAC, mirror images": OnMirrored(kfac),
        "KFAC, mirror images, no validation data": OnMirrored(kfac, by_default=True),
    }


def network(classes: int) -> nn.Module:
    """The network of the demo with a layer of dropout."""
    *features, last = demonstrated(classes)
    return nn.Sequential(*features, nn.Dropout(0.1), last)


def trained(data: tuple[Tensor, Tensor], epochs: int, seed: int) -> nn.Module:
    """The network trained as the demo's is; dropout draws from a generator of its own seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = seeded(partial(network, CLASSES - UNSEEN), seed)
        return train(made, *data, epochs=epochs, rate=1e-2, batch=32, schedule="constant", seed=seed)


def of_digits(seed: int = 0, *, quick: bool = False) -> dict[str, Any]:
    """The digits: what ``compare`` takes, by name.

    Args:
        seed: Of the split, the unseen digits and the network.
        quick: Whether to do with a moment, and numbers that say nothing.
    """
    split = digits(seed, 70, 60, 60) if quick else digits(seed)
    epochs = 5 if quick else 200
    x, y = split.test
    others = baselines.DeepEnsemble(lambda member: trained(split.train, epochs, 1000 * (seed + 1) + member), members=5)
    return {
        "model": trained(split.train, epochs, seed),
        "train": split.train,
        "test": split.test,
        "validation": split.validation,
        "ood": split.unseen[0],
        "shifts": {shifted(*kind): (corrupt(x, *kind, generator=generator(seed)), y) for kind in SHIFTS},
        "methods": entries(lw.Categorical(), split.validation, draws=64, epochs=2 if quick else 20, ensemble=others),
    }


def setup() -> dict[str, Any]:
    """The first seed of the digits, for ``lapwing compare``."""
    return of_digits()


def of_resnet(folder: Path, *, images: int = IMAGES, scored: int | None = None) -> dict[str, Any]:
    """The ResNet-20 of the ELLA paper: what ``compare`` takes, by name.

    Args:
        folder: The data folder.
        images: Training images.
        scored: How many of the test images; ``None`` for all but those that validate.
    """
    checkpoint = CHECKPOINTS["ella_resnet20"]
    data = cifar10(folder, checkpoint).head(images)
    held_out, (x, y) = data.parted(VALIDATION)
    with np.load(folder / "cifar10" / "cifar10_subset.npz") as file:
        pixels = torch.from_numpy(file["x_test"][VALIDATION:]) / 255
    with np.load(folder / "cifar10" / "cifar100_some.npz") as file:
        strangers = torch.from_numpy(file["x"][:120])
    shifts = dict[str, tuple[Tensor, Tensor]]()
    for kind in SHIFTS:
        worse = (255 * corrupt(pixels[:scored], *kind, generator=generator())).round().to(torch.uint8)
        shifts[shifted(*kind)] = checkpoint.normalise(worse), y[:scored]
    likelihood = lw.Categorical(weight=EXAMPLES / len(data.y_train))
    return {
        "model": checkpoint.load(folder),
        "train": data.train,
        "test": (x[:scored], y[:scored]),
        "validation": held_out,
        "ood": checkpoint.normalise(strangers),
        "shifts": shifts,
        "likelihood": likelihood,
        "methods": entries(likelihood, held_out, draws=16, epochs=12) | on_mirrored(likelihood),
    }


def shifted(name: str, severity: int) -> str:
    """What a shift is called."""
    return f"{name.replace('_', ' ')} {severity}"


def run(
    make: Callable[[int], Mapping[str, Any]],
    folder: Path,
    *,
    seeds: int,
    seconds: float,
    draws: int = DRAWS,
    only: Sequence[str] = (),
) -> Comparison:
    """All methods over all seeds, written to a folder as they come, and the page of them.

    Args:
        make: What ``compare`` takes, for a seed.
        folder: Where to.
        seeds: How many.
        seconds: What each method may take.
        draws: Functions for the joint log-likelihood.
        only: Names of methods; empty for all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "run.jsonl"
    for seed in range(seeds):
        task = dict(make(seed))
        if only:
            task["methods"] = {name: method for name, method in task["methods"].items() if name in only}
        parts = [task.pop(name) for name in ("model", "train", "test")]
        options: dict[str, Any] = {"draws": draws, "budget_seconds": seconds, "max_bytes": BYTES, "out": out}
        lw.compare(*parts, **task, **options, seeds=[seed])
    found = read_comparison(out)
    write_json(comparison_page(found, folder, about=told_on_page(torch.device("cpu"))), folder / "results.json")
    write_report(folder / "results.json")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it, as the module says.

    Args:
        arguments: What was typed; ``None`` takes ``sys.argv``.
    """
    parser = argparse.ArgumentParser(prog="python -m studies.side_by_side", description=__doc__)
    parser.add_argument("network", choices=tuple(SECONDS))
    parser.add_argument("--out", type=Path, required=True, help="folder of run.jsonl, results.json and report.html")
    parser.add_argument("--data", type=Path, help="the data folder, for the ResNet")
    parser.add_argument("--seeds", type=int, default=1, help="how often, of digits with other splits and networks")
    parser.add_argument("--seconds", type=float, help="what a method may take")
    parser.add_argument("--draws", type=int, default=DRAWS, help="functions for the joint log-likelihood")
    parser.add_argument("--only", nargs="*", default=(), help="names of methods")
    parser.add_argument("--images", type=int, default=IMAGES, help="training images of the ResNet")
    parser.add_argument("--scored", type=int, help="test images of the ResNet that are scored")
    parser.add_argument("--quick", action="store_true", help="for a moment, with numbers that say nothing")
    options = parser.parse_args(arguments)
    if options.network != "digits" and options.data is None:
        parser.error("the ResNet needs --data DIR")

    def make(seed: int) -> dict[str, Any]:
        if options.network == "digits":
            return of_digits(seed, quick=options.quick)
        return of_resnet(options.data, images=options.images, scored=options.scored)

    seconds = options.seconds or SECONDS[options.network]
    found = run(make, options.out, seeds=options.seeds, seconds=seconds, draws=options.draws, only=tuple(options.only))
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main()
