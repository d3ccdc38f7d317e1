"""Functional variances by products alone: exact on a network that still fits, and on one that does not.

    python -m benchmarks.variances --json FILE --data DIR

LeNet with 30 thousand weights: ``MatrixFree`` against ``Full`` in function space on the same MNIST images. ResNet-20
with 270 thousand weights, all uncertain: 100 CIFAR-10 test images by ``MatrixFree``, with memory and residuals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.problems import PROBLEMS, TRAIN
from benchmarks.report import Row, beside
from benchmarks.tasks import matrix_free
from lapwing.comparison.bench import measured

ALPHA = 5.0
"""Prior precision: training weight decay 1e-4 times 50 000 images."""


def rows(setting: Setting) -> Iterator[Row]:
    """Both networks."""
    more = setting.more | (QUICK if setting.quick else {})
    if "lenet" in setting.among(("lenet", "resnet20")):
        yield from exactness(setting, **more)
    if "resnet20" in setting.among(("lenet", "resnet20"), ("",) if setting.quick else ()):
        yield from scale(setting, **more)


def exactness(setting: Setting, *, inputs: int, exact_images: int, rank: int, **_: Any) -> list[Row]:
    """The largest relative difference from the full covariance."""
    data = PROBLEMS["lenet"].data(setting.data, 100 if setting.quick else TRAIN, inputs)
    model = PROBLEMS["lenet"].model(setting.data, data, 1 if setting.quick else None)
    pair, new = data.head(exact_images).train, data.x_test
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(ALPHA), structure=lw.Full(view="functions"))
    full = recipe.fit(model, pair)
    free = matrix_free(model, pair, ALPHA, solver(rank, 1e-6))
    (theirs,) = full.outputs_each(new, [full])
    found = measured(lambda: free.solved_outputs(new), torch.device("cpu"))
    exact = theirs.variance
    error = float(((found.value.moments.variance - exact).abs() / exact).max())
    note = f"{free.network.size} weights, {len(pair[1])} training images, {len(new)} inputs"
    return [
        beside("lenet/variances", "largest relative error", error, None, "Full", note),
        beside("lenet/variances", "largest residual", float(found.value.residual.max()), None, "", "relative"),
        beside("lenet/variances", "seconds", found.seconds, None, ""),
    ]


def scale(setting: Setting, *, inputs: int, rank: int, rtol: float, **_: Any) -> list[Row]:
    """Cost and residuals on the network whose covariance no peer computes."""
    data = PROBLEMS["resnet20"].data(setting.data, setting.images or 128, inputs)
    model = PROBLEMS["resnet20"].model(setting.data, data)
    free = matrix_free(model, data.train, ALPHA, solver(rank, rtol))
    found = measured(lambda: free.solved_outputs(data.x_test), torch.device("cpu"))
    solved = found.value
    variances = solved.moments.covariance.diagonal(dim1=-2, dim2=-1)
    note = f"{inputs} inputs, {free.network.size} weights, {len(data.y_train)} images"
    facts = {
        "seconds": (found.seconds, note),
        "peak_mib": (found.peak_mib, "above the process with network and data"),
        "largest residual": (float(solved.residual.max()), "relative"),
        "median residual": (float(solved.residual.median()), "relative"),
        "iterations": (solved.solution.iterations, "most of a block"),
        "matvecs": (solved.solution.matvecs, ""),
        "median standard deviation": (float(variances.median().sqrt()), "of a logit"),
        "smallest variance": (float(variances.min()), ""),
    }
    return [beside("resnet20/variances", name, value, None, "", words) for name, (value, words) in facts.items()]


def solver(rank: int, rtol: float) -> lw.CG:
    """What variances are solved with."""
    return lw.CG(rtol=rtol, preconditioner=lw.PivotedCholesky(rank), max_bytes=2**29)


STUDY = Study(
    rows,
    needs="MNIST and CIFAR-10",
    options={
        "inputs": (100, "inputs to predict"),
        "exact_images": (300, "MNIST training images, against Full"),
        "rank": (100, "rank of the preconditioner"),
        "rtol": (1e-3, "relative residual of the solves on ResNet-20"),
    },
)
QUICK = {"inputs": 2, "exact_images": 8, "rank": 10}

if __name__ == "__main__":
    main({"variances": STUDY})
