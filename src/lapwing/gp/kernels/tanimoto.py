"""The kernel of counts, such as fingerprints of molecules, and the hash that stands for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import FeatureMap, Kernel, check_dimensions
from lapwing.ground import probes
from lapwing.ground.errors import DataError
from lapwing.ground.precision import wide, wide_device
from lapwing.ground.tracing import traced

TIMES = 8
"""Values a hash of a feature's age is folded to: ``[C]`` of the specification of Tanimoto features."""


@final
@dataclass(frozen=True)
class Tanimoto(Kernel):
    """``Σ_j min(x_j, x'_j) / Σ_j max(x_j, x'_j)`` of counts, such as fingerprints of molecules (Tripp et al. 2023).

    Two rows of zeros have k = 1.

    Example:
        >>> Tanimoto()(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0]]))
        tensor([[0.5000]])
    """

    def __call__(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
        """See ``Kernel``."""
        check_dimensions(self, a, b)
        if not traced() and (bool((a < 0).any()) or bool((b < 0).any())):
            lowest = min(float(a.min()), float(b.min()))
            raise DataError("counts, which are not negative", f"{lowest:.3g}", "another kernel, such as Matern()")
        total = a.sum(1)[:, None] + b.sum(1)
        apart = torch.cdist(a, b, p=1.0)
        return torch.where(total > 0, (total - apart) / (total + apart).clamp_min(torch.finfo(a.dtype).tiny), 1.0)

    def without_derivative(self, drawn: bool) -> str | None:
        """See ``Kernel``: the features are looked up."""
        return "functions drawn by Tanimoto's features, which are constant almost everywhere" if drawn else None

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """Ones."""
        return x.new_ones(x.shape[0])

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """Random signs, looked up by a hash on which x and x' agree with probability k (Ioffe 2010)."""
        size = (count, x.shape[1])
        place = wide_device(x.device)

        def uniform() -> Tensor:
            return torch.rand(size, generator=generator, dtype=torch.float64)

        rate = -(uniform() * uniform()).log().to(place)
        age = -(uniform() * uniform()).log().to(place)
        start = uniform().to(place)
        signs = probes.rademacher([*size, TIMES], like=x, generator=generator)

        def hashed(row: Tensor) -> Tensor:
            """The features of one row of counts."""
            there = row > 0
            if not bool(there.any()):
                return signs[:, 0, 0]
            times = torch.floor(row[there].log() / rate[:, there] + start[:, there])
            arrival = age[:, there].log() - rate[:, there] * (times - start[:, there] + 1)
            first = arrival.argmin(1, keepdim=True)
            place = there.nonzero()[:, 0][first[:, 0]]
            turn = (times.gather(1, first)[:, 0] % TIMES).long()
            return signs[torch.arange(len(signs), device=signs.device), place, turn]

        return lambda inputs: torch.stack([hashed(row) for row in wide(inputs.detach())]).to(x) / count**0.5
