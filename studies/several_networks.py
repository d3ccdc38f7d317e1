"""Five networks, SWAG, dropout and mean-field inference beside the posterior of one network.

    python -m studies.several_networks --data DIR --json FILE [--resume FILE]

Each seed draws other training images, weights and three classes that are left out; the network of a seed is the first
member of its ensemble. Differences of the test NLL are from the KFAC posterior of that network, tuned by the same
validation images that calibrate the others. Costs are passes over the training images: a forward pass is one, a
backward pass two.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import Pair, digits, generator, mnist
from benchmarks.networks import seeded
from benchmarks.report import Row, grouped
from benchmarks.table import markdown, summarised, with_tables
from benchmarks.training import train
from lapwing import comparison
from lapwing.baselines import SWAG, DeepEnsemble, MeanField, MonteCarloDropout, VectorScaling
from lapwing.comparison import Contender, Tuned
from studies.compared import compared
from studies.pairs import cnn, flat

PAGE = Path(__file__).parents[1] / "docs" / "baselines.md"

CLASSES = 7
MEMBERS = 5
VALIDATION = 200
TEST = 400
ELSEWHERE = 300
REFERENCE = "KFAC posterior"
COLUMNS = ("nll", "difference", "accuracy", "ece", "brier", "ood_auroc", "fit_passes", "predict_passes")


@dataclass(frozen=True)
class Kind:
    """Data and the networks that are trained on them.

    Args:
        data: ``"digits"`` or ``"MNIST"``.
        size: Training images.
        epochs: Passes over them.
        build: Makes a network.
    """

    data: str
    size: int
    epochs: int
    build: Callable[[], nn.Module]

    def trained(self, pair: Pair, epochs: int, seed: int) -> nn.Module:
        """A network trained by Adam from the weights of a seed; dropout draws from a generator of that seed."""
        options: dict[str, Any] = {"rate": 3e-3, "batch": 32, "schedule": "constant", "seed": seed}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return train(seeded(self.build, seed), *pair, epochs=epochs, **options)


def dropped(build: Callable[[], nn.Module]) -> nn.Module:
    """A network that drops a fifth of what its last layer takes."""
    layers = list(build().children())
    return nn.Sequential(*layers[:-1], nn.Dropout(0.2), layers[-1])


KINDS = {
    "digits 300, MLP": Kind("digits", 300, 50, partial(dropped, partial(flat, 64, CLASSES))),
    "digits 600, CNN": Kind("digits", 600, 50, partial(dropped, partial(cnn, False, CLASSES))),
    "MNIST 800, CNN with batch norm": Kind("MNIST", 800, 30, partial(dropped, partial(cnn, True, CLASSES))),
}


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every kind of network and seed."""
    for name in setting.among(KINDS, ("digits 300, MLP",) if setting.quick else ()):
        kind = KINDS[name]
        if kind.data == "digits" or setting.data is not None:
            for seed in setting.repeats:
                yield from ({"part": name, "seed": seed} | row for row in of_seed(kind, setting, seed))


def of_seed(kind: Kind, setting: Setting, seed: int) -> list[Row]:
    """Every method on the networks of a seed."""
    epochs = 3 if setting.quick else setting.epochs or kind.epochs
    train_pair, validation, test, strangers = split(kind, setting, seed)
    models = [kind.trained(train_pair, epochs, MEMBERS * seed + member) for member in range(MEMBERS)]

    def costs(row: comparison.Row) -> Row:
        fit_passes, predict_passes = passes(row.method, epochs)
        return {"fit_passes": float(fit_passes), "predict_passes": float(predict_passes)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compared(
            models[0],
            train_pair,
            test,
            methods=entries(models),
            validation=validation,
            ood=strangers,
            reference=REFERENCE,
            seed=seed,
            facts=costs,
            out=setting.resume,
        )


def split(kind: Kind, setting: Setting, seed: int) -> tuple[Pair, Pair, Pair, torch.Tensor]:
    """Images and labels of seven classes to train, to validate and to test on, and images of the others."""
    whole = mnist(setting.folder) if kind.data == "MNIST" else digits(None, 1797)
    x, y = whole.train
    source = generator(seed)
    known = torch.randperm(10, generator=source)[:CLASSES].sort().values
    seen = torch.isin(y, known)
    inputs = x[seen]
    labels = torch.searchsorted(known, y[seen])
    order = torch.randperm(len(labels), generator=source)
    sizes = [kind.size, VALIDATION, TEST]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    parts = [order[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    pairs = [(inputs[part], labels[part]) for part in parts]
    strangers = x[~seen][torch.randperm(int((~seen).sum()), generator=source)[:ELSEWHERE]]
    return pairs[0], pairs[1], pairs[2], strangers


def entries(models: Sequence[nn.Module]) -> dict[str, Contender]:
    """The methods by name, beside the first network as it is and with a temperature."""
    categorical = lw.Categorical()
    return {
        REFERENCE: Tuned(lw.Laplace(categorical, structure=lw.KFAC()), "validation"),
        "last-layer posterior": Tuned(lw.Laplace(categorical, weights=lw.LastLayer()), "validation"),
        "vector scaling": VectorScaling(),
        "dropout": MonteCarloDropout(),
        "SWAG": SWAG(),
        "SWAG, diagonal": SWAG(rank=0),
        "mean field": MeanField(),
        "5 networks": DeepEnsemble(models),
    }


def passes(method: str, epochs: int) -> tuple[int, int]:
    """Passes over the training images to fit, beyond those that trained the network, and forward passes to predict.

    Args:
        method: Its name.
        epochs: Those that trained each network.
    """
    backward = 1 + 2 * CLASSES
    return {
        REFERENCE: (backward, backward),
        "last-layer posterior": (1, 1),
        "dropout": (0, MonteCarloDropout().samples),
        "SWAG": (3 * SWAG().epochs, SWAG().samples),
        "SWAG, diagonal": (3 * SWAG().epochs, SWAG().samples),
        "mean field": (6 * MeanField().epochs, MeanField().samples),
        "5 networks": (3 * epochs * (MEMBERS - 1), MEMBERS),
    }.get(method, (0, 1))


def page(found: Sequence[Row]) -> str:
    """The page on baselines with its table made anew, from the rows of a report."""
    means = list(summarised([row for row in found if "seed" in row]))
    parts = grouped(means, "part")
    lines: list[Row] = []
    for method, of_method in grouped(means, "method").items():
        line: Row = {"method": method}
        for row in of_method:
            line[row["part"]] = f"{row['nll']:.3f}, {row['difference']:+.3f} ± {row['difference_stderr']:.3f}"
            line[f"{row['part']} ood"] = f"{row['ood_auroc']:.3f}"
        line["fit"] = f"{of_method[0]['fit_passes']:.0f}"
        line["predict"] = f"{of_method[0]['predict_passes']:.0f}"
        lines.append(line)
    columns = {"method": "NLL, less that of the posterior"}
    columns |= {part: part for part in parts} | {"fit": "to fit", "predict": "to predict"}
    told = {"method": "OOD AUROC"} | {f"{part} ood": part for part in parts}
    return with_tables(PAGE.read_text(encoding="utf-8"), [markdown(lines, columns), markdown(lines, told)])


STUDY = Study(rows, COLUMNS, draw=page, needs="MNIST; digits come with scikit-learn")

if __name__ == "__main__":
    main({"several_networks": STUDY})
