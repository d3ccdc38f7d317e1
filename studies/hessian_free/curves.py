"""The four data sets of McInerney & Kallus (2024): two curves, seen everywhere or left and right of a gap.

| name | training inputs | out of distribution |
|---|---|---|
| Quadratic-Uniform | 32 from N(0, 1) | beside: [-4, -2.5] and [2.5, 4] |
| Quadratic-Inbetween | 16 from U(-2, -1/2), 16 from U(4/5, 5/2) | the gap, [-1/2, 4/5] |
| Sin-Uniform | 160 from U(-3/2, 23/20) | beside: [-2, -1.5] and [1.15, 1.65] |
| Sin-Inbetween | 80 evenly in [-1.5, -0.7), 80 evenly in [0.35, 1.15) | the gap, [-0.7, 0.35] |

The source does not state its ranges out of distribution; these are chosen here. Its first set is uniform by name and
normal by text; here it is normal. Validation data, and test data in distribution, come from where the training inputs
do, the evenly spaced ones drawn uniformly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.data import Pair, generator, uniform
from lapwing.ground import probes

Ranges = tuple[tuple[float, float], ...]

NOISE = 0.1
"""Standard deviation of the noise of every set."""


def quadratic(x: Tensor) -> Tensor:
    """``x² / 10 - x / 2 + 5``."""
    return x.square() / 10 - x / 2 + 5


def sine(x: Tensor) -> Tensor:
    """``-sin(3x - 3/10)``."""
    return -torch.sin(3 * x - 0.3)


@dataclass(frozen=True)
class Curve:
    """A data set.

    Args:
        response: The curve.
        inside: Where the training inputs lie, the same number in each; empty for N(0, 1).
        outside: Where the test inputs out of distribution lie.
        points: Training inputs, and validation inputs.
        tested: Test inputs in and out of distribution.
        evenly: Whether the training inputs are evenly spaced instead of drawn.
    """

    response: Callable[[Tensor], Tensor]
    inside: Ranges
    outside: Ranges
    points: int
    tested: tuple[int, int]
    evenly: bool = field(default=False, kw_only=True)

    def draw(self, seed: int, *, quick: bool = False) -> Data:
        """The draw of a seed.

        Args:
            seed: Of everything.
            quick: Whether a quarter of the training data and a few test points must do.
        """
        source = generator(seed)
        points, tested = (self.points // 4, (4, 4)) if quick else (self.points, self.tested)
        train = spaced(self.inside, points) if self.evenly else drawn(self.inside, points, source)
        inputs = (train, *(drawn(self.inside, n, source) for n in (points, tested[0])))
        pairs = [self._seen(x, source) for x in (*inputs, drawn(self.outside, tested[1], source))]
        return Data(*pairs)

    def _seen(self, x: Float[Tensor, "n 1"], source: torch.Generator) -> Pair:
        return x, self.response(x) + NOISE * probes.gaussian(x.shape, like=x, generator=source)


@dataclass(frozen=True)
class Data:
    """A draw of a data set, float64 columns.

    Args:
        train: To train on.
        validation: To choose the variance of the noise on.
        inside: To score on in distribution.
        outside: To score on out of distribution.
    """

    train: Pair
    validation: Pair
    inside: Pair
    outside: Pair

    @property
    def tests(self) -> dict[str, Pair]:
        """What is scored, by name."""
        return {"in": self.inside, "out": self.outside}


def drawn(ranges: Ranges, n: int, source: torch.Generator) -> Float[Tensor, "n 1"]:
    """Uniform draws, as many from each range as from the next (±1); from N(0, 1) where there is none."""
    if not ranges:
        return probes.gaussian([n, 1], like=torch.zeros((), dtype=torch.float64), generator=source)
    counts = parts(n, len(ranges))
    return torch.cat([uniform(count, *each, source) for count, each in zip(counts, ranges, strict=True)])


def spaced(ranges: Ranges, n: int) -> Float[Tensor, "n 1"]:
    """Evenly spaced inputs, each range without its upper end."""
    counts = parts(n, len(ranges))
    return torch.cat(
        [
            low + (high - low) / count * torch.arange(count, dtype=torch.float64)[:, None]
            for count, (low, high) in zip(counts, ranges, strict=True)
        ]
    )


def parts(n: int, count: int) -> Sequence[int]:
    """A count split evenly, the first parts the larger ones.

    Example:
        >>> parts(45, 2)
        [23, 22]
    """
    return [math.ceil((n - k) / count) for k in range(count)]


CURVES = {
    "Quadratic-Uniform": Curve(quadratic, (), ((-4.0, -2.5), (2.5, 4.0)), 32, (32, 45)),
    "Quadratic-Inbetween": Curve(quadratic, ((-2.0, -0.5), (0.8, 2.5)), ((-0.5, 0.8),), 32, (32, 45)),
    "Sin-Uniform": Curve(sine, ((-1.5, 1.15),), ((-2.0, -1.5), (1.15, 1.65)), 160, (160, 80)),
    "Sin-Inbetween": Curve(sine, ((-1.5, -0.7), (0.35, 1.15)), ((-0.7, 0.35),), 160, (160, 80), evenly=True),
}
"""By name. As many test inputs out of distribution as the source's coverages, which are multiples of 1/45 and of 1/80,
allow for; in distribution as many as there are to train on."""
