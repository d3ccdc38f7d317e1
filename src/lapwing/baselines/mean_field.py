"""Mean-field variational inference from the trained weights on, with Flipout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.baselines.averaged import DrawnWeights, called
from lapwing.baselines.descent import BATCH, check_descent, copied, mean_nll, mini_batches, trainable
from lapwing.baselines.global_state import seeded, without_fast_path
from lapwing.baselines.swag import MAX_BYTES
from lapwing.evaluation.task import Task
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, take
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import UnsupportedError, check_bytes, check_count, check_positive
from lapwing.ground.layout import Layout, Params
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar, working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.serving import serving

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Kinds of layers whose weights are random."""


@final
@dataclass(frozen=True)
class MeanField:
    """Independent Gaussians over the weights, by descent on the variational bound from the trained weights on.

        q(θ) = Π_i N(θ_i; μ_i, σ_i²)
        -bound = E_q[-log p(y | θ)] + T KL(q ‖ N(0, δ⁻¹ I))
        KL = ½ Σ_i (δ (μ_i² + σ_i²) - 1 - log δ σ_i²)

    Random are weights and offsets of linear and convolutional layers; all other parameters are trained with them, by
    the likelihood alone. Flipout gives each example its own perturbation at the cost of two passes: the one that a
    mini-batch shares, ``σ ∘ ε``, times signs of the inputs and outputs, ``Δ_n = (σ ∘ ε) ∘ r_n s_nᵀ``.

    Args:
        epochs: Passes over the data.
        prior_precision: δ; training with weight decay λ on the mean loss of n examples had n λ.
        temperature: T, what the divergence counts; below 1 for a cold posterior.
        rate: Learning rate of the means and of all other parameters, Adam's, which falls to zero along a cosine.
        std_rate: That of the log σ.
        initial_std: σ at the start.
        samples: Networks drawn to predict by.
        batch: Examples of a mini-batch, where the data are a pair of tensors.
        max_bytes: Memory that the draws may take.

    Raises:
        ConfigError: If a number is out of its range.

    Cost:
        To fit, two forward passes and a backward pass through both over the data an epoch; to predict, a forward pass
        a draw. Memory of ``samples + 8`` times the weights.

    Example:
        >>> model, x, y = nn.Linear(2, 3), torch.randn(40, 2), torch.randint(0, 3, (40,))
        >>> posterior = MeanField(epochs=3, samples=8).fit(Task(model, (x, y)))
        >>> posterior.std.shape, posterior.predict(x).probs.shape
        (torch.Size([9]), torch.Size([40, 3]))

    Source: Y. Wen, P. Vicol, J. Ba, D. Tran and R. Grosse, Flipout, 2018, section 3; fine-tuned for 12 epochs as the
        baseline of Z. Deng, F. Zhou and J. Zhu, Accelerated Linearized Laplace Approximation, 2022, section 5.
    """

    epochs: int = 12
    prior_precision: float = field(default=1.0, kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)
    rate: float = field(default=1e-4, kw_only=True)
    std_rate: float = field(default=1e-2, kw_only=True)
    initial_std: float = field(default=5e-3, kw_only=True)
    samples: int = field(default=20, kw_only=True)
    batch: int = field(default=BATCH, kw_only=True)
    max_bytes: int = field(default=MAX_BYTES, kw_only=True)

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, usual=12)
        check_count("samples", self.samples, usual=20)
        check_count("batch", self.batch, usual=BATCH)
        check_positive("prior_precision", self.prior_precision, "1.0")
        check_positive("temperature", self.temperature, "1.0")
        check_positive("rate", self.rate, "1e-4")
        check_positive("std_rate", self.std_rate, "1e-2")
        check_positive("initial_std", self.initial_std, "5e-3")

    @undisturbed()
    @working("mean field")
    def fit(self, task: Task) -> MeanFieldPosterior:
        """The posterior around the trained weights of a task.

        Args:
            task: The network and its training data.

        Raises:
            ConfigError: If no parameter requires a gradient.
            DataError: If the data are empty or not finite, or do not fit the likelihood.
            NumericalError: If the descent runs away.
            TooLargeError: If the draws would take more than ``max_bytes``.
            UnsupportedError: If no linear or convolutional layer is called.
        """
        seed = probes.seed_from(task.generator)
        generator = torch.Generator().manual_seed(seed)
        module = copied(task.model)
        data = mini_batches(task, self.batch, generator)
        flipout = Flipout.of(module, take(data.first(), slice(0, 1)), task.output, self.initial_std, generator)
        d = sum(value.numel() for value in flipout.log_std.values())
        size = next(iter(flipout.log_std.values())).element_size()
        what = f"{self.samples} of {d:,} weights, which need"
        check_bytes("draws of the weights", self.samples * d * size, self.max_bytes, what, "fewer samples=")
        with seeded(seed, module), torch.enable_grad():
            bounds = self._descend(module, flipout, data, task)
        means = {name: module.get_parameter(name).detach() for name in flipout.log_std}
        layout = Layout.of(means)
        mean = layout.flatten(means)
        std = layout.flatten(flipout.log_std).detach().exp()
        check_descent(torch.cat([mean, std]), "MeanField")
        noise = probes.gaussian([self.samples, layout.size], like=mean, generator=generator)
        return MeanFieldPosterior(
            module,
            layout,
            mean + std * noise,
            {},
            mean,
            std,
            bounds,
            likelihood=task.likelihood,
            output=task.output,
        )

    def _descend(self, module: nn.Module, flipout: Flipout, data: Data, task: Task) -> tuple[float, ...]:
        """Train means, deviations and all else; the bound of each epoch, nats."""
        examples = data.examples * task.likelihood.weight
        log_stds = list(flipout.log_std.values())
        groups: list[dict[str, Any]] = [
            {"params": list(trainable(module).values()), "lr": self.rate},
            {"params": log_stds, "lr": self.std_rate},
        ]
        optimiser = torch.optim.Adam(groups)
        steps = self.epochs * sum(1 for _ in data)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        bounds: list[float] = []
        modes = [(part, part.training) for part in module.modules()]
        module.train()
        with Bar("mean field", self.epochs, unit="epochs") as bar, flipout.hooked(module):
            for _ in range(self.epochs):
                total = 0.0
                seen = 0
                divergence = torch.zeros(())
                for batch in data:
                    optimiser.zero_grad()
                    flipout.draw()
                    nll = mean_nll(module, batch, task.likelihood, task.output)
                    divergence = self.temperature * flipout.divergence(module, self.prior_precision)
                    (nll + divergence / examples).backward()
                    optimiser.step()
                    schedule.step()
                    total += len(batch) * float(nll.detach())
                    seen += len(batch)
                bounds.append(-examples * total / seen - float(divergence.detach()))
                bar.update(said=f"bound {bounds[-1]:.4g} nats")
        for part, training in modes:
            part.training = training
        module.zero_grad()
        return tuple(bounds)


@final
@dataclass(frozen=True, eq=False, repr=False)
class MeanFieldPosterior(DrawnWeights):
    """Networks drawn from independent Gaussians over the weights; see ``MeanField``.

    Args:
        mean: μ, in the order of ``layout``.
        std: σ.
        bounds: The variational bound of each epoch by its mini-batches, nats, that of the loss with T.
    """

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]
    bounds: tuple[float, ...]


@final
class Flipout:
    """Perturbations of the weights of layers, pseudo-independent for each example.

    Args:
        layers: Names of the layers.
        log_std: log σ of their weights and offsets, by name, which are trained.
        generator: Source of randomness.
    """

    def __init__(self, layers: tuple[str, ...], log_std: Params, generator: torch.Generator) -> None:
        self.layers = layers
        self.log_std = log_std
        self.generator = generator
        self.noise: Params = {}
        """ε of the present mini-batch, by name."""
        self.signs: dict[str, tuple[Tensor, Tensor]] = {}
        """Those of the inputs and outputs of each layer in it."""

    @classmethod
    def of(
        cls, module: nn.Module, inputs: Inputs, output: Output, initial_std: float, generator: torch.Generator
    ) -> Flipout:
        """Those of the layers that a forward pass calls and whose parameters no other layer shares.

        Args:
            module: The network.
            inputs: An example.
            output: Which part of what the network returns is its output.
            initial_std: σ at the start.
            generator: Source of randomness.

        Raises:
            UnsupportedError: If there is none.
        """
        layers = called_layers(module, inputs, output)
        uses = Counter(id(value) for part in module.modules() for value in part.parameters(recurse=False))
        log_std: Params = {}
        found: list[str] = []
        for name in layers:
            own = dict(module.get_submodule(name).named_parameters(recurse=False))
            if all(value.requires_grad and uses[id(value)] == 1 for value in own.values()):
                found.append(name)
                for key, value in own.items():
                    full = torch.full_like(value, math.log(initial_std)).detach()
                    log_std[f"{name}.{key}" if name else key] = full.requires_grad_()
        if not found:
            raise UnsupportedError(
                "a network with linear or convolutional layers, trainable and not shared",
                f"a {type(module).__name__} that calls none",
                "SWAG(), which takes any network",
            )
        return cls(tuple(found), log_std, generator)

    def draw(self) -> None:
        """New perturbations for another mini-batch."""
        self.signs = {}
        self.noise = {
            name: probes.gaussian(value.shape, like=value, generator=self.generator)
            for name, value in self.log_std.items()
        }

    @contextmanager
    def hooked(self, module: nn.Module) -> Generator[None]:
        """The layers of a module with their perturbations, meanwhile."""
        handles = [
            module.get_submodule(name).register_forward_hook(Perturbed(self, name), prepend=True)
            for name in self.layers
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def perturbation(self, name: str, part: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """What the perturbed weights of a layer add to its outputs: ``r ∘ (W(s ∘ x))`` with ``W = σ ∘ ε``."""
        prefix = f"{name}." if name else ""
        weight = self._perturbed(f"{prefix}weight")
        bias = None if getattr(part, "bias", None) is None else self._perturbed(f"{prefix}bias")
        if name not in self.signs or len(self.signs[name][0]) != len(x):
            self.signs[name] = (self._signs(part, x), self._signs(part, y))
        s, r = self.signs[name]
        if isinstance(part, nn.Linear):
            return r * nn.functional.linear(s * x, weight, bias)
        convolution: Any = part
        return r * convolution._conv_forward(s * x, weight, bias)

    def divergence(self, module: nn.Module, precision: float) -> Float[Tensor, ""]:
        """``KL(q ‖ N(0, δ⁻¹ I))``, nats, in float64.

        Args:
            module: Holds the means.
            precision: δ.
        """
        total = torch.zeros((), dtype=torch.float64)
        for name, log_std in self.log_std.items():
            mean = wide(module.get_parameter(name))
            rho = wide(log_std)
            each = precision * (mean.square() + (2 * rho).exp()) - 1 - math.log(precision) - 2 * rho
            total = total.to(mean) + 0.5 * each.sum()
        return total

    def _perturbed(self, name: str) -> Tensor:
        return self.log_std[name].exp() * self.noise[name]

    def _signs(self, part: nn.Module, like: Tensor) -> Tensor:
        """Random signs of each example and channel, the same at all positions."""
        last = isinstance(part, nn.Linear)
        channels = like.shape[-1] if last else like.shape[1]
        between = [1] * (like.ndim - 2)
        shape = [len(like), *between, channels] if last else [len(like), channels, *between]
        return probes.rademacher(shape, like=like, generator=self.generator)


@final
@dataclass(frozen=True, eq=False)
class Perturbed:
    """A hook that adds the perturbation of a layer to what it gives."""

    flipout: Flipout
    name: str

    def __call__(self, part: nn.Module, given: tuple[Tensor, ...], returned: Tensor) -> Tensor:
        """What the layer gives with its perturbed weights."""
        return returned + self.flipout.perturbation(self.name, part, given[0], returned)


def called_layers(module: nn.Module, inputs: Inputs, output: Output) -> list[str]:
    """Linear and convolutional layers that a forward pass calls, in order; not those whose weights alone are used."""
    found: list[str] = []
    handles = [
        part.register_forward_hook(lambda part, given, returned: found.append(names[part]))
        for part in module.modules()
        if type(part) in LAYERS
    ]
    names = {part: name for name, part in module.named_modules()}
    try:
        with torch.no_grad(), serving(module), without_fast_path():
            called(module, {}, inputs, output)
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(found))
