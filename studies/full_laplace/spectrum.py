"""Spectrum of the curvature against the number of images and the size of the filters (Brack 2023, figure 2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.report import Row, figure, tried
from benchmarks.tasks import matrix_free, probabilities
from lapwing.evaluation.baselines import Map
from lapwing.linalg.eigenpairs import top_eigenpairs
from lapwing.posteriors import FunctionPosterior
from studies.full_laplace.setting import ALPHA, Digits

EXACT = 5_000
"""Most outputs over all images for which the whole spectrum is computed, from their Gram matrix."""

TOP = 100
"""Eigenvalues beyond that, and eigenvalues written to the report in either case."""

KERNELS: tuple[Literal[3, 5], ...] = (3, 5)


def rows(setting: Setting) -> Iterator[Row]:
    """One row for each filter size and number of images.

    The network is trained on all training images; the sum goes over the first n of them.
    """
    digits, sizes = Digits(setting), (10, 20) if setting.quick else (100, 300, 1000, 3000, 10_000)
    for kernel in KERNELS:
        model = digits.network(kernel=kernel)
        right = lw.metrics.accuracy(probabilities(Map(model), digits.split.x_test), digits.split.y_test)
        for images in [n for n in sizes if n <= len(digits.split.y_train)]:
            exact, data = images * 10 <= EXACT, digits.split.head(images).train
            values, cost = tried(lambda at=data, net=model, all_=exact: spectrum(net, at, whole=all_))
            row = digits.facts(model, images) | {"kernel": kernel, "test_accuracy": right}
            row["method"] = "Gram matrix, whole spectrum" if exact else f"block Lanczos, top {TOP}"
            yield row | ({} if values is None else summary(values, whole=exact)) | cost


def spectrum(model: nn.Module, data: Pair, *, whole: bool) -> Float[Tensor, " r"]:
    """Eigenvalues of the generalised Gauss-Newton matrix G, largest first, float64.

    Args:
        model: The trained network.
        data: Images and labels to sum over.
        whole: All that are not 0, from ``Sᵀ J Jᵀ S``; otherwise the largest ``TOP`` by block Lanczos, up to the first
            whose residual is above a tenth of it.
    """
    if whole:
        structure = lw.Full(view="functions")
        posterior = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1.0), structure=structure).fit(model, data)
        assert isinstance(posterior, FunctionPosterior)
        return torch.linalg.eigvalsh(posterior.grams[0].double()).flip(0).clamp_min(0).cpu()
    pairs = top_eigenpairs(matrix_free(model, data, ALPHA).problem.curvature, TOP, rtol=1e-5, generator=generator())
    resolved = (pairs.residual <= pairs.values / 10).long().cumprod(0).sum()
    return pairs.values[: int(resolved)].cpu()


def summary(values: Float[Tensor, " r"], *, whole: bool) -> Row:
    """The largest eigenvalues, how many rise above the prior, condition number and effective ranks.

    Args:
        values: Eigenvalues of G, largest first.
        whole: Whether the others are 0; otherwise what sums over all of them is left out.
    """
    largest = float(values[0])
    ranks = effective_ranks(values) if whole else {"gap": gap(values)}
    return {
        "largest": largest,
        "condition": 1 + largest / ALPHA,
        "above_a_tenth_of_the_largest": int((values > largest / 10).sum()),
        "above_alpha": int((values > ALPHA).sum()) if whole or float(values[-1]) <= ALPHA else None,
        "effective_rank": ranks,
        "eigenvalues": values[:TOP].tolist(),
    }


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
    return int((seen[:-1] / seen[1:]).argmax()) + 1 if len(seen) > 1 else len(seen)


def draw(found: Sequence[Row]) -> Any:
    """Eigenvalues by index, one panel a filter size, one line a number of images."""
    made = figure(10.0, 4.0, len(KERNELS))
    for panel, kernel in zip(made.axes, KERNELS, strict=True):
        for row in found:
            if row["kernel"] == kernel and not row["failure"]:
                values = row["eigenvalues"]
                label = f"{row['images']} images, effective rank {row['effective_rank']['gap']}"
                panel.plot(range(1, len(values) + 1), values, label=label)
        panel.axhline(ALPHA, color="#999999", linestyle="--", label="prior precision")
        panel.set(yscale="log", xlabel="index", ylabel="eigenvalue of G", title=f"filters {kernel} × {kernel}")
        panel.set_ylim(bottom=ALPHA / 1e3)
        panel.legend(frameon=False)
    return made
