"""Structured vector and matrix scaling: an affine map of the logits, near to one temperature unless data say more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.evaluation.plain_network import PlainNetwork, Temperature
from lapwing.evaluation.task import Task
from lapwing.ground.data.inputs import InputsLike
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.errors import ConvergenceWarning, UnsupportedError, check_positive, warn
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import like_of
from lapwing.likelihoods import Likelihood
from lapwing.metrics.elements import labelled
from lapwing.predictive import Moments, Predictive

SMALLEST = math.log(torch.finfo(torch.float32).tiny)
"""Log probabilities below that of the smallest normal number count as that, as in ``probmetrics``."""

GRADIENT = 1e-9
"""Largest derivative of the mean loss at its minimum."""

STEPS = 5000
"""Most steps to it."""


@final
@dataclass(frozen=True)
class VectorScaling:
    """Structured vector scaling: a temperature, then a factor and an offset for each class, drawn to 1 and to 0.

        p = softmax((1 + v) ∘ z + b),   z = log softmax(f / T)
        loss = 1/n Σ_i -log p_i(y_i) + λ c/n (|v|² + |b|²)

    The penalty fades as the n held-out labels become many beside the c classes, so few of them give nearly what one
    temperature does. T is that of ``Temperature.fit``; the loss is convex.

    Args:
        penalty: λ; 1 is the source's.

    Raises:
        ConfigError: If the penalty is not positive.

    Cost:
        One pass over the held-out data, their logits kept; then a convex problem of 2c numbers, some tens of passes
        over the logits.

    Example:
        >>> x = torch.randn(40, 2)
        >>> y = (x + torch.randn(40, 2)).argmax(1)
        >>> fitted = VectorScaling().fit(Task(torch.nn.Identity(), (x, y), validation=(x, y)))
        >>> fitted.predict(x).probs.shape
        torch.Size([40, 2])

    Source: E. Berta, D. Holzmüller, M. I. Jordan and F. Bach, Structured Matrix Scaling for Multi-Class Calibration,
        2026 (SVS); C. Guo et al., On Calibration of Modern Neural Networks, 2017, section 4.2, without the penalty.
    """

    penalty: float = 1.0

    def __post_init__(self) -> None:
        check_positive("penalty", self.penalty, "1.0")

    def fit(self, task: Task) -> ScaledNetwork:
        """The network of a task, scaled by its validation data.

        Args:
            task: The network and its validation data.

        Raises:
            ConfigError: If there are no validation data.
            DataError: If there is no best temperature; see ``Temperature.fit``.
            UnsupportedError: If targets are no classes.
        """
        return scaled(task.network, task.held_out("VectorScaling"), self.scaling, unpack=task.unpack)

    def scaling(self, logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> AffineScaling:
        """The map fitted to logits and labels of examples that the network was not trained on."""
        temperature, z = cooled(logits, labels)
        labels = labels.to(z.device)
        n, c = z.shape
        weight = self.penalty * c / n

        def loss(numbers: Float[Tensor, " m"]) -> tuple[Tensor, Tensor]:
            v, b = numbers.split(c)
            value, slope = cross_entropy((1 + v) * z + b, labels)
            gradient = torch.cat([(slope * z).sum(0), slope.sum(0)])
            return value + weight * numbers.square().sum(), gradient + 2 * weight * numbers

        v, b = minimised(loss, z.new_zeros(2 * c)).split(c)
        return AffineScaling(temperature, 1 + v, b)


@final
@dataclass(frozen=True)
class MatrixScaling:
    """Structured matrix scaling: the same with a whole matrix, whose other entries are drawn to 0 more strongly.

        p = softmax((I + V) z + b),   z = log softmax(f / T)
        loss = 1/n Σ_i -log p_i(y_i) + λ c/n (|diag V|² + |b|²) + λ c (c - 1)/n Σ_{j≠k} V_jk²

    Args:
        penalty: λ; 1 is the source's.

    Raises:
        ConfigError: If the penalty is not positive.

    Cost:
        As ``VectorScaling``, with c (c + 1) numbers.

    Example:
        >>> x = torch.randn(40, 2)
        >>> y = (x + torch.randn(40, 2)).argmax(1)
        >>> fitted = MatrixScaling().fit(Task(torch.nn.Identity(), (x, y), validation=(x, y)))
        >>> fitted.scaling.factor.shape
        torch.Size([2, 2])

    Source: as ``VectorScaling`` (SMS).
    """

    penalty: float = 1.0

    def __post_init__(self) -> None:
        check_positive("penalty", self.penalty, "1.0")

    def fit(self, task: Task) -> ScaledNetwork:
        """The network of a task, scaled by its validation data; see ``VectorScaling.fit``."""
        return scaled(task.network, task.held_out("MatrixScaling"), self.scaling, unpack=task.unpack)

    def scaling(self, logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> AffineScaling:
        """The map fitted to logits and labels of examples that the network was not trained on."""
        temperature, z = cooled(logits, labels)
        labels = labels.to(z.device)
        n, c = z.shape
        weight = self.penalty * c / n
        weight_beside = self.penalty * c * (c - 1) / n

        weights = torch.full((c, c), weight_beside).to(z)
        weights.fill_diagonal_(weight)
        weights = torch.cat([weights.flatten(), torch.full((c,), weight).to(z)])

        def loss(numbers: Float[Tensor, " m"]) -> tuple[Tensor, Tensor]:
            matrix = numbers[: c * c].view(c, c)
            b = numbers[c * c :]
            value, slope = cross_entropy(z + z @ matrix.mT + b, labels)
            gradient = torch.cat([(slope.mT @ z).flatten(), slope.sum(0)])
            return value + (weights * numbers.square()).sum(), gradient + 2 * weights * numbers

        numbers = minimised(loss, z.new_zeros(c * (c + 1)))
        matrix = numbers[: c * c].view(c, c)
        return AffineScaling(temperature, matrix + torch.eye(c).to(matrix), numbers[c * c :])


@final
@dataclass(frozen=True, eq=False)
class AffineScaling:
    """Logits ``W log softmax(f / T) + b``.

    Args:
        temperature: T.
        factor: W ``[c, c]``, or its diagonal ``[c]``, float64.
        offset: b ``[c]``, float64.
    """

    temperature: float
    factor: Tensor
    offset: Float[Tensor, " c"]

    def logits(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """The scaled logits of a network's own, in the dtype of those, or float32 for half precision.

        Args:
            outputs: Its logits, class axis last.
        """
        z = log_probabilities(outputs, self.temperature)
        factor = self.factor.to(z)
        moved = factor * z if factor.ndim == 1 else z @ factor.mT
        return (moved + self.offset.to(z)).to(torch.promote_types(outputs.dtype, torch.float32))


@final
@dataclass(frozen=True, eq=False)
class ScaledNetwork:
    """A network whose logits go through an affine map; see ``VectorScaling`` and ``MatrixScaling``.

    Args:
        network: The network as it is.
        scaling: The map.
    """

    network: PlainNetwork
    scaling: AffineScaling

    @property
    def likelihood(self) -> Likelihood:
        """What the outputs mean."""
        return self.network.likelihood

    @undisturbed()
    def predict(self, x: InputsLike) -> Predictive:
        """The predictive distribution of a batch, without uncertainty of the logits; see ``PlainNetwork.predict``.

        Args:
            x: Inputs of the network.
        """
        return self.likelihood.predictive(Moments.certain(self.outputs(x)), "probit")

    @undisturbed()
    def outputs(self, x: InputsLike) -> Float[Tensor, "n *event c"]:
        """Scaled logits, class axis last; see ``PlainNetwork.outputs``."""
        return self.scaling.logits(self.network.outputs(x))


@undisturbed()
def scaled(
    network: PlainNetwork,
    held_out: Source,
    scaling: Callable[[Tensor, Tensor], AffineScaling],
    *,
    unpack: Unpack | None = None,
) -> ScaledNetwork:
    """A network with the map that held-out data choose.

    Args:
        network: The network.
        held_out: Data it was not trained on.
        scaling: What makes the map of logits and labels.
        unpack: Splits what a loader yields.

    Raises:
        UnsupportedError: If targets are no classes.
    """
    likelihood = network.likelihood
    if not likelihood.classes:
        expected = "the Categorical likelihood to scale logits"
        raise UnsupportedError(expected, type(likelihood).__name__, "PlainNetwork(...).calibrated for its noise")
    like = like_of(network.model)
    kept_logits: list[Tensor] = []
    kept_labels: list[Tensor] = []
    with working("calibrate"):
        for batch in Data(held_out, torch.zeros(()) if like is None else like, unpack):
            outputs = network.outputs(batch.inputs)
            targets = likelihood.canonical_targets(outputs, batch.targets)
            likelihood.check(outputs, targets)
            logits, labels = labelled(outputs, targets)
            kept_logits.append(logits)
            kept_labels.append(labels)
        return ScaledNetwork(network, scaling(torch.cat(kept_logits), torch.cat(kept_labels)))


def cooled(logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> tuple[float, Float[Tensor, "n c"]]:
    """The temperature of logits, and the log probabilities at it in float64."""
    temperature = Temperature.fit(logits, labels).temperature
    return temperature, log_probabilities(wide(logits), temperature)


def log_probabilities(logits: Float[Tensor, "*batch c"], temperature: float) -> Float[Tensor, "*batch c"]:
    """``log softmax(f / T)``, in float32 at least."""
    single = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(single / temperature, -1).clamp_min(SMALLEST)


def cross_entropy(
    logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]
) -> tuple[Float[Tensor, ""], Float[Tensor, "n c"]]:
    """Mean cross-entropy, nats, and its gradient ``(p - e_y) / n`` in the logits."""
    log_probs = torch.log_softmax(logits, -1)
    index = labels[:, None]
    value = -log_probs.gather(1, index).mean()
    residual = log_probs.exp().scatter_add(1, index, -torch.ones_like(index, dtype=logits.dtype))
    return value, residual / len(labels)


def minimised(loss: Callable[[Tensor], tuple[Tensor, Tensor]], start: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Where a strictly convex function has its minimum, by L-BFGS.

    Args:
        loss: Its value and gradient.
        start: Where to begin, float64.

    Warns:
        ConvergenceWarning: If its gradient is not zero there.
    """
    from scipy.optimize import minimize  # half a second to import

    def value_and_gradient(numbers: object) -> tuple[float, object]:
        value, gradient = loss(torch.as_tensor(numbers).to(start))
        return float(value), gradient.cpu().numpy()

    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "gtol": GRADIENT, "ftol": 0.0, "maxcor": 50}
    found = minimize(value_and_gradient, start.cpu().numpy(), jac=True, method="L-BFGS-B", options=options)
    steepest = float(abs(found.jac).max())
    if steepest > 1e3 * GRADIENT:
        warn(
            f"the scaling of the logits ended after {found.nit} steps at a slope of {steepest:.1g} nats: try held-out "
            "logits of ordinary size, or a larger penalty",
            ConvergenceWarning,
        )
    return torch.from_numpy(found.x).to(start)
