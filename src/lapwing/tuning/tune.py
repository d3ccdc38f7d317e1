"""Choosing the hyper-parameters of a posterior, by the method given or the one that suits it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Source
from lapwing.ground.distributed import check_alike
from lapwing.ground.errors import ConfigError, DataWarning, check_kind, warn
from lapwing.ground.files.records import checksum
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian
from lapwing.posteriors import Posterior
from lapwing.tuning.elbo import ELBO
from lapwing.tuning.gradient import EvidenceGradient
from lapwing.tuning.held_out.knowledge import LIMITS, factor_to_start, first_of, looks, with_knowledge
from lapwing.tuning.held_out.mixup import Mixup, mixable
from lapwing.tuning.held_out.validation import Validation
from lapwing.tuning.method import Method
from lapwing.tuning.noise import TunesNoise, tuned_by_output
from lapwing.tuning.training_variance import mended_by_training_variance, warn_of_lost_noise

logger = logging.getLogger(__name__)

T = TypeVar("T")

OWN = ("data", "unpack", "checkpoint", "unlabelled", "views")
"""Fields of a method that each process may have its own of."""


@runtime_checkable
class SelfTuned(Protocol):
    """A posterior of another kind, which knows how its hyper-parameters are chosen."""

    def tuned(self, method: Any, progress: bool | None) -> Any:
        """The posterior with other hyper-parameters; ``None`` for its own way to choose them."""
        ...


@undisturbed()
def tune(
    posterior: T,
    method: Method | Source | None = None,
    *,
    unlabelled: Source | Inputs | None = None,
    progress: bool | None = None,
) -> T:
    """A posterior with a better prior precision, and with it a better link or noise precision.

    Nothing is fitted again: the curvature is reused, and its one eigendecomposition where there is one. The exception
    is a Gaussian likelihood of several outputs, each with a noise of its own: their ratios change the curvature, which
    is computed again, two to five times. ``Gaussian(shared=True)`` has one noise for all, and its curvature is reused.

    Args:
        posterior: The posterior.
        method: Held-out data, a loader or a pair of tensors, for ``Validation(data)``; or ``Mixup()``, ``ELBO()``,
            ``EM()``, ``EvidenceGradient()``, ``MacKay()``, ``Validation(data, ...)``. Without any, classifiers are
            tuned by ``Mixup()`` where their inputs are numbers or tokens, which can be mixed, and there are two
            examples or more; others by ``ELBO()``, but where the evidence is exact, for more outputs than can be pulled
            back and for real targets, by ``EvidenceGradient()``: the noise must be that of the network, whose outputs
            predictions have for their mean, and the linear model, trained anew, fits the data better than it.
            ``KFAC`` and ``Diagonal`` count more directions than the data determined: ``Diagonal`` has the noise of the
            residuals, ``KFAC`` that of the residuals over what fitting left to them. ``LowRank`` and ``Nystrom`` leave
            directions out, and have a prior so strong that outputs at training inputs vary no more than their noise, on
            average, as they do under the whole curvature. ``KFAC``, ``LowRank`` and ``Nystrom`` need the training data
            for it. Of a Gaussian process ``gp.Evidence()``, ``gp.Subset()``, ``gp.Pathwise()`` or ``gp.Centroids()``;
            without any, the first up to 2,000 observations, else the second.
        unlabelled: Inputs the network was not trained on, where there are no labels of any: ``Mixup(unlabelled=...)``.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Returns:
        The posterior at the chosen values; its ``trace`` has grown by the steps taken.

    Warns:
        DataWarning: If the likelihood has a spread that no method chooses, left at its default: that of
            ``NegativeBinomial`` and ``StudentT``; or if the default method would look at the training data, and there
            are none.
        ConvergenceWarning: If held-out data took the variance that ``LowRank`` or ``Nystrom`` leave the prior for the
            noise of real targets, of which hardly any is left.

    Raises:
        ConfigError: If there is no such method, or unlabelled inputs beside one, or the best values are not positive
            and finite.
        DataError: If processes that share the data differ in the method.
        MismatchError: If the network was written to since the fit.
        UnsupportedError: If the method needs what the posterior has not.

    Cost:
        That of the method; ``Mixup()``, ``ELBO()`` and ``EM()`` read the training data, more than once. ``Mixup()`` and
        ``Validation(data)`` take three times what the fit took, or ten seconds, or what 64 examples take: see
        ``seconds=`` there.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> x = torch.randn(50, 2)
        >>> y = x.sum(1, keepdim=True) + 0.5 * torch.randn(50, 1)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(torch.nn.Linear(2, 1), (x, y))
        >>> tuned = lw.tune(posterior)
        >>> tuned.trace[-1].log_marginal >= tuned.trace[0].log_marginal
        True
    """
    if unlabelled is not None:
        if method is not None:
            hint = "Mixup(unlabelled=inputs, ...) for other options of it, or held-out data alone, which tell more"
            raise ConfigError("a method or unlabelled inputs", "both", hint)
        method = Mixup(unlabelled=unlabelled)
    with working("tune", progress):
        return _tuned(posterior, method, progress)


def _tuned(posterior: T, method: Method | Source | None, progress: bool | None) -> T:
    """The posterior with the values that a method chose; see ``tune``."""
    if isinstance(posterior, SelfTuned):
        return posterior.tuned(method, progress)
    check_kind("the posterior", posterior, (Posterior,), "tune(recipe.fit(model, data))")
    fitted = cast(Posterior, posterior)
    by_default = method is None
    if method is None:
        method = default(fitted)
    elif isinstance(method, Iterable) and not isinstance(method, str):
        method = Validation(method)
    hint = "a loader of held-out data, Mixup(), ELBO(), EM(), EvidenceGradient() or MacKay()"
    check_kind("the method", method, (Method,), hint)
    fitted.network.check_unchanged()
    warn_of_default_spread(fitted)
    if fitted.data is not None and fitted.data.shared:
        check_alike(True, checksum(method_options(method)), "method to tune by", "the same choices in each")
    if isinstance(method, TunesNoise):
        tuned = tuned_by_output(fitted, method, progress)
    else:
        tuned = cast(Any, method).tune(fitted, progress)
    if by_default and real_targets(fitted) and fitted.prior.earlier is None:
        tuned = mended_by_training_variance(tuned, progress)
    elif isinstance(method, Validation):
        warn_of_lost_noise(tuned)
    return cast(Any, _told(fitted, tuned, progress))


def warn_of_default_spread(posterior: Posterior) -> None:
    """Warn where the likelihood has a spread that tuning does not choose, and nobody else chose."""
    if posterior.likelihood.spread_is_default:
        warn(
            f"tuning does not choose how far targets spread, and {posterior.likelihood!r} has the default. Try a fit "
            "with lw.baselines.PlainNetwork(model, likelihood).calibrated(held_out).likelihood",
            DataWarning,
        )


def _told(before: Posterior, tuned: Posterior, progress: bool | None) -> Posterior:
    """The tuned posterior with a scale of knowledge, by training inputs unless the method had others."""
    if tuned.knowledge is not None or tuned.data is None or not looks(tuned):
        return tuned
    batches = first_of(tuned.data, LIMITS.examples(tuned))
    factor = factor_to_start(before, tuned)
    return with_knowledge(tuned, batches, held_out=False, factor=factor, progress=progress)


def method_options(method: object) -> object:
    """What a method is, its data aside: its name and its options."""
    if not is_dataclass(method):
        return method
    options = [getattr(method, each.name) for each in fields(method) if each.name not in OWN]
    return type(method).__name__, options


def default(posterior: Posterior) -> Method:
    """The method for those who have no opinion."""
    if posterior.likelihood.labels:
        if posterior.exact and posterior.predicts_by_draws:
            logger.info("predictions by draws would be made for each prior tried: tuned by the evidence, without any")
            return EvidenceGradient()
        alone = posterior.totals.examples == 1  # such as one graph, whose nodes have the labels
        if not alone and (posterior.data is None or mixable(posterior)):
            return Mixup()
    if posterior.prior.earlier is not None:  # the noise behind it was chosen
        return EvidenceGradient(noise=False)
    if not (posterior.exact and (real_targets(posterior) or posterior.prior.mean is not None)):
        return ELBO()
    return EvidenceGradient(noise="residuals" if posterior.leaves_out_correlations else True)


def real_targets(posterior: Posterior) -> bool:
    """Whether targets are real numbers with Gaussian noise, of one size or of a size that depends on the input."""
    return isinstance(posterior.fitted, Gaussian | HeteroscedasticGaussian)
