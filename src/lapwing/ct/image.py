"""The posterior over images of a deep image prior made linear."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ct.interval import Interval
from lapwing.ct.observed import BLOCK, Measurement, Observed, linear_image, pulled, pushed, single_chunk
from lapwing.ct.record import network_of, scan_of, scan_record
from lapwing.ct.whitened import whitened
from lapwing.curvature.fold import Fingerprint, Totals
from lapwing.ground import probes
from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import DataError, ShapeError, check_count, check_fraction, check_kind
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import REPAIR, UNRECORDED, Records
from lapwing.ground.moving import Mover
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.ground.shared import Shared, fields_of
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import Network, like_of
from lapwing.likelihoods import Gaussian, Likelihood
from lapwing.linear.gauss_newton import GGNProduct
from lapwing.linear.model import Chunk
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG, Perturb, Solver
from lapwing.linear.tangent import Tangent
from lapwing.posteriors import Capabilities, LinearSystem, Step
from lapwing.posteriors.iterative import warn_unless
from lapwing.priors import GPrior, Prior
from lapwing.structures import LowRank
from lapwing.tuning import EM

RTOL = 1e-3
"""Relative residual at which a draw of an image is done."""

RANK = 400
"""Of the randomised preconditioner (Antorán 2024, section 7.3.2)."""

DRAWS = 256
"""Of the scale of the prior of an image."""


@final
@dataclass(frozen=True, eq=False)
class ImagePosterior(Capabilities):
    """``N(x̃, J (b JᵀTᵀT J + A)⁻¹ Jᵀ)`` over images: the network's, with the error bars of its linear model.

        x_j = J Λ⁻¹ (√b JᵀTᵀ ε₁ + A^½ ε₂)                       (Antorán 2024, section 7.2 and algorithm 6, corrected)

    Draws are solved for when they are first asked for, once. ``lapwing.tune(posterior, EM())`` chooses the prior's
    precision, and the noise's, by the draws of the library's expectation maximisation.

    Args:
        observed: The rays through the network's image.
        prior: Of the weights; a ``GPrior`` knows its scale.
        likelihood: The noise now.
        solver: What solves with Λ.
        samples: Draws k: standard deviations have a relative standard error of ``1 / √(2 k)``.
        seed: Of the draws.
        trace: Steps of tuning.
        solved: ``deviations``, once they were asked for.
        latest_problem: The problem of the posterior that asked last; those under other priors are made from it.
    """

    observed: Observed = field(repr=False)
    prior: Prior
    likelihood: Likelihood
    solver: Solver
    samples: int = 64
    seed: int = 0
    trace: tuple[Step, ...] = field(default=(), repr=False)
    solved: Shared[Tensor] = field(default_factory=Shared[Tensor], repr=False, metadata=UNRECORDED)
    latest_problem: Shared[Problem] = field(default_factory=Shared[Problem], repr=False, metadata=UNRECORDED)

    @classmethod
    @undisturbed()
    @working("fit")
    def of(
        cls,
        network: nn.Module,
        z: Float[Tensor, "1 c *space"] | Array | list[Any],
        operator: Measurement,
        sinogram: Float[Tensor, " rows"] | Array | list[Any],
        *,
        noise_std: float | Float[Tensor, "*rows"] | Array | list[Any],
        prior: Prior | None = None,
        solver: Solver | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> ImagePosterior:
        """The posterior over images of a network that was fitted to a sinogram.

        Args:
            network: The network, fitted; it is left as it is.
            z: Its input.
            operator: T.
            sinogram: What was measured, flat.
            noise_std: Standard deviation of its noise, in its units: one number, or one a ray, by which the rows of T
                and the sinogram are divided; the posterior's own noise is then 1.
            prior: Of the weights; ``None`` for ``image_prior``, a g-prior scaled by what each weight does to the image.
                ``GPrior()`` is scaled by what the rays see, as the source has it, a pass a ray, or by draws.
            solver: What solves with Λ; ``None`` for conjugate gradients, preconditioned with ``LowRank(400)``, which is
                exact where there are no more rays.
            samples: Draws.
            seed: Of the draws.

        Cost:
            A backward pass a ray where rows are kept, and one a draw of the scale. The preconditioner is 1200 products
            with T J and its transpose, once.

        Example:
            >>> from lapwing.ct.unet import UNet
            >>> class Sums:
            ...     shape = (8, 64)
            ...     def push(self, v): return v.view(8, 8, -1).sum(1)
            ...     def pull(self, u): return u[:, None].expand(-1, 8, -1).reshape(64, -1)
            >>> net, z = UNet(scales=1, channels=4), torch.randn(1, 1, 8, 8)
            >>> ImagePosterior.of(net, z, Sums(), torch.zeros(8), noise_std=0.1).std.shape
            torch.Size([8, 8])
        """
        check_count("samples", samples, 2)
        check_count("seed", seed, 0)
        if prior is not None:
            prior.check_centred("an image")
        z = as_tensor(z, like=like_of(network))
        sinogram = as_tensor(sinogram, like=z)
        check_finite(sinogram, "measurements", "leaving out the rays that have none")
        operator, sinogram, noise = whitened(operator, sinogram, noise_std)
        likelihood = Gaussian(noise**-2)
        observed = Observed(linear_image(network, z), operator, sinogram, likelihood)
        generator = torch.Generator().manual_seed(seed + 1)
        known = image_prior(observed, generator) if prior is None else scaled(prior, observed, generator)
        if solver is None:
            solver = CG(rtol=RTOL, preconditioner=LowRank(min(RANK, len(sinogram))))
        return cls(observed, known, likelihood, solver, samples, seed)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and ``copy`` take: the fields, with no problem made; draws are drawn again, from their seed."""
        return fields_of(self) | {"latest_problem": Shared[Problem]()}

    def to(self, device: torch.device | str) -> ImagePosterior:
        """The posterior on another device, around a copy of its network there, with the draws where they were made.

        Args:
            device: Where to.

        Raises:
            MismatchError: If the network was written to since.
            UnsupportedError: If the measurement is by functions of your own, which are where they are.
        """
        return self.moved_by(Mover(device))

    def moved_by(self, mover: Mover) -> ImagePosterior:
        """See ``to``."""
        return replace(self, **{name: mover(value) for name, value in self.__getstate__().items()})

    def recorded_network(self) -> Network:
        """The network behind the image.

        Raises:
            UnsupportedError: If the image is not that of a network's own weights, seen by a ``Projector``.
        """
        return network_of(self.observed)

    def shared_by_processes(self) -> bool:
        """No: a scan is part of the posterior."""
        return False

    def record(self, records: Records, *, training_inputs: bool = False) -> Json:
        """What a file holds of the posterior, its network aside; draws where they were made."""
        scan = scan_record(self.observed, self._known_deviations, records)
        return {"observed": scan, **records.giving({Observed: None}).state(self)}

    @classmethod
    def of_record(cls, record: Json, records: Records, network: Network, data: Data | None) -> ImagePosterior:
        """The posterior of a record, around a network.

        Raises:
            DataError: If none gives it.
        """
        observed, deviations = scan_of(record, records, network)
        posterior: ImagePosterior = records.giving({Observed: observed}).read(cls, record, "")
        if deviations is None:
            return posterior
        sources = posterior._sources_of_deviations
        return replace(posterior, solved=Shared(deviations, *sources))

    def check_record(self) -> None:
        """Refuses draws of another image, and a prior of other weights."""
        self.prior.diagonal(self.observed.layout, self.observed.weights)
        deviations = self._known_deviations
        pixels = self.observed.image.event.numel()
        if deviations is not None and deviations.shape != (self.samples, pixels):
            raise DataError(f"{self.samples} draws of {pixels} pixels", f"{list(deviations.shape)}", REPAIR)

    def with_checked_data(self) -> ImagePosterior:
        """The posterior: its scan is part of it."""
        return self

    @property
    def mean(self) -> Float[Tensor, "*space"]:
        """The network's image x̃."""
        return self._image.outputs.reshape(self.shape)

    @property
    def std(self) -> Float[Tensor, "*space"]:
        """Standard deviation of each pixel, from the draws."""
        return self.deviations.square().mean(0).sqrt().view(self.shape)

    @property
    def shape(self) -> torch.Size:
        """Of the image."""
        return self.observed.image.event[:-1]

    @property
    def deviations(self) -> Float[Tensor, "s pixels"]:
        """The draws' deviations from the mean.

        Warns:
            ConvergenceWarning: If a solve missed its tolerance.

        Cost:
            One solve with all draws, and a product of J with them.
        """
        generator = torch.Generator().manual_seed(self.seed)
        return self.solved.of(*self._sources_of_deviations, make=lambda: self.drawn(self.samples, generator=generator))

    @property
    def _known_deviations(self) -> Float[Tensor, "s pixels"] | None:
        """``deviations``, once they were asked for."""
        return self.solved.known(*self._sources_of_deviations)

    @property
    def _sources_of_deviations(self) -> tuple[object, ...]:
        """What ``deviations`` are made from."""
        return self.observed, self.prior, self.likelihood, self.solver, self.samples, self.seed

    @undisturbed()
    @working("draws")
    def drawn(self, samples: int, *, generator: torch.Generator | int | None = None) -> Float[Tensor, "s pixels"]:
        """Fresh draws' deviations from the mean; see ``deviations``."""
        source = probes.generator_of(generator)
        probes.check_draws(samples, source)
        with torch.no_grad():
            found = Perturb().draw(self.problem, self.solver, samples, generator=source)
            warn_unless(found, self.solver.cure)
            return pushed(self._image, found.value).mT

    @undisturbed()
    @working("covariance")
    def covariance(self, block: Float[Tensor, "pixels k"]) -> Float[Tensor, "pixels k"]:
        """Its product with columns of images: a solve."""
        with torch.no_grad():
            found = self.solver.solve(self.problem, pulled(self._image, block))
            warn_unless(found, self.solver.cure)
            return pushed(self._image, found.value)

    def sample(self, samples: int, *, generator: torch.Generator | int | None = None) -> Float[Tensor, "s *space"]:
        """Fresh draws of the image; ``generator`` is a source of randomness, or the seed of one."""
        return self.mean + self.drawn(samples, generator=generator).reshape(-1, *self.shape)

    @undisturbed()
    @working("mode")
    def linear_mean(self) -> Float[Tensor, "*space"]:
        """The mean of the linear model itself, ``x̃ + J (w* - w̃)`` with w* its mode (equation 7.11).

        Cost:
            A solve.
        """
        mode = Tangent(self.observed).mode(self.problem.prior, self.noise_scale, solver=self.solver)
        with torch.no_grad():
            moved = pushed(self._image, (mode.weights - self.observed.weights)[:, None])
        return self.mean + moved.view(self.shape)

    def functional(self, weights: Float[Tensor, "m *space"], level: float = 0.95) -> Interval:
        """Credible intervals of linear functionals ``⟨a, x⟩``: the mean of a region, a profile.

        Args:
            weights: a, one functional a row, each of the shape of the image.
            level: Probability of an interval.

        Cost:
            One solve with as many columns. It is exact, without draws.
        """
        check_fraction("level", level, "level=0.95")
        if weights.shape[1:] != self.shape or not len(weights):
            raise ShapeError(f"functionals of shape [m, {list(self.shape)}]", f"{list(weights.shape)}", "mask[None]")
        a = weights.flatten(1).to(self.observed.weights)
        variance = (wide(a.mT) * wide(self.covariance(a.mT))).sum(0)
        return Interval(a @ self.mean.flatten(), variance.clamp_min(0).sqrt().to(a), level)

    @property
    def problem(self) -> Problem:
        """The Gaussian linear model behind it."""
        return self._problem

    @cached_property
    def _problem(self) -> Problem:
        prior = self.prior.operator(self.observed.layout, self.observed.weights)
        before = self.latest_problem.known(self.observed)
        if before is None:
            problem = Problem(GGNProduct(self.observed), prior, self.noise_scale)
        else:
            problem = before.with_prior(prior, self.noise_scale)
        return self.latest_problem.replaced(problem, self.observed)

    @property
    def system(self) -> LinearSystem:
        """See ``Capabilities.system``."""
        return LinearSystem(self.problem, self.solver)

    def weights_fingerprint(self) -> str:
        """What tells the weights where the network was made linear from others."""
        return f"weights {float(wide(self.observed.weights).sum()):.12g} in sum"

    @property
    def training(self) -> Observed:
        """The linear model with its data."""
        return self.observed

    @property
    def fitted(self) -> Likelihood:
        """The noise as the curvature has it."""
        return self.observed.likelihood

    @property
    def noise_scale(self) -> float:
        """Noise precision now, relative to that."""
        return self.likelihood.noise_over(self.fitted) or 1.0

    @property
    def prior_precisions(self) -> Float[Tensor, " g"]:
        """Prior precision of each group, float64."""
        return self.prior.precisions(self.observed.layout).to(self.observed.weights.device)

    @property
    def totals(self) -> Totals:
        """How well the network's image fits what was measured."""
        chunks = list(self.observed.visit())
        outputs, targets = (torch.cat([getattr(c, name) for c in chunks]) for name in ("outputs", "targets"))
        nll = float(self.fitted.nll(wide(outputs), wide(targets)).sum())
        misfit = float((self.fitted.score(outputs, targets) * (targets - outputs)).sum())
        return Totals((Fingerprint(len(targets), 0.0, 0.0, nll),), float(len(targets)), misfit, None)

    def with_hyperparameters(
        self, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()
    ) -> ImagePosterior:
        """The posterior with another prior and noise; what products and preconditioners keep is shared."""
        return replace(self, prior=prior, likelihood=likelihood, trace=self.trace + steps)

    def tuned(self, method: Any, progress: bool | None) -> ImagePosterior:
        """The posterior with a chosen prior; see ``tuning.tune``."""
        check_kind("the method", method, (EM, type(None)), "EM()")
        return (EM(noise=False) if method is None else method).tune(self, progress)

    @cached_property
    def _image(self) -> Chunk:
        return single_chunk(self.observed.image, self.samples)


def scaled(prior: Prior, observed: Observed, generator: torch.Generator | None = None) -> Prior:
    """The prior that knows its scale: ``diag(JᵀTᵀBTJ)``, exact or from noise (equation 6.13, corrected).

    Args:
        prior: Any prior; all but a ``GPrior`` without a scale stay as they are.
        observed: The rays.
        generator: Source of the noise.
    """
    if not isinstance(prior, GPrior) or prior.scale is not None:
        return prior
    if prior.samples is None:
        return prior.scaled_by(observed.diagonal(), observed.layout)
    root = GGNProduct(observed).root
    noise = probes.gaussian((root.shape[1], prior.samples), like=observed.weights, generator=generator)
    with torch.no_grad():
        return prior.scaled_by((root @ noise).square().mean(1), observed.layout)


def image_prior(observed: Observed, generator: torch.Generator | None = None) -> GPrior:
    """A g-prior scaled by what each weight does to the image, ``A = a diag(JᵀJ) d / |x̃|²``, seen by a ray or not.

    At a = 1, where it begins, images that it draws, ``E |J w|² = |x̃|² / a``, are as large as the network's own x̃.

    A weight that mostly makes structure the rays do not see has next to no scale in ``diag(JᵀTᵀBTJ)``, and a prior so
    wide that its structure is taken to be anything: then error bars are too long.

    Args:
        observed: The rays through the network's image.
        generator: Source of the noise ε, ``E (Jᵀε)² = diag(JᵀJ)``.
    """
    image = single_chunk(observed.image, BLOCK)
    total = torch.zeros_like(observed.weights)
    with torch.no_grad():
        for part in torch.arange(DRAWS).split(min(BLOCK, image.width)):
            noise = probes.gaussian((len(part), *image.outputs.shape), like=total, generator=generator)
            total += image.pull(noise).square().sum(1)
    size = float(wide(image.outputs).square().sum()) or len(total)  # a blank one has no size
    return GPrior().scaled_by(wide(total) * (len(total) / size / DRAWS), observed.layout)
