"""A loop that trains on the marginal likelihood, and what it learned."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import take
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.distributed import check_alone
from lapwing.ground.errors import check_optimiser
from lapwing.ground.progress import Bar, working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.unwrapping import opened
from lapwing.likelihoods import Likelihood
from lapwing.methods.marginal.epochs import Epoch, epochs_of_phases, warn_of
from lapwing.methods.marginal.hyper import ByEvidence, Updates
from lapwing.methods.marginal.log_det import EXACT, LogDeterminant
from lapwing.methods.marginal.objective import MarginalLikelihood
from lapwing.priors import Prior

logger = logging.getLogger(__name__)

UPDATES = 200
"""Updates by evidence, about, where nobody says how many: in small data one costs more than a step."""


@final
@dataclass(frozen=True)
class MarginalTraining:
    """What marginal-likelihood training learned besides the weights, which are in the module.

    Args:
        prior: The prior, for ``Laplace(result.likelihood, prior=result.prior).fit(model, data)``.
        likelihood: The likelihood, with its noise.
        history: One record an epoch.
        interrupted: Whether a keyboard interrupt ended it: weights and hyper-parameters are those it had reached.
    """

    prior: Prior
    likelihood: Likelihood
    history: tuple[Epoch, ...] = field(repr=False)
    interrupted: bool


def train_marginal(
    model: nn.Module,
    data: Source,
    likelihood: Likelihood,
    *,
    prior: Prior | None = None,
    log_det: LogDeterminant | None = EXACT,
    updates: Updates | None = None,
    epochs: int | None = None,
    warm_up: int | None = None,
    settle: int | None = None,
    lr: float = 1e-2,
    hyper_lr: float = 1e-2,
    optimiser: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None,
    noise: bool = True,
    output: Output = None,
    unpack: Unpack | None = None,
    progress: bool | None = None,
    generator: torch.Generator | None = None,
) -> MarginalTraining:
    """Train weights, prior precision and noise together on the Laplace approximation of the marginal likelihood.

    The module is trained in place and left in its own mode. Adam, its learning rates falling to zero along a cosine
    after the warm-up. For another loop use ``MarginalLikelihood``, which this one uses.

    Args:
        model: The network.
        data: The training data: a loader, which decides about batches and their order, or a pair of tensors.
        likelihood: p(y | f), with the noise to start from.
        prior: p(θ), with the precision to start from; ``Isotropic()`` if ``None``.
        log_det: How the log-determinant of the loss is computed; see ``MarginalLikelihood``.
        updates: Who chooses the hyper-parameters; see ``MarginalLikelihood``. ``None`` is ``ByEvidence``, after every
            epoch, or at about 200 epochs of many.
        epochs: Passes over the data, all three parts together. They must suffice to fit the data; ``None`` takes as
            many as make 2000 steps of the optimiser, and at least 50.
        warm_up: Epochs of training on the likelihood alone, at a constant learning rate; ``None`` takes a twentieth.
        settle: Epochs after those without the log-determinant in the loss of the weights; ``None`` takes half of what
            is left.
        lr: Learning rate of the weights; that of a deep network is smaller, say 1e-3.
        hyper_lr: Learning rate of the log precisions, for ``ByGradient``.
        optimiser: Makes the optimiser of the weights; ``None`` is Adam with ``lr``.
        noise: Whether to learn the noise of a Gaussian likelihood, that of each output unless they share one.
        output: Which part of what the network returns is the output that the likelihood speaks of: a key, an index or a
            function of it. ``None`` where it returns one tensor, or something with ``logits``.
        unpack: Splits one element of the data into inputs and targets.
        progress: Whether to show a progress bar, with the likelihood's part until the log-determinant is in the loss;
            ``None`` for after two seconds, in a terminal or notebook.
        generator: Source of randomness of the log-determinant.

    Returns:
        Prior, likelihood and history.

    Raises:
        ConfigError: If an option makes no sense.
        DataError: If the data are empty or not finite, or do not fit the likelihood.
        UnsupportedError: If the network is random in eval mode, or its outputs depend on other examples.
        TooLargeError: If the rows of a batch, one for each output of each example, are too many for ``log_det``.

    Warns:
        ConvergenceWarning: If the fit was still improving where the log-determinant came in, or a precision ended at a
            bound of its range.

    Cost:
        A step costs the log-determinant's rows beside its forward and backward pass; an epoch with ``ByEvidence`` a
        Laplace fit.

    Example:
        >>> import lapwing as lw
        >>> x = torch.linspace(-1, 1, 30)[:, None]
        >>> model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> result = train_marginal(model, (x, x.sin()), lw.Gaussian(), epochs=5)
        >>> posterior = lw.Laplace(result.likelihood, prior=result.prior).fit(model, (x, x.sin()))
    """
    if optimiser is not None:
        check_optimiser(optimiser, "optimiser=lambda parameters: torch.optim.SGD(parameters, lr=1e-2)")
    module, read = opened(model, data, "train_marginal(model, data, likelihood)", unpack=unpack)
    check_alone(read.shared, "training by the marginal likelihood", "Laplace(...).fit after the training")
    steps = sum(1 for _ in read)
    epochs, warm_up, settle = epochs_of_phases(epochs, warm_up, settle, steps=steps, log_det=log_det is not None)
    with undisturbed(), torch.enable_grad(), working("training", progress):
        marginal = MarginalLikelihood(
            model,
            with_own_noises(likelihood, Network.of(module, output), read),
            prior,
            data_size=read.examples,
            log_det=log_det,
            updates=ByEvidence(every=max(1, epochs // UPDATES)) if updates is None else updates,
            warm_up=warm_up,
            settle=settle,
            noise=noise,
            output=output,
            unpack=unpack,
            generator=generator,
        )
        weights = [value for value in model.parameters() if value.requires_grad]
        own = torch.optim.Adam(weights, lr) if optimiser is None else optimiser(weights)
        optimisers = (own, torch.optim.Adam(marginal.hyperparameters(), hyper_lr))
        modes = [(part, part.training) for part in model.modules()]
        try:
            model.train()
            interrupted = _run(marginal, read, optimisers, epochs, progress)
        finally:
            for part, training in modes:
                part.training = training
    if not interrupted:
        warn_of(marginal.history, read.examples)
    return MarginalTraining(marginal.prior, marginal.likelihood, tuple(marginal.history), interrupted)


def with_own_noises(likelihood: Likelihood, network: Network, data: Data) -> Likelihood:
    """The likelihood with a noise precision for each of several outputs, where each is chosen by itself.

    Cost:
        A forward pass of one example, where there is one noise.
    """
    if not isinstance(likelihood.noise_precision, float):
        return likelihood
    outputs = likelihood.canonical(network(take(data.first(), slice(0, 1))))
    noises = likelihood.own_noises(outputs.shape[-1])
    return likelihood if noises is None else likelihood.with_own_noises(noises)


def _run(
    marginal: MarginalLikelihood,
    data: Data,
    optimisers: tuple[torch.optim.Optimizer, ...],
    epochs: int,
    progress: bool | None,
) -> bool:
    """All epochs; whether they were interrupted."""
    after = epochs - marginal.warm_up
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, after) for each in optimisers]
    try:
        with Bar("training", epochs, unit="epochs", alike=False, progress=progress) as bar:
            for epoch in range(epochs):
                for batch in data:
                    for each in optimisers:
                        each.zero_grad()
                    marginal.loss(batch.inputs, batch.targets).backward()
                    for each in optimisers:
                        each.step()
                record = marginal.end_of_epoch(data.source)
                if epoch >= marginal.warm_up:
                    for schedule in schedules:
                        schedule.step()
                loss = f"nll {record.nll:.4g}" if math.isnan(record.total) else f"total {record.total:.4g}"
                bar.update(said=f"{loss}, prior precision {record.prior_precision[0]:.3g}")
    except KeyboardInterrupt:
        logger.warning("interrupted after %d of %d epochs: what was learned is kept", marginal.epoch, epochs)
        return True
    return False
