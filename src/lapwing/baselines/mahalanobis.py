"""The distance of features from the nearest class in units of the spread within classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.baselines.out_of_distribution import ScoredNetwork, outputs_and_features, training_features
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.evaluation.task import Task
from lapwing.ground.data.inputs import InputsLike
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import like_of


@final
@dataclass(frozen=True)
class Mahalanobis:
    """The distance of an input's features φ from the mean of the nearest class, by the covariance within classes.

        M(x) = min_c (φ(x) - μ_c)ᵀ Σ⁺ (φ(x) - μ_c),   Σ = 1/n Σ_i (φ_i - μ_{y_i})(φ_i - μ_{y_i})ᵀ

    Features are what the last linear layer takes. Directions in which they do not vary, but for the rounding of the
    network, are left out.

    Cost:
        To fit, a forward pass over the training data and an eigendecomposition of k features; to predict, a forward
        pass. Memory of k² numbers and of the means.

    Example:
        >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> Mahalanobis().fit(Task(model, (x, y))).predict(x).strangeness.shape
        torch.Size([20])

    Source: K. Lee, K. Lee, H. Lee and J. Shin, A Simple Unified Framework for Detecting Out-of-Distribution Samples,
        2018, equations 1 and 2, of the last layer alone and without perturbed inputs.
    """

    @undisturbed()
    @working("Mahalanobis")
    def fit(self, task: Task) -> ScoredNetwork:
        """The network of a task with this score.

        Args:
            task: The network and its training data.

        Raises:
            DataError: If the data are empty or not finite, or do not fit the likelihood.
            UnsupportedError: If targets are no classes, or no linear layer is called.
        """
        batches = list(training_features(task))
        features = torch.cat([batch[0] for batch in batches])
        labels = torch.cat([batch[1] for batch in batches])
        like = like_of(task.model)
        rounding = torch.finfo(features.dtype if like is None else like.dtype).eps
        return ScoredNetwork(task.network, MahalanobisScore.of_classes(features, labels, rounding))


@final
@dataclass(frozen=True, eq=False)
class MahalanobisScore:
    """Means of classes in coordinates in which the features of each have unit covariance.

    Args:
        whitening: Features to these coordinates.
        means: Of each class, in them.
    """

    whitening: Float[Tensor, "k r"]
    means: Float[Tensor, "c r"]

    @classmethod
    def of_classes(
        cls, features: Float[Tensor, "n k"], labels: Int[Tensor, " n"], rounding: float = 0.0
    ) -> MahalanobisScore:
        """Those of features of training examples.

        Args:
            features: φ, float64.
            labels: Their classes.
            rounding: Of the network that they are from, relative to the largest.
        """
        known, place = torch.unique(labels, return_inverse=True)
        means = torch.stack([features[labels == label].mean(0) for label in known])
        apart = features - means[place]
        values, vectors = torch.linalg.eigh(apart.mT @ apart / len(features))
        negligible = torch.finfo(values.dtype).eps * len(values) * values[-1]
        of_rounding = rounding**2 * len(values) * features.square().mean(0).amax()
        kept = values > torch.maximum(negligible, of_rounding)
        whitening = vectors[:, kept] / values[kept].sqrt()
        return cls(whitening, means @ whitening)

    def of(self, network: PlainNetwork, x: InputsLike) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch"]]:
        """See ``Score.of``."""
        outputs, features = outputs_and_features(network, x)
        return outputs, self.distances(features.flatten(0, -2)).view(outputs.shape[:-1])

    def distances(self, features: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
        """M of features."""
        apart = torch.cdist(features @ self.whitening, self.means, compute_mode="donot_use_mm_for_euclid_dist")
        return apart.amin(1).square()
