"""How the errors of the tangent kernel and of the posterior fall with the landmarks M and the rank K (Deng, figure 2).

    python -m studies.ella ablation --data DIR --json FILE --figure FILE [--seeds 2]

A CNN with batch norm of 29,034 weights and the 2000 MNIST images X it was trained on; 256 others V. In Frobenius norms

    ε_Nyström = |φ(X) φ(X)ᵀ - σ₀² J(X) J(X)ᵀ| / |σ₀² J(X) J(X)ᵀ|
    ε_ELLA = |κ_ELLA(V, V) - κ_LLA(V, V)| / |κ_LLA(V, V)|

each from products with random signs, whose standard error stands beside. Exact linearised Laplace is a solve with the
posterior precision for each of them, to a relative residual of 1e-3. ELLA is the paper's; with the residual its error
stands beside. The leading directions of a fit of rank M are those of a smaller rank: one fit serves all K.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import generator
from benchmarks.report import Row, curve, figure, timed
from benchmarks.tasks import Task
from lapwing.ground import probes
from lapwing.linear.model import Chunk
from lapwing.posteriors import MatrixFreePosterior, NystromPosterior
from studies.ella.setting import case_of, laplace, precision

PROBES = 12
RANK = 20
GRID = (20, 50, 100, 200, 500, 1000)
RANKS = (5, 10, *GRID)
LABELS = {"eps_nystrom": "ε Nyström", "eps_ella": "ε ELLA", "eps_residual": "ε ELLA with the residual"}
COLUMNS = ("eps_nystrom", "eps_ella", "eps_residual", "trace_error", "fit_seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """For each seed of the landmarks: M grows at K = 20 and at K = M, K grows at the largest M.

    A CNN with batch norm of 29 034 weights and the 2000 MNIST images it was trained on, 256 others for the
    posterior; relative errors in the Frobenius norm, ± the standard error of their probes where there is one seed
    alone. Without the residual an error of 1 says that hardly any variance is there; with it the prior stands where
    the exact posterior has shrunk, until the span holds what the data determined.
    """
    case = case_of(setting, "cnn")
    exact = Exact.of(case, 4 if setting.quick else PROBES)
    grid, ranks, rank = ((4, 12), (1, 4, 12), 3) if setting.quick else (GRID, RANKS, RANK)
    for seed in setting.repeats:
        found, kept = list[Row](), list[NystromPosterior]()
        for landmarks in grid:
            recipe = laplace(case, lw.Nystrom(landmarks, landmarks, residual=False, seed=seed))
            posterior, seconds = timed(partial(recipe.fit, case.model, case.train))
            assert isinstance(posterior, NystromPosterior)
            cases = [("landmarks, fixed rank", rank), ("landmarks, rank as many", landmarks)]
            cases += [("rank", k) for k in ranks] if landmarks == grid[-1] else []
            for grows, k in cases:
                row: Row = {"part": grows, "landmarks": landmarks, "rank": k, "seed": seed}
                row |= {"images": len(case.train[1]), "weights": posterior.network.size, "fit_seconds": seconds}
                found.append(row | {"trace_error": posterior.report.error.value if k == landmarks else None})
                kept.append(leading(posterior, k))
        for row, errors in zip(found, exact.errors(kept), strict=True):
            yield row | errors


def leading(posterior: NystromPosterior, rank: int) -> NystromPosterior:
    """The posterior of the leading directions alone."""
    changes, curvature = posterior.changes[:, :rank], posterior.compressed[:rank, :rank]
    return replace(posterior, changes=changes, compressed=curvature)


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
    def of(cls, case: Task, count: int) -> Exact:
        """All that is exact; most of the seconds go into the solves."""
        solver = lw.CG(rtol=1e-3, preconditioner=lw.LowRank(min(100, len(case.train[1]))))
        posterior = laplace(case, lw.MatrixFree(solver)).fit(case.model, case.train)
        assert isinstance(posterior, MatrixFreePosterior)
        images = case.held_out[0]
        both = [posterior.training.at(inputs) for inputs in (case.train[0], images)]
        with torch.no_grad():
            signs = [
                probes.rademacher([count, *f.shape], like=f, generator=generator(f.numel()))
                for f in (there.outputs for there in both)
            ]
            gradients, asked = (there.pull(u) for there, u in zip(both, signs, strict=True))
            jacobian, held_out = both
            kernel, prior = jacobian.push(gradients) / precision(case), held_out.push(asked) / precision(case)
            covariance = held_out.push(posterior.solve(asked).value)
        return cls(jacobian, gradients, kernel, held_out, asked, prior, covariance)

    def errors(self, posteriors: Sequence[NystromPosterior]) -> list[Row]:
        """Errors of several posteriors and their standard errors, from one pass over the images."""
        count = len(self.kernel)
        with torch.no_grad():
            near = [p.changes @ (p.changes.mT @ self.gradients) for p in posteriors]
            seen = [p.changes @ (p.changes.mT @ self.asked) for p in posteriors]
            held = [within(p, self.asked) for p in posteriors]
            kernels = self.jacobian.push(torch.cat(near, dim=1)).split(count)
            moved = self.held_out.push(torch.cat([*seen, *held], dim=1)).split(count)
        found = list[Row]()
        for kernel, prior, covariance in zip(kernels, moved[: len(seen)], moved[len(seen) :], strict=True):
            parts = {
                "eps_nystrom": (kernel, self.kernel),
                "eps_ella": (covariance, self.covariance),
                "eps_residual": (covariance + self.prior - prior, self.covariance),
            }
            measured = {name: relative(*pair) for name, pair in parts.items()}
            found.append({name: eps for name, (eps, _) in measured.items()})
            found[-1] |= {f"{name}_error": error for name, (_, error) in measured.items()}
        return found


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


def draw(found: Sequence[Row]) -> Any:
    """Both errors against M and against K."""
    means = [row for row in found if row.get("summary")]
    made = figure(13, 4, 3)
    axes = {"landmarks, fixed rank": "landmarks M, K = 20", "landmarks, rank as many": "landmarks M = K"}
    axes["rank"] = "rank K, M = 1000"
    for panel, (part, axis) in zip(made.axes, axes.items(), strict=True):
        own = [row for row in means if row["part"] == part]
        grows = part.partition(",")[0]
        for name, label in LABELS.items():
            curve(panel, own, grows, name, label=label)
        panel.set(xlabel=axis, xscale="log")
        panel.set(ylabel="relative error", yscale="log")
        panel.legend(frameon=False, fontsize=8)
    return made
