"""The predictive distribution of class labels: one of c, or several at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.predictive.joint import Draws, JointMoments
from lapwing.predictive.moments import Moments


@final
@dataclass(frozen=True, eq=False)
class Classification:
    """Probabilities of c classes at each position.

    Args:
        logits: What is known of the logits.
        probs: Predictive probabilities ``[n, *event, c]``, the uncertainty of the logits averaged out.
        stderr: Standard error of ``probs`` where they came from Monte Carlo, same shape.

    Example:
        >>> p = Classification(Moments.certain(torch.zeros(1, 2)), torch.tensor([[0.25, 0.75]]))
        >>> p.labels, p.confidence, p.entropy
        (tensor([1]), tensor([0.7500]), tensor([0.5623]))
    """

    logits: Moments | JointMoments | Draws
    probs: Float[Tensor, "*batch c"]
    stderr: Float[Tensor, "*batch c"] | None = None

    @property
    def labels(self) -> Int[Tensor, "*batch"]:
        """Most probable class, ``[n, *event]``."""
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Float[Tensor, "*batch"]:
        """Probability of the most probable class, ``[n, *event]``."""
        return self.probs.amax(-1)

    @property
    def entropy(self) -> Float[Tensor, "*batch"]:
        """Entropy -Σ_k p_k log p_k in nats, ``[n, *event]``."""
        return -torch.xlogy(self.probs, self.probs).sum(-1)

    @property
    def covariance(self) -> Float[Tensor, "*batch c c"]:
        """Covariance diag(p) - p pᵀ of the one-hot label, ``[n, *event, c, c]``."""
        return torch.diag_embed(self.probs) - self.probs[..., :, None] * self.probs[..., None, :]

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Probabilities softmax(f) of drawn logits f, ``[k, n, *event, c]``: answers that might have been.

        Args:
            k: Number of draws; coherent over the batch where ``logits`` are joint.
            generator: Source of randomness; ``None`` draws from PyTorch's global one. The same seed on another batch
                draws other functions.
        """
        return torch.softmax(self.logits.sample(k, generator=generator), -1)


@final
@dataclass(frozen=True, eq=False)
class MultiLabel:
    """Probabilities of c independent yes-or-no labels at each position.

    Args:
        logits: What is known of the logits.
        probs: Predictive probabilities of yes ``[n, *event, c]``.
        stderr: Standard error of ``probs`` where they came from Monte Carlo, same shape.

    Example:
        >>> MultiLabel(Moments.certain(torch.zeros(1, 2)), torch.tensor([[0.25, 0.75]])).labels
        tensor([[0, 1]])
    """

    logits: Moments | JointMoments | Draws
    probs: Float[Tensor, "*batch c"]
    stderr: Float[Tensor, "*batch c"] | None = None

    @property
    def labels(self) -> Int[Tensor, "*batch c"]:
        """1 where yes is more probable than no, else 0, ``[n, *event, c]``."""
        return (self.probs > 0.5).long()

    @property
    def confidence(self) -> Float[Tensor, "*batch c"]:
        """Probability of the more probable answer, ``[n, *event, c]``."""
        return torch.maximum(self.probs, 1 - self.probs)

    @property
    def entropy(self) -> Float[Tensor, "*batch c"]:
        """Entropy of each label in nats, ``[n, *event, c]``."""
        return torch.special.entr(self.probs) + torch.special.entr(1 - self.probs)

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance p (1 - p) of each label, ``[n, *event, c]``."""
        return self.probs * (1 - self.probs)

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Probabilities σ(f) of drawn logits f, ``[k, n, *event, c]``; see ``Classification.sample``."""
        return torch.sigmoid(self.logits.sample(k, generator=generator))
