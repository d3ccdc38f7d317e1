"""KFAC with what neighbouring layers have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lapwing.curvature.chain import ChainSum
from lapwing.curvature.kfac import KroneckerSum
from lapwing.ground.errors import check_bytes, check_count
from lapwing.jacobian.layers.capture import kind_of
from lapwing.posteriors import Posterior
from lapwing.structures.base import FitTask, Structure


@final
@dataclass(frozen=True)
class TridiagonalKFAC(Structure):
    """KFAC with the blocks between neighbouring layers, ``Σ g_l g_{l+1}ᵀ ⊗ E[a_l a_{l+1}ᵀ]`` (Martens & Grosse 2015).

    The precision agrees with ``F + A`` on its diagonal blocks and those beside them, F the Kronecker products of all
    layers with each other, and is what a Gaussian chain makes of them elsewhere (section 4.3): its inverse has no block
    beyond neighbours. No Gaussian of that form is nearer to that of ``F + A`` by its divergence, ``KFAC`` among them.
    The prior is added as it is: factored damping, the source's way, would change it. So the blocks are written down.

    Tied are layers of one position, linear ones behind each other; convolutions, embeddings and norms stand alone.

    Args:
        max_bytes: Largest size of the blocks.

    Raises:
        TooLargeError: If they would need more.

    Cost:
        A pass over the data as for ``KFAC``. Under each prior ``Σ 2 m³`` multiplications for layers of m weights, and
        ``Σ 2 m²`` numbers; predictions and draws take the explicit Jacobian, d numbers an output.

    Example:
        >>> import torch, lapwing as lw
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
        >>> posterior = lw.Laplace(lw.Categorical(), structure=TridiagonalKFAC()).fit(
        ...     model, (torch.randn(9, 2), torch.arange(9) % 2)
        ... )
        >>> posterior.curvature.operator
        KroneckerChain(17 x 17, torch.float64, cpu)
    """

    max_bytes: int = 2**32

    def __post_init__(self) -> None:
        check_count("max_bytes", self.max_bytes)

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        model = task.model
        factors = KroneckerSum(model.network, precision=model.precision)
        layers = tuple(layer.names for layer in model.survey.layers if kind_of(layer).kronecker)
        sizes = [sum(model.network.params[name].numel() for name in names) for names in layers]
        needed = 4 * 8 * sum(size**2 for size in sizes)
        got = f"layers of up to {max(sizes, default=0):,} weights, whose blocks need"
        check_bytes(
            "blocks of layers", needed, self.max_bytes, got, "structure KFAC() or EKFAC(), or a larger max_bytes="
        )
        return task.affordable(inverted=True).summed(ChainSum(model.network, layers, factors))
