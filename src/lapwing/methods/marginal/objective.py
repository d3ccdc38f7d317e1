"""The marginal likelihood as the loss of an ordinary training loop."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs, count, place
from lapwing.ground.data.sources import Source, Unpack
from lapwing.ground.device import default_device_aside
from lapwing.ground.errors import ConfigError, DataError, check_kind, finite_evidence
from lapwing.jacobian.layers.autodiff import right_way
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.network.network import Network, like_of
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.serving import call
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.jacobian.survey import find_layers, probe
from lapwing.likelihoods import Likelihood
from lapwing.methods.laplace import Laplace
from lapwing.methods.marginal.epochs import Epoch
from lapwing.methods.marginal.hyper import ByEvidence, LearnedHyperparameters, Updates
from lapwing.methods.marginal.live_batch import LiveBatch, check_trainable, live
from lapwing.methods.marginal.log_det import EXACT, LogDeterminant, MiniBatch
from lapwing.posteriors import Posterior
from lapwing.priors import Isotropic, Prior


@final
class MarginalLikelihood:
    """The negative log marginal likelihood of a network, for a loop that trains weights and hyper-parameters together.

        -log p(y) = -log p(y | θ) - log p(θ) - d/2 log 2π + ½ log det Λ        (Brack 2023, equation 3.5)

    with the likelihood and the curvature of a mini-batch scaled by N/B. It is a sum over the data, in nats: the scale
    of the log-determinant leaves no freedom to average. Training has three parts:

    - *warm-up*: the scaled negative log likelihood of the module as it is called: dropout drops, batch norm collects
      its statistics;
    - *settling*: likelihood and prior, while the hyper-parameters are learned already. A network that does not fit yet
      has large residuals, which pass for noise, and then the log-determinant would hold it to what is simple;
    - the whole of the above, to the end.

    After the warm-up the module is read in eval mode, its buffers frozen, because Λ is that of the network that will be
    served: dropout has no effect, and its part is played by the prior.

    Args:
        model: The network, trained in place; parameters that require no gradient are fixed and no part of d.
        likelihood: p(y | f), with the noise to start from.
        prior: p(θ), with the precision to start from.
        data_size: N, examples in the training data.
        log_det: How the log-determinant of the loss is computed: ``GramDeterminant()``, ``Bound()``,
            ``StochasticLanczos()``, or ``None`` for no such term: then only the hyper-parameters hear of the evidence.
        updates: Who chooses the hyper-parameters: ``ByEvidence()``, from all data after an epoch, or ``ByGradient()``.
        warm_up: Epochs of training on the likelihood alone.
        settle: Epochs after those in which the weights do not hear of the log-determinant.
        noise: Whether to learn the noise of a Gaussian likelihood: that of each output where it was given as a tuple,
            and is not shared; else one factor for all.
        output: Which part of what the network returns is the output that the likelihood speaks of: a key, an index or a
            function of it. ``None`` where it returns one tensor, or something with ``logits``.
        unpack: Splits one element of a loader into inputs and targets.
        generator: Source of randomness of the log-determinant.

    Raises:
        ConfigError: If an option makes no sense.

    Example:
        >>> import lapwing as lw
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> loader = DataLoader(TensorDataset(x, torch.sin(5 * x)), batch_size=20)
        >>> model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> marginal = MarginalLikelihood(model, lw.Gaussian(), data_size=40, warm_up=1, settle=1)
        >>> optimiser = torch.optim.Adam([*model.parameters(), *marginal.hyperparameters()])
        >>> for epoch in range(3):
        ...     for inputs, targets in loader:
        ...         optimiser.zero_grad()
        ...         marginal.loss(inputs, targets).backward()
        ...         _ = optimiser.step()
        ...     _ = marginal.end_of_epoch(loader)
        >>> posterior = lw.Laplace(marginal.likelihood, prior=marginal.prior).fit(model, loader)
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        prior: Prior | None = None,
        *,
        data_size: int,
        log_det: LogDeterminant | None = EXACT,
        updates: Updates | None = None,
        warm_up: int = 10,
        settle: int = 50,
        noise: bool = True,
        output: Output = None,
        unpack: Unpack | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        prior = Isotropic() if prior is None else prior
        updates = ByEvidence() if updates is None else updates
        Laplace(likelihood, prior=prior)  # has the same to say of them
        check_kind("log_det=", log_det, (LogDeterminant, type(None)), "GramDeterminant()")
        check_kind("updates=", updates, (Updates,), "ByEvidence()")
        if data_size < 1 or warm_up < 0 or settle < 0:
            raise ConfigError(
                "data_size of at least one example, and warm_up and settle of no less than 0 epochs",
                f"data_size={data_size}, warm_up={warm_up}, settle={settle}",
                "data_size=len(dataset)",
            )
        if log_det is None and updates.by_gradient:
            raise ConfigError(
                "a log-determinant to learn the precisions from",
                "log_det=None, updates=ByGradient()",
                "log_det=GramDeterminant()",
            )
        self.model = model
        self.data_size = data_size
        self.log_det = log_det
        self.updates = updates
        self.warm_up = warm_up
        self.settle = settle
        self.generator = generator
        self.output = output
        self._unpack = unpack
        self.history: list[Epoch] = []
        self._module = unwrapped(model, "MarginalLikelihood(model, likelihood, data_size=n)")
        self._terms: list[tuple[float, float, float]] = []
        self._survey: Survey | None = None
        check_trainable(self._module)
        network = Network.of(self._module, self.output)
        prior.check_centred("training by the evidence")
        prior.check_names([name for name, _ in self._module.named_parameters()])
        self._hyper = LearnedHyperparameters(prior, likelihood, network.uncertain, network.like, noise=noise)
        for value in self._hyper.parameters():
            value.requires_grad_(value.requires_grad and updates.by_gradient)

    @property
    def _constant(self) -> float:
        """``d/2 log 2π``."""
        return 0.5 * self._hyper.layout.size * math.log(2 * math.pi)

    @property
    def epoch(self) -> int:
        """Epochs that have ended."""
        return len(self.history)

    @property
    def warming_up(self) -> bool:
        """Whether the loss is the likelihood's alone."""
        return self.epoch < self.warm_up

    @property
    def settling(self) -> bool:
        """Whether the weights do not hear of the log-determinant yet."""
        return self.epoch < self.warm_up + self.settle

    @property
    def prior(self) -> Prior:
        """The prior with the precisions learned so far."""
        return self._hyper.prior

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with the noise learned so far."""
        return self._hyper.likelihood

    def hyperparameters(self) -> list[nn.Parameter]:
        """Log prior precisions ``[g]``, and log noise precisions relative to the first ones, for an optimiser.

        One noise for all outputs, or ``[c]`` where the likelihood was given one for each.

        With ``ByEvidence`` they require no gradient, and an optimiser leaves them alone.
        """
        return list(self._hyper.parameters())

    @default_device_aside()
    def loss(self, x: Inputs, y: Tensor) -> Float[Tensor, ""]:
        """The loss of a mini-batch, nats, float64; its terms are kept for ``history``.

        Args:
            x: Inputs of B examples.
            y: Their targets, as the loader gives them.

        Raises:
            DataError: If the batch is larger than the data, or inputs, outputs or targets are not finite.
            NumericalError: If the loss is not finite.
            ShapeError: If outputs or targets do not fit the likelihood.
            UnsupportedError: If the network is random in eval mode, or its outputs depend on other examples.

        Cost:
            A forward pass and the log-determinant's; a backward pass through both when it is differentiated.
        """
        like = like_of(self._module)
        assert like is not None  # a network without weights is refused where this is made
        inputs = place(x, like)
        labels = y.to(like.device)
        examples = count(inputs)
        if examples > self.data_size:
            expected = f"a batch of at most data_size={self.data_size} examples"
            raise DataError(expected, f"{examples}", "data_size=len(dataset)")
        share = self.data_size / examples
        norm = None
        ratio = None
        with torch.enable_grad():
            if self.warming_up:
                outputs = self._hyper.reference.canonical(call(self.model, {}, inputs, output=self.output))
                targets = self._hyper.reference.canonical_targets(outputs.detach(), labels)
                self._hyper.reference.check(outputs.detach(), targets)
                nll = share * self._hyper.nll(outputs, targets)
                loss = nll
            else:
                network = live(self._module, output=self.output)
                batch = LiveBatch(network, self._hyper.reference, inputs, labels)
                nll = share * self._hyper.nll(batch.outputs, batch.targets)
                norm = self._hyper.square_norm(network.layout.flatten(network.params))
                ratio = self._ratio(batch)
                loss = nll + 0.5 * norm
                if ratio is not None:
                    loss = loss + 0.5 * ratio
        finite_evidence(loss.item(), "negative log marginal likelihood of a batch")
        log_det_prior = self._hyper.log_det_prior().item()
        log_prior = math.nan if norm is None else 0.5 * (log_det_prior - norm.item()) - self._constant
        half_log_det = math.nan if ratio is None else 0.5 * (ratio.item() + log_det_prior)
        self._terms.append((nll.item(), log_prior, half_log_det))
        return loss

    @default_device_aside()
    def end_of_epoch(self, data: Source | None = None) -> Epoch:
        """Say that all batches of an epoch have been seen: its record is made, and the hyper-parameters updated.

        The first update is at the end of the warm-up.

        Args:
            data: All training data, for ``ByEvidence``: a loader or a pair of tensors.

        Returns:
            The record, also in ``history``.

        Raises:
            ConfigError: If there was no loss since the last epoch, or the updates need data and there are none.
            DataError: If there are not ``data_size`` examples in the data.
            NumericalError: If a hyper-parameter is not finite.
        """
        if not self._terms:
            raise ConfigError(
                "at least one loss in an epoch", "none since the last", "marginal.loss(x, y) for each batch"
            )
        warm = self.warming_up
        if self.epoch + 1 >= self.warm_up:
            fit = None if data is None else partial(self._fit, data=data)
            self.updates.end_of_epoch(self.epoch + 1 - self.warm_up, self._hyper, fit)
        precisions = tuple(self.prior.precisions(self._hyper.layout).tolist())
        noise = self.likelihood.noise_precision
        nll = fmean(terms[0] for terms in self._terms)
        log_prior = fmean(terms[1] for terms in self._terms)
        half_log_det = fmean(terms[2] for terms in self._terms)
        record = Epoch(
            nll=nll,
            log_prior=log_prior,
            half_log_det=half_log_det,
            total=nll - log_prior + half_log_det - self._constant,
            prior_precision=precisions,
            noise_precision=noise,
            warm_up=warm,
        )
        self.history.append(record)
        self._terms.clear()
        return record

    def _fit(self, recipe: Laplace, data: Source) -> Posterior:
        """A posterior of the network as it is, of ``data_size`` examples."""
        posterior = recipe.fit(self.model, data, output=self.output, unpack=self._unpack)
        examples = posterior.totals.examples
        if examples != self.data_size and not posterior.partial:
            raise DataError(
                f"data of data_size={self.data_size} examples, by which the likelihood is scaled",
                f"{examples}",
                f"MarginalLikelihood(..., data_size={examples}), or all training data in end_of_epoch",
            )
        return posterior

    def _ratio(self, batch: LiveBatch) -> Float[Tensor, ""] | None:
        """``log det Λ / det A``; ``None`` where nobody asks for it."""
        survey = self._surveyed(batch.inputs)
        if self.log_det is None or (self.settling and not self.updates.by_gradient):
            return None
        network = live(self._module, pull=0.0, output=self.output) if self.settling else batch.network
        batch = replace(batch, network=network, way=survey.way)
        return self.log_det.ratio(MiniBatch(batch, self._hyper, survey, self.data_size), self.generator)

    def _surveyed(self, inputs: Inputs) -> Survey:
        """What is known of the layers, from the first batch after the warm-up."""
        if self._survey is None:
            check_statistics(self._module)
            network = Network.of(self._module, self.output)
            survey = find_layers(network, inputs)
            self._survey = replace(survey, way=right_way(network, network.names, probe(inputs, 2)))
        return self._survey


def check_statistics(module: nn.Module) -> None:
    """Refuses batch norms whose running statistics have seen no data: in eval mode they normalise nothing.

    Raises:
        ConfigError: Naming one.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            tracked = part.num_batches_tracked
            if tracked is not None and int(tracked) == 0:
                raise ConfigError(
                    "batch norms whose running statistics have seen data: they are frozen after the warm-up",
                    f"{name!r} as it was made",
                    "warm_up= of some epochs with model.train() before them, or GroupNorm",
                )
