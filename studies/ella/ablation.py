"""How the errors of the tangent kernel and of the posterior fall with the landmarks M and the rank K (Deng, figure 2).

    python -m studies.ella ablation --data DIR --json FILE

A CNN with batch norm of 29,034 weights and the first MNIST images X of those it was trained on; others V. In Frobenius
norms

    ε_Nyström = |φ(X) φ(X)ᵀ - σ₀² J(X) J(X)ᵀ| / |σ₀² J(X) J(X)ᵀ|
    ε_ELLA = |κ_ELLA(V, V) - κ_LLA(V, V)| / |κ_LLA(V, V)|

each from products with random signs, whose standard error stands beside. Exact linearised Laplace is a solve with the
posterior precision for each of them, to a relative residual of 1e-3. ELLA is the paper's; with the residual its error
stands beside. The leading directions of a fit of rank M are those of a smaller rank: one fit serves all K.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, digits, generator, mnist
from benchmarks.networks import seeded
from benchmarks.report import Row, curve, figure, tried
from benchmarks.training import kept_tensors, train
from lapwing.ground import probes
from lapwing.ground.data.inputs import as_inputs
from lapwing.linear.model import Chunk
from lapwing.posteriors import MatrixFreePosterior, NystromPosterior
from studies.ella.setting import DECAY, RANK

TRAINED = 2000
EPOCHS = 20
IMAGES = 500
HELD_OUT = 128
PROBES = 8
GRID = (20, 50, 100, 200, 500)
RANKS = (5, 10, *GRID)
LABELS = {"eps_nystrom": "ε Nyström", "eps_ella": "ε ELLA", "eps_residual": "ε ELLA with the residual"}
COLUMNS = (*LABELS, "fit_seconds")


@dataclass(frozen=True, eq=False)
class Case:
    """A trained network, the images X behind its posterior, and others V."""

    model: nn.Module
    train: Pair
    held_out: Tensor

    @property
    def precision(self) -> float:
        """The prior precision of the paper's rule, N γ, for the images the network was trained on."""
        return TRAINED * DECAY

    def laplace(self, structure: Any) -> lw.Laplace:
        """A recipe under it."""
        return lw.Laplace(lw.Categorical(), prior=lw.Isotropic(self.precision), structure=structure)


def case_of(setting: Setting) -> Case:
    """The CNN on MNIST; in a hurry, or without data, a narrow one on the digits of scikit-learn."""
    small = setting.quick or setting.data is None
    data = digits() if small else mnist(setting.folder)
    x, y = data.head(100 if setting.quick else TRAINED).train
    model = cnn(8 if small else 28, narrow=small)

    def weights() -> dict[str, Tensor]:
        train(model, x, y, epochs=2 if setting.quick else EPOCHS, decay=DECAY)
        return model.state_dict()

    model.load_state_dict(kept_tensors(weights, setting.kept, "ella-cnn", model, EPOCHS, x, y))
    images = 12 if setting.quick else setting.images or IMAGES
    return Case(model.eval(), (x[:images], y[:images]), data.x_test[: 8 if setting.quick else HELD_OUT])


def rows(setting: Setting) -> Iterator[Row]:
    """For each seed of the landmarks: M grows at K = 20 and at K = M, K grows at the largest M."""
    case = case_of(setting)
    exact = Exact.of(case, 4 if setting.quick else PROBES)
    grid, ranks, rank = ((4, 12), (1, 4, 12), 3) if setting.quick else (GRID, RANKS, RANK)
    for seed in setting.repeats:
        for landmarks in grid:
            fits = partial(fitted, case, landmarks, seed)
            posterior, cost = tried(fits, "fit_seconds", time.process_time)
            head: Row = {"landmarks": landmarks, "seed": seed, "images": len(case.train[1])}
            if posterior is None:
                yield head | cost
                continue
            cases = {"landmarks, fixed rank": [rank], "landmarks, rank as many": [landmarks]}
            if landmarks == grid[-1]:
                cases["rank"] = list(ranks)
            several = [(part, k) for part, ks in cases.items() for k in ks]
            errors = exact.errors([leading(posterior, k) for _, k in several])
            for (part, k), row in zip(several, errors, strict=True):
                yield head | {"part": part, "rank": k, "weights": posterior.network.size} | cost | row


def fitted(case: Case, landmarks: int, seed: int) -> NystromPosterior:
    """The paper's, of as many directions as landmarks."""
    structure = lw.Nystrom(landmarks, landmarks, residual=False, seed=seed)
    posterior = case.laplace(structure).fit(case.model, case.train)
    assert isinstance(posterior, NystromPosterior)
    return posterior


def leading(posterior: NystromPosterior, rank: int) -> NystromPosterior:
    """The posterior of the leading directions alone."""
    return replace(posterior, changes=posterior.changes[:, :rank], compressed=posterior.compressed[:rank, :rank])


@dataclass(frozen=True, eq=False)
class Exact:
    """Products of the exact kernels with random signs u, at the training images X and at V.

    Args:
        jacobian: Of X.
        gradients: ``J(X)ᵀ u``.
        kernel: ``σ₀² J(X) J(X)ᵀ u``.
        held_out: The Jacobian of V.
        asked: ``J(V)ᵀ u``.
        prior: ``σ₀² J(V) J(V)ᵀ u``.
        covariance: ``κ_LLA(V, V) u``.
    """

    jacobian: Chunk
    gradients: Tensor
    kernel: Tensor
    held_out: Chunk
    asked: Tensor
    prior: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, case: Case, count: int) -> Exact:
        """All that is exact; most of the seconds go into the solves."""
        solver = lw.solvers.CG(rtol=1e-3, preconditioner=lw.LowRank(min(100, len(case.train[1]))))
        posterior = case.laplace(lw.MatrixFree(solver)).fit(case.model, case.train)
        assert isinstance(posterior, MatrixFreePosterior)
        with torch.no_grad():
            jacobian = posterior.training.on(as_inputs(case.train[0]))
            held_out = posterior.training.on(as_inputs(case.held_out))
            gradients = jacobian.pull(signs(jacobian, count))
            asked = held_out.pull(signs(held_out, count))
            kernel = jacobian.push(gradients) / case.precision
            prior = held_out.push(asked) / case.precision
            covariance = held_out.push(posterior.solve(asked).value)
        return cls(jacobian, gradients, kernel, held_out, asked, prior, covariance)

    def errors(self, posteriors: Sequence[NystromPosterior]) -> list[Row]:
        """Errors of several posteriors and their standard errors, from one pass over the images."""
        count = self.gradients.shape[1]
        with torch.no_grad():
            near = [p.changes @ (p.changes.mT @ self.gradients) for p in posteriors]
            seen = [p.changes @ (p.changes.mT @ self.asked) for p in posteriors]
            held = [within(p, self.asked) for p in posteriors]
            kernels = self.jacobian.push(torch.cat(near, dim=1)).split(count)
            moved = self.held_out.push(torch.cat([*seen, *held], dim=1)).split(count)
        found: list[Row] = []
        for kernel, prior, covariance in zip(kernels, moved[: len(seen)], moved[len(seen) :], strict=True):
            parts = {
                "eps_nystrom": (kernel, self.kernel),
                "eps_ella": (covariance, self.covariance),
                "eps_residual": (covariance + self.prior - prior, self.covariance),
            }
            measured = {name: relative(*pair) for name, pair in parts.items()}
            row: Row = {name: eps for name, (eps, _) in measured.items()}
            found.append(row | {f"{name}_error": error for name, (_, error) in measured.items()})
        return found


def signs(chunk: Chunk, count: int) -> Tensor:
    """Random signs of the shape of the outputs, as many as asked for."""
    shape = chunk.outputs.shape
    return probes.rademacher([count, *shape], like=chunk.outputs, generator=generator(shape.numel()))


def within(posterior: NystromPosterior, gradients: Tensor) -> Tensor:
    """The covariance of the weights inside the span, times gradients."""
    root = posterior.changes.double() @ posterior.compression.root
    return (root @ (root.mT @ gradients.double())).to(gradients)


def relative(products: Tensor, exact: Tensor) -> tuple[float, float]:
    """``|A - B| / |B|`` in Frobenius norms from products with random signs, and its standard error."""
    missed = (products.double() - exact.double()).square().flatten(1).sum(1)
    whole = exact.double().square().flatten(1).sum(1)
    ratio = float(missed.mean() / whole.mean())
    spread = float((missed - ratio * whole).std() / whole.mean() / len(whole) ** 0.5)
    return ratio**0.5, spread / (2 * ratio**0.5)


def cnn(pixels: int = 28, *, narrow: bool = False, seed: int = 0) -> nn.Sequential:
    """Two convolutions of 5 × 5 with batch norm, ReLU and pooling, and a linear head.

    Args:
        pixels: Height and width of an image.
        narrow: Whether to take a quarter of the 16 and 32 channels.
        seed: Of the initial weights.

    Example:
        >>> sum(p.numel() for p in cnn().parameters()), cnn()(torch.zeros(2, 1, 28, 28)).shape
        (29034, torch.Size([2, 10]))
    """
    first, second = (4, 8) if narrow else (16, 32)

    def layers() -> nn.Sequential:
        stages: list[nn.Module] = []
        for i, o in ((1, first), (first, second)):
            stages += [nn.Conv2d(i, o, 5, padding=2), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*stages, nn.Flatten(), nn.Linear(second * (pixels // 4) ** 2, 10)).eval()

    return seeded(layers, seed)


def draw(found: Sequence[Row]) -> Any:
    """Both errors against M and against K."""
    means = [row for row in found if row.get("summary")]
    made = figure(13.0, 4.0, 3)
    axes = {"landmarks, fixed rank": "landmarks M, K = 20", "landmarks, rank as many": "landmarks M = K"}
    axes["rank"] = "rank K, M = 500"
    for panel, (part, axis) in zip(made.axes, axes.items(), strict=True):
        own = [row for row in means if row["part"] == part]
        for name, label in LABELS.items():
            curve(panel, own, part.partition(",")[0], name, label=label)
        panel.set(xlabel=axis, xscale="log", ylabel="relative error", yscale="log")
        panel.legend(frameon=False, fontsize=8)
    return made
