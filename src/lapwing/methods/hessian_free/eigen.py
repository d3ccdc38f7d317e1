"""The baseline that is uncertain along a few eigenvectors alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.curvature.ggn import GGN
from lapwing.curvature.repeatability import check_repeatable
from lapwing.ground.data import Source, checked
from lapwing.ground.errors import check_count, check_kind
from lapwing.ground.modes import undisturbed
from lapwing.ground.types import Inputs, Unpack
from lapwing.jacobian.layers.layers import Survey
from lapwing.jacobian.network.network import Network, opened
from lapwing.jacobian.network.survey import find_layers
from lapwing.jacobian.products.gauss_newton import GGNProduct
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Sum
from lapwing.linalg.eigenpairs import top_eigenpairs
from lapwing.posteriors.pushed import pushed
from lapwing.predictive import Link, Moments, Predictive, predictive
from lapwing.predictive.links import SAMPLES
from lapwing.priors import Isotropic, Prior
from lapwing.structures import Task
from lapwing.structures.scaling import scaled


@final
@dataclass(frozen=True)
class TopEigen:
    """``P⁻¹ ≈ V Λ⁻¹ Vᵀ`` with the leading k eigenpairs of ``P = G + A``: nothing else is uncertain.

    A baseline of McInerney and Kallus 2024 ("Eigen. Approx."). It keeps the directions of *least* posterior variance,
    where ``lapwing.LowRank`` keeps the same ones exactly *and* the prior in all others; it is no approximation of the
    covariance, and for comparison only.

    Args:
        likelihood: p(y | f).
        prior: p(θ), with diagonal precision A.
        rank: k; ``None`` for the source's ``round(ln d)``.
        seed: Of the search for eigenvectors.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> TopEigen(lw.Categorical()).fit(model, (x, y)).factor.shape
        torch.Size([9, 2])
    """

    likelihood: Likelihood
    prior: Prior = field(default_factory=Isotropic)
    rank: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_kind("the likelihood", self.likelihood, (Likelihood,), "Categorical() or Gaussian()")
        check_kind("prior=", self.prior, (Prior,), "Isotropic(1.0)")
        if self.rank is not None:
            check_count("rank", self.rank)
        check_count("seed", self.seed, 0)

    def fit(self, model: nn.Module, data: Source, *, unpack: Unpack | None = None) -> EigenPosterior:
        """What it makes of a trained network; arguments as in ``Laplace.fit``.

        Cost:
            Two forward passes, and some tens of products with G in blocks.
        """
        module, read = opened(model, data, "fit(model, data)", unpack=unpack)
        with undisturbed():
            network = Network.of(module)
            survey = find_layers(network, read.first())
            task = scaled(Task(network, survey, read, self.likelihood, self.prior, GGN(), None))
            check_repeatable(network, survey, read, self.likelihood, task.totals(), strict=True)
            curvature = GGNProduct(network, survey, self.likelihood, read)
            precision = Sum((curvature, task.prior.operator(network.uncertain, network.like)))
            rank = min(self.rank or max(1, round(math.log(network.size))), network.size)
            pairs = top_eigenpairs(precision, rank, generator=torch.Generator().manual_seed(self.seed))
        factor = pairs.vectors * pairs.values.rsqrt().to(pairs.vectors)
        return EigenPosterior(network, survey, self.likelihood, factor)


@final
@dataclass(frozen=True, eq=False, repr=False)
class EigenPosterior:
    """Outputs uncertain along a few eigenvectors.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: p(y | f).
        factor: ``V Λ^-½``, ``[d, k]``: the covariance of the weights is this times its transpose.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    factor: Float[Tensor, "d k"]

    def predict(
        self,
        x: Inputs,
        link: Link = "qmc",
        *,
        samples: int = SAMPLES,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """Predictive distribution of the targets; see ``Posterior.predict``.

        Args:
            x: Inputs of n examples.
            link: For classes, how the logits' uncertainty is averaged.
            samples: Draws, where the link needs them.
            generator: Source of randomness for them.

        Cost:
            A forward pass beside each of the k columns.
        """
        self.network.check_unchanged()
        inputs = checked(x, self.network.like)
        with torch.no_grad():
            mean, moved = pushed(self.network, self.survey, self.likelihood, inputs, self.factor)
            outputs = Moments.from_factor(mean, moved)
            return predictive(self.likelihood, outputs, link, samples=samples, generator=generator)
