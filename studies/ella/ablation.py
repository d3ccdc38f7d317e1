"""How the errors of the tangent kernel and of the posterior fall with the landmarks M and the rank K (Deng, figure 2).

    python -m studies.ella ablation --data DIR --json FILE --figure FILE [--seeds 2]

A CNN with batch norm of 29,034 weights and the 2000 MNIST images X it was trained on; 256 others V. In Frobenius norms

    ε_Nyström = |φ(X) φ(X)ᵀ - σ₀² J(X) J(X)ᵀ| / |σ₀² J(X) J(X)ᵀ|
    ε_ELLA = |κ_ELLA(V, V) - κ_LLA(V, V)| / |κ_LLA(V, V)|

each from products with random signs, whose standard error stands beside. Exact linearised Laplace is a solve with the
posterior precision for each of them, to a relative residual of 1e-4. ELLA is the paper's; with the residual its error
stands beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import lapwing as lw
from lapwing import probes
from lapwing.curvature.jacobian import BatchJacobian, Jacobian
from lapwing.data import Data
from lapwing.posteriors import MatrixFreePosterior, NystromPosterior
from lapwing.predictive import Classification, JointMoments
from studies.ella.setting import Case, Setting
from studies.report import Row, figure
from studies.sampled.cost import timed
from studies.sampled.setting import generator

PROBES = 16
RANK, LANDMARKS = 20, 2000
LABELS = {"eps_nystrom": "ε Nyström", "eps_ella": "ε ELLA", "eps_residual": "ε ELLA with the residual"}
GRID = (20, 50, 100, 200, 500, 1000, 2000)
COLUMNS = ("eps_nystrom", "eps_ella", "eps_residual", "trace_error", "fit_seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each seed of the landmarks and each choice of M and K; M grows at K = 20, K grows at M = 2000."""
    case = setting.case("cnn")
    exact = Exact.of(case, 4 if setting.quick else PROBES)
    grid = (4, 12) if setting.quick else GRID
    rank, landmarks = (3, 12) if setting.quick else (RANK, LANDMARKS)
    pairs = [("landmarks", rank, samples) for samples in grid if samples >= rank]
    pairs += [("rank", kept, landmarks) for kept in (grid[0] // 4, grid[0] // 2, *grid) if kept <= landmarks]
    for seed in setting.repeats:
        found, changes = list[Row](), list[Tensor]()
        for grows, kept, samples in pairs:
            recipe = case.laplace(lw.Nystrom(kept, samples, residual=False, seed=seed))
            posterior, seconds = timed(partial(recipe.fit, case.task.model, case.train()))
            assert isinstance(posterior, NystromPosterior)
            row: Row = {"study": "ablation", "part": f"{grows} grow", "rank": kept, "landmarks": samples, "seed": seed}
            row |= {"images": len(case.train()[1]), "weights": posterior.network.size, "fit_seconds": seconds}
            error = posterior.report.error
            row |= {"kept": float(posterior.report.kept), "trace_error": error.value, "trace_stderr": error.stderr}
            row["eps_ella"], row["eps_ella_error"] = exact.of_posterior(posterior)
            row["eps_residual"], row["eps_residual_error"] = exact.of_posterior(replace(posterior, residual=True))
            found.append(row)
            changes.append(exact.moved(posterior))
        for row, (eps, error) in zip(found, exact.of_kernel(changes), strict=True):
            yield row | {"eps_nystrom": eps, "eps_nystrom_error": error}


@dataclass(frozen=True, eq=False)
class Exact:
    """Products of the exact kernels with random signs.

    Args:
        jacobian: Of the training images.
        variance: σ₀².
        gradients: ``J(X)ᵀ u``.
        kernel: ``σ₀² J(X) J(X)ᵀ u``.
        held_out: V.
        signs: Signs for the outputs at V.
        covariance: ``κ_LLA(V, V) u``.
    """

    jacobian: Jacobian
    variance: float
    gradients: Tensor
    kernel: Tensor
    held_out: Tensor
    signs: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, case: Case, count: int) -> Exact:
        """All that is exact; most of the seconds go into the solves."""
        solver = lw.CG(rtol=1e-4, preconditioner=lw.LowRank(min(200, 4 * len(case.train()[1]))))
        posterior = case.laplace(lw.MatrixFree(solver)).fit(case.task.model, case.train())
        assert isinstance(posterior, MatrixFreePosterior)
        network, survey, likelihood = posterior.network, posterior.survey, posterior.likelihood
        jacobian = Jacobian(network, survey, likelihood, Data(case.train(), like=network.like))
        held_out = case.task.held_out[0]
        at = BatchJacobian(network, survey, likelihood, held_out)
        with torch.no_grad():
            signs = probes.rademacher([jacobian.shape[0], count], like=network.like, generator=generator(1))
            gradients = jacobian.T @ signs
            variance = 1 / case.precision
            kernel = variance * (jacobian @ gradients)
            asked = probes.rademacher(
                [len(held_out) * survey.output.numel(), count], like=network.like, generator=generator(2)
            )
            covariance = at.push(posterior.solve(at.pull(asked)).value)
        return cls(jacobian, variance, gradients, kernel, held_out, asked, covariance)

    def moved(self, posterior: NystromPosterior) -> Tensor:
        """The changes of the weights ``W Wᵀ J(X)ᵀ u``, which give ``φ(X) φ(X)ᵀ u`` at the outputs."""
        return posterior.changes @ (posterior.changes.mT @ self.gradients)

    def of_kernel(self, changes: Sequence[Tensor]) -> list[tuple[float, float]]:
        """ε_Nyström of several features, from one pass over the training images."""
        with torch.no_grad():
            together = self.jacobian @ torch.cat(list(changes), dim=1)
        return [relative(part, self.kernel) for part in together.split(self.kernel.shape[1], dim=1)]

    def of_posterior(self, posterior: NystromPosterior) -> tuple[float, float]:
        """ε_ELLA, from the joint covariance of all outputs at V."""
        prediction = posterior.predict(self.held_out, joint=True)
        assert isinstance(prediction, Classification) and isinstance(prediction.logits, JointMoments)
        covariance = prediction.logits.covariance.flatten(2, 3).flatten(0, 1)
        return relative(covariance @ self.signs, self.covariance)


def relative(products: Tensor, exact: Tensor) -> tuple[float, float]:
    """``|A - B| / |B|`` in Frobenius norms from products with random signs, and its standard error."""
    missed = (products.double() - exact.double()).square().sum(0)
    whole = exact.double().square().sum(0)
    ratio = float(missed.mean() / whole.mean())
    spread = float((missed - ratio * whole).std() / whole.mean() / len(whole) ** 0.5)
    return ratio**0.5, spread / (2 * ratio**0.5)


def draw(found: Sequence[Row], path: Path) -> None:
    """Both errors against M and against K."""
    means = [row for row in found if row.get("summary")]
    made = figure(9, 4, 2)
    for panel, grows in zip(made.axes, ("landmarks", "rank"), strict=True):
        own = [row for row in means if row["part"] == f"{grows} grow"]
        for name, label in LABELS.items():
            errors = [row.get(f"{name}_stderr", 0.0) for row in own]
            panel.errorbar([row[grows] for row in own], [row[name] for row in own], errors, marker="o", label=label)
        panel.set(xlabel={"landmarks": "landmarks M, K = 20", "rank": "rank K, M = 2000"}[grows], xscale="log")
        panel.set(ylabel="relative error", yscale="log")
        panel.legend(frameon=False, fontsize=8)
    made.savefig(path)
