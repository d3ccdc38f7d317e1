"""How much of what is unsure about a label is the weights': mutual information, and the entropy that would be left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import wide, wide_like
from lapwing.ground.tracing import traced
from lapwing.moments.outputs import Draws, Moments
from lapwing.moments.wide import Outputs, WideMoments
from lapwing.predictive.quadrature import MAX_BYTES, POINTS, check_time, over_positions, sobol_normals

KNOWLEDGE = 0.5
"""Temperature of the logits at the scale of knowledge, by ``studies.elsewhere``.

The prior there is so weak that the weights stand for most of what is unsure: the temperature of least NLL is far below
1."""

OUTPUTS = 2**12
"""Yes-or-no labels whose nodes are taken at a time."""

Terms: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Of log probabilities ``[m, c, k]`` and the weights of the k points the average of each class's part, ``[m, c]``."""


def mutual_information(logits: Outputs, *, temperature: float = 1.0, points: int = POINTS) -> Float[Tensor, "*batch"]:
    """Mutual information of a class and the weights, nats: what knowing the weights would tell of the class.

        I = H(E p) - E H(p) = E KL(p ‖ E p),    p = softmax(f)

    Averaged over the points of ``quasi_monte_carlo``, the same at every call, or over the draws there are. It is the
    mean divergence that is summed, every term of which is at least 0: what is small is not lost to rounding.

    Args:
        logits: What is known of the logits f ``[n, *event, c]``.
        temperature: Divides them: towards 0 it is the entropy of the most probable class of drawn weights.
        points: How many points, a power of two.

    Returns:
        Nats, from 0 to log c, ``[n, *event]``.

    Raises:
        TooLargeError: See ``quasi_monte_carlo``.
        UnsupportedError: See there.

    Source: Houlsby et al. (2011), "Bayesian active learning for classification and preference learning".

    Cost: That of ``quasi_monte_carlo``, in float64.

    Example:
        >>> from lapwing.moments import Moments
        >>> known, unknown = 0.01 * torch.eye(3), 100.0 * torch.eye(3)
        >>> mutual_information(Moments(torch.zeros(2, 3), torch.stack([known, unknown])))
        tensor([0.0033, 0.9581])
    """
    return _averaged(logits.scaled(1 / temperature), _divergences, points)


def expected_entropy(logits: Outputs, *, points: int = POINTS) -> Float[Tensor, "*batch"]:
    """Expected entropy of a class if the weights were known, E H(softmax(f)), nats ``[n, *event]``.

    Arguments, errors and cost as of ``mutual_information``.

    Example:
        >>> from lapwing.moments import Moments
        >>> expected_entropy(Moments.certain(torch.zeros(1, 2)))
        tensor([0.6931])
    """
    return _averaged(logits, _entropies, points)


def label_information(logits: Outputs, *, temperature: float = 1.0) -> Float[Tensor, "*batch c"]:
    """Mutual information of each yes-or-no label and the weights, nats, ``[n, *event, c]``; see ``mutual_information``.

    Args:
        logits: What is known of the logits; each is integrated by itself.
        temperature: Divides them.

    Example:
        >>> from lapwing.moments import Moments
        >>> label_information(Moments(torch.zeros(1, 1), 100.0 * torch.ones(1, 1, 1)))
        tensor([[0.5648]])
    """
    return _by_label(logits.scaled(1 / temperature), _divergences)


def expected_label_entropy(logits: Outputs) -> Float[Tensor, "*batch c"]:
    """Expected entropy of each yes-or-no label if the weights were known, nats, ``[n, *event, c]``."""
    return _by_label(logits, _entropies)


def _divergences(log_probs: Float[Tensor, "m c k"], weights: Float[Tensor, " k"]) -> Float[Tensor, "m c"]:
    """``E p log(p / E p) - p + E p``: of each class a part of the divergence that is at least 0."""
    probs = log_probs.exp()
    mean = (probs @ weights)[..., None].clamp_min(torch.finfo(probs.dtype).tiny)
    parts = probs * (log_probs - mean.log()) - probs + mean
    return parts.clamp_min(0.0) @ weights


def _entropies(log_probs: Float[Tensor, "m c k"], weights: Float[Tensor, " k"]) -> Float[Tensor, "m c"]:
    """``-E p log p`` of each class."""
    probs = log_probs.exp()
    return torch.where(probs > 0, -probs * log_probs, 0.0) @ weights


def _averaged(logits: Outputs, terms: Terms, points: int, max_bytes: int = MAX_BYTES) -> Float[Tensor, "*batch"]:
    """The sum over classes of terms of their log probabilities at points, or draws."""
    if isinstance(logits, Draws):
        values = wide(logits.values)
        weights = values.new_full((len(values),), 1 / len(values))
        log_probs = torch.log_softmax(values, -1).movedim(0, -1)
        found = terms(log_probs.flatten(0, -3), weights)
        return found.sum(-1).view(logits.mean.shape[:-1]).to(logits.mean)
    moments = logits.marginal()
    _ = moments.variance  # refuses what is no variance
    c = moments.mean.shape[-1]
    if c == 1:
        return torch.zeros_like(moments.mean[..., 0])
    check_time("qmc", c, moments.contrast_seconds)
    normals = sobol_normals(points, moments.contrast_columns).to(**wide_like(moments.mean))
    weights = normals.new_full((points,), 1 / points)

    def of_points(some: Moments | WideMoments) -> Tensor:
        moved = wide(some.coloured_contrasts(normals)) + wide(some.mean)[..., None]
        return terms(torch.log_softmax(moved, -2).flatten(0, -3), weights)

    each = 5 * c * points * normals.dtype.itemsize + moments.contrast_bytes
    return over_positions(of_points, moments, each, max_bytes).sum(-1)


def _by_label(logits: Outputs, terms: Terms) -> Float[Tensor, "*batch c"]:
    """The sum over yes and no of terms of their log probabilities at the nodes of every logit by itself."""
    weights = logits.node_weights()
    size = logits.mean.numel()

    def of_labels(some: Tensor) -> Tensor:
        f = logits.nodes(some).mT
        both = torch.stack([torch.nn.functional.logsigmoid(f), torch.nn.functional.logsigmoid(-f)], 1)
        return terms(both, weights).sum(-1)

    places = torch.arange(size, device=logits.mean.device)
    found = of_labels(places) if traced() else torch.cat([of_labels(some) for some in places.split(OUTPUTS)])
    return found.view(logits.mean.shape).to(logits.mean)
