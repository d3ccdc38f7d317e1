"""What every likelihood answers: its loss, its curvature in the outputs, roots of that, draws, and its noise."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lapwing.ground.data.checks import check_finite
from lapwing.ground.device import CACHED
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError, check_count, check_positive, shortly
from lapwing.ground.precision import wide, wide_like
from lapwing.moments import Draws, JointMoments, Outputs
from lapwing.predictive.distributions import Predictive
from lapwing.predictive.links import SAMPLES, Link, check_link


@dataclass(frozen=True, repr=False)
class Likelihood(abc.ABC):
    """The distribution p(y | f) of a target given a network's output f.

    Canonical outputs are ``[n, *event, c]``: examples, then ``event_dim`` axes of positions (tokens,
    pixels) that are conditionally independent given f, then the ``c`` outputs of one position.
    ``canonical`` brings a network's outputs into that form; every other method takes it. Where f is the
    natural parameter the output Hessian B does not depend on the target and equals the Fisher information: generalised
    Gauss-Newton matrix and Fisher are one. For ``HeteroscedasticGaussian``, ``NegativeBinomial`` and ``StudentT``,
    where it is not, B is the Fisher information.

    Args:
        event_dim: Number of event axes: 0 for one answer an example, 1 for tokens, 2 for pixels.
        class_dim: Axis of the ``c`` outputs in what the network returns: -1, or 1 for ``[n, c, h, w]``.
        weight: How many examples each one stands for: 25 where 2000 of 50 000 training examples are at hand. Loss,
            score, curvature and counts are multiplied by it, what is predicted for one target is not.

    Raises:
        ConfigError: If the axes contradict each other, or the weight is not positive and finite.
    """

    event_dim: int = field(default=0, kw_only=True)
    class_dim: int = field(default=-1, kw_only=True)
    weight: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        check_positive_finite("weight", self.weight, "25.0")
        check_count("event_dim", self.event_dim, 0)
        if self.event_dim > EVENT_AXES:
            raise ConfigError(f"event_dim of at most {EVENT_AXES}", f"{self.event_dim}", "event_dim=2 for pixels")
        if self.class_dim != -1 and self.class_dim not in range(1, self.event_dim + 2):
            raise ConfigError(
                "class_dim either -1 or an axis from 1 to event_dim + 1",
                f"event_dim={self.event_dim}, class_dim={self.class_dim}",
                "event_dim=1 for tokens [n, t, c], or event_dim=2, class_dim=1 for pixels [n, c, h, w]",
            )

    def __repr__(self) -> str:
        """Its choices other than the defaults, numbers to six digits."""
        chosen: list[str] = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                chosen.append(f"{each.name}={shortly(value)}")
        return f"{type(self).__name__}({', '.join(chosen)})"

    def canonical(self, outputs: Tensor) -> Tensor:
        """A network's outputs as ``[n, *event, c]``, a view.

        Args:
            outputs: What the network returned, the ``c`` outputs on axis ``class_dim``.

        Raises:
            ShapeError: If the rank is not ``event_dim + 2``.
        """
        self._check_rank(outputs)
        return outputs.movedim(self.class_dim, -1)

    def returned(self, cotangents: Tensor) -> Tensor:
        """Cotangents ``[k, n, *event, c]`` of canonical outputs as cotangents of what the network returned, a view."""
        return cotangents.movedim(-1, self.class_dim + (self.class_dim >= 0))

    @abc.abstractmethod
    def canonical_targets(self, outputs: Float[Tensor, "*batch c"], targets: Tensor) -> Tensor:
        """Targets as the other methods take them: shaped and typed to match canonical outputs.

        Args:
            outputs: Canonical outputs.
            targets: Targets as the loader gives them; ``[n]`` is accepted where the outputs are ``[n, 1]``.

        Raises:
            ShapeError: If the shape does not fit the outputs.
            DataError: If the type does not fit the likelihood.
        """

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise on canonical outputs and targets that this likelihood cannot have produced.

        Args:
            outputs: Canonical outputs.
            targets: Canonical targets, as ``canonical_targets`` gives them.

        Raises:
            ShapeError: If the rank of the outputs is wrong.
            DataError: If a number is not finite or a target impossible.
        """
        self._check_rank(outputs)
        check_finite(outputs, "outputs", "checking the inputs and the weights of the network")
        self._check_targets(outputs, targets)

    def targets_of(self, prediction: Predictive, targets: Tensor) -> Tensor:
        """Targets of a loader as a predictive distribution takes them, checked.

        Args:
            prediction: A distribution that this likelihood gave.
            targets: Targets as the loader gives them.

        Raises:
            ShapeError: If the shape does not fit.
            DataError: If the type does not fit the likelihood, or a target is impossible.
        """
        outputs = self._outputs_at(prediction.location)
        canonical = self.canonical_targets(outputs, targets.to(outputs.device))
        self.check(outputs, canonical)
        return canonical

    @final
    def predictive(
        self,
        outputs: Outputs,
        link: Link = "qmc",
        *,
        temperature: float = 1.0,
        samples: int = SAMPLES,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """The distribution of targets p(y) = ∫ p(y | f) p(f) df at each position.

        Real targets and counts have closed forms and take no link; a Gaussian whose noise depends on the input is
        matched by its mean and variance. Draws are averaged as they are, whatever the link.

        Args:
            outputs: What is known of f, in canonical form ``[n, *event, c]``. Joint outputs give the same
                probabilities and coherent samples.
            link: For classes and labels, how the uncertainty is averaged out.
            temperature: Divides the logits, mean and standard deviation, before the link.
            samples: Draws for ``link="mc"``.
            generator: Source of randomness for ``"mc"``; ``None`` draws from PyTorch's global one.

        Returns:
            ``Classification`` for Categorical, ``MultiLabel`` for Bernoulli, ``Regression`` for the Gaussians,
            ``HeavyTailedRegression`` for StudentT, ``Counts`` for Poisson, ``OverdispersedCounts`` for
            NegativeBinomial.

        Raises:
            ConfigError: If the link is not one of the five, or the temperature not positive.
            UnsupportedError: If the link, or a temperature, does not exist for this likelihood.
            NumericalError: If the covariance is not positive semi-definite, or expected rates overflow.

        Example:
            >>> from lapwing.likelihoods import Categorical
            >>> from lapwing.moments import Moments
            >>> moments = Moments(torch.tensor([[2.0, 0.0]]), 4 * torch.eye(2).expand(1, 2, 2))
            >>> Categorical().predictive(moments).probs
            tensor([[0.7261, 0.2739]])
        """
        check_link(link, temperature)
        if temperature != 1:
            if not self.labels:
                raise UnsupportedError("classes or labels for a temperature", f"{self}", "temperature 1.0")
            outputs = outputs.scaled(1 / temperature)
        return self._predictive(outputs, link, samples, generator)

    def known_outputs(self, outputs: Outputs) -> Outputs:
        """Those of the outputs whose uncertainty says what is known of a target: all of them."""
        return outputs

    @final
    def nll(self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"]) -> Float[Tensor, "*batch"]:
        """Negative log likelihood -log p(y | f) at each position, in nats, all constants included.

        Args:
            outputs: Canonical outputs f.
            targets: Canonical targets y.

        Returns:
            One number a position, 0 where the target is ignored.
        """
        return self.weight * self._nll(outputs, targets.to(outputs.device))

    @final
    def total_nll(
        self, outputs: Float[Tensor, "n *event c"], targets: Shaped[Tensor, "n *target"]
    ) -> Float[Tensor, ""]:
        """Negative log likelihood of all targets, nats, float64; of real ones from the squares on, which may be large.

        Args:
            outputs: Canonical outputs f.
            targets: Canonical targets y.
        """
        total = torch.zeros((), **wide_like(outputs))
        for f, y in self.pieces(outputs, targets):
            losses = self.nll(wide(f), wide(y)) if y.is_floating_point() else self.nll(f, y)
            total = total + wide(losses).sum()
        return total

    @final
    def score(
        self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"]
    ) -> Float[Tensor, "*batch c"]:
        """Gradient of the log likelihood in the outputs, ∂ log p(y | f) / ∂f; 0 where ignored."""
        return self.weight * self._score(outputs, targets)

    @final
    def hessian(
        self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"] | None = None
    ) -> Float[Tensor, "*batch c c"]:
        """Output Hessian B; for a weight of 1 the expectation of score scoreᵀ under the model.

        Args:
            outputs: Canonical outputs f.
            targets: Canonical targets; used only to put 0 where they are ignored.
        """
        return self.weight * self._hessian(outputs, targets)

    @final
    def root(
        self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"] | None = None
    ) -> Float[Tensor, "*batch c r"]:
        """A root S of the output Hessian, S Sᵀ = B; arguments as in ``hessian``."""
        return self.weight**0.5 * self._root(outputs, targets)

    def hessian_entries(
        self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"] | None = None
    ) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"] | None] | None:
        """The diagonal of B, and v with ``B_jk = -v_j v_k`` beside it, ``None`` where that is 0; arguments as above.

        Where there is a v the rows of B add up to 0. In float64, in which alone sums of many B have no negative
        eigenvalues; nothing is c × c. ``None`` for a likelihood whose B has no such form.
        """
        return None

    @final
    def pieces(
        self, outputs: Float[Tensor, "n *event c"], targets: Shaped[Tensor, "*target"]
    ) -> list[tuple[Float[Tensor, "m c"], Shaped[Tensor, "*some"]]]:
        """Canonical outputs and targets of consecutive positions, views: on a CPU ``CACHED`` bytes of float64 each."""
        f = outputs.flatten(0, -2)
        y = targets.flatten(0, self.event_dim)
        size = max(1, CACHED // (8 * f.shape[1]) if f.device.type == "cpu" else len(f))
        return list(zip(f.split(size), y.split(size), strict=True))

    def thin_root(
        self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"] | None = None
    ) -> Float[Tensor, "*batch c r"]:
        """A root S of the output Hessian with no more columns than B has rank; arguments as in ``hessian``."""
        return self.root(outputs, targets)

    def rank(self, outputs: int) -> int:
        """Columns of ``thin_root`` for so many outputs."""
        return outputs

    @final
    def root_columns(self, event: torch.Size) -> int:
        """Columns of ``thin_root`` of one example, over all its positions.

        Args:
            event: Shape of its canonical outputs.
        """
        return event[:-1].numel() * self.rank(event[-1])

    def root_product(
        self,
        outputs: Float[Tensor, "*batch c"],
        targets: Shaped[Tensor, "*target"] | None,
        noise: Float[Tensor, "*batch r k"],
    ) -> Float[Tensor, "*batch c k"]:
        """``S ε`` for the S of ``thin_root``, which is not made where it has a form of few numbers.

        Args:
            outputs: Canonical outputs f.
            targets: Canonical targets; used only to put 0 where they are ignored.
            noise: ε, k columns at each position.
        """
        return self.thin_root(outputs, targets) @ noise

    def root_adjoint(
        self,
        outputs: Float[Tensor, "*batch c"],
        targets: Shaped[Tensor, "*target"] | None,
        moved: Float[Tensor, "*batch c k"],
    ) -> Float[Tensor, "*batch r k"]:
        """``Sᵀ u`` for the S of ``thin_root``; arguments as in ``root_product``, with changes u of the outputs."""
        return self.thin_root(outputs, targets).mT @ moved

    def basis(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "c r"]:
        """An orthonormal basis of the changes of the outputs that the likelihood sees."""
        return torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)

    def hessian_product(
        self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"] | None = None
    ) -> Callable[[Float[Tensor, "... c"]], Float[Tensor, "... c"]]:
        """``u -> B u`` at each position, for changes u of the outputs that lead with any further axes."""
        hessian = self.hessian(outputs, targets)
        return lambda moved: (hessian @ moved.unsqueeze(-1)).squeeze(-1)

    @property
    def labels(self) -> bool:
        """Whether targets are labels, whose logits a link averages over."""
        return False

    @property
    def classes(self) -> bool:
        """Whether a target is one of c classes, whose logits a temperature may scale."""
        return False

    @property
    def counts(self) -> bool:
        """Whether targets are counts, the logarithms of whose rates are the outputs."""
        return False

    @property
    def calibrates(self) -> bool:
        """Whether it has a noise, or another spread of the targets, that ``calibrated`` chooses."""
        return False

    @property
    def spread_is_default(self) -> bool:
        """Whether that spread is one that tuning leaves as it is, and has the value it has when nobody chose."""
        return False

    @property
    def noise(self) -> float | None:
        """Noise precision ρ (of the first output) where the loss is the square ρ (y - f)² / 2; else ``None``."""
        return None

    @property
    def noise_precision(self) -> float | tuple[float, ...] | None:
        """Noise precision ρ, one number or one an output, where there is one; else ``None``."""
        return None

    def own_noises(self, outputs: int) -> Float[Tensor, " c"] | None:
        """Noise precision of each of several outputs, float64, where each is chosen by itself; else ``None``.

        Args:
            outputs: Outputs c of one position.
        """
        return None

    def with_own_noises(self, precisions: Float[Tensor, " c"]) -> Likelihood:
        """The same likelihood with these noise precisions, one an output; itself where it has none."""
        return self

    def scaled(self, factor: float) -> Likelihood:
        """The same likelihood with ``factor`` times the noise precision; itself where it has none."""
        return self

    def noise_over(self, other: Likelihood) -> float | None:
        """By what factor the noise precision is that of another likelihood; ``None`` where more differs."""
        return 1.0 if self == other else None

    def misfits(self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"]) -> Float[Tensor, " c"]:
        """Squared error of each output, weighted by its noise precision; 0 where the loss is no square.

        In float64 from the squares on: those of float32 overflow beyond 1e19.
        """
        return torch.zeros(outputs.shape[-1], **wide_like(outputs))

    @final
    def misfit(self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"]) -> Float[Tensor, ""]:
        """Squared error of all targets, weighted by the noise precision, in float64; 0 where the loss is no square."""
        return self.misfits(outputs, targets).sum()

    @final
    def count(self, targets: Shaped[Tensor, "*target"]) -> float:
        """How many scalar observations canonical targets stand for, the ignored left out: any number, with a weight."""
        return self.weight * self._count(targets)

    def calibrated(self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"]) -> Likelihood:
        """The same likelihood with the noise under which held-out targets are likeliest; itself where it has none.

        Args:
            outputs: Canonical outputs at inputs the network was not trained on.
            targets: Canonical targets.

        Raises:
            DataError: If no noise is the best.
        """
        return self

    def exact_log_joint(self, outputs: JointMoments | Draws, targets: Shaped[Tensor, "*target"]) -> float | None:
        """Joint predictive log density log ∫ Π_n p(y_n | f_n) p(f) df of Gaussian f, nats; ``None`` if not known."""
        return None

    @property
    def unweighted(self) -> Likelihood:
        """The likelihood of a single target: the same with a weight of 1."""
        return self if self.weight == 1.0 else replace(self, weight=1.0)

    @abc.abstractmethod
    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Shaped[Tensor, "*target"]:
        """Canonical targets drawn from p(y | f).

        Args:
            outputs: Canonical outputs f.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """

    @abc.abstractmethod
    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch m"]:
        """Expected target given f, the inverse link: probabilities, means or rates."""

    def _outputs_at(self, location: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch c"]:
        """Canonical outputs to which targets of a prediction with this location belong."""
        return location

    @abc.abstractmethod
    def _predictive(
        self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None
    ) -> Predictive: ...

    @abc.abstractmethod
    def _nll(self, outputs: Tensor, targets: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def _score(self, outputs: Tensor, targets: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def _hessian(self, outputs: Tensor, targets: Tensor | None) -> Tensor: ...

    @abc.abstractmethod
    def _root(self, outputs: Tensor, targets: Tensor | None) -> Tensor: ...

    @abc.abstractmethod
    def _count(self, targets: Tensor) -> int: ...

    @abc.abstractmethod
    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None: ...

    def _check_rank(self, outputs: Tensor) -> None:
        if outputs.ndim != self.event_dim + 2 or outputs.shape[-1] == 0:
            axes = ["n", *(f"e{i + 1}" for i in range(self.event_dim))]
            axes.insert(self.class_dim if self.class_dim > 0 else len(axes), "c")
            raise ShapeError(
                f"outputs of shape [{', '.join(axes)}] for event_dim={self.event_dim}",
                f"shape {list(outputs.shape)}",
                "x[None] for a single example, outputs.unsqueeze(-1) for a single output, "
                "event_dim=1 for tokens, or event_dim=2 for pixels, with class_dim=1 where channels come first",
            )


def check_positive_finite(name: str, value: float, usual: str) -> None:
    """Refuses what is no positive finite number.

    Args:
        name: The option.
        value: What came.
        usual: What to try.

    Raises:
        ConfigError: Naming it.
    """
    check_positive(name, value, usual)
    if not math.isfinite(value):
        raise ConfigError(f"a finite {name}", f"{value!r:.40}", f"{name}={usual}")


EVENT_AXES = 62
"""Most event axes of an example: a tensor has 64 axes at most, one of the examples and one of the outputs."""

COLUMNS = 64
"""Most cotangents pulled back at once: bounds the memory of networks with many outputs."""


def by_position(
    columns: Float[Tensor, "r n *event c"], width: int = COLUMNS, places: Int[Tensor, " p"] | None = None
) -> Iterator[Float[Tensor, "k n *event c"]]:
    """Columns of a root that acts on each event position alone, as cotangents of whole outputs."""
    if columns.ndim == 3:
        yield from columns.split(width)
        return
    flat = columns.flatten(2, -2)
    for position in range(flat.shape[2]) if places is None else places.tolist():
        for block in flat[:, :, position].split(width):
            cotangent = torch.zeros(len(block), *flat.shape[1:], dtype=flat.dtype, device=flat.device)
            cotangent[:, :, position] = block
            yield cotangent.view(len(block), *columns.shape[1:])


def at_places(values: Float[Tensor, "n *event c"], places: Int[Tensor, " p"] | None) -> Float[Tensor, "n *p c"]:
    """Values at some event positions, counted over all their axes, which become one; as they are for ``None``."""
    return values if places is None else values.flatten(1, -2)[:, places]


def identity_cotangents(
    outputs: Float[Tensor, "n *event c"], places: Int[Tensor, " p"] | None = None
) -> Iterator[Float[Tensor, "c n *event c"]]:
    """The c unit cotangents of each event position in turn, or of some: together they pull back the whole Jacobian."""
    c = outputs.shape[-1]
    eye = torch.eye(c, dtype=outputs.dtype, device=outputs.device)
    columns = eye.view(c, *(1,) * (outputs.ndim - 1), c).expand(c, *outputs.shape)
    yield from by_position(columns, width=c, places=places)
