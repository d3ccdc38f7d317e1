"""The full covariance, never written down: a solve for every answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from lapwing.ground.errors import check_kind
from lapwing.linear.solvers import CG, Perturb, Root, Solver
from lapwing.posteriors import MatrixFreePosterior, Posterior
from lapwing.structures.base import FitTask, Structure, check_products
from lapwing.structures.low_rank import LowRank


@final
@dataclass(frozen=True)
class MatrixFree(Structure):
    """The full covariance by products with Λ = G + A alone: no structure is imposed, nothing is d × d.

    A variance is a solve against a Jacobian row, a draw a solve against noise, the log determinant an ``Estimate``.

    Args:
        solver: Solves with Λ, by default conjugate gradients preconditioned with ``LowRank(100)``.
        sqrt: Draws from N(0, Λ⁻¹): ``Perturb()``, ``Contour()`` or ``Lanczos()``.

    Raises:
        ConfigError: If one is of another kind.
        UnsupportedError: If the curvature is not the ``GGN``.

    Cost:
        A forward pass over the data. The first solve builds the preconditioner. Products keep up to 2 GiB of what does
        not depend on their columns where that is enough, else they read the training data once an iteration; a solve
        holds eight float64 blocks, up to the solver's ``max_bytes``.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> posterior = lw.Laplace(lw.Categorical(), structure=lw.MatrixFree(lw.solvers.CG())).fit(model, (x, y))
        >>> posterior.predict(x[:2]).probs.shape
        torch.Size([2, 3])
    """

    solver: Solver = field(default_factory=lambda: CG(preconditioner=LowRank(100)))
    sqrt: Root = field(default_factory=Perturb)

    def __post_init__(self) -> None:
        check_kind("solver=", self.solver, (Solver,), "CG()")
        check_kind("sqrt=", self.sqrt, (Root,), "Perturb()")

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        check_products(task)
        return task.posterior(MatrixFreePosterior, task.totals(), self.solver, self.sqrt)
