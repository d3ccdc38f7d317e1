"""What predicts: outputs with their uncertainty, and the link they pass through."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, final, overload

import torch

from lapwing.ground import probes
from lapwing.ground.modes import undisturbed
from lapwing.ground.types import Inputs
from lapwing.likelihoods import Likelihood
from lapwing.predictive.links import SAMPLES
from lapwing.predictive.predict import Link, Outputs, Predictive, check_link, predictive

P = TypeVar("P", bound="Predictor")
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Predictor(abc.ABC):
    """What knows the outputs of a network with their uncertainty: a posterior, or refits.

    Args:
        likelihood: p(y | f), with the noise it has now.
        link: For classes, how ``predict`` averages over the uncertainty of the logits unless it is told.
        temperature: Divides the logits, mean and standard deviation, before any link.

    Raises:
        ConfigError: If there is no such link, or the temperature is not positive.
    """

    likelihood: Likelihood = field(kw_only=True)
    link: Link = field(default="qmc", kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)
    known: dict[str, Any] = field(default_factory=dict[str, Any], init=False)

    def __post_init__(self) -> None:
        check_link(self.link, self.temperature)

    @abc.abstractmethod
    def outputs(
        self,
        x: Inputs,
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

    @undisturbed()
    def predict(
        self,
        x: Inputs,
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
            x: Inputs of n examples, as the network takes them; of refits, see ``HessianFreePosterior.outputs``.
            link: For classes, how the logits' uncertainty is averaged: ``"qmc"``, ``"pairwise"``, ``"probit"``,
                ``"bridge"`` or ``"mc"``; ``None`` for the posterior's own, which tuning may choose.
            joint: Whether to return the covariance between the examples too, ``[n, c, n, c]``.
            linearised: Whether the network is taken as linear in its weights; ``False`` averages networks with
                drawn weights.
            samples: Draws, where the link or the network need them.
            generator: Source of randomness for them.

        Returns:
            ``Classification`` with ``probs [n, c]``, ``Regression`` with ``mean``, ``std`` (noise included) and
            ``outputs`` (noise left out), ``MultiLabel`` or ``Counts``.

        Raises:
            ConfigError: If the generator is none, or there are no draws where some are needed.
            DataError: If there are no inputs, or they are not finite.
            MismatchError: If the network was written to since the fit.

        Cost:
            Linearised: a forward and c backward passes through the activations. Otherwise ``samples`` forward passes.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
            >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
            >>> posterior.predict(x[:4]).probs.shape
            torch.Size([4, 3])
        """
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
        changed = replace(self, link=link, temperature=temperature)
        changed.known.update(self.known)
        return changed

    def shown_link(self) -> str:
        """The link as a ``repr`` shows it, where it plays a part."""
        if not self.likelihood.labels:
            return ""
        return f"link {self.link}, " + (f"temperature {self.temperature:.4g}, " if self.temperature != 1 else "")


@final
class kept(Generic[P, T]):
    """A property computed when it is first asked for, and from then on kept in ``known``."""

    def __init__(self, compute: Callable[[P], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__
        self._name = compute.__name__

    @overload
    def __get__(self, predictor: None, owner: type[P]) -> kept[P, T]: ...

    @overload
    def __get__(self, predictor: P, owner: type[P]) -> T: ...

    def __get__(self, predictor: P | None, owner: type[P]) -> kept[P, T] | T:
        if predictor is None:
            return self
        if self._name not in predictor.known:
            predictor.known[self._name] = self._compute(predictor)
        return predictor.known[self._name]
