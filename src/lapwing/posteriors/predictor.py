"""What predicts from a network: what is known of its outputs, through the likelihood, as a distribution of targets."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, final

import torch

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, InputsLike, checked
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.ground.moving import Mover
from lapwing.ground.progress import working
from lapwing.ground.shared import Shared, fields_of
from lapwing.jacobian.live import live
from lapwing.jacobian.network.modes import predicting
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.moments import Draws, Outputs
from lapwing.predictive.distributions import Predictive
from lapwing.predictive.distributions.base import Knowledge
from lapwing.predictive.links import SAMPLES, Link, check_link

P = TypeVar("P", bound="NetworkPredictor")


@final
@dataclass(frozen=True, eq=False)
class Asked:
    """What ``predict`` is asked for; see there."""

    link: Link
    joint: bool
    linearised: bool
    samples: int
    generator: torch.Generator | None

    @property
    def moments(self) -> bool:
        """Whether it is Gaussian moments of each example by itself, and no draws."""
        return self.linearised and not self.joint and self.link != "mc"


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

    @predicting()
    @working("predict")
    def outputs(
        self,
        x: InputsLike,
        link: Link | None = None,
        *,
        joint: bool = False,
        linearised: bool = True,
        samples: int = SAMPLES,
        generator: torch.Generator | int | None = None,
    ) -> Outputs:
        """What is known of the network's outputs at ``x``; arguments as in ``predict``.

        Returns:
            Means with the covariance of each example, or of all of them together, or draws.
        """
        source = probes.generator_of(generator)
        inputs = self._inputs(x)
        with torch.set_grad_enabled(live(inputs)):
            if not linearised:
                return self._networks(inputs, samples, source)
            return self._linearised(inputs, link or self.link, joint, samples)

    @predicting()
    @working("predict")
    def predict(
        self,
        x: InputsLike,
        link: Link | None = None,
        *,
        joint: bool = False,
        linearised: bool = True,
        samples: int = SAMPLES,
        epistemic: bool = True,
        generator: torch.Generator | int | None = None,
    ) -> Predictive:
        """Predictive distribution of the targets at ``x``: what is known of the outputs there, through the link.

        The linearised predictive has ``f ~ N(f(x), J Λ⁻¹ Jᵀ)`` (Immer et al. 2021, equation 7). Where ``x`` asks for
        its gradient, all of it can be differentiated in ``x``; else nothing keeps a graph.

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
            epistemic: Whether ``.epistemic`` and ``.unfamiliar`` will be asked for. A posterior that ``lw.tune`` gave a
                scale of knowledge then has the outputs at that scale too; ``False`` saves them.
            generator: Source of randomness for them, or the seed of one; ``None`` draws from PyTorch's global one.

        Returns:
            ``Classification`` with ``probs [n, c]``, ``Regression`` with ``mean``, ``std`` (noise included) and
            ``outputs`` (noise left out), ``MultiLabel`` or ``Counts``.

        Raises:
            ConfigError: If the generator is none, or there are no draws where some are needed.
            DataError: If there are no inputs, or they are not finite.
            MismatchError: If the network was written to since the fit.
            TooLargeError: If ``x`` asks for its gradient, and the rows of the Jacobian with their graph are too large.
            UnsupportedError: If refits are asked for what they have not; if ``x`` asks for its gradient and the network
                cannot be vectorised.

        Cost:
            Linearised: a forward and c backward passes through the activations; at two scales from the same passes.
            Otherwise ``samples`` forward passes. ``.epistemic`` itself is computed when it is asked for. Where ``x``
            asks for its gradient, of last layers a forward pass, of others the ``n c d`` numbers of J with their graph.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
            >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
            >>> posterior.predict(x[:4]).probs.shape
            torch.Size([4, 3])
        """
        source = probes.generator_of(generator)
        link = link or self.link
        asked = Asked(link, joint, linearised, samples, source)
        with torch.set_grad_enabled(live(x)):
            outputs, knowledge = self._at_both_scales(x, asked) if epistemic else (self._asked(x, asked), None)
            prediction = self.likelihood.predictive(
                outputs, link, temperature=self.temperature, samples=samples, generator=source
            )
        return prediction if knowledge is None else replace(prediction, knowledge=knowledge)

    def with_link(self: P, link: Link, temperature: float = 1.0) -> P:
        """The same posterior, which predicts by another link; what was solved or decomposed is shared.

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
        return replace(self, link=link, temperature=temperature)

    def to(self: P, device: torch.device | str) -> P:
        """The same posterior on another device, around a copy of its network there; the training data are read there.

        Args:
            device: Where to.

        Raises:
            ConfigError: If it is a dtype: a posterior keeps that of its network.
            MismatchError: If the network was written to since the fit.

        Cost:
            A copy of the network and of what the posterior holds; what was computed from it since is computed again.

        Example:
            >>> import torch, lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
            >>> lw.Laplace(lw.Categorical()).fit(model, (x, y)).to("cpu").predict(x[:4]).probs.device
            device(type='cpu')
        """
        target: Any = device
        if isinstance(target, torch.dtype):
            raise ConfigError("a device, to which a posterior goes in its dtype", f"{target}", "fitting model.double()")
        return self.moved_by(Mover(device))

    def moved_by(self: P, mover: Mover) -> P:
        """See ``to``."""
        return replace(self, **{name: mover(value) for name, value in self.__getstate__().items()})

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and ``copy`` take: the fields; what was computed from them since is computed again."""
        state = fields_of(self)
        for name, value in state.items():
            if isinstance(value, Shared):
                state[name] = Shared[Any]()
        return state

    def shown_link(self) -> str:
        """The link as a ``repr`` shows it, where it plays a part."""
        if not self.likelihood.labels:
            return ""
        return f"link {self.link}, " + (f"temperature {self.temperature:.4g}, " if self.temperature != 1 else "")

    def _asked(self, x: InputsLike, asked: Asked) -> Outputs:
        """The outputs that ``predict`` is asked for."""
        return self.outputs(
            x,
            asked.link,
            joint=asked.joint,
            linearised=asked.linearised,
            samples=asked.samples,
            generator=asked.generator,
        )

    def _at_both_scales(self, x: InputsLike, asked: Asked) -> tuple[Outputs, Knowledge | None]:
        """The same with those at the scale of knowledge, where there is one."""
        return self._asked(x, asked), None

    def _inputs(self, x: InputsLike) -> Inputs:
        self.network.check_unchanged()
        return checked(x, self.network.like, live=torch.is_grad_enabled())

    @abc.abstractmethod
    def _linearised(self, inputs: Inputs, link: Link, joint: bool, samples: int) -> Outputs:
        """What is known of the outputs of the network taken as linear in its weights."""

    def _networks(self, inputs: Inputs, samples: int, generator: torch.Generator | None) -> Draws:
        """Outputs of networks with drawn weights."""
        hint = "Laplace(...).fit(...)"
        raise UnsupportedError("a posterior over the weights for linearised=False", type(self).__name__, hint)
