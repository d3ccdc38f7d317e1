"""KFAC with its eigenvalues put right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final, get_args

from lapwing import linalg
from lapwing.curvature.ekfac import EigenvalueSum
from lapwing.curvature.kfac import Bias, KroneckerSum
from lapwing.curvature.sweep import sweep
from lapwing.ground.errors import check_option
from lapwing.jacobian.layers.moments import Sharing
from lapwing.posteriors import Posterior
from lapwing.structures.base import FitTask, Structure
from lapwing.structures.kfac import check_one_precision


@final
@dataclass(frozen=True)
class EKFAC(Structure):
    """Independent layers, each diagonal in the eigenbasis of its Kronecker product; norms exact (George et al. 2018).

        G_l ≈ (Q ⊗ P) diag(d) (Q ⊗ P)ᵀ,    d_ab = Σ_nk (q_aᵀ J_nk p_b)²

    for the eigenvectors Q and P of the factors of ``KFAC``: the diagonal is exact, so that by the norm of Frobenius it
    is never further from the layer's own block than ``KFAC``, and has its trace.

    Args:
        sharing: Of the factors, as for ``KFAC``; eigenvalues are exact for either.
        bias: As for ``KFAC``.

    Raises:
        ConfigError: If an option is none of these.
        UnsupportedError: If a prior has more than one precision for the weights of a layer.

    Cost:
        Two passes over the data, with as many cotangents as for ``KFAC`` each; of every factor of m rows the
        eigendecomposition, ``9 m³`` multiplications. Memory o² + i² + o i a layer.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=EKFAC()).fit(model, (x, y)).predict(x[:2]).probs.shape
        torch.Size([2, 3])
    """

    adds_to = (linalg.BlockDiagonal,)

    sharing: Sharing = "expand"
    bias: Bias = "joint"

    def __post_init__(self) -> None:
        check_option("sharing", self.sharing, get_args(Sharing))
        check_option("bias", self.bias, get_args(Bias))

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        check_one_precision(task, self.bias)
        task = task.affordable(inverted=True)
        model = task.model
        before = None if task.generator is None else task.generator.get_state()
        factors = KroneckerSum(model.network, self.sharing, self.bias, None, model.precision)
        sweep(model, task.curvature, factors, generator=task.generator)
        if task.generator is not None and before is not None:
            task.generator.set_state(before)  # the same draws once more
        return task.summed(EigenvalueSum(model.network, factors.result(), self.bias))
