"""The diagnosis of a sampler and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.diagnosis import statistics
from lapwing.evaluation.diagnosis.statistics import Check, Family, directions_of, inner, project
from lapwing.ground import probes
from lapwing.ground.device import default_device_aside
from lapwing.ground.errors import DataError, NumericalError, ShapeError, UnsupportedError, check_count, check_fraction
from lapwing.ground.progress import working
from lapwing.linalg import Operator
from lapwing.posteriors.capabilities import DrawsTargets

LEVEL = 0.01


@final
@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What draws look like to the precision they should have; ``str`` of it is the verdict, one sentence.

    Args:
        distances: Squared Mahalanobis distances ``d² = δᵀΛδ`` of the draws ``[s]``, float64; χ²(d) if they are right.
        dimension: Weights d.
        checks: All tests: radius, mean and pairs, then spread, shape and worst of each family.
        families: The draws along random, stiff and sloppy directions.
        level: Accepted chance that right draws are called wrong.
    """

    distances: Float[Tensor, " s"]
    dimension: int
    checks: tuple[Check, ...]
    families: tuple[Family, ...]
    level: float

    @cached_property
    def adjusted(self) -> tuple[float, ...]:
        """P-values of the checks as if each were the only one (Holm 1979)."""
        return statistics.holm([check.p_value for check in self.checks])

    @property
    def rejected(self) -> tuple[Check, ...]:
        """The checks that fail at the level, their p-values adjusted, most certain first."""
        found = [replace(c, p_value=p) for c, p in zip(self.checks, self.adjusted, strict=True) if p < self.level]
        return tuple(sorted(found, key=lambda check: check.p_value))

    @property
    def passed(self) -> bool:
        """Whether no check fails at the level."""
        return not self.rejected

    def __getitem__(self, name: str) -> Check:
        """The check of a name, its p-value not adjusted.

        Raises:
            KeyError: Naming the checks there are.
        """
        found = {check.name: check for check in self.checks}
        if name not in found:
            raise KeyError(f"{name!r}; there are {', '.join(found)}")
        return found[name]

    def quantiles(self) -> tuple[Float[Tensor, " s"], Float[Tensor, " s"]]:
        """Of d², for a QQ plot: those of χ²(d) at ``(i - ½)/S``, and the distances sorted."""
        from scipy import stats

        size = len(self.distances)
        at = (torch.arange(size, dtype=torch.float64) + 0.5) / size
        expected = torch.from_numpy(stats.chi2.ppf(at.numpy(), self.dimension))
        return expected, self.distances.cpu().sort().values

    def __str__(self) -> str:
        what = f"{len(self.distances)} draws of {self.dimension:,} numbers"
        if self.passed:
            lowest = min(range(len(self.checks)), key=self.adjusted.__getitem__)
            verdict = (
                f"{what} agree with their precision: none of {len(self.checks)} checks rejects at level {self.level:g} "
                f"(lowest adjusted p-value {self.adjusted[lowest]:.2g}, {self.checks[lowest].name})"
            )
            return f"{verdict}; {self._sight()}."
        failures = ", ".join(f"{check.name} {check.p_value:.1e}" for check in self.rejected)
        ratios = {"all": float(self.distances.mean()) / self.dimension} | {f.name: f.variance for f in self.families}
        return (
            f"{what} do not agree with their precision: {len(self.rejected)} of {len(self.checks)} checks reject at "
            f"level {self.level:g} (adjusted p-values: {failures}); variances over what they should be: "
            f"{', '.join(f'{name} {ratio:.3g}' for name, ratio in ratios.items())}."
        )

    def _sight(self) -> str:
        """How small an error of the variance would have been seen."""
        level = self.level / len(self.checks)
        draws = len(self.distances)
        seen = f"{percent(statistics.detectable(draws * self.dimension, level))} in all directions"
        if self.families:
            along = ", ".join(f"{len(family.z)} {family.name}" for family in self.families)
            least = min(family.z.numel() for family in self.families)
            seen += f", or by {percent(statistics.detectable(least, level))} along the {along} ones,"
        return f"variances off by {seen} would have shown nine times in ten"


def percent(value: float) -> str:
    """A part in percent, to two digits or to the unit.

    Example:
        >>> percent(0.0037), percent(1.52)
        ('0.37 %', '152 %')
    """
    return f"{100 * value:.2g} %" if value < 1 else f"{100 * value:.0f} %"


@default_device_aside()
@working("diagnose")
def diagnose(
    posterior: Any,
    samples: int = 200,
    *,
    directions: int | Mapping[str, Tensor] = 16,
    level: float = LEVEL,
    inputs: Tensor | None = None,
    generator: torch.Generator | int | None = None,
) -> Diagnosis:
    """Whether a posterior's draws have the covariance Λ⁻¹ it claims, without that covariance.

    ``d² = δᵀΛδ ~ χ²(d)`` for draws ``θ* + δ`` (Brack 2023, section 4.4) sees an error of all variances and none of
    a few: 200 of 15,000 directions off by a tenth pass. ``uᵀΛδ/√(uᵀΛu) ~ N(0, 1)`` sees those along u.
    The verdict is on draws made in one call. Those of ``MatrixFree`` share their solves: a call for fewer may warn
    where this one had no cause to.

    Args:
        posterior: A posterior over weights, or whatever else has their mean as its ``network.weights``, their precision
            Λ as its ``precision_operator``, and ``sample(samples, generator=...)``, one draw a row. Or a Gaussian
            process: functions drawn from it, with noise, against the covariance of targets at ``inputs``.
        samples: Draws S; of a posterior made of draws no more than there are.
        directions: Random, stiff and sloppy directions, this many of each (at most half the weights), 0 for none; or
            directions of your own by name, ``[d, k]`` each.
        level: Chance of calling right draws wrong, all tests together. With more draws smaller errors are found, also
            those of a sampler that is good enough: 0.01 suits 200 draws.
        inputs: Where a Gaussian process is looked at, ``[m, p]``; ``None`` for the first 200 of its data.
        generator: Source of randomness, or the seed of one; ``None`` draws from PyTorch's global one.

    Raises:
        UnsupportedError: If the posterior has no draws of the weights or no precision operator.

    Cost:
        The draws; S products with Λ, and for each family the products of ``directions_of``. Memory 2 S d.

    Example:
        >>> import lapwing as lw
        >>> from lapwing.evaluation.diagnosis import diagnose_samples
        >>> precision = lw.linalg.Diagonal(torch.linspace(1.0, 9.0, 40, dtype=torch.float64))
        >>> draws = precision.inverse_root() @ torch.randn(40, 200, dtype=torch.float64)
        >>> diagnose_samples(2 * draws.mT, torch.zeros(40, dtype=torch.float64), precision, directions=0).passed
        False
    """
    source = probes.generator_of(generator)
    options: dict[str, Any] = {"directions": directions, "level": level, "generator": source}
    if isinstance(posterior, DrawsTargets):
        check_count("samples", samples, 2, usual=200)
        targets = posterior.target_deviations(samples, inputs, generator=source)
        return diagnose_samples(targets.drawn, torch.zeros_like(targets.drawn[0]), targets.precision, **options)
    if not all(hasattr(posterior, name) for name in ("network", "precision_operator", "sample")):
        raise UnsupportedError(
            "a posterior with sample(), network.weights and precision_operator",
            type(posterior).__name__,
            "a structure over the weights such as Full(view='weights'), or diagnose_samples(samples, mean, precision)",
        )
    check_count("samples", samples, 2, usual=200)
    stored = getattr(posterior, "stored_draws", None)
    if stored is not None:
        samples = min(samples, stored)
    draws = posterior.sample(samples, generator=source)
    return diagnose_samples(draws, posterior.network.weights, posterior.precision_operator, **options)


@default_device_aside()
def diagnose_samples(
    samples: Float[Tensor, "s d"],
    mean: Tensor,
    precision: Operator,
    *,
    directions: int | Mapping[str, Tensor] = 16,
    level: float = LEVEL,
    generator: torch.Generator | int | None = None,
) -> Diagnosis:
    """Whether draws of any sampler are independent and N(mean, Λ⁻¹); otherwise as ``diagnose``.

    Args:
        samples: One draw a row.
        mean: θ*, ``[d]``.
        precision: Λ, positive definite ``[d, d]``.
        directions: Random, stiff and sloppy directions, this many of each; or your own by name.
        level: Chance of calling right draws wrong, all tests together.
        generator: Source of randomness for the directions, or the seed of one.

    Raises:
        ShapeError: If the shapes do not fit.
        DataError: If draws or mean are not finite.
        ConfigError: If there are fewer than two draws, a negative number of directions or a level outside (0, 1).
        NumericalError: If Λ is found not to be positive definite.
    """
    check_count("samples", len(samples), 2, usual=200)
    check_fraction("level", level, "level=0.01")
    delta = _deviations(samples, mean, precision)
    image = precision @ delta
    gram = inner(delta, image)
    distances = gram.diagonal().clone()
    if not bool((distances >= 0).all()):
        raise NumericalError(
            "a positive definite precision", f"d² = {float(distances.min()):.3g}", "a larger prior precision"
        )
    found = _families(precision, image, directions, probes.generator_of(generator))
    size = precision.shape[0]
    checks = (statistics.radius(distances, size), statistics.mean(gram, size), statistics.pairs(gram, size))
    return Diagnosis(distances, size, sum((family.checks for family in found), checks), found, level)


def _deviations(samples: Tensor, mean: Tensor, precision: Operator) -> Float[Tensor, "d s"]:
    rows, columns = precision.shape
    if not (rows == columns and samples.shape[1:] == mean.shape == (rows,)):
        raise ShapeError(
            "samples [s, d], a mean [d] and a precision [d, d]",
            f"{list(samples.shape)}, {list(mean.shape)} and {list(precision.shape)}",
            "samples.T if the draws are columns",
        )
    delta = (samples.detach().to(precision.device) - mean.detach().to(precision.device)).mT.to(precision.dtype)
    bad = int((~delta.isfinite()).any(0).sum())
    if bad:
        raise DataError(
            "finite draws and mean", f"{bad} of {len(samples)} draws that are not", "the sampler's residuals"
        )
    return delta


def _families(
    precision: Operator, image: Tensor, directions: int | Mapping[str, Tensor], generator: torch.Generator | None
) -> tuple[Family, ...]:
    if isinstance(directions, Mapping):
        for name, u in directions.items():
            if u.ndim != 2 or not u.shape[1]:
                raise ShapeError(f"directions [{len(image)}, k] for {name!r}", f"{list(u.shape)}", "u[:, None] for one")
        given = {name: u.detach().to(image) for name, u in directions.items()}
    else:
        check_count("directions", directions, 0, usual=16)
        count = min(directions, max(len(image) // 2, 1))
        given = directions_of(precision, count, generator=generator) if count else {}
    return tuple(project(name, u, precision, image) for name, u in given.items())
