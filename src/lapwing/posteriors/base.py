"""What every posterior answers."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lapwing.curvature.fold import Totals, check_same
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, InputsLike, chunks, count
from lapwing.ground.data.sources import Data, Joined, Source, Unpack
from lapwing.ground.distributed import several
from lapwing.ground.errors import ConfigError, DataError, ShapeError, UnsupportedError, check_bytes
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import REPAIR, Records
from lapwing.ground.layout import Params
from lapwing.ground.precision import DOUBLE, Precision, Words, wide, wide_like
from lapwing.ground.progress import track, working
from lapwing.ground.results import Estimate
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.live import drawn_outputs, head_places, live, live_features, live_rows
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import COLUMNS
from lapwing.linalg import Operator
from lapwing.linalg.operators.inverse_forms import InverseForm
from lapwing.linear.evidence import Complexity, LogEvidence
from lapwing.linear.log_det_ratio import Spectrum
from lapwing.posteriors.capabilities import Capabilities
from lapwing.posteriors.knowledge import KnowledgeScale
from lapwing.posteriors.predictive_module import predictive_module, quantities_asked
from lapwing.posteriors.predictor import Asked, NetworkPredictor
from lapwing.posteriors.record import check_survey, totals_of, totals_record
from lapwing.posteriors.step import Step
from lapwing.predictive import Draws, JointMoments, Link, Moments, Outputs, WideMoments
from lapwing.predictive.distributions.base import Knowledge, Predictive
from lapwing.priors import Prior

JOINT = 2**32
"""Bytes a joint covariance of the outputs may take (4 GiB)."""

NETWORKS = 16
"""Drawn networks that a module averages over."""

FEWER = "fewer inputs at a time, or torch.no_grad()"
"""What to try where outputs with their graph are too many."""

P = TypeVar("P", bound="Posterior")


@runtime_checkable
class FitRecipe(Protocol):
    """How a posterior was fitted, to be done again."""

    def again(self, model: Model, prior: Prior) -> Posterior:
        """The posterior of a model under a prior, in the structure of before."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Posterior(NetworkPredictor, Capabilities, abc.ABC):
    """A Gaussian around a trained network.

    Args:
        model: The network, its likelihood as the curvature was computed with it, and the training data, for what must
            read them again; none for a posterior loaded without them.
        prior: p(θ), with the precision it has now.
        totals: Sums over the training data at the trained weights.
        trace: Steps of tuning, oldest first.
        noise_fixed: Whether the noise must stay as fitted, since the curvature is not in proportion to its precision.
        partial: Whether some of the data were left out on purpose.
        fitted_by: How it was fitted; ``None`` where that is not known.
        fit_seconds: Seconds the fit took, by which tuning plans its own; 0 where that is not known.
        knowledge: The scale at which it tells what it knows; ``None`` for the one it predicts at.
    """

    model: Model
    prior: Prior
    totals: Totals
    trace: tuple[Step, ...] = field(default=(), kw_only=True)
    noise_fixed: bool = field(default=False, kw_only=True)
    partial: bool = field(default=False, kw_only=True)
    fitted_by: FitRecipe | None = field(default=None, kw_only=True)
    fit_seconds: float = field(default=0.0, kw_only=True)
    knowledge: KnowledgeScale | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        given = f"{self.prior}, {self.likelihood}, {self.shown_link()}"
        if self.knowledge is not None and self.knowledge.weaker:
            own = "probabilities of the network, " if self.knowledge.certain else ""
            least = float(self.prior_precisions.min())
            given += f"{own}error bars at prior precision {self.knowledge.in_words(least)}, "
        if self.model.precision != DOUBLE:
            given += "products in single precision, "
        return f"{type(self).__name__}({given}{self.network.size} weights, {self.totals.examples} examples)"

    def recorded_network(self) -> Network:
        """The network, without which a file cannot be loaded."""
        return self.network

    def shared_by_processes(self) -> bool:
        """Whether several processes hold the posterior, each with a part of the training data."""
        return self.data is not None and self.data.shared

    def record(self, records: Records, *, training_inputs: bool = False) -> Json:
        """What a file holds of the posterior, its network and its data aside.

        Args:
            records: Makes JSON of values, and takes in their tensors.
            training_inputs: Whether training inputs are held too, where a prediction needs them.

        Raises:
            UnsupportedError: If no file holds it.
        """
        raise UnsupportedError(
            "a posterior that holds its curvature",
            f"{type(self).__name__}, whose curvature is not held but in its training data",
            "fitting it again, which takes one forward pass over the data, or structure LowRank(100) or KFAC()",
        )

    @classmethod
    def of_record(cls: type[P], record: Json, records: Records, network: Network, data: Data | None) -> P:
        """The posterior of a record, around the network it was fitted to.

        Args:
            record: What ``record`` gave.
            records: Makes values of JSON.
            network: The network.
            data: The training data; ``None`` where they are not at hand.

        Raises:
            DataError: If no posterior gives the record.
        """
        survey = records.read(Survey, record.get("survey"), "survey")
        fitted = records.read(Likelihood, record.get("fitted"), "fitted")
        words = records.read(Words, record.get("precision"), "precision")
        given = {
            Model: Model(network, survey, fitted, data, Precision.of(words, network.like.device)),
            Totals: totals_of(record.get("totals"), records),
            Prior: records.on("cpu").read(Prior, record.get("prior"), "prior"),
        }
        return records.giving(given).read(cls, record, "")

    def check_record(self) -> None:
        """Refuses parts that do not belong together: sizes that differ, parameters the network has not.

        Raises:
            DataError: Naming what differs.
            ConfigError: If the prior is not for these weights.
        """
        check_survey(self.survey, self.network, self.likelihood)
        self.prior.check_layout(self.network.uncertain)
        self.prior.diagonal(self.network.uncertain, self.network.like)
        head = () if self.knowledge is None else self.knowledge.head
        if set(head) - set(self.network.names):
            raise DataError(f"a last layer of {list(self.network.names)[-5:]}", f"{list(head)[:5]}", REPAIR)

    def with_checked_data(self: P) -> P:
        """The posterior, refused where the training data at hand are not those of its fit.

        Raises:
            DataError: If they are others.

        Cost:
            A forward pass over them.
        """
        if self.data is not None and not self.partial:
            check_same(self.training.model, self.totals)
        return self

    def _fields_record(self, records: Records) -> Json:
        """What is known of the network, the sums over the data, and the fields."""
        return {
            "survey": records.state(self.survey, "survey"),
            "fitted": records.state(self.fitted, "fitted"),
            "precision": self.model.precision.word,
            "totals": totals_record(self.totals, records),
            **records.giving({Model: None, Totals: None}).state(self),
        }

    @undisturbed()
    @working("predict")
    def outputs_each(self: P, x: InputsLike, choices: Sequence[P]) -> Sequence[Moments | WideMoments]:
        """Linearised outputs under several choices of prior and noise, which share all but the last contraction.

        Args:
            x: Inputs of n examples.
            choices: This posterior with other priors and noises, see ``with_hyperparameters``.

        Cost:
            A ``predict``, and its last contraction for every choice; or a solve for every choice, where answers are.
            Under several choices the variances that large layers of ``KFAC`` give are up to two percent too small, see
            ``ShiftedSpectra``, so that no choice has variances of weights of its own.
        """
        inputs = self._inputs(x)
        with torch.no_grad():
            return self._moments(inputs, choices)

    @cached_property
    def at_knowledge(self) -> Posterior:
        """The posterior at the scale of knowledge, which predicts with its error bars; itself where it is the same."""
        if self.knowledge is None or not self.knowledge.weaker:
            return self
        if not self.knowledge.head:
            return self.with_prior_factor(self.knowledge.factor)
        return self.with_prior_factors(self.knowledge.factor, self.knowledge.head, self.knowledge.head_factor)

    def with_prior_factor(self: P, factor: float) -> P:
        """The posterior with all prior precisions multiplied by a number."""
        prior = self.prior.with_precisions(factor * self.prior_precisions.cpu())
        return self.with_hyperparameters(prior, self.likelihood)

    def with_prior_factors(self: P, factor: float, head: Collection[str], head_factor: float) -> P:
        """The posterior with prior precisions multiplied by a number, those of some parameters by another.

        Args:
            factor: Of all others.
            head: The parameters.
            head_factor: Of theirs.

        Raises:
            UnsupportedError: If the prior cannot give them a precision of their own.
        """
        layout = self.network.uncertain
        prior = self.prior.split_off(head, layout)
        if prior is None:
            raise UnsupportedError(
                f"a prior that gives {', '.join(head)} a precision of their own", f"{self.prior}", "Isotropic(1.0)"
            )
        group, groups = prior.groups(layout)
        factors = torch.full((groups,), factor, dtype=torch.float64, device="cpu")
        for name in head:
            factors[group[layout.slices[name]]] = head_factor
        return self.with_hyperparameters(prior.with_precisions(factors * prior.precisions(layout)), self.likelihood)

    def _at_both_scales(self, x: InputsLike, asked: Asked) -> tuple[Outputs, Knowledge | None]:
        """See ``NetworkPredictor``: both from one pass, but for joint outputs and draws; the temperature is of one."""
        if self.knowledge is None:
            outputs = self._asked(x, asked)
            return outputs, None if self.temperature == 1.0 else Knowledge(self.likelihood.known_outputs(outputs))
        there = self.at_knowledge
        if asked.moments:
            inputs = self._inputs(x)
            if live(inputs):
                outputs, known = self._live_moments(inputs, [self, there])
            elif there is self:
                outputs = known = self._linearised(inputs, asked.link, joint=False, samples=asked.samples)
            else:
                outputs, known = self._moments_of_both(inputs, there, asked.link)
        else:
            outputs = self._asked(x, asked)
            known = self._known(self._inputs(x), [there])[0]
        return outputs, Knowledge(self.likelihood.known_outputs(known), self.knowledge.familiar)

    def _moments_of_both(self, inputs: Inputs, other: Any, link: Link) -> tuple[Outputs, Outputs]:
        """Linearised outputs of this posterior and of one with another prior, neither less exact for the other."""
        outputs, known = self._moments(inputs, [self, other])
        return outputs, known

    @undisturbed()
    @working("sample functions")
    def sample_functions(
        self, x: InputsLike, samples: int = 1, *, generator: torch.Generator | int | None = None
    ) -> Float[Tensor, "s n *event c"]:
        """Draws of the outputs at ``x``, jointly over its examples.

        One call draws one set of functions: put all inputs where a function is to be seen into one call. Where the
        covariance of the outputs is drawn from, the same seed at other inputs draws other functions; the draws of
        ``Sampled()``, which are those there are in random order, are the same everywhere.

        Args:
            x: Inputs of n examples.
            samples: Draws s.
            generator: Source of randomness, or the seed of one; ``None`` draws from PyTorch's global one.

        Raises:
            ConfigError: If there is no draw.

        Cost:
            Over weights, of at most as many draws as there are outputs m of ``x``: draws of the weights, and about two
            forward passes each, or a backward pass an output of the network. Else the joint covariance of the m
            outputs, and its root: m² numbers, m² more in float64 for the root, and beside them a budget of bytes for
            layer factors or rows of the Jacobian, a chunk of ``x`` at a time. Of ``Sampled()`` a product of the
            Jacobian with the draws.
        """
        source = probes.generator_of(generator)
        probes.check_draws(samples, source)
        with torch.no_grad():
            return self._functions(self._inputs(x), samples, source)

    @property
    @abc.abstractmethod
    def precision_operator(self) -> Operator:
        """The posterior precision Λ as an operator."""

    @abc.abstractmethod
    def sample(self, samples: int = 1, *, generator: torch.Generator | int | None = None) -> Float[Tensor, "s d"]:
        """Draws of the uncertain weights, one flat vector a row.

        Args:
            samples: Draws s.
            generator: Source of randomness, or the seed of one; ``None`` draws from PyTorch's global one.

        Returns:
            ``θ* + W ε`` with ``W Wᵀ = Λ⁻¹`` and standard normal ε.
        """

    def params(self, weights: Float[Tensor, " d"]) -> Params:
        """One draw as named parameters, ready for ``torch.func.functional_call``."""
        return self.network.with_weights(weights)

    @abc.abstractmethod
    def log_marginal(self) -> float | Estimate:
        """Log evidence log p(y) of the Laplace approximation at the trained weights, nats, all constants included.

        ``log p(y | θ*) + log p(θ*) + d/2 log 2π - ½ log det Λ`` (MacKay 1992; Immer et al. 2021, equation 9). An
        ``Estimate`` where the log determinant comes from probes.
        """

    @abc.abstractmethod
    def effective_dimension(self) -> float | Estimate:
        """Directions of weight space that the data determined, ``γ = d - tr(A Λ⁻¹)`` (MacKay 1992)."""

    def with_hyperparameters(self: P, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()) -> P:
        """The posterior with another prior and noise, and the same link: the curvature is reused, nothing fitted again.

        What it knows is then told at that prior, until ``lw.tune`` finds a scale of its own for it.

        Args:
            prior: The new prior.
            likelihood: The fitted likelihood, with another noise precision.
            steps: What tuning did, to be added to the trace.

        Raises:
            UnsupportedError: If the likelihood differs from the fitted one by more than a factor of its noise.
        """
        if likelihood.noise_over(self.fitted) is None:
            raise UnsupportedError(
                "the fitted likelihood, its noise precision changed by one factor for all outputs",
                f"{likelihood} for a posterior fitted with {self.fitted}",
                "fitting again with this likelihood",
            )
        if likelihood != self.fitted:
            self.check_noise_free()
        if prior.earlier is not self.prior.earlier:
            raise UnsupportedError(
                "a prior that knows of the same earlier data, whose curvature the posterior holds with its own",
                f"{prior} for a posterior fitted with {self.prior}",
                "posterior.prior.with_precisions(...), or fitting again with this prior",
            )
        return replace(self, prior=prior, likelihood=likelihood, trace=self.trace + steps, knowledge=None)

    def refitted(self: P, likelihood: Likelihood, prior: Prior | None = None) -> P:
        """The posterior with the same link under another likelihood: its curvature is computed again.

        Args:
            likelihood: The fitted likelihood, with other noise precisions.
            prior: The prior, with other precisions; ``None`` for the same.

        Raises:
            UnsupportedError: If it is not known how it was fitted, or its training data are not at hand.

        Cost:
            That of its fit.
        """
        if self.fitted_by is None:
            raise UnsupportedError(
                "a posterior made by Laplace(...).fit, to compute its curvature again with other noise precisions",
                f"a {type(self).__name__} made otherwise",
                "Laplace(...).fit, or one noise for all outputs, Gaussian(shared=True)",
            )
        _ = self.model.data  # refuses a posterior without its training data
        found = self.fitted_by.again(replace(self.model, likelihood=likelihood), prior or self.prior)
        return cast(P, replace(found, trace=self.trace, link=self.link, temperature=self.temperature))

    def with_training_data(self: P, source: Source, unpack: Unpack | None = None) -> P:
        """The posterior with training data that were given later.

        Args:
            source: The training data.
            unpack: Splits one element of them into inputs and targets.

        Raises:
            DataError: If they are not those of the fit.
        """
        data = Data(source, like=self.network.like, unpack=unpack, shared=several())
        model = replace(self.model, source=data)
        check_same(model, self.totals)
        return replace(self, model=model)

    @undisturbed()
    @working("update")
    def updated(self: P, data: Source, *, unpack: Unpack | None = None) -> P:
        """The posterior with more data: that of a fit to all of them, at the same trained weights, prior and noise.

        What is held as a curvature over the weights is added to, and old data are not read again: exactly, with
        ``KFAC`` and ``LowRank`` as a fit would have it but for what ``rank=`` leaves out, and with ``EKFAC`` the
        nearest in one eigenbasis, see ``Kronecker.plus``. ``Sampled``, ``MatrixFree``, ``Nystrom``, ``TridiagonalKFAC``
        and the view over the functions are fitted again to all data. Means of outputs stay those of the network: only
        what is not known shrinks. Where the network is to learn of the data, train on with ``as_prior().penalty``.

        Args:
            data: More data, as for ``Laplace.fit``.
            unpack: Splits one element of them into inputs and targets.

        Raises:
            DataError: If they do not fit the network or the likelihood.
            UnsupportedError: If it is not known how the posterior was fitted, or where it is fitted again its data are
                not at hand.

        Cost:
            That of a fit to the new data, or where it is fitted again to all.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(20, 2), torch.randn(20, 1)
            >>> recipe = lw.Laplace(lw.Gaussian(), structure=lw.KFAC())
            >>> more = recipe.fit(model, (x[:9], y[:9])).updated((x[9:], y[9:]))
            >>> torch.allclose(more.predict(x).variance, recipe.fit(model, (x, y)).predict(x).variance)
            True
        """
        if self.fitted_by is None:
            raise UnsupportedError(
                "a posterior made by Laplace(...).fit, to know how more data are added",
                f"a {type(self).__name__} made otherwise",
                "Laplace(...).fit to all data",
            )
        return self._updated(self.fitted_by, Data(data, like=self.network.like, unpack=unpack, shared=several()))

    def _updated(self: P, fitted_by: FitRecipe, more: Data) -> P:
        """See ``updated``; here fitted again."""
        both = replace(self.model, source=Data(Joined(self.model.data, more), like=self.network.like))
        found = cast(P, fitted_by.again(both, self.prior))
        changed = found.with_hyperparameters(self.prior, self.likelihood)
        return replace(changed, trace=self.trace, link=self.link, temperature=self.temperature)

    def functional_variance(
        self, jacobian: Float[Tensor, "n c d"] | Mapping[str, Float[Tensor, "n c *shape"]]
    ) -> Float[Tensor, "n c c"]:
        """``J Λ⁻¹ Jᵀ`` for a Jacobian of your own: of a function of the weights that is no output of the network.

        Args:
            jacobian: J, of n examples and c outputs in the d uncertain weights; or by parameter, ``[n, c, *shape]``, as
                ``torch.func.jacrev`` has it.

        Raises:
            ShapeError: If it is that of other weights.
            UnsupportedError: If the posterior holds no curvature.

        Cost:
            As ``inverse_form``; the Jacobian is written down already.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(20, 2), torch.randn(20, 1)
            >>> posterior = lw.Laplace(lw.Gaussian()).fit(model, (x, y))
            >>> sums = {"weight": torch.ones(1, 1, 1, 2), "bias": torch.zeros(1, 1, 1)}
            >>> posterior.functional_variance(sums).shape  # of the sum of both weights
            torch.Size([1, 1, 1])
        """
        layout = self.network.uncertain
        if isinstance(jacobian, Mapping):
            missing = [name for name in layout.names if name not in jacobian]
            if missing:
                raise ShapeError(
                    f"a Jacobian in {list(layout.names)[:5]}", f"none in {missing[0]!r}", "torch.func.jacrev"
                )
            jacobian = torch.cat([jacobian[name].flatten(2) for name in layout.names], 2)
        if jacobian.ndim != 3 or jacobian.shape[2] != layout.size:
            hint = "torch.func.jacrev in the uncertain weights, in the order of posterior.network.names"
            raise ShapeError(f"a Jacobian [n, c, {layout.size}]", f"{list(jacobian.shape)}", hint)
        return self.covariance_of(jacobian.to(self.network.like))

    def outputs_at(
        self, x: InputsLike, places: Int[Tensor, " p"], choices: Sequence[Any]
    ) -> Sequence[Moments | WideMoments]:
        """``outputs_each`` at some event positions, counted over all axes, which become one; others cost nothing.

        Raises:
            UnsupportedError: If the posterior has no ``separate_places``.
        """
        raise UnsupportedError(
            "a posterior that has outputs at some positions apart from the others",
            f"a {type(self).__name__}",
            "outputs_each, which has them at all positions",
        )

    def weights_fingerprint(self) -> str:
        """What tells the trained weights from others."""
        return self.network.fingerprint()

    def as_prior(self) -> Prior:
        """The posterior as the prior of what is learned next: ``N(θ*, (A + s G)⁻¹)``.

        ``prior.penalty(model)`` is what it charges while the network is trained on new data, so that it does not forget
        the old; ``Laplace(..., prior=prior, structure=...)`` then gives the posterior of all data, in the structure of
        this one (Ritter et al. 2018, arXiv:1805.07810). Tuning that changes A, the prior before any data.

        Returns:
            The prior with the mean θ* and what the data said as ``earlier``.

        Raises:
            UnsupportedError: If the posterior holds no curvature over the weights.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(20, 2), torch.randn(20, 1)
            >>> recipe = lw.Laplace(lw.Gaussian(), structure=lw.Full(view="weights"))
            >>> both = replace(recipe, prior=recipe.fit(model, (x[:9], y[:9])).as_prior()).fit(model, (x[9:], y[9:]))
            >>> torch.allclose(both.predict(x).variance, recipe.fit(model, (x, y)).predict(x).variance)
            True
        """
        raise UnsupportedError(
            "a posterior that holds its curvature, to be a prior",
            f"a {type(self).__name__}, which holds none over the weights",
            "structure KFAC(), Diagonal() or Full(view='weights')",
        )

    def check_noise_free(self) -> None:
        """Refuse, by an ``UnsupportedError``, to change the noise where the curvature would not follow."""
        if self.prior.earlier is not None:
            raise UnsupportedError(
                "data of one fit alone, to change the noise",
                f"the curvature of earlier data too, in {self.prior}",
                "tuning with noise=False, or choosing the noise before as_prior()",
            )
        if self.noise_fixed:
            raise UnsupportedError(
                "a curvature in proportion to the noise precision, to change the noise",
                "an empirical Fisher matrix, which grows with its square",
                "curvature=GGN(), tuning with noise=False, or fitting again with the other noise",
            )

    @property
    def network(self) -> Network:
        """The network at its trained weights."""
        return self.model.network

    @property
    def survey(self) -> Survey:
        """What is known of its layers."""
        return self.model.survey

    @property
    def fitted(self) -> Likelihood:
        """The likelihood with which the curvature was computed."""
        return self.model.likelihood

    @property
    def data(self) -> Data | None:
        """The training data; ``None`` where they are not at hand."""
        return self.model.source

    @property
    def unpack(self) -> Unpack | None:
        """See ``Capabilities``."""
        return None if self.data is None else self.data.unpack

    @property
    def training(self) -> Linearisation:
        """The network made linear, with the data it was trained on, the likelihood as it was fitted.

        Raises:
            UnsupportedError: If the posterior came from a file, without its data.
        """
        _ = self.model.data
        return Linearisation(self.model)

    @property
    def wide(self) -> bool:
        """Whether outputs are too many for the covariance of a position to be made unless it is asked for."""
        return False

    @property
    def moment_numbers(self) -> int:
        """Numbers that what is known of the outputs of one position takes."""
        c = self.model.event[-1]
        return c if self.wide else c**2

    @property
    def numbers_by_choice(self) -> int:
        """Numbers that ``outputs_each`` keeps for every choice beside the results: variances of the weights."""
        return self.network.size

    @property
    def noise_scale(self) -> float:
        """Noise precision now, relative to the one the curvature was computed with."""
        return self.likelihood.noise_over(self.fitted) or 1.0

    @property
    def prior_precisions(self) -> Float[Tensor, " g"]:
        """Prior precision of each group, float64."""
        return self.prior.precisions(self.network.uncertain).to(**wide_like(self.network.like))

    @property
    def prior_diagonal(self) -> Float[Tensor, " d"]:
        """Prior precision of each weight, float64."""
        return self.prior.diagonal(self.network.uncertain, wide(self.network.like))

    @property
    def scale(self) -> Float[Tensor, ""]:
        """``noise_scale`` as a tensor, float64."""
        return torch.tensor(self.noise_scale, **wide_like(self.network.like))

    @property
    def joint_evidence(self) -> LogEvidence:
        """The evidence at the trained weights without its charge for the directions the data determined."""
        nothing = torch.zeros(0, **wide_like(self.network.like))
        return self._evidence(Spectrum(nothing, nothing.long()))

    def _evidence(self, complexity: Complexity) -> LogEvidence:
        """The evidence with this charge for the directions the data determined; earlier data count as a misfit."""
        layout = self.network.uncertain
        group, groups = self.prior.groups(layout)
        weights = wide(self.network.weights)
        pull = self.prior.earlier_gradient(weights, layout)
        earlier = 0.0 if pull is None else float(self.prior.deviation(weights, layout) @ pull)
        return LogEvidence(
            complexity=complexity,
            square_norms=self.prior.square_norms(weights, layout),
            sizes=torch.bincount(group, minlength=groups).to(weights),
            nll=self.totals.nll + 0.5 * earlier,
            misfit=self.totals.misfit + earlier,
            observations=self.totals.observations if self.fitted.noise else 0.0,
        )

    def _linearised(self, inputs: Inputs, link: Link, joint: bool, samples: int) -> Outputs:
        return self._joint(inputs) if joint else self._known(inputs, [self])[0]

    @undisturbed()
    @working("module")
    def module(
        self,
        outputs: Sequence[str] | None = None,
        example: InputsLike | None = None,
        *,
        linearised: bool = True,
        samples: int = NETWORKS,
        generator: torch.Generator | int | None = 0,
    ) -> nn.Module:
        """What is predicted as a module of plain PyTorch, for any number of examples: a server needs no lapwing.

        The network and what the covariance is made from are in buffers; link, temperature and noise are those that the
        posterior has now. Checks of numbers are left out: inputs that are not finite give answers that are not.

        Args:
            outputs: Names of what is wanted. ``"mean"``, ``"std"``, ``"variance"``, ``"covariance"``, ``"probs"``,
                ``"labels"``, ``"confidence"``, ``"entropy"``, ``"uncertainty"``, ``"aleatoric"`` and ``"epistemic"``
                are the attributes of ``predict(x)`` of these names, and refused where it has none: the first four are
                moments of targets, their noise included. ``"outputs_mean"``, ``"outputs_std"``, ``"outputs_variance"``
                and ``"outputs_covariance"`` are moments of its ``latent``, without noise: of logits, of log rates, or
                of means. ``None`` for ``("mean", "std")``, of labels ``("probs", "outputs_std")``.
            example: Some inputs, by which it is recorded; ``None`` for training inputs, where these are at hand.
            linearised: Whether the network is taken as linear; ``False`` averages networks with drawn weights.
            samples: Networks that are drawn then.
            generator: Source of randomness for them, or the seed of one.

        Returns:
            A module that takes what the network takes, tensors in order, in its dtype, and returns a dict of tensors.
            It goes to another device by ``.to(device)``, and not to another dtype: some of its buffers are float64.

        Raises:
            ConfigError: If there is no example, or an output that the prediction has not.
            UnsupportedError: If the posterior holds no curvature, or its predictions cannot be recorded.

        Cost:
            Seconds, once. A call of last layers is a forward pass and a product; of other linearised networks also a
            vectorised backward pass for each output, and ``n c d`` numbers; of drawn ones ``samples`` forward passes.

        Example:
            >>> import lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
            >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
            >>> found = posterior.module()(x[:4])
            >>> torch.allclose(found["probs"], posterior.predict(x[:4]).probs, atol=1e-5)
            True
        """
        names = quantities_asked(outputs, self.likelihood.labels)
        inputs = self._inputs(self._first_inputs() if example is None else example)
        if linearised:
            self.check_differentiable(inputs)
            _ = self.inverse_form
            knows = "epistemic" in names
            return predictive_module(lambda given: self._predicted(given, knows), inputs, names)
        source = probes.generator_of(generator)
        weights = self.sample(samples, generator=source)
        return predictive_module(lambda given: self._predicted_by(given, weights), inputs, names)

    def half(self) -> NoReturn:
        """Refused: variances are small differences of large numbers, which half precision has not the digits for.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "a posterior in float32 or float64, whose variances are small differences of large numbers",
            "half(), in which three digits are left of each",
            "posterior.to(device) for another device, or fitting model.half(), whose curvature is kept in float64",
        )

    def _first_inputs(self) -> Inputs:
        """Some training inputs."""
        if self.data is None:
            raise ConfigError("example=, some inputs by which a module is recorded", "None", "module(example=x[:2])")
        return self.data.first()

    def _predicted(self, inputs: Inputs, knows: bool) -> Predictive:
        """The prediction by plain PyTorch; with what is known, where that is asked for."""
        there = self.at_knowledge if knows else self
        choices = [self] if there is self else [self, there]
        moments = self._plain_moments(inputs, choices)
        prediction = self.likelihood.predictive(moments[0], self.link, temperature=self.temperature)
        if not knows or (self.knowledge is None and self.temperature == 1.0):
            return prediction
        return replace(prediction, knowledge=Knowledge(self.likelihood.known_outputs(moments[-1])))

    def _predicted_by(self, inputs: Inputs, weights: Float[Tensor, "s d"]) -> Predictive:
        """The same of networks with these weights."""
        return self.likelihood.predictive(
            Draws(drawn_outputs(self.model, inputs, weights)), self.link, temperature=self.temperature
        )

    def _known(self, inputs: Inputs, choices: Sequence[Any]) -> Sequence[Moments | WideMoments]:
        """Linearised outputs under each choice, with their graph where ``inputs`` ask for their gradient."""
        return self._live_moments(inputs, choices) if live(inputs) else self._moments(inputs, choices)

    def _live_moments(self, inputs: Inputs, choices: Sequence[Any]) -> list[Moments]:
        """Linearised outputs with their graph to the inputs, under each choice."""
        self.check_differentiable(inputs)
        return self._plain_moments(inputs, choices)

    def _plain_moments(self, inputs: Inputs, choices: Sequence[Any]) -> list[Moments]:
        """The same by plain PyTorch, without checks of numbers."""
        model = self.model
        if model.survey.head and self.network.index is None:
            features = live_features(model, inputs)
            mean = features.mean
            needed = mean.numel() * mean.shape[-1] * mean.itemsize
            check_bytes("covariances", needed, JOINT, f"{mean.shape[-1]:,} outputs a position, which need", FEWER)
            blocks = [choice.head_form(features.inputs) for choice in choices]
        else:
            outputs = live_rows(model, inputs)
            mean = outputs.mean
            rows = outputs.rows.flatten(0, 1)
            blocks = [choice.covariance_of(rows) for choice in choices]
        return [Moments(mean, block.to(mean).view(*mean.shape, mean.shape[-1])) for block in blocks]

    def _live_joint_moments(self, inputs: Inputs) -> JointMoments:
        """The same of all inputs together."""
        self.check_differentiable(inputs)
        outputs = live_rows(self.model, inputs)
        mean = outputs.mean
        (covariance,) = self.covariance_of(outputs.rows.flatten(0, 2)[None])
        return JointMoments(mean, covariance.to(mean).view(*mean.shape, *mean.shape))

    def check_differentiable(self, inputs: Inputs) -> None:
        """Refuse, by an ``UnsupportedError``, to differentiate what is predicted there, where it cannot be."""

    def covariance_of(self, rows: Float[Tensor, "m k d"]) -> Float[Tensor, "m k k"]:
        """``J Λ⁻¹ Jᵀ`` of m blocks of rows of J, differentiable in them."""
        return self.inverse_form(rows)

    @cached_property
    def inverse_form(self) -> InverseForm:
        """``J Λ⁻¹ Jᵀ`` of any rows of J, as a module of plain PyTorch.

        Raises:
            UnsupportedError: If the posterior holds no curvature.
        """
        raise UnsupportedError(
            "a posterior that holds its curvature",
            f"{type(self).__name__}, whose curvature is not held but in its training data",
            "fitting again with structure LowRank(100), KFAC() or Full()",
        )

    @cached_property
    def head_form(self) -> Callable[[Float[Tensor, "m i"]], Float[Tensor, "m c c"]]:
        """The same of a layer that makes the outputs, from its inputs alone."""
        return self.inverse_form.of_outer_products(head_places(self.model))

    def _networks(self, inputs: Inputs, samples: int, generator: torch.Generator | None) -> Draws:
        drawn = self.sample(samples, generator=generator)
        networks = track(drawn, "networks", unit="networks")
        each = [self.likelihood.canonical(self.network(inputs, self.params(weights))) for weights in networks]
        return Draws(torch.stack(each))

    def _functions(
        self, inputs: Inputs, samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "s n *event c"]:
        """Draws of the linearised outputs, jointly over the examples."""
        return self._joint(inputs).sample(samples, generator=generator)

    def _more_than_outputs(self, samples: int, inputs: Inputs) -> bool:
        """Whether there are more draws than outputs of all inputs, so that the rows of J are fewer than the draws."""
        return samples > count(inputs) * self.model.width

    def _moved(self, inputs: Inputs, deviations: Float[Tensor, "d s"]) -> Float[Tensor, "s n *event c"]:
        """The linearised outputs of weights that deviate from the trained ones: ``f + J ζ``."""
        mean, moved = self.pushed(inputs, deviations)
        return mean + moved.movedim(-1, 0)

    def _joint(self, inputs: Inputs) -> JointMoments:
        size = count(inputs) * self.model.width
        needed = size**2 * self.network.like.itemsize
        hint = "fewer inputs at a time, or Sampled(), whose sample_functions and link='mc' keep the draws alone"
        check_bytes("a joint covariance", needed, JOINT, f"{size:,} outputs, which need", hint)
        return self._live_joint_moments(inputs) if live(inputs) else self._joint_moments(inputs)

    @abc.abstractmethod
    def _moments(self, inputs: Inputs, choices: Sequence[Any]) -> Sequence[Moments | WideMoments]:
        """Linearised outputs under each choice, which are posteriors of the same kind."""

    @abc.abstractmethod
    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        """Linearised outputs of all inputs together."""

    def pushed(
        self, inputs: Inputs, draws: Float[Tensor, "d k"]
    ) -> tuple[Float[Tensor, "n *event c"], Float[Tensor, "n *event c k"]]:
        """Canonical outputs f, and by how much each deviation ζ of the weights, one a column, moves them: ``J ζ``.

        Cost:
            A forward pass and a product with the Jacobian, which takes about two forward passes a column, or a backward
            pass an output. Beside the result, memory of a chunk of inputs, about 128 MiB.
        """
        model = self.model
        if live(inputs):
            outputs = live_rows(model, inputs)
            moved = outputs.rows @ draws.to(outputs.rows)
            return outputs.mean, moved.view(*outputs.mean.shape, -1)
        columns = draws.shape[1]
        backward = columns >= model.width  # a backward pass an output, rather than two forward passes a column
        together = model.chunk(model.width if backward else min(columns, COLUMNS))
        pieces = math.ceil(count(inputs) / together)
        means = list[Tensor]()
        moved = list[Tensor]()
        for _, part in track(chunks(inputs, together), "products with the Jacobian", pieces, unit="pieces"):
            linearised = Linearisation(model).on(part)
            means.append(linearised.outputs)
            moved.append(linearised.push(draws).movedim(0, -1))
        return torch.cat(means), torch.cat(moved)
