"""Prior and noise precisions by their logarithms, as parameters of an optimiser."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.errors import NumericalError, UnsupportedError
from lapwing.ground.tree import Layout
from lapwing.likelihoods import Likelihood
from lapwing.priors import Prior


@final
class Hyperparameters(nn.Module):
    """The precisions of a prior, and one factor on the noise precision of a Gaussian likelihood, as logarithms.

    Every real number is then a valid value, and a step of an optimiser a relative change.

    Args:
        prior: The prior to start from.
        likelihood: The likelihood to start from; one of another kind than ``Gaussian`` has no noise to learn.
        layout: Names and shapes of the weights.
        like: Tensor whose device the parameters take; they are float64.
        noise: Whether the noise may change.

    Example:
        >>> from lapwing.priors import Isotropic
        >>> layout = Layout(("w",), ((3,),))
        >>> hyper = Hyperparameters(Isotropic(2.0), Gaussian(4.0), layout, torch.zeros(1))
        >>> hyper.log_noise.data += 1.0
        >>> hyper.prior, round(hyper.likelihood.precision, 3)
        (Isotropic(precision=2.0), 10.873)
    """

    def __init__(
        self, prior: Prior, likelihood: Likelihood, layout: Layout, like: Tensor, *, noise: bool = True
    ) -> None:
        super().__init__()
        self._prior, self._likelihood, self.layout = prior, likelihood, layout
        if prior.relative(layout) is not None:
            raise UnsupportedError(
                "a prior that does not follow the curvature while weights are trained", f"{prior}", "Layerwise(1.0)"
            )
        group, groups = prior.groups(layout)
        self.group = group.to(like.device)
        self.sizes = torch.bincount(self.group, minlength=groups).double()
        self.noisy = noise and likelihood.noise is not None
        self.log_precisions = nn.Parameter(prior.precisions(layout).log().to(like.device))
        zero = torch.zeros((), dtype=torch.float64, device=like.device)
        self.log_noise = nn.Parameter(zero, requires_grad=self.noisy)

    @property
    def prior(self) -> Prior:
        """The prior with the precisions it has now.

        Raises:
            NumericalError: If one is not finite.
        """
        self._check(self.log_precisions)
        return self._prior.with_precisions(self.log_precisions.detach().exp().cpu())

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with the noise it has now.

        Raises:
            NumericalError: If it is not finite.
        """
        self._check(self.log_noise)
        return self._likelihood.scaled(float(self.log_noise.detach().exp()))

    @property
    def reference(self) -> Likelihood:
        """The likelihood whose noise the logarithm is relative to."""
        return self._likelihood

    @property
    def scale(self) -> Float[Tensor, ""]:
        """Noise precision relative to the reference."""
        return self.log_noise.exp()

    def deviations(self, like: Tensor) -> Float[Tensor, " d"]:
        """Prior standard deviation of each weight, ``A^-½``, in the dtype of ``like``."""
        return torch.exp(-0.5 * self.log_precisions).to(like)[self.group]

    def nll(self, outputs: Float[Tensor, "*batch c"], targets: Tensor) -> Float[Tensor, ""]:
        """Negative log likelihood of canonical targets under the noise as it is now, summed, nats, float64."""
        total = self._likelihood.nll(outputs, targets).double().sum()
        misfit = self._likelihood.misfit(outputs, targets)
        return total + 0.5 * (self.scale - 1) * misfit - 0.5 * self._likelihood.count(targets) * self.log_noise

    def log_det_prior(self) -> Float[Tensor, ""]:
        """``log det A = Σ_g d_g log α_g``."""
        return (self.sizes * self.log_precisions).sum()

    def square_norm(self, weights: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """``θᵀ A θ = Σ_g α_g |θ_g|²``."""
        norms = torch.zeros_like(self.log_precisions).index_add(0, self.group, weights.double().square())
        return (self.log_precisions.exp() * norms).sum()

    def log_noise_of(self, likelihood: Likelihood) -> float:
        """Logarithm of a likelihood's noise precision, relative to the reference."""
        return math.log(likelihood.noise_over(self._likelihood) or 1.0)

    @torch.no_grad()
    def move_to(self, prior: Prior, likelihood: Likelihood, share: float = 1.0) -> None:
        """Go a share of the way, in logarithms, to other values."""
        target = prior.precisions(self.layout).log().to(self.log_precisions)
        self.log_precisions.lerp_(target, share)
        if self.noisy:
            self.log_noise.lerp_(torch.full_like(self.log_noise, self.log_noise_of(likelihood)), share)

    def _check(self, logs: Tensor) -> None:
        if not bool(torch.isfinite(logs.detach().exp()).all() and (logs.detach().exp() > 0).all()):
            raise NumericalError(
                "hyper-parameters that are positive and finite",
                f"logarithms {logs.detach().flatten()[:4].tolist()}",
                "a smaller learning rate for marginal.hyperparameters(), or updates=ByEvidence()",
            )
