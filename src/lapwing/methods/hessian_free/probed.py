"""A covariance of outputs, exact block by block or from its products with random signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.errors import UnsupportedError, check_fraction
from lapwing.ground.precision import wide


@final
@dataclass(frozen=True, eq=False)
class Variances:
    """Variances of the outputs, each with its standard error.

    Args:
        value: ``[n, *event, c]``, float64; an unbiased estimate, which may be negative where its error is large.
        stderr: Standard error of each; 0 where nothing is random.
        samples: Independent probes behind the standard error.

    Example:
        >>> Variances(torch.tensor([[2.0]]), torch.tensor([[0.1]]), 8).interval()[0].round(decimals=2)
        tensor([[1.7600]])
    """

    value: Float[Tensor, "*batch c"]
    stderr: Float[Tensor, "*batch c"]
    samples: int

    def interval(self, level: float = 0.95) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        """Confidence limits by Student's t with ``samples - 1`` degrees of freedom.

        Args:
            level: Probability with which the truth lies between them.

        Raises:
            ConfigError: If it is not between 0 and 1.
        """
        check_fraction("level", level, "level=0.95")
        from scipy import stats

        t = float(stats.t.ppf(0.5 + level / 2, max(self.samples - 1, 1)))
        return self.value - t * self.stderr, self.value + t * self.stderr


@final
@dataclass(frozen=True, eq=False)
class ProbedCovariance:
    """``C ≈ U Uᵀ + R`` over the outputs of n examples; U has no columns, and R no error, where nothing is random.

    Args:
        factor: U, ``[n, *event, c, r]``, float64.
        residual: Unbiased estimates of the c × c blocks of the rest R, ``[n, *event, c, c]``.
        stderr: Standard errors of their diagonals, ``[n, *event, c]``.
        samples: Probes behind them.
    """

    factor: Float[Tensor, "*batch c r"]
    residual: Float[Tensor, "*batch c c"]
    stderr: Float[Tensor, "*batch c"]
    samples: int

    @classmethod
    def of(
        cls, omega: Float[Tensor, "s *batch c"], responses: Float[Tensor, "s *batch c"], probes: int, noise: float
    ) -> ProbedCovariance:
        """From responses ``Y = C Ω``: the approximation of the first probes, and what it leaves out from the others.

        Args:
            omega: Random signs.
            responses: ``C ω`` of each.
            probes: How many are for the approximation.
            noise: Relative error of the responses; what is smaller in ``Ωᵀ Y`` than that is left to the rest.
        """
        shape = responses.shape[1:]
        signs = wide(omega.flatten(1))
        y = wide(responses.flatten(1))
        factor = nystrom_factor(signs[:probes], y[:probes], noise)
        left = y[probes:] - (signs[probes:] @ factor) @ factor.mT  # R ω of the other probes
        z = signs[probes:].view(-1, *shape)
        rest = left.view(-1, *shape)
        outer = z[..., :, None] * rest[..., None, :]
        blocks = 0.5 * (outer + outer.mT)
        samples = len(z)
        return cls(factor.view(*shape, -1), blocks.mean(0), (z * rest).std(0) / samples**0.5, samples)

    @classmethod
    def exact(cls, blocks: Float[Tensor, "*batch c c"]) -> ProbedCovariance:
        """Of which the c × c blocks alone are known."""
        return cls(blocks.new_zeros(*blocks.shape[:-1], 0), blocks, torch.zeros_like(blocks[..., 0]), 0)

    def take(self, which: Int[Tensor, " n"]) -> ProbedCovariance:
        """That of some of the examples."""
        return ProbedCovariance(self.factor[which], self.residual[which], self.stderr[which], self.samples)

    @property
    def variances(self) -> Variances:
        """The diagonal of C: unbiased, with standard errors."""
        value = self.factor.square().sum(-1) + self.residual.diagonal(dim1=-2, dim2=-1)
        return Variances(value, self.stderr, self.samples)

    @property
    def left_out(self) -> float:
        """Share of the trace of C that the rest has, by its estimate."""
        rest = float(self.residual.diagonal(dim1=-2, dim2=-1).sum())
        return rest / max(rest + float(self.factor.square().sum()), 1e-300)

    @property
    def blocks(self) -> Float[Tensor, "*batch c c"]:
        """The covariance of the outputs at each position; the rest as the nearest positive semi-definite matrix."""
        return self.factor @ self.factor.mT + nearest_semidefinite(self.residual)

    @property
    def joint(self) -> Float[Tensor, "*batch c *batch c"]:
        """The covariance between all outputs: ``U Uᵀ``, and the rest within each position.

        Raises:
            UnsupportedError: If the blocks alone are known.
        """
        if not self.samples:
            raise UnsupportedError(
                "probed fits for a joint covariance", "fits that answer for one input each", "fits=Probed()"
            )
        shape = self.factor.shape[:-1]
        flat = self.factor.flatten(0, -2)
        rest = nearest_semidefinite(self.residual).reshape(-1, shape[-1], shape[-1])
        return (flat @ flat.mT + torch.block_diag(*rest)).view(*shape, *shape)


def nystrom_factor(omega: Float[Tensor, "s m"], responses: Float[Tensor, "s m"], noise: float) -> Float[Tensor, "m r"]:
    """``U`` with ``U Uᵀ = Y (Ωᵀ Y)⁺ Yᵀ``, without what is smaller than the noise, or than the asymmetry of ``Ωᵀ Y``.

    Args:
        omega: ``Ωᵀ``.
        responses: ``Yᵀ``.
        noise: Relative error of Y.
    """
    core = omega @ responses.mT
    size = torch.linalg.matrix_norm(core).clamp(min=1e-300)
    asymmetry = float(torch.linalg.matrix_norm(core - core.mT) / size)
    values, vectors = torch.linalg.eigh(0.5 * (core + core.mT))
    kept = values > max(noise, asymmetry, 1e-13) * values[-1].abs()
    return responses.mT @ (vectors[:, kept] * values[kept].rsqrt())


def nearest_semidefinite(blocks: Float[Tensor, "*batch c c"]) -> Float[Tensor, "*batch c c"]:
    """The nearest positive semi-definite matrix to each symmetric one: negative eigenvalues become 0."""
    values, vectors = torch.linalg.eigh(blocks)
    return (vectors * values.clamp(min=0.0).unsqueeze(-2)) @ vectors.mT


def absolute(blocks: Float[Tensor, "*batch c c"]) -> Float[Tensor, "*batch c c"]:
    """``(M²)^½`` for the symmetric part M of each block: eigenvalues become their absolute values."""
    values, vectors = torch.linalg.eigh(0.5 * (blocks + blocks.mT))
    return (vectors * values.abs().unsqueeze(-2)) @ vectors.mT
