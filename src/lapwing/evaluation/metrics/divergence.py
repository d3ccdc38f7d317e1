"""How far class probabilities are from those of a reference."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.metrics.elements import check_probabilities, check_tensors
from lapwing.ground.errors import DataError, ShapeError


def symmetric_kl(probs: Float[Tensor, "*n c"], reference: Tensor) -> Float[Tensor, "*n"]:
    """Symmetric Kullback-Leibler divergence of class probabilities, ½ KL(p ‖ q) + ½ KL(q ‖ p), in nats.

    That is ½ Σ_c (p_c - q_c)(log p_c - log q_c), half of Jeffreys' divergence. A probability that underflowed counts
    as the smallest normal number of its dtype, as in ``nll``.

    Args:
        probs: Class probabilities, class axis last.
        reference: Others of the same shape; the two may be exchanged.

    Returns:
        One number >= 0 an element, float64; ``.mean()`` for one in all.

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty, or not probabilities.

    Example:
        >>> symmetric_kl(torch.tensor([[0.75, 0.25]]), torch.tensor([[0.25, 0.75]]))
        tensor([0.5493], dtype=torch.float64)
    """
    check_tensors(probs=probs, reference=reference)
    if not probs.ndim:
        raise ShapeError("class probabilities [*n, c]", "a single number", "outputs.softmax(-1)")
    if probs.shape != reference.shape:
        expected = f"probabilities of the shape of the reference, {list(reference.shape)}"
        raise ShapeError(expected, f"{list(probs.shape)}", "both at the same inputs, classes last")
    if not probs.numel():
        raise DataError("at least one element", f"shape {list(probs.shape)}", "more data")
    both = [each.detach().to(probs.device, torch.float64) for each in (probs, reference)]
    for values, given in zip(both, (probs, reference), strict=True):
        check_probabilities(values, given.dtype)
    p, q = (values.clamp(min=torch.finfo(g.dtype).tiny) for values, g in zip(both, (probs, reference), strict=True))
    return 0.5 * ((p - q) * (p.log() - q.log())).sum(-1)
