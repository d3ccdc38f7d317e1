"""An upper bound of the log-determinant from two traces, which a mini-batch estimates without bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import DataError, check_count
from lapwing.linalg.bounds import shifted_log_determinant_upper
from lapwing.methods.marginal.log_det import LogDeterminant, MiniBatch


@final
@dataclass(frozen=True)
class Bound(LogDeterminant):
    """Bai and Golub's bound on ``log det(I + M)``, ``M = A^-½ G A^-½``, from tr M and tr M² (Brack 2023, 3.11 to 3.18).

    On a subspace of dimension K, at least the rank of M, with no eigenvalue above √tr M²:

        log det(I + M) <= B_K(tr M + K, tr M² + 2 tr M + K, √tr M² + 1)

    where B is ``linalg.bounds.shifted_log_determinant_upper``. The traces are sums over pairs of examples,
    ``tr M = Σ_i |Φ_i|²`` and ``tr M² = Σ_ij |Φ_i Φ_jᵀ|²``, and those of a batch are weighted to have the right mean:
    N/B for an example, N(N-1) / (B(B-1)) for a pair of two.

    It bounds ``log det Λ`` where all data are in the batch. It overstates how many directions the data determine, the
    more the larger K is beside the rank, and so its gradient pushes a prior precision up.

    Args:
        rank: K, at least the rank of G, or it is no bound; ``None`` takes ``min(N c, d)``, which is always enough.
        samples: Random combinations of each example's rows, of independent signs, at least 2; ``None`` takes all the
            rows: exact, and the choice where an example has few outputs.

    Raises:
        ConfigError: If ``rank`` is not positive or ``samples`` less than 2.

    Cost:
        Explicit rows, ``B c d`` numbers, or ``B samples d``; the smaller of their Gram matrices. No
        factorisation.

    Example:
        >>> import lapwing as lw
        >>> from lapwing.methods.marginal import MarginalLikelihood
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(8, 2), torch.arange(8) % 3
        >>> marginal = MarginalLikelihood(model, lw.Categorical(), data_size=8, log_det=Bound(), warm_up=0, settle=0)
        >>> -marginal.loss(x, y).item() < lw.Laplace(lw.Categorical()).fit(model, (x, y)).log_marginal()
        True
    """

    rank: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None:
            check_count("rank", self.rank)
        if self.samples is not None:
            check_count("samples", self.samples, least=2)  # the products of two are unbiased squares

    def ratio(self, batch: MiniBatch, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """The bound at the traces the batch estimates; see ``LogDeterminant.ratio``."""
        outputs = batch.live.cotangents.shape[0]
        if self.samples is None:
            trace, square = exact_traces(batch.rows(), batch.total)
        else:
            shape = (self.samples, outputs, batch.examples)
            mixing = probes.rademacher(shape, like=batch.live.outputs, generator=generator)
            trace, square = sampled_traces(batch.rows(mixing), batch.total)
        rank = self.rank or min(batch.total * outputs, batch.live.network.size)
        return shifted_log_determinant_upper(trace, square, rank, 1.0)


def exact_traces(rows: Float[Tensor, "n k d"], total: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Unbiased ``tr G`` and ``tr G²`` of ``total`` examples from all rows of n of them.

    Raises:
        DataError: If there is one example of several: a pair is needed.
    """
    flat = rows.flatten(0, 1)
    gram = flat @ flat.mT if len(flat) <= flat.shape[1] else flat.mT @ flat
    own = (rows @ rows.mT).square().sum()
    return total / len(rows) * flat.square().sum(), _both(own, gram.square().sum(), len(rows), total)


def sampled_traces(rows: Float[Tensor, "n s d"], total: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The same from s independent random combinations of the rows of each example.

    The squared product of two combinations is unbiased where their probes are independent: of two examples, or of one
    example and two samples.
    """
    n, samples = rows.shape[:2]
    flat = rows.flatten(0, 1)
    squares = (flat @ flat.mT).square().unflatten(0, (n, samples)).unflatten(2, (n, samples))
    other = 1 - torch.eye(samples, dtype=rows.dtype, device=rows.device)
    within = torch.einsum("isit,st->i", squares, other) / (samples * (samples - 1))
    between = squares.mean((1, 3))
    own = within.sum()
    pairs = between.sum() - between.diagonal().sum() + own
    return total / n * flat.square().sum() / samples, _both(own, pairs, n, total)


def _both(own: Float[Tensor, ""], pairs: Float[Tensor, ""], n: int, total: int) -> Float[Tensor, ""]:
    """The sum over pairs of ``total`` examples, from those of n: all, and ``own`` of one with itself."""
    if total == 1:
        return own
    if n == 1:
        raise DataError(
            "batches of at least two examples: tr G² is a sum over pairs", "a batch of one", "a larger batch_size"
        )
    return total / n * own + total * (total - 1) / (n * (n - 1)) * (pairs - own)
