"""What a Laplace approximation must beat: the plain network, and one number that calibrates it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import InputsLike, as_inputs, place
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, UnsupportedError, warn
from lapwing.ground.progress import working
from lapwing.jacobian.network.network import like_of
from lapwing.jacobian.network.output import Output, check_output
from lapwing.jacobian.network.serving import call, serving
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.likelihoods import Categorical, Likelihood
from lapwing.metrics.elements import labelled
from lapwing.predictive import Moments, Predictive
from lapwing.predictive.temperature import WIDTH, sharpening_penalty

_PIECE = 0.25  # of log T, in which the penalised loss has at most one minimum
_REACH = 64.0  # the search spans e^±64 around the largest margin


@final
@dataclass(frozen=True)
class Temperature:
    """Probabilities softmax(logits / T) (Guo et al. 2017, eq. 9). The most probable class does not change.

    Args:
        temperature: T > 0; above 1 it lowers confidences, below 1 it raises them.

    Raises:
        ConfigError: If it is not positive and finite.

    Example:
        >>> Temperature(2.0).probs(torch.tensor([[0.0, 2.0]]))
        tensor([[0.2689, 0.7311]])
    """

    temperature: float

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError("a temperature > 0", f"{self.temperature}", "Temperature.fit(logits, targets)")

    @classmethod
    def fit(cls, logits: Float[Tensor, "*n c"], targets: Tensor, *, penalised: bool = True) -> Temperature:
        """The temperature of least negative log-likelihood, to 1e-12 relative, where T < 1 with a penalty.

        The NLL is convex in 1/T: its derivative has one zero, found by Brent's method in log T, in float64. If that is
        below 1 the penalised T lies between it and 1. Tuning a posterior by held-out data has the same penalty.

        Without it, where all m examples are classified rightly, the NLL falls for ever as T → 0. The search then ends
        at the T at which labels have a probability of (m + 1)/(m + 2) on average, Laplace's rule of succession: as sure
        as m examples without a mistake make one. A network that is as sure of them already keeps T = 1.

        Args:
            logits: Outputs of the network on examples it was not trained on, class axis last.
            targets: Labels ``[*n]``; -100 is ignored.
            penalised: Whether sharpening costs ``(log T)² / (2 · 0.5²)`` nats beside the log likelihood of all labels.

        Raises:
            ShapeError: If the shapes do not match.
            DataError: If labels are impossible or logits not finite, or if they are no better than chance (T → ∞).

        Warns:
            ConvergenceWarning: If every example is classified rightly and there is no penalty.

        Cost:
            About 20 softmaxes of the logits, where T < 1 about 40, and three copies of them in float64.

        Example:
            >>> logits = torch.tensor([[4.0, 0.0]]).expand(4, 2)
            >>> fitted = Temperature.fit(logits, torch.tensor([0, 0, 0, 1]))
            >>> fitted.probs(logits)[0]
            tensor([0.7500, 0.2500])
        """
        margins = _margins(logits, targets)
        start = math.log(float(margins.abs().max()) or 1.0)
        low = start - _REACH
        high = start + _REACH

        def slope(log_temperature: float) -> float:
            """Derivative of the NLL in 1/T: the mean over examples of Σ_k p_k margin_k."""
            scaled = margins * math.exp(-log_temperature)
            return float((scaled.softmax(-1) * margins).sum(1).mean())

        hint = "more held-out examples: most of them classified rightly, a few wrongly"
        if slope(high) >= 0:
            raise DataError("logits better than chance", "logits that are not: the best T is infinite", hint)
        bounded = slope(low) > 0
        if penalised and slope(0.0) < 0:
            return cls(math.exp(_penalised(margins, slope, _root(slope, low, 0.0) if bounded else low)))
        if not bounded:
            found = _by_succession(margins, low, high)
            warn(
                f"all {len(margins)} held-out examples are classified rightly, which asks for T → 0: the search ended "
                f"at T = {found:.3g}, as sure as so many examples can make one. Try {hint}",
                ConvergenceWarning,
            )
            return cls(found)
        return cls(math.exp(_root(slope, low, high)))

    def probs(self, logits: Float[Tensor, "*n c"]) -> Float[Tensor, "*n c"]:
        """Class probabilities softmax(logits / T), in the dtype of the logits, or float32 for half precision.

        Args:
            logits: Outputs of the network, class axis last.
        """
        single = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.softmax(single / self.temperature, -1)


def _penalised(margins: Float[Tensor, "m c"], slope: Callable[[float], float], low: float) -> float:
    """The log T < 0 of least NLL with its penalty: of the zeros of the derivative the best, usually the only one.

    Args:
        margins: Logits less that of the label.
        slope: Derivative of the mean NLL in 1/T, of log T.
        low: The log T below which the NLL has no minimum.
    """

    def nll(log_temperature: float) -> float:
        return float((margins * math.exp(-log_temperature)).logsumexp(1).sum())

    def objective(log_temperature: float) -> float:
        return nll(log_temperature) + sharpening_penalty(math.exp(log_temperature))

    def derivative(log_temperature: float) -> float:
        of_nll = -len(margins) * math.exp(-log_temperature) * slope(log_temperature)
        return of_nll + log_temperature / WIDTH**2

    furthest = -WIDTH * math.sqrt(2 * nll(0.0))  # where the penalty alone is the whole loss at T = 1
    start = max(low, furthest)
    pieces = 1 + math.ceil(-start / _PIECE)
    points = [start * piece / pieces for piece in range(pieces, -1, -1)]
    signs = [derivative(point) > 0 for point in points]
    found = [0.0]
    for piece in range(pieces):
        if signs[piece + 1] and not signs[piece]:
            found.append(_root(derivative, points[piece], points[piece + 1]))
    return min(found, key=objective)


def _by_succession(margins: Float[Tensor, "m c"], low: float, high: float) -> float:
    """The T at which labels have a probability of (m + 1)/(m + 2) on average; 1 where they have more at T = 1."""
    m = len(margins)

    def excess(log_temperature: float) -> float:
        scaled = margins * math.exp(-log_temperature)
        return float((1 / scaled.exp().sum(1)).mean()) - (m + 1) / (m + 2)

    if excess(0.0) >= 0 or excess(low) <= 0:
        return 1.0
    return math.exp(_root(excess, low, min(0.0, high)))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that changes its sign between two numbers is zero."""
    from scipy.optimize import root_scalar  # half a second to import

    return root_scalar(function, bracket=(low, high), method="brentq", xtol=1e-12).root


def _margins(logits: Tensor, targets: Tensor) -> Float[Tensor, "m c"]:
    """Logits less that of the label, in float64, of the m elements with a label."""
    likelihood = Categorical(event_dim=max(logits.ndim - 2, 0))
    labels = likelihood.canonical_targets(logits, targets)
    likelihood.check(logits, labels)
    scores, kept = labelled(logits, labels)
    return scores - scores.gather(1, kept[:, None])


@final
@dataclass(frozen=True, eq=False)
class PlainNetwork:
    """A trained network taken at its word, with the predictive types of a posterior and no variance.

    The module is evaluated in eval mode and left as it was found, its buffers too.

    Args:
        model: The network; it returns a tensor, or a mapping or object with ``logits``, or see ``output``.
        likelihood: What its outputs mean.
        temperature: Divides the logits; see ``calibrated``.
        output: Which part of what the network returns is its output: a key, an index or a function of it.

    Raises:
        UnsupportedError: If there is a temperature and the likelihood is not Categorical.

    Example:
        >>> p = PlainNetwork(nn.Linear(3, 2)).predict(torch.zeros(5, 3))
        >>> p.probs.shape, float(p.logits.variance.max())
        (torch.Size([5, 2]), 0.0)
    """

    model: nn.Module
    likelihood: Likelihood = field(default_factory=Categorical)
    temperature: Temperature | None = None
    output: Output = None

    def __post_init__(self) -> None:
        check_output(self.output)
        if self.temperature is not None and not self.likelihood.classes:
            expected = "the Categorical likelihood for a temperature"
            raise UnsupportedError(expected, type(self.likelihood).__name__, "PlainNetwork without a temperature")

    def predict(self, x: InputsLike) -> Predictive:
        """The predictive distribution of a batch.

        Args:
            x: Inputs of the network: a tensor, a mapping of keyword arguments, or a tuple of positional ones.

        Returns:
            ``Classification``, ``MultiLabel``, ``Regression`` or ``Counts``, as the likelihood has it.

        Raises:
            ShapeError: If the outputs have another rank than the likelihood expects.
            DataError: If an output is not finite.
        """
        return self.likelihood.predictive(Moments.certain(self.outputs(x)), "probit")

    def outputs(self, x: InputsLike) -> Float[Tensor, "n *event c"]:
        """Outputs of the network, divided by the temperature, class axis last.

        Args:
            x: As in ``predict``.

        Raises:
            ShapeError: If they have another rank than the likelihood expects.
            DataError: If one is not finite.
        """
        like = like_of(self.model)
        inputs = as_inputs(x)
        inputs = inputs if like is None else place(inputs, like)
        module = unwrapped(self.model)
        with torch.no_grad(), serving(module):
            buffers = {name: value.clone() for name, value in module.named_buffers()}
            raw = call(module, buffers, inputs, output=self.output)
        check_finite(raw, "outputs", "checking the inputs and the weights of the network")
        outputs = self.likelihood.canonical(raw)
        return outputs if self.temperature is None else outputs / self.temperature.temperature

    def calibrated(
        self, held_out: Source, *, unpack: Unpack | None = None, progress: bool | None = None
    ) -> PlainNetwork:
        """This network with one number chosen by data it was not trained on: for classes a temperature, else the noise.

        The noise is that of largest likelihood (see ``Likelihood.calibrated``): for ``Gaussian`` the residuals', for
        each output unless they share one.

        Args:
            held_out: Loader of ``(x, y)`` or mappings with ``labels``, or a pair of tensors.
            unpack: Splits what the loader yields into inputs and targets.
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

        Raises:
            UnsupportedError: If the likelihood is neither of classes nor has a noise, as ``Bernoulli`` and ``Poisson``.
            DataError: If there is no data, or no temperature is best (see ``Temperature.fit``), or no noise.

        Warns:
            ConvergenceWarning: If all held-out examples are classified rightly.

        Cost:
            One pass over the data; their outputs are kept.

        Example:
            >>> x, y = torch.tensor([[9.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
            >>> PlainNetwork(nn.Identity()).calibrated((x, y)).predict(x[:1]).probs
            tensor([[0.7500, 0.2500]])
        """
        if not (self.likelihood.classes or self.likelihood.calibrates):
            expected = "a likelihood of classes or with a noise, to calibrate the plain network"
            raise UnsupportedError(expected, type(self.likelihood).__name__, "PlainNetwork as it is")
        plain = replace(self, temperature=None)
        like = like_of(self.model)
        like = torch.zeros(()) if like is None else like
        with working("calibrate", progress):
            pairs = [(plain.outputs(batch.inputs), batch.targets) for batch in Data(held_out, like, unpack)]
        outputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        if self.likelihood.classes:
            return replace(self, temperature=Temperature.fit(outputs, targets))
        canonical = self.likelihood.canonical_targets(outputs, targets)
        return replace(self, likelihood=self.likelihood.calibrated(outputs, canonical))
