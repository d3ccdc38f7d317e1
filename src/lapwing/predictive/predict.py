"""From a likelihood and what is known of the outputs to a predictive distribution; what predicts so."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar, get_args

import torch

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, InputsLike, checked
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
)
from lapwing.predictive.distributions import Classification, Counts, MultiLabel, Regression
from lapwing.predictive.links import SAMPLES, laplace_bridge, monte_carlo, pairwise, probit, probit_binary
from lapwing.predictive.outputs import Draws
from lapwing.predictive.quadrature import expected_sigmoid, quasi_monte_carlo
from lapwing.predictive.wide import Outputs, at_least_single

Link: TypeAlias = Literal["probit", "pairwise", "bridge", "qmc", "mc"]
"""How the logits' uncertainty is averaged out: the probit approximation logit by logit or pair by pair, the Laplace
bridge, fixed quasi-random draws (for a single logit and two classes the integral itself), or Monte Carlo."""

Predictive: TypeAlias = Classification | MultiLabel | Regression | Counts
"""A distribution of targets."""

P = TypeVar("P", bound="NetworkPredictor")


def predictive(
    likelihood: Likelihood,
    outputs: Outputs,
    link: Link = "qmc",
    *,
    temperature: float = 1.0,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
) -> Predictive:
    """The distribution of targets p(y) = ∫ p(y | f) p(f) df at each position.

    Gaussian and Poisson targets have closed forms and take no link; a Gaussian whose noise depends on the
    input is matched by its mean and variance. Draws are averaged as they are, whatever the link.

    Args:
        likelihood: p(y | f).
        outputs: What is known of f, in canonical form ``[n, *event, c]``. Joint outputs give the same
            probabilities and coherent samples.
        link: For classes and labels, how the uncertainty is averaged out.
        temperature: Divides the logits, mean and standard deviation, before the link.
        samples: Draws for ``link="mc"``.
        generator: Source of randomness for ``"mc"``; ``None`` draws from PyTorch's global one.

    Returns:
        ``Classification`` for Categorical, ``MultiLabel`` for Bernoulli, ``Regression`` for the Gaussians,
        ``Counts`` for Poisson.

    Raises:
        ConfigError: If the link is not one of the five, or the temperature not positive.
        UnsupportedError: If the link, or a temperature, does not exist for this likelihood.
        NumericalError: If the covariance is not positive semi-definite, or expected rates overflow.

    Example:
        >>> from lapwing.predictive import Moments
        >>> moments = Moments(torch.tensor([[2.0, 0.0]]), 4 * torch.eye(2).expand(1, 2, 2))
        >>> predictive(Categorical(), moments).probs
        tensor([[0.7261, 0.2739]])
    """
    check_link(link, temperature)
    if temperature != 1 and not likelihood.labels:
        raise UnsupportedError("classes or labels for a temperature", f"{likelihood}", "temperature 1.0")
    match likelihood:
        case Categorical() | Bernoulli():
            scaled = outputs if temperature == 1 else outputs.scaled(1 / temperature)
            return _labels(likelihood, scaled, link, samples, generator)
        case Gaussian():
            return Regression(outputs, 1 / likelihood.precisions(outputs.mean))
        case HeteroscedasticGaussian():
            return Regression.heteroscedastic(outputs)
        case Poisson():
            return Counts.of(outputs)
        case _:
            raise UnsupportedError(
                "a likelihood of lapwing.likelihoods",
                type(likelihood).__name__,
                "Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian or Poisson",
            )


def check_link(link: str, temperature: float = 1.0) -> None:
    """Refuses what is no link or no temperature.

    Raises:
        ConfigError: If the link is not one of the five, or the temperature not positive.
    """
    if link not in get_args(Link):
        raise ConfigError(f"a link that is one of {', '.join(get_args(Link))}", f"{link!r}", "'qmc'")
    if not 0 < temperature < math.inf:
        raise ConfigError("a temperature > 0", f"{temperature}", "1.0, which changes nothing")


def _labels(
    likelihood: Categorical | Bernoulli,
    outputs: Outputs,
    link: Link,
    samples: int,
    generator: torch.Generator | None,
) -> Classification | MultiLabel:
    """Classes, or yes-or-no labels: a single logit has no pairs. Probabilities are in float32 at least."""
    many = isinstance(likelihood, Bernoulli)
    kind, stderr = MultiLabel if many else Classification, None
    single = at_least_single(outputs)
    if isinstance(single, Draws):
        probs, s = likelihood.mean(single.values), len(single.values)
        return kind(outputs, probs.mean(0), probs.std(0) / s**0.5 if s > 1 else None)
    moments = single.marginal()
    match link, many:
        case "mc", _:
            probs, stderr = monte_carlo(moments, samples, link=likelihood.mean, generator=generator)
        case "bridge", False:
            probs = laplace_bridge(moments)
        case "pairwise", False:
            probs = pairwise(moments)
        case "qmc", False:
            probs = quasi_monte_carlo(moments)
        case "bridge", True:
            raise UnsupportedError(
                "link 'qmc', 'probit', 'pairwise' or 'mc' for Bernoulli",
                "link 'bridge', which for a single logit is the sigmoid of its mean",
                "'qmc', which for a single logit is exact",
            )
        case "qmc", True:
            probs = expected_sigmoid(moments.mean, moments.variance)
        case _:
            probs = probit_binary(moments) if many else probit(moments)
    return kind(outputs, probs, stderr)


@dataclass(frozen=True, eq=False, repr=False)
class NetworkPredictor(abc.ABC):
    """What knows the outputs of a network with their uncertainty: a posterior, or refits.

    Args:
        likelihood: p(y | f), with the noise it has now.
        link: For classes, how ``predict`` averages over the uncertainty of the logits unless it is told.
        temperature: Divides the logits, mean and standard deviation, before any link.
    """

    likelihood: Likelihood = field(kw_only=True)
    link: Link = field(default="qmc", kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)

    @property
    @abc.abstractmethod
    def network(self) -> Network:
        """The network at its trained weights."""

    @undisturbed()
    @working("predict")
    def outputs(
        self,
        x: InputsLike,
        link: Link | None = None,
        *,
        joint: bool = False,
        linearised: bool = True,
        samples: int = SAMPLES,
        generator: torch.Generator | None = None,
    ) -> Outputs:
        """What is known of the network's outputs at ``x``; arguments as in ``predict``.

        Returns:
            Means with the covariance of each example, or of all of them together, or draws.
        """
        inputs = self._inputs(x)
        with torch.no_grad():
            if not linearised:
                return self._networks(inputs, samples, generator)
            return self._linearised(inputs, link or self.link, joint, samples)

    @undisturbed()
    @working("predict")
    def predict(
        self,
        x: InputsLike,
        link: Link | None = None,
        *,
        joint: bool = False,
        linearised: bool = True,
        samples: int = SAMPLES,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """Predictive distribution of the targets at ``x``: what is known of the outputs there, through the link.

        The linearised predictive has ``f ~ N(f(x), J Λ⁻¹ Jᵀ)`` (Immer et al. 2021, equation 7).

        Args:
            x: Inputs of n examples, as the network takes them, or an array, a data frame or lists of their numbers;
                of ``PerPoint`` and ``Probed`` refits, some of the evaluation points.
            link: For classes, how the logits' uncertainty is averaged: ``"qmc"``, ``"pairwise"``, ``"probit"``,
                ``"bridge"`` or ``"mc"``; ``None`` for the posterior's own, which tuning may choose.
            joint: Whether to return the covariance between the examples too, ``[n, c, n, c]``; of refits, only
                ``Probed`` ones have it.
            linearised: Whether the network is taken as linear in its weights; ``False`` averages networks with
                drawn weights, which refits have not.
            samples: Draws, where the link or the network need them.
            generator: Source of randomness for them.

        Returns:
            ``Classification`` with ``probs [n, c]``, ``Regression`` with ``mean``, ``std`` (noise included) and
            ``outputs`` (noise left out), ``MultiLabel`` or ``Counts``.

        Raises:
            ConfigError: If the generator is none, or there are no draws where some are needed.
            DataError: If there are no inputs, or they are not finite.
            MismatchError: If the network was written to since the fit.
            UnsupportedError: If refits are asked for what they have not.

        Cost:
            Linearised: a forward and c backward passes through the activations. Otherwise ``samples`` forward passes.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
            >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
            >>> posterior.predict(x[:4]).probs.shape
            torch.Size([4, 3])
        """
        if generator is not None:
            probes.device_of(generator)
        link, temperature = link or self.link, self.temperature
        with torch.no_grad():
            outputs = self.outputs(x, link, joint=joint, linearised=linearised, samples=samples, generator=generator)
            return predictive(
                self.likelihood, outputs, link, temperature=temperature, samples=samples, generator=generator
            )

    def with_link(self: P, link: Link, temperature: float = 1.0) -> P:
        """The same posterior, which predicts by another link; all that was computed is shared.

        Args:
            link: The new link.
            temperature: The new temperature.

        Raises:
            ConfigError: If there is no such link, or the temperature is not positive.

        Example:
            >>> import torch, lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
            >>> lw.Laplace(lw.Categorical()).fit(model, (x, y)).with_link("pairwise").link
            'pairwise'
        """
        check_link(link, temperature)
        changed = replace(self, link=link, temperature=temperature)
        vars(changed).update(vars(self) | vars(changed))
        return changed

    def shown_link(self) -> str:
        """The link as a ``repr`` shows it, where it plays a part."""
        if not self.likelihood.labels:
            return ""
        return f"link {self.link}, " + (f"temperature {self.temperature:.4g}, " if self.temperature != 1 else "")

    def _inputs(self, x: InputsLike) -> Inputs:
        self.network.check_unchanged()
        return checked(x, self.network.like)

    @abc.abstractmethod
    def _linearised(self, inputs: Inputs, link: Link, joint: bool, samples: int) -> Outputs:
        """What is known of the outputs of the network taken as linear in its weights."""

    def _networks(self, inputs: Inputs, samples: int, generator: torch.Generator | None) -> Draws:
        """Outputs of networks with drawn weights."""
        hint = "Laplace(...).fit(...)"
        raise UnsupportedError("a posterior over the weights for linearised=False", type(self).__name__, hint)
