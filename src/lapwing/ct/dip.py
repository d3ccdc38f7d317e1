"""The deep image prior: an image that an untrained network makes, fitted to a sinogram."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lapwing.ct.checkpoint import ARCHIVE, FitState, advanced, resume
from lapwing.ct.observed import Measurement
from lapwing.ct.unet import dropping
from lapwing.ct.variation import total_variation
from lapwing.ct.whitened import whitened
from lapwing.ground import probes
from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import (
    ConfigError,
    ConvergenceWarning,
    NumericalError,
    ShapeError,
    check_count,
    check_fraction,
    check_positive,
    warn,
)
from lapwing.ground.files.atomic import check_directory, file_at
from lapwing.ground.files.checkpoint import Checkpoint
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar, track
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import like_of

LOOK = 10
"""Steps between two looks at the rays held out."""

SAVED = 100
"""Steps between two checkpoints."""

CLIP = 1.0
"""Longest gradient."""

FAR = 4.0
"""Mean squared residual on the rays held out, over the noise variance, from which a network is said not to have fit."""


@final
@dataclass(frozen=True, eq=False)
class Reconstruction:
    """An image, the network that makes it, and how it was found.

    Args:
        network: The network at the weights that fit the rays held out best.
        z: Its input.
        image: What it makes.
        held_out: Mean squared residual on the rays held out, over the noise variance: 1 is the noise alone.
        step: The step it is from.
        trace: The same at every look.
    """

    network: nn.Module
    z: Float[Tensor, "1 c *space"]
    image: Float[Tensor, "*space"]
    held_out: float
    step: int
    trace: tuple[float, ...] = field(repr=False)


@final
@dataclass(frozen=True)
class DeepImagePrior:
    """``min_v ‖T g(v, z) - y‖² / 2σ² + λ TV(g(v, z))`` by Adam, stopped by rays held out (Antorán 2024, section 7.1).

    A network learns images before it learns noise: the data fit on rays that the descent does not see falls, and then
    rises. They are single pixels of the detector, at random; the weights of its lowest point are kept. Layers that drop
    out do so in the descent, and not in the image.

    Args:
        tv: λ, the weight of the total variation, in 1 / (units of the image).
        steps: Most steps.
        patience: Steps without a better fit to the rays held out after which it ends.
        rate: Adam's learning rate.
        held_out: Part of the rays that is held out.
        checkpoint: A file that is written as it goes, and gone on from if it is there.
        seed: Of the rays held out.

    Raises:
        ConfigError: If a number makes no sense.

    Example:
        >>> DeepImagePrior(tv=3.0).steps
        3000
    """

    tv: float = 1.0
    steps: int = 3000
    patience: int = 600
    rate: float = 2e-3
    held_out: float = 0.05
    checkpoint: str | PathLike[str] | None = field(default=None, compare=False)
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("tv", self.tv, "1.0")
        check_positive("rate", self.rate, "2e-3")
        check_fraction("held_out", self.held_out, "held_out=0.05")
        for name in ("steps", "patience"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, 0)
        if self.checkpoint is not None:
            check_directory(file_at(self.checkpoint))

    @undisturbed()
    def fit(
        self,
        network: nn.Module,
        z: Float[Tensor, "1 c *space"] | Array | list[Any],
        operator: Measurement,
        sinogram: Float[Tensor, " rows"] | Array | list[Any],
        *,
        noise_std: float | Float[Tensor, "*rows"] | Array | list[Any],
        progress: bool | None = None,
    ) -> Reconstruction:
        """The reconstruction; a copy of the network is trained.

        Args:
            network: From ``z`` to an image ``[1, 1, *space]``, such as a ``UNet``.
            z: The network's input: noise, or a filtered back-projection.
            operator: T, which differentiates.
            sinogram: y, flat.
            noise_std: σ, in the units of y: one number, or one a ray.
            progress: Whether to show a progress bar, with the loss; ``None`` for after two seconds, in a terminal or
                notebook.

        Raises:
            ConfigError: If the noise is not positive, or the network has no weights to fit.
            DataError: If a measurement is not finite, or the noise of a ray is not positive.
            MismatchError: If the checkpoint is that of another fit.
            NumericalError: If the loss is not finite: the network does not train.
            ShapeError: If operator, sinogram and image do not fit.

        Warns:
            ConvergenceWarning: If the fit to the rays held out was still falling at the end, or is far from the noise.

        Cost:
            A step: a forward and a backward pass, and a product with T and its adjoint.
        """
        z = as_tensor(z, like=like_of(network))
        sinogram = as_tensor(sinogram, like=z)
        check_finite(sinogram, "measurements", "leaving out the rays that have none")
        rows, pixels = operator.shape
        if sinogram.shape != (rows,):
            raise ShapeError(f"a flat sinogram [{rows}]", f"{list(sinogram.shape)}", "sinogram.flatten()")
        operator, sinogram, noise_std = whitened(operator, sinogram, noise_std)
        trained = copy.deepcopy(network).eval()  # as it will be served, with no running averages
        with torch.no_grad():
            made = trained(z).shape
        if made[:2] != (1, 1) or made.numel() != pixels:
            hint = "a network with one output channel, and an input of one example"
            raise ShapeError(f"an image [1, 1, *space] of {pixels} pixels", f"{list(made)}", hint)
        if not learning(trained):
            raise ConfigError("a network with weights to fit", "none that needs a gradient", "requires_grad_(True)")
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.tensor(probes.permutation(rows, generator=generator), device=sinogram.device)
        split = max(1, round(self.held_out * rows))
        task = _Task(trained, operator, sinogram, z, noise_std, self.tv, order[split:], order[:split])
        state, file = self._begun(task)
        with dropping(trained, self.seed + state.step):
            state = self._descended(task, state, file, progress)
        vector_to_parameters(state.best.clone(), learning(trained))
        with torch.no_grad():
            image = trained(z)[0, 0]
        left = f"{state.held_out:.3g} times the noise on the rays held out"
        if state.at + LOOK >= state.step:
            found = f"the fit was still falling after {state.step} steps, its squared residual {left}"
            warn(f"{found}. Try a larger steps=, or another rate=", ConvergenceWarning)
        elif state.held_out > FAR:
            found = f"the network did not fit the scan: its squared residual is {left}, at step {state.at}"
            warn(f"{found}. Try another rate=, a larger network, or the noise_std of this scan", ConvergenceWarning)
        return Reconstruction(trained, z, image, state.held_out, state.at, state.trace)

    def _descended(
        self, task: _Task, state: FitState, file: Checkpoint[FitState] | None, progress: bool | None
    ) -> FitState:
        """Go on from a state to the end."""
        weights = learning(task.network)
        optimiser = torch.optim.Adam(weights, self.rate)
        resume(optimiser, state)
        with Bar("deep image prior", most=self.steps, done=state.step, progress=progress) as bar:
            for step in range(state.step, self.steps):
                before = parameters_to_vector(weights).detach().clone() if step % LOOK == 0 else None
                loss, seen = task.step(optimiser)
                bar.update()
                if before is not None:
                    state = replace(state, trace=(*state.trace, seen))
                    bar.update(0, f"loss {loss:.3g}, of the rays held out {seen:.3g}")
                    if seen < state.held_out:  # by the weights before the step
                        state = replace(state, best=before, held_out=seen, at=step)
                done = step - state.at >= self.patience
                if done or (step + 1) % SAVED == 0 or step + 1 == self.steps:
                    state = advanced(state, optimiser, step + 1)
                    if file is not None:
                        file.write(state)
                if done:
                    break
        return state

    def _begun(self, task: _Task) -> tuple[FitState, Checkpoint[FitState] | None]:
        """Where to start, and where to write how far the fit has come.

        Raises:
            MismatchError: If the checkpoint is that of another fit.
        """
        weights = parameters_to_vector(learning(task.network)).detach().clone()
        y = task.sinogram
        z = task.z
        none = torch.zeros_like(weights)
        start = FitState(weights, none, none, weights, float("inf"), 0, (), 0)
        if self.checkpoint is None:
            return start, None
        settings = {
            "network": f"{len(weights)} weights, {float(wide(weights).norm()):.9g} long",
            "sinogram": f"{len(y)} rays, {float(wide(y).norm()):.9g} long",
            "settings": f"tv {self.tv}, rate {self.rate}, held out {self.held_out}, seed {self.seed}",
            "noise": f"{task.noise_std}",
            "input": f"{z.numel()} numbers that come to {float(wide(z).sum()):.9g}",
            "operator": f"a back-projection {float(wide(task.operator.pull(y[:, None])).norm()):.9g} long",
        }
        file = Checkpoint(ARCHIVE, FitState, file_at(self.checkpoint), settings)
        return file.read(weights.device) or start, file


@final
@dataclass(frozen=True, eq=False)
class _Task:
    """One fit: the loss on the rays seen, and what those held out say."""

    network: nn.Module
    operator: Measurement
    sinogram: Float[Tensor, " rows"]
    z: Float[Tensor, "1 c *space"]
    noise_std: float
    tv: float
    seen: Int[Tensor, " a"]
    held: Int[Tensor, " b"]

    def step(self, optimiser: torch.optim.Optimizer) -> tuple[float, float]:
        """One step; the loss before it, and the mean squared residual on the rays held out.

        Raises:
            NumericalError: If the loss is not finite.
        """
        optimiser.zero_grad()
        image = self.network(self.z)[0, 0]
        residual = (self.operator.push(image.reshape(-1, 1))[:, 0] - self.sinogram) / self.noise_std
        loss = (0.5 * residual[self.seen].square().sum() + self.tv * total_variation(image)) / len(self.seen)
        if not bool(loss.isfinite()):
            raise NumericalError(
                "a network that trains", f"a loss of {float(loss.detach())}", "a smaller rate=, or other weights"
            )
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
        optimiser.step()
        return float(loss.detach()), float(residual[self.held].detach().square().mean())


def learning(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that are fitted: those that need a gradient."""
    return [p for p in network.parameters() if p.requires_grad]


@undisturbed()
def pretrained(
    network: nn.Module,
    pairs: Iterable[tuple[Float[Tensor, "n c *space"], Float[Tensor, "n 1 *space"]]],
    *,
    rate: float = 1e-3,
    progress: bool | None = None,
) -> nn.Module:
    """A copy of a network after a step of Adam on the squared error of each pair: generated images, before any scan.

    Args:
        network: The network.
        pairs: Inputs, such as filtered back-projections of noisy projections, and the images they are to become.
        rate: Adam's learning rate.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
    """
    trained = copy.deepcopy(network).train()
    optimiser = torch.optim.Adam(trained.parameters(), rate)
    for z, image in track(pairs, "pretraining", unit="pairs", progress=progress):
        optimiser.zero_grad()
        (trained(z) - image).square().mean().backward()
        optimiser.step()
    return trained.eval()
