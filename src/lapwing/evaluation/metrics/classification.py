"""Scores of class probabilities: accuracy, log-likelihood, Brier score."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.metrics.elements import elements, top


def accuracy(probs: Float[Tensor, "*n c"], targets: Tensor) -> float:
    """Share of elements whose most probable class is the label.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        A number in [0, 1].

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        0.5
    """
    return float(top(*elements(probs, targets))[1].mean())


def nll(probs: Float[Tensor, "*n c"], targets: Tensor) -> float:
    """Mean negative log-likelihood, -(1/n) Σ_i log p_i[y_i], in nats.

    A probability of the label that underflowed to 0 counts as the smallest normal number of its dtype, which
    is the most the dtype can say (87 nats in float32).

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        Nats an element.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> round(nll(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([0, 1])), 4)
        0.3993
    """
    p, y = elements(probs, targets)
    return float(-p.gather(1, y[:, None]).clamp(min=torch.finfo(probs.dtype).tiny).log().mean())


def brier(probs: Float[Tensor, "*n c"], targets: Tensor) -> float:
    """Brier score (1/n) Σ_i Σ_c (p_i[c] - [y_i = c])², between 0 and 2 (Brier 1950).

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        A number in [0, 2]; with two classes it is twice the form that scores one of them.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> round(brier(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([0, 1])), 4)
        0.26
    """
    p, y = elements(probs, targets)
    return float((p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(1).mean())
