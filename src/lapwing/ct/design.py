"""Which angles to measure next: by how much each would still tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ct.image import ImagePosterior
from lapwing.ct.observed import BLOCK, Measurement, pulled, pushed, single_chunk
from lapwing.ct.operators import Product
from lapwing.ct.whitened import unwhitened
from lapwing.ground import probes
from lapwing.ground.errors import ConfigError, check_count, check_option, check_positive
from lapwing.ground.layout import together
from lapwing.ground.precision import wide, wide_like
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.linalg import Dense, Diagonal
from lapwing.linear.model import LinearModel
from lapwing.priors import Prior

Criterion: TypeAlias = Literal["ese", "eig"]
"""Expected squared error of what an angle would measure, or its expected information gain."""


@final
@dataclass(frozen=True, eq=False)
class Design:
    """The angles of a scan that are measured, and what the others would tell (Antorán 2024, section 7.5).

        ȳ_i = T̄ x_i - T̄ K Tᵀ (K_yy + σ² I)⁻¹ (T x_i + σ ε_i),     S_β = 1/m Σ_i ȳ_i^β ȳ_i^βᵀ

    over m draws ``x_i ~ N(0, K)`` of the image, for all angles at once. An angle scores ``½ log det(I + S_β / σ²)``,
    nats, its expected information gain, or ``tr S_β``, the expected squared error of its measurement. Where an angle is
    measured, ``T̄ K Tᵀ`` and with it ``K_yy`` grow by a block (equation 7.18). What was measured has no part in it but
    for the prior, which a deep image prior takes from it. K is the covariance of a prior, or that of a posterior, which
    has the angles behind it already: then no block of theirs is needed, however many they are.

    Args:
        covariance: The product with K.
        operator: T of all angles there might be, its rows angle by angle.
        angles: How many.
        noise_std: σ.
        behind: The angles that K knows of.
        chosen: The angles that were measured since, in order.
        cross: ``T̄ K Tᵀ`` of all rays with those of the chosen angles.
        drawn: ``T̄ x_i``, a draw a column.
        noise: ``ε_i``, of all rays.
    """

    covariance: Product
    operator: Measurement
    angles: int
    noise_std: float
    behind: tuple[int, ...]
    chosen: tuple[int, ...]
    cross: Float[Tensor, "rows c"]
    drawn: Float[Tensor, "rows m"]
    noise: Float[Tensor, "rows m"]

    @classmethod
    @undisturbed()
    @working("angles")
    def of(
        cls,
        image: LinearModel,
        prior: Diagonal | Prior,
        operator: Measurement,
        angles: int,
        chosen: Sequence[int],
        *,
        noise_std: float,
        samples: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Design:
        """A design with some angles measured.

        Args:
            image: The linear model of the image: a network's, or a ``pixel_prior``.
            prior: Of its weights: ``Isotropic(1.0)``, or their precision A as an operator.
            operator: T of all angles there might be, its rows angle by angle, such as a ``Projector``.
            angles: How many.
            chosen: Those that are measured.
            noise_std: σ, in the units of a measurement.
            samples: Draws m.
            generator: Source of randomness.

        Raises:
            ConfigError: If an angle is not among them, or the rows do not divide into so many.

        Cost:
            A push of every draw; for every ray of an angle that is measured, a pull and a push. Memory ``2 m + c``
            numbers a ray of all angles, for c rays that are measured.

        Example:
            >>> from lapwing.ct.pixels import pixel_prior
            >>> from lapwing.priors import Isotropic
            >>> class Sums:  # of rows, and of columns
            ...     shape = (6, 9)
            ...     def push(self, v): return torch.cat([v.view(3, 3, -1).sum(1), v.view(3, 3, -1).sum(0)])
            ...     def pull(self, u): return (u[:3, None] + u[None, 3:]).flatten(0, 1)
            >>> design = Design.of(
            ...     pixel_prior((3, 3)), Isotropic(1.0), Sums(), 2, [0], noise_std=0.1,
            ...     generator=torch.Generator().manual_seed(0),
            ... )
            >>> design.propose(1)
            [1]
        """
        check_positive("noise_std", noise_std, "0.05")
        check_count("samples", samples)
        like = image.weights
        a = prior.operator(image.layout, like) if isinstance(prior, Prior) else prior
        draws = [
            pushed(single_chunk(image, BLOCK), a.inverse_root() @ eps)
            for eps in probes.gaussian((len(like), samples), like=like, generator=generator).split(BLOCK, 1)
        ]

        def covariance(block: Float[Tensor, "pixels k"]) -> Float[Tensor, "pixels k"]:
            one = single_chunk(image, block.shape[1])
            return pushed(one, a.solve(pulled(one, block)))

        design = cls._begun(covariance, operator, angles, noise_std, (), together(draws, 1), generator)
        for angle in chosen:
            design = design.measured(angle)
        return design

    @classmethod
    @undisturbed()
    @working("angles")
    def after(
        cls,
        posterior: ImagePosterior,
        operator: Measurement,
        angles: int,
        chosen: Sequence[int],
        *,
        samples: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Design:
        """A design that begins with a posterior over images, whose angles are behind it; see ``of``.

        Args:
            posterior: Of the image, given the angles measured.
            operator: T of all angles there might be; where each ray has a noise of its own a ``Whitened`` one.
            angles: How many.
            chosen: Those that the posterior knows of.
            samples: Draws m.
            generator: Source of randomness.

        Raises:
            ConfigError: If the angles are not those of the posterior's rays.

        Warns:
            ConvergenceWarning: If a solve missed its tolerance.

        Cost:
            A solve with every draw; for each angle that is measured later, a solve with as many columns as it has rays.
        """
        noise_std = (posterior.likelihood.noise or 1.0) ** -0.5
        rays = len(posterior.observed.targets)
        behind = tuple(int(angle) for angle in chosen)
        if len(behind) * operator.shape[0] != rays * angles or len(set(behind)) < len(behind):
            expected = f"the numbers of the measured angles, whose rays the posterior has, {rays} of them"
            each = f"{operator.shape[0]} rays of {angles} angles"
            raise ConfigError(expected, f"{list(behind)}, with {each}", "each angle once, among all there might be")
        if (unwhitened(posterior.observed.operator)[1] is None) != (unwhitened(operator)[1] is None):
            expected = "all angles in the units of the posterior's rays, those of each ray's noise or not"
            hint = "lw.ct.Whitened(operator, std), with the noise of measured rays and that expected of others"
            raise ConfigError(expected, "one of them in units of its noise", hint)
        drawn = posterior.drawn(samples, generator=generator).mT
        return cls._begun(posterior.covariance, operator, angles, noise_std, behind, drawn, generator)

    @classmethod
    def _begun(
        cls,
        covariance: Product,
        operator: Measurement,
        angles: int,
        noise_std: float,
        behind: tuple[int, ...],
        drawn: Float[Tensor, "pixels m"],
        generator: torch.Generator | None,
    ) -> Design:
        """Draws, and no angle that was measured since."""
        check_count("angles", angles)
        rows = operator.shape[0]
        if rows % angles:
            raise ConfigError(f"rows of {angles} angles", f"{rows} rows", "one block of rows an angle")
        if not set(behind) <= set(range(angles)):
            raise ConfigError(f"measured angles below {angles}", f"{list(behind)}", "their numbers among all angles")
        draws = together([operator.push(block) for block in drawn.split(BLOCK, 1)], 1)
        noise = probes.gaussian(draws.shape, like=draws, generator=generator)
        return cls(covariance, operator, angles, noise_std, behind, (), draws.new_zeros(rows, 0), draws, noise)

    @undisturbed()
    @working("angles")
    def measured(self, angle: int) -> Design:
        """The design with one angle more measured; a block of ``K_yy`` more (equation 7.18).

        Args:
            angle: Its number.

        Raises:
            ConfigError: If it is measured already, or there is none such.
        """
        if angle not in range(self.angles) or angle in self.done:
            expected = f"an angle below {self.angles} that is not measured yet"
            raise ConfigError(expected, f"{angle}, with {list(self.done)} measured", "design.propose(1)")
        units = self.drawn.new_zeros(len(self.drawn), self.bins)
        units[self.rays([angle]), torch.arange(self.bins, device=units.device)] = 1.0
        pulled = (self.operator.pull(block) for block in units.split(BLOCK, 1))
        columns = [self.operator.push(self.covariance(block)) for block in pulled]
        return replace(self, chosen=(*self.chosen, angle), cross=torch.cat([self.cross, *columns], 1))

    def scores(self, criterion: Criterion = "ese") -> Float[Tensor, " angles"]:
        """What each angle would tell; nothing, ``-inf``, for one that is measured.

        Args:
            criterion: ``"eig"``, in nats, or ``"ese"``, in squared units of a measurement.

        Cost:
            ``rows c m`` multiplications, and the Cholesky factor of ``K_yy``.
        """
        check_option("criterion", criterion, get_args(Criterion))
        blocks = self._left().view(self.angles, self.bins, -1)
        covariance = blocks @ blocks.mT / blocks.shape[-1]
        if criterion == "ese":
            found = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
        else:
            eye = torch.eye(self.bins, **wide_like(covariance))
            found = (0.5 * torch.logdet(eye + wide(covariance) / self.noise_std**2)).to(covariance)
        found[list(self.done)] = -torch.inf
        return found

    def propose(self, count: int = 1, criterion: Criterion = "ese") -> list[int]:
        """The next angles to measure, the best first, each given those before (greedy).

        Args:
            count: How many.
            criterion: See ``scores``.

        Raises:
            ConfigError: If there are not so many left.

        Example:
            See ``of``.
        """
        check_count("count", count)
        left = self.angles - len(self.done)
        if count > left:
            raise ConfigError(f"count of at most {left}, the angles left", f"{count}", f"count={left}")
        design = self
        found = list[int]()
        for _ in range(count):
            found.append(int(design.scores(criterion).argmax()))
            if len(found) < count:
                design = design.measured(found[-1])
        return found

    @property
    def done(self) -> tuple[int, ...]:
        """The angles that are measured, in order."""
        return self.behind + self.chosen

    @property
    def bins(self) -> int:
        """Rows of an angle."""
        return len(self.drawn) // self.angles

    def rays(self, angles: Sequence[int]) -> Int[Tensor, " c"]:
        """The rows of some angles."""
        first = torch.tensor(list(angles), dtype=torch.long, device=self.drawn.device) * self.bins
        return (first[:, None] + torch.arange(self.bins, device=first.device)).flatten()

    def _left(self) -> Float[Tensor, "rows m"]:
        """``ȳ_i``: draws of what all angles would measure, given those that are."""
        if not self.chosen:
            return self.drawn
        rays = self.rays(self.chosen)
        kyy = Dense(0.5 * wide(self.cross[rays] + self.cross[rays].mT))
        noisy = kyy.plus_diagonal(torch.full_like(kyy.diagonal(), self.noise_std**2))
        solved = noisy.solve(wide(self.drawn[rays] + self.noise_std * self.noise[rays]))
        return self.drawn - self.cross @ solved.to(self.cross)
