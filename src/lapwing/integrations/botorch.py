# pyright: reportMissingImports=false, reportUntypedBaseClass=false
"""Networks and Gaussian processes of ours as BoTorch's models."""

from __future__ import annotations

import abc
from typing import Any, final

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from jaxtyping import Float
from linear_operator import to_linear_operator
from torch import Tensor

from lapwing.gp.regression.posterior import GPPosterior
from lapwing.ground.errors import ConfigError, ShapeError, UnsupportedError, check_kind
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
from lapwing.posteriors import Posterior as NetworkPosterior
from lapwing.predictive import Regression

POINTS = 128
"""Points of several batches whose joint covariance is made at once, and of which each batch takes its own part."""


class RegressionModel(Model, abc.ABC):
    """What both share: the joint moments of q points, as BoTorch has them; the gradient in the points is kept."""

    def __init__(self, predictor: Any, likelihood: Likelihood) -> None:
        super().__init__()
        if not isinstance(likelihood, Gaussian | HeteroscedasticGaussian):
            raise UnsupportedError(
                "a posterior of real targets, which an acquisition function compares",
                f"one with {type(likelihood).__name__}",
                "Gaussian()",
            )
        self.predictor = predictor

    @property
    def batch_shape(self) -> torch.Size:
        """One model: batches are of points alone."""
        return torch.Size()

    def posterior(
        self,
        X: Float[Tensor, "*b q d"],
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The joint distribution of q points, of each batch.

        Args:
            X: Points.
            output_indices: Outputs that are wanted; ``None`` for all.
            observation_noise: Whether the noise is included, that of the likelihood, or variances ``[*b, q, m]`` of it,
                of all outputs whichever are wanted.
            posterior_transform: What makes another posterior of this one.

        Raises:
            ConfigError: If there is no output of an index.
            ShapeError: If the points have no axis q, or variances of noise are not those of all outputs of theirs.
            UnsupportedError: If the joint covariance is not known but by draws.

        Cost:
            A prediction of all points; the joint covariance of a batch, or of batches of 128 points in all.
        """
        if X.ndim < 2:
            raise ShapeError("points [..., q, d]", f"{list(X.shape)}", "X[None]")
        given = isinstance(observation_noise, Tensor)
        mean, covariance = self._joint(
            X.flatten(0, -3) if X.ndim > 2 else X[None], not given and bool(observation_noise)
        )
        batch = X.shape[:-2]
        mean = mean.view(*batch, *mean.shape[1:])
        covariance = covariance.view(*batch, *covariance.shape[1:])
        variances = noise_of_all(observation_noise, mean) if given else torch.zeros_like(mean)
        if output_indices is not None:
            check_outputs(output_indices, mean.shape[-1])
            mean = mean[..., output_indices]
            covariance = covariance[..., output_indices, :, :][..., output_indices]
            variances = variances[..., output_indices]
        q, m = mean.shape[-2:]
        matrix = covariance.reshape(*batch, q * m, q * m)
        if given:
            matrix = matrix + torch.diag_embed(variances.reshape(*batch, q * m))
        lazy = to_linear_operator(matrix)  # factorised when it is drawn from, with jitter where points coincide
        several = MultitaskMultivariateNormal(mean, lazy) if m > 1 else MultivariateNormal(mean[..., 0], lazy)
        found = GPyTorchPosterior(several)
        return found if posterior_transform is None else posterior_transform(found)

    def _joint(
        self, X: Float[Tensor, "b q d"], noise: bool
    ) -> tuple[Float[Tensor, "b q m"], Float[Tensor, "b q m q m"]]:
        """Means and covariances of each batch; of several together, where they are few points each."""
        q = X.shape[1]
        means = list[Tensor]()
        covariances = list[Tensor]()
        for part in X.split(max(1, POINTS // q) if q > 1 else len(X)):
            prediction = self._prediction(part.flatten(0, 1), joint=q > 1)
            b = len(part)
            m = prediction.mean.shape[-1]
            covariance = prediction.covariance if noise else prediction.outputs.covariance
            if q > 1:
                covariance = covariance.view(b, q, m, b, q, m).diagonal(dim1=0, dim2=3).movedim(-1, 0)
            means.append(prediction.mean.view(b, q, m))
            covariances.append(covariance.reshape(b, q, m, q, m))
        return torch.cat(means).to(X), torch.cat(covariances).to(X)

    def _prediction(self, points: Float[Tensor, "n d"], joint: bool) -> Regression:
        """Real targets at some points.

        Raises:
            UnsupportedError: If what is known of them is known by draws.
        """
        outputs: Any = self.predictor.outputs(points.to(self.like), joint=joint)
        if outputs.sampled:
            raise UnsupportedError(
                "a posterior whose joint covariance is known",
                "one that is known by draws",
                "a process with solver=lw.solvers.Cholesky(), or a structure such as Full() or KFAC()",
            )
        return self.predictor.likelihood.predictive(outputs)

    @property
    @abc.abstractmethod
    def like(self) -> Tensor:
        """A tensor whose dtype and device inputs have."""


def noise_of_all(variances: Tensor, mean: Float[Tensor, "*b q m"]) -> Float[Tensor, "*b q m"]:
    """Variances of noise, one for each output of each point.

    Args:
        variances: As they are given.
        mean: Means of all outputs.

    Raises:
        ShapeError: If they are not of that shape, nor of one that is repeated to it.
    """
    try:
        return variances.to(mean).expand(mean.shape)
    except RuntimeError as error:
        expected = f"variances of noise {list(mean.shape)}, of all outputs"
        raise ShapeError(expected, f"{list(variances.shape)}", "observation_noise=True for the likelihood's") from error


def check_outputs(indices: list[int], outputs: int) -> None:
    """Refuses indices of outputs that there are not.

    Raises:
        ConfigError: If there is one.
    """
    if any(not -outputs <= index < outputs for index in indices):
        expected = f"output_indices among those of {outputs} outputs"
        raise ConfigError(expected, f"{indices}", f"output_indices={list(range(outputs))}")


@final
class LaplaceModel(RegressionModel):
    """A network of ours with its posterior, for acquisition functions; targets are real.

    Args:
        posterior: The posterior, tuned. Points are in the units of its inputs, and what is predicted in those of its
            targets.

    Raises:
        UnsupportedError: If its targets are classes or counts.

    Example:
        >>> import lapwing as lw
        >>> x = torch.rand(30, 2)
        >>> network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> model = LaplaceModel(lw.Laplace(lw.Gaussian(100.0)).fit(network, (x, x.sum(1, keepdim=True))))
        >>> model.posterior(torch.rand(5, 3, 2)).variance.shape
        torch.Size([5, 3, 1])
    """

    def __init__(self, posterior: NetworkPosterior) -> None:
        hint = "lw.Laplace(lw.Gaussian()).fit(network, (x, y)), or GPModel(process) of a Gaussian process"
        check_kind("the posterior", posterior, (NetworkPosterior,), hint)
        super().__init__(posterior, posterior.likelihood)

    @property
    def like(self) -> Tensor:
        """See ``RegressionModel``."""
        return self.predictor.network.like

    @property
    def num_outputs(self) -> int:
        """Targets of the network: its outputs, or half of them where the others are log variances."""
        outputs = self.predictor.model.event[-1]
        return outputs if isinstance(self.predictor.likelihood, Gaussian) else outputs // 2

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
        """Refused: new data move the weights, which takes training.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "a model that more data update",
            "a network, whose weights they would move",
            "training it on all data and fitting again, or GPModel",
        )


@final
class GPModel(RegressionModel):
    """A Gaussian process of ours, for acquisition functions.

    Args:
        process: The process, tuned, which solves exactly. Points are in the units of its inputs, and what is predicted
            in those of its targets.

    Raises:
        UnsupportedError: If its targets are classes or counts.

    Example:
        >>> import lapwing as lw
        >>> x = torch.rand(30, 2, dtype=torch.float64)
        >>> model = GPModel(lw.GP(lw.gp.Matern((0.5, 0.5)), lw.Gaussian(1e4)).fit((x, x.sum(1))))
        >>> more = model.condition_on_observations(x[:1] + 0.1, torch.ones(1, 1))
        >>> len(more.predictor.data)
        31
    """

    def __init__(self, process: GPPosterior) -> None:
        check_kind("the process", process, (GPPosterior,), "lw.tune(lw.GP().fit((x, y)))")
        super().__init__(process, process.likelihood)

    @property
    def like(self) -> Tensor:
        """See ``RegressionModel``."""
        return self.predictor.data.inputs

    @property
    def num_outputs(self) -> int:
        """Targets of the process."""
        return self.predictor.data.outputs

    def condition_on_observations(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "n m"], **kwargs: Any) -> GPModel:
        """The model with more data, its hyper-parameters as they are.

        Args:
            X: Points.
            Y: What was observed there.
            **kwargs: Taken as BoTorch passes them, and refused: noise of its own is ``relative_noise=`` of ``updated``.

        Raises:
            ConfigError: If there are other arguments.
            ShapeError: If they are batches of data, which would be a model each.
        """
        given = {name: value for name, value in kwargs.items() if value is not None}
        if given:
            hint = "GPModel(process.updated((x, y), relative_noise=...))"
            raise ConfigError("points and targets alone", ", ".join(given), hint)
        if X.ndim != 2 or Y.ndim != 2:
            came = f"{list(X.shape)} and {list(Y.shape)}"
            raise ShapeError("points [n, d] and targets [n, m], no batches of them", came, "a model for each batch")
        return GPModel(self.predictor.updated((X.detach().to(self.like), Y.detach().to(self.like))))
