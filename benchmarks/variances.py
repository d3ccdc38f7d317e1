"""Functional variances by products alone: exact on a network that still fits, and on one that does not.

    python -m benchmarks.variances --json FILE --data DIR

LeNet with 30 thousand weights: ``MatrixFree`` against ``Full`` in function space on the same MNIST images. ResNet-20
with 270 thousand weights, all uncertain: 100 CIFAR-10 test images by ``MatrixFree``, with memory and residuals.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

import lapwing as lw
from benchmarks.data import CHECKPOINTS, Split, cifar10
from benchmarks.measure import Row, table, write_json
from benchmarks.structures.problems import load, prepare
from lapwing.comparison.bench import measured
from lapwing.posteriors import FunctionPosterior, MatrixFreePosterior

ALPHA = 5.0
"""Prior precision: training weight decay 1e-4 times 50 000 images."""


def main() -> None:
    """Both networks, one report."""
    args = arguments()
    rows: list[Row] = []
    if args.only in (None, "lenet"):
        rows += exactness(args)
        write_json(args.json, rows)
    if args.only in (None, "resnet20"):
        rows += scale(args)
        write_json(args.json, rows)
    sys.stdout.write(table(rows))


def problem(name: str, args: argparse.Namespace) -> tuple[nn.Module, Split]:
    """A trained network and its data."""
    path = args.json.with_suffix(f".{name}.safetensors")
    prepare(name, args.data, path)
    try:
        return load(name, str(path), device="cpu")
    finally:
        path.unlink()


def exactness(args: argparse.Namespace) -> list[Row]:
    """The largest relative difference from the full covariance."""
    model, data = problem("lenet", args)
    x, y, new = data.x_train[: args.exact_images], data.y_train[: args.exact_images], data.x_test[: args.inputs]
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(ALPHA), structure=lw.Full(view="functions"))
    full = recipe.fit(model, (x, y))
    assert isinstance(full, FunctionPosterior)
    free = matrix_free(model, x, y, rank=args.rank, rtol=1e-6)
    (theirs,) = full.outputs_each(new, [full])
    found = measured(lambda: free.solved_outputs(new), torch.device("cpu"))
    mine = found.value.moments.covariance.diagonal(dim1=-2, dim2=-1)
    exact = theirs.covariance.diagonal(dim1=-2, dim2=-1)
    error = float(((mine - exact).abs() / exact).max())
    note = f"{free.network.size} weights, {len(y)} training images, {len(new)} inputs"
    return [
        Row("lenet/variances", "largest relative error", error, None, "Full", note),
        Row("lenet/variances", "largest residual", float(found.value.residual.max()), None, "", "relative"),
        Row("lenet/variances", "seconds", found.seconds, None, ""),
    ]


def scale(args: argparse.Namespace) -> list[Row]:
    """Cost and residuals on the network whose covariance no peer computes."""
    model, _ = problem("resnet20", args)
    data = cifar10(args.data, CHECKPOINTS["resnet20"])
    x, y, new = data.x_train[: args.images], data.y_train[: args.images], data.x_test[: args.inputs]
    free = matrix_free(model, x, y, rank=args.rank, rtol=args.rtol)
    found = measured(lambda: free.solved_outputs(new), torch.device("cpu"))
    solved = found.value
    variances = solved.moments.covariance.diagonal(dim1=-2, dim2=-1)
    work = "resnet20/variances"
    return [
        Row(
            work, "seconds", found.seconds, None, "", f"{len(new)} inputs, {free.network.size} weights, {len(y)} images"
        ),
        Row(work, "peak_mib", found.peak_mib, None, "", "above the process with network and data"),
        Row(work, "largest residual", float(solved.residual.max()), None, "", "relative"),
        Row(work, "median residual", float(solved.residual.median()), None, "", "relative"),
        Row(work, "iterations", solved.solution.iterations, None, "", "most of a block"),
        Row(work, "matvecs", solved.solution.matvecs, None, ""),
        Row(work, "median standard deviation", float(variances.median().sqrt()), None, "", "of a logit"),
        Row(work, "smallest variance", float(variances.min()), None, ""),
    ]


def matrix_free(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, rank: int, rtol: float) -> MatrixFreePosterior:
    """The posterior by products."""
    solver = lw.CG(rtol=rtol, preconditioner=lw.PivotedCholesky(rank), max_bytes=2**29)
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(ALPHA), structure=lw.MatrixFree(solver))
    posterior = recipe.fit(model, (x, y))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.variances", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--only", choices=("lenet", "resnet20"), help="one network")
    parser.add_argument("--inputs", type=int, default=100, help="inputs to predict")
    parser.add_argument("--images", type=int, default=128, help="CIFAR-10 training images")
    parser.add_argument("--exact-images", type=int, default=300, help="MNIST training images, against Full")
    parser.add_argument("--rank", type=int, default=100, help="rank of the preconditioner")
    parser.add_argument("--rtol", type=float, default=1e-3, help="relative residual of the solves on ResNet-20")
    return parser.parse_args()


if __name__ == "__main__":
    main()
