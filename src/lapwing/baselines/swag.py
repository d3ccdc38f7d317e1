"""SWAG: a Gaussian over the weights by the path of gradient descent around the trained ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.baselines.averaged import DrawnWeights
from lapwing.baselines.descent import BATCH, check_descent, copied, mean_nll, mini_batches, trainable
from lapwing.baselines.global_state import seeded
from lapwing.evaluation.task import Task
from lapwing.ground import probes
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, check_bytes, check_count, check_optimiser, check_positive
from lapwing.ground.layout import Layout, Params
from lapwing.ground.precision import wide
from lapwing.ground.progress import track, working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.serving import call, serving

MAX_BYTES = 2**32
"""Bytes that draws and deviations may take (4 GiB)."""

NORMALISING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Layers with statistics of batches."""


@final
@dataclass(frozen=True)
class SWAG:
    """A Gaussian over the weights, of the mean and the covariance of the weights that descent passes through.

        θ̄ = mean θ_t,   Σ_diag = mean θ_t² - θ̄²,   D = (θ_t - θ̄_t) of the last K epochs, θ̄_t the mean until then
        θ_s = θ̄ + √½ Σ_diag^½ z₁ + D z₂ / √(2 (K - 1))

    The trained weights and those after each epoch are the θ_t. The descent goes on from the trained weights at a
    constant rate on a copy of the network, in training mode. Each drawn network has statistics of batch normalisation
    of its own, taken anew over the training data.

    Args:
        step: One epoch of your own training: a function that is given the module and trains it in place, as often as
            there are epochs; the module is always the same. ``None`` for the optimiser on the likelihood.
        optimiser: Makes the optimiser; ``None`` for SGD with momentum 0.9, the weight decay and the rate.
        rate: Its learning rate.
        weight_decay: Its weight decay.
        epochs: Passes over the data, after each of which the weights are looked at.
        rank: Columns K of D; 0 for the diagonal alone, θ_s = θ̄ + Σ_diag^½ z₁.
        scale: What the covariance is multiplied by.
        samples: Networks drawn to predict by.
        batch: Examples of a mini-batch, where the data are a pair of tensors.
        max_bytes: Memory that draws and deviations may take.

    Raises:
        ConfigError: If a number is out of its range, or a function is none.

    Cost:
        To fit, a forward and backward pass over the data an epoch, and with batch normalisation a forward pass a draw;
        to predict, a forward pass a draw. Memory of ``samples + K + 2`` times the weights.

    Example:
        >>> model, x, y = nn.Linear(2, 3), torch.randn(40, 2), torch.randint(0, 3, (40,))
        >>> posterior = SWAG(epochs=4, rank=3, samples=8).fit(Task(model, (x, y)))
        >>> posterior.deviations.shape, posterior.predict(x).probs.shape
        (torch.Size([9, 3]), torch.Size([40, 3]))

    Source: W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov and A. G. Wilson, A Simple Baseline for Bayesian
        Uncertainty in Deep Learning, 2019, algorithm 1 and equation 1.
    """

    step: Callable[[nn.Module], object] | None = None
    optimiser: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None
    rate: float = field(default=1e-2, kw_only=True)
    weight_decay: float = field(default=1e-4, kw_only=True)
    epochs: int = field(default=20, kw_only=True)
    rank: int = field(default=20, kw_only=True)
    scale: float = field(default=1.0, kw_only=True)
    samples: int = field(default=30, kw_only=True)
    batch: int = field(default=BATCH, kw_only=True)
    max_bytes: int = field(default=MAX_BYTES, kw_only=True)

    def __post_init__(self) -> None:
        check_positive("rate", self.rate, "1e-2")
        check_positive("scale", self.scale, "1.0")
        check_count("epochs", self.epochs, 2, usual=20)
        check_count("rank", self.rank, 0, usual=20)
        check_count("samples", self.samples, usual=30)
        check_count("batch", self.batch, usual=BATCH)
        if self.rank == 1:
            raise ConfigError("at least two columns, whose spread is the covariance", "rank=1", "rank=20, or rank=0")
        if self.step is not None and (not callable(self.step) or isinstance(self.step, nn.Module)):
            raise ConfigError(
                "step= to be a function that trains the module it is given for one epoch",
                f"a {type(self.step).__name__}",
                "step=lambda module: train_one_epoch(module, loader)",
            )
        if self.optimiser is not None:
            check_optimiser(self.optimiser, "optimiser=lambda parameters: torch.optim.SGD(parameters, lr=1e-2)")

    @undisturbed()
    @working("SWAG")
    def fit(self, task: Task) -> SWAGPosterior:
        """The posterior around the trained weights of a task.

        Args:
            task: The network and its training data.

        Raises:
            ConfigError: If no parameter requires a gradient.
            DataError: If the data are empty or not finite, or do not fit the likelihood.
            NumericalError: If the descent runs away.
            TooLargeError: If draws and deviations would take more than ``max_bytes``.
        """
        seed = probes.seed_from(task.generator)
        generator = torch.Generator().manual_seed(seed)
        module = copied(task.model)
        layout = Layout.of(trainable(module))
        self._check_bytes(trainable(module))
        data = mini_batches(task, self.batch, generator)
        with seeded(seed, module), torch.enable_grad():
            moments = self._moments(module, data, task)
        like = next(iter(trainable(module).values()))
        draws = moments.drawn(self.samples, self.scale, generator).to(like.device, like.dtype)
        buffers = statistics_of_draws(module, layout, draws, data, task.output)
        write(module, layout, moments.mean)
        return SWAGPosterior(
            module,
            layout,
            draws,
            buffers,
            moments.mean,
            moments.variance,
            moments.deviations,
            likelihood=task.likelihood,
            output=task.output,
        )

    def _moments(self, module: nn.Module, data: Data, task: Task) -> PathMoments:
        """Mean, variance and deviations of the weights along the descent."""
        parameters = trainable(module)
        layout = Layout.of(parameters)
        weights = list(parameters.values())
        optimiser = self._optimiser(weights) if self.step is None else None
        mean = wide(layout.flatten(parameters).detach(), copy=True)
        second_moment = mean.square()
        deviations: list[Tensor] = []
        modes = [(part, part.training) for part in module.modules()]
        module.train()
        for epoch in track(range(1, self.epochs + 1), "SWAG", unit="epochs"):
            if optimiser is None:
                assert self.step is not None
                self.step(module)
            else:
                for batch in data:
                    optimiser.zero_grad()
                    mean_nll(module, batch, task.likelihood, task.output).backward()
                    optimiser.step()
            theta = wide(layout.flatten(parameters).detach())
            check_descent(theta, "SWAG")
            mean = (epoch * mean + theta) / (epoch + 1)
            second_moment = (epoch * second_moment + theta.square()) / (epoch + 1)
            if self.rank:
                deviations = [*deviations, theta - mean][-self.rank :]
        for part, training in modes:
            part.training = training
        module.zero_grad(set_to_none=True)
        variance = (second_moment - mean.square()).clamp_min(0.0)
        columns = torch.stack(deviations, 1) if deviations else mean.new_zeros(len(mean), 0)
        return PathMoments(mean, variance, columns)

    def _optimiser(self, weights: list[Tensor]) -> torch.optim.Optimizer:
        if self.optimiser is not None:
            return self.optimiser(weights)
        return torch.optim.SGD(weights, lr=self.rate, momentum=0.9, weight_decay=self.weight_decay)

    def _check_bytes(self, parameters: Params) -> None:
        d = sum(value.numel() for value in parameters.values())
        size = next(iter(parameters.values())).element_size()
        needed = d * (self.samples * size + 8 * (min(self.rank, self.epochs) + 2))
        columns = f"{self.samples} draws and {self.rank} deviations of {d:,} weights, which need"
        check_bytes("draws and deviations", needed, self.max_bytes, columns, "fewer samples=, a lower rank=")


@final
@dataclass(frozen=True, eq=False)
class PathMoments:
    """Moments of the weights along a path, float64.

    Args:
        mean: θ̄.
        variance: Σ_diag.
        deviations: D.
    """

    mean: Float[Tensor, " d"]
    variance: Float[Tensor, " d"]
    deviations: Float[Tensor, "d k"]

    def drawn(self, samples: int, scale: float, generator: torch.Generator) -> Float[Tensor, "s d"]:
        """Weights drawn from the Gaussian of these moments.

        Args:
            samples: How many.
            scale: What the covariance is multiplied by.
            generator: Source of randomness: z₁ of a draw, then its z₂.
        """
        std = self.variance.sqrt()
        k = self.deviations.shape[1]
        found: list[Tensor] = []
        for _ in range(samples):
            moved = std * probes.gaussian(std.shape, like=std, generator=generator)
            if k:
                along = self.deviations @ probes.gaussian([k], like=std, generator=generator)
                moved = moved / 2**0.5 + along / (2 * (k - 1)) ** 0.5
            found.append(self.mean + scale**0.5 * moved)
        return torch.stack(found)


@final
@dataclass(frozen=True, eq=False, repr=False)
class SWAGPosterior(DrawnWeights):
    """Networks drawn from a Gaussian over the weights; see ``SWAG``.

    Args:
        mean: θ̄, float64, in the order of ``layout``.
        variance: Σ_diag.
        deviations: D, a column an epoch.
    """

    mean: Float[Tensor, " d"]
    variance: Float[Tensor, " d"]
    deviations: Float[Tensor, "d k"]


def write(module: nn.Module, layout: Layout, weights: Float[Tensor, " d"]) -> None:
    """Give a module these weights."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in layout.unflatten(weights).items():
            parameters[name].copy_(value)


def statistics_of_draws(
    module: nn.Module, layout: Layout, draws: Float[Tensor, "s d"], data: Data, output: Output
) -> Params:
    """Running statistics of batch normalisation for each draw of the weights, stacked, where there is such a layer.

    Args:
        module: A copy of the network, whose weights and statistics are written to.
        layout: The parameters that were drawn.
        draws: Their values.
        data: The training data.
        output: Which part of what the network returns is its output.

    Cost: a forward pass over the data a draw.
    """
    names = [
        name for name, part in module.named_modules() if isinstance(part, NORMALISING) and part.track_running_stats
    ]
    if not names:
        return {}
    found: dict[str, list[Tensor]] = {}
    for draw in track(draws, "batch statistics", unit="draws"):
        write(module, layout, draw)
        renew_statistics(module, names, data, output)
        buffers = dict(module.named_buffers())
        for name in names:
            for kind in ("running_mean", "running_var"):
                found.setdefault(f"{name}.{kind}", []).append(buffers[f"{name}.{kind}"].clone())
    return {name: torch.stack(values) for name, values in found.items()}


def renew_statistics(module: nn.Module, names: list[str], data: Data, output: Output) -> None:
    """Running statistics of layers as the averages over the batches of one pass; all other layers in eval mode."""
    with torch.no_grad(), serving(module):
        for name in names:
            part = module.get_submodule(name)
            assert isinstance(part, NORMALISING)
            part.reset_running_stats()
            part.momentum = None  # averages over all batches alike
            part.training = True
        for batch in data:
            call(module, {}, batch.inputs, output=output)
