"""What every way to choose hyper-parameters answers, and how they are called."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lapwing.errors import check_kind
from lapwing.posteriors import Posterior
from lapwing.tuning.choices import P
from lapwing.tuning.gradient import EvidenceGradient


@runtime_checkable
class Method(Protocol):
    """A way to choose hyper-parameters."""

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior with the prior and noise it chose."""
        ...


def tune(posterior: P, method: Method | None = None, *, progress: bool = False) -> P:
    """A posterior with a better prior precision, and for Gaussian likelihoods a better noise precision.

    Nothing is fitted again: the curvature is reused, and its one eigendecomposition where there is one.

    Args:
        posterior: The posterior.
        method: ``EvidenceGradient()`` (the default), ``MacKay()``, ``EM()`` or ``Validation(data)``.
        progress: Whether to show a progress bar.

    Returns:
        The posterior at the chosen values; its ``trace`` has grown by the steps taken.

    Raises:
        ConfigError: If the best values are not positive and finite.
        UnsupportedError: If the method needs what the posterior has not.

    Cost:
        That of the method; only ``EM()`` reads the training data.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> x = torch.randn(50, 2)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(torch.nn.Linear(2, 1), (x, x.sum(1, keepdim=True)))
        >>> tuned = lw.tune(posterior)
        >>> tuned.log_marginal() > posterior.log_marginal()
        True
    """
    check_kind("the posterior", posterior, (Posterior,), "tune(recipe.fit(model, data))")
    method = EvidenceGradient() if method is None else method
    check_kind("the method", method, (Method,), "EvidenceGradient(), MacKay(), EM() or Validation(data)")
    return method.tune(posterior, progress)
