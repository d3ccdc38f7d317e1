"""Spectrum of the curvature by the size of the filters, and Lanczos beside the exact one (Brack 2023, figure 2.1).

The eigenvalues of the generalised Gauss-Newton matrix over the first n training images: all of them from the Gram
matrix of the n c rows ``Sᵀ J``, and the largest by block Lanczos, which needs products alone. ``lanczos_error`` is the
largest relative error of those that Lanczos resolved: the first ones whose residual is below a tenth of their value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.report import Row, figure, tried
from benchmarks.tasks import matrix_free, probabilities
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.linalg.eigenpairs import top_eigenpairs
from lapwing.posteriors import FunctionPosterior
from studies.full.setting import ALPHA, SOURCE, Digits
from studies.published import beside_published

EXACT = 3000
"""Most outputs over all images for which the whole spectrum is computed."""

TOP = 100
"""Eigenvalues Lanczos is asked for, and eigenvalues written to the report."""

KERNELS: tuple[Literal[3, 5], ...] = (3, 5)
IMAGES = (100, 300, 1000)
QUICK = (10, 20)


def rows(setting: Setting) -> Iterator[Row]:
    """One row for each filter size and number of images; the networks are trained on all training images."""
    digits = Digits(setting)
    for kernel in KERNELS:
        model = digits.network(kernel=kernel)
        right = lw.metrics.accuracy(probabilities(PlainNetwork(model), digits.split.x_test), digits.split.y_test)
        for images in QUICK if setting.quick else IMAGES:
            case = digits.facts(model, images) | {"kernel": kernel}
            measure = partial(measured, model, digits.split.head(images).train)
            yield setting.resumed(case, measure) | {"test_accuracy": right}


def measured(model: nn.Module, data: Pair) -> Row:
    """Both spectra of some images, what they show, and the processor's seconds they took."""
    top, cost = tried(lambda: leading(model, data), "lanczos_seconds", time.process_time)
    row: Row = dict(cost)
    if top is not None:
        row |= {"lanczos": len(top), "largest": float(top[0]), "condition": 1 + float(top[0]) / ALPHA}
        row |= {"eigenvalues": top.tolist()}
    if 10 * len(data[1]) > EXACT:
        return row
    whole, cost = tried(lambda: spectrum(model, data), "exact_seconds", time.process_time)
    row |= cost | {"failure": row["failure"] or cost["failure"]}
    if whole is None:
        return row
    row |= {"eigenvalues": whole[:TOP].tolist(), "above_alpha": int((whole > ALPHA).sum())}
    row |= {
        "above_a_tenth_of_the_largest": int((whole > whole[0] / 10).sum()),
        "effective_rank": effective_ranks(whole),
    }
    if top is not None:
        row["lanczos_error"] = float((top / whole[: len(top)] - 1).abs().max())
    return row


def spectrum(model: nn.Module, data: Pair) -> Float[Tensor, " r"]:
    """All eigenvalues of G that are not 0, largest first, float64, from ``Sᵀ J Jᵀ S``.

    Args:
        model: The trained network.
        data: Images and labels to sum over.
    """
    structure = lw.Full(view="functions")
    posterior = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1.0), structure=structure).fit(model, data)
    assert isinstance(posterior, FunctionPosterior)
    return torch.linalg.eigvalsh(posterior.grams[0].double()).flip(0).clamp_min(0)


def leading(model: nn.Module, data: Pair) -> Float[Tensor, " r"]:
    """The largest eigenvalues by block Lanczos, up to the first whose residual is above a tenth of it."""
    curvature = matrix_free(model, data, ALPHA).problem.curvature
    pairs = top_eigenpairs(curvature, TOP, rtol=1e-5, generator=generator())
    resolved = (pairs.residual <= pairs.values / 10).long().cumprod(0).sum()
    return pairs.values[: int(resolved)]


def effective_ranks(values: Float[Tensor, " r"], alpha: float = ALPHA) -> dict[str, float]:
    """Four formulas for what the source reads off a plot.

    Args:
        values: All eigenvalues λ of G that are not 0, largest first.
        alpha: Prior precision.

    Returns:
        ``entropy``: ``exp(-Σ p log p)`` with ``p = λ / Σ λ`` (Roy & Vetterli 2007); ``participation``:
        ``(Σ λ)² / Σ λ²``; ``gap``: see ``gap``; ``dimension``: ``γ = Σ λ / (λ + α)`` (MacKay 1992).

    Example:
        >>> found = effective_ranks(torch.tensor([4.0, 4.0, 1e-9], dtype=torch.float64))
        >>> [round(value, 3) for value in found.values()]
        [2.0, 2.0, 2, 1.951]
    """
    share = values / values.sum()
    return {
        "entropy": float(torch.special.entr(share).sum().exp()),
        "participation": float(values.sum() ** 2 / values.square().sum()),
        "gap": gap(values),
        "dimension": float((values / (values + alpha)).sum()),
    }


def gap(values: Float[Tensor, " r"], within: int = TOP) -> int:
    """How many eigenvalues come before the largest drop ``λ_i / λ_(i+1)`` among the first ``within``.

    Drops to less than 1e-6 of the largest are not drops of a cluster and do not count.

    Example:
        >>> gap(torch.tensor([9.0, 8.0, 7.0, 0.5, 0.4]))
        3
    """
    seen = values[: within + 1]
    seen = seen[seen > 1e-6 * seen[0]]
    if len(seen) < 2:
        return len(seen)
    return int((seen[:-1] / seen[1:]).argmax()) + 1


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """The effective rank on the images of the source, read off as where the largest drop is."""
    for row in found:
        if row.get("kernel") == 3 and row["images"] == IMAGES[0] and "effective_rank" in row:
            quantity = "eigenvalues before the largest drop, 100 images, filters 3 x 3"
            yield beside_published(quantity, row["effective_rank"]["gap"], 9, f"{SOURCE}, figure 2.1")


def draw(found: Sequence[Row]) -> Any:
    """Eigenvalues by index, one panel a filter size, one line a number of images."""
    made = figure(10.0, 4.0, len(KERNELS))
    for panel, kernel in zip(made.axes, KERNELS, strict=True):
        for row in found:
            if row.get("kernel") == kernel and "eigenvalues" in row:
                values = row["eigenvalues"]
                panel.plot(range(1, len(values) + 1), values, label=f"{row['images']} images")
        panel.axhline(ALPHA, color="#999999", linestyle="--", label="prior precision")
        panel.set(yscale="log", xlabel="index", ylabel="eigenvalue of G", title=f"filters {kernel} × {kernel}")
        panel.set_ylim(bottom=ALPHA / 1e3)
        panel.legend(frameon=False)
    return made
