"""The output Hessian B of a likelihood as products need it: applied without its c × c matrix, and with a thin root."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.likelihoods.targets import IGNORED


def bending(
    likelihood: Likelihood, outputs: Float[Tensor, "n *event c"], targets: Tensor
) -> Callable[[Float[Tensor, "... c"]], Float[Tensor, "... c"]]:
    """``u -> B u`` at each position, for changes u of the outputs that lead with any further axes.

    For classes ``B u = p ∘ (u - pᵀu)``, taken after u is shifted by its entry at the most probable class: then no two
    large numbers cancel where one class has nearly all probability.

    Args:
        likelihood: The likelihood.
        outputs: Canonical outputs f.
        targets: Canonical targets, to put 0 where they are ignored.
    """
    if isinstance(likelihood, Gaussian):
        precisions = likelihood.weight * likelihood.precisions(outputs)
        return lambda moved: precisions * moved
    if not isinstance(likelihood, Categorical):
        hessian = likelihood.hessian(outputs, targets)
        return lambda moved: (hessian @ moved.unsqueeze(-1)).squeeze(-1)
    probs = torch.softmax(outputs, -1)
    largest = probs.argmax(-1, keepdim=True)
    probs = probs.where((targets != IGNORED).unsqueeze(-1), 0.0)

    def bend(moved: Tensor) -> Tensor:
        shifted = moved - moved.gather(-1, largest.expand(*moved.shape[:-1], 1))
        return likelihood.weight * probs * (shifted - (probs * shifted).sum(-1, keepdim=True))

    return bend


def basis(likelihood: Likelihood, outputs: Float[Tensor, "n *event c"]) -> Float[Tensor, "c r"]:
    """An orthonormal basis of the changes of the outputs that the likelihood sees: for classes, those that sum to 0.

    Args:
        likelihood: The likelihood.
        outputs: Canonical outputs f.

    Example:
        >>> basis(Categorical(), torch.zeros(1, 2))
        tensor([[ 0.7071],
                [-0.7071]])
    """
    c = outputs.shape[-1]
    eye = torch.eye(c, dtype=outputs.dtype, device=outputs.device)
    if not isinstance(likelihood, Categorical) or c == 1:
        return eye
    sizes = torch.arange(1, c, dtype=outputs.dtype, device=outputs.device)
    helmert = torch.ones_like(eye).triu()[:, :-1] - sizes * eye[:, 1:]
    return helmert / (sizes * (sizes + 1)).sqrt()


def thin_root(
    likelihood: Likelihood, outputs: Float[Tensor, "n *event c"], targets: Tensor | None = None
) -> Float[Tensor, "n *event c r"]:
    """A root S of the output Hessian, S Sᵀ = B, with no more columns than B has rank: c - 1 for classes.

    There S √p = 0. The reflection that takes √p to the last axis leaves S Sᵀ and makes the last column zero.

    Args:
        likelihood: The likelihood.
        outputs: Canonical outputs f.
        targets: Canonical targets, to put 0 where they are ignored.

    Example:
        >>> thin_root(Categorical(), torch.zeros(1, 2))
        tensor([[[ 0.5000],
                 [-0.5000]]])
    """
    root = likelihood.root(outputs, targets)
    if not isinstance(likelihood, Categorical) or outputs.shape[-1] == 1:
        return root
    half = torch.exp(0.5 * torch.log_softmax(outputs, -1)).unsqueeze(-2)
    return root[..., :-1] - root[..., -1:] * (half[..., :-1] / (1 + half[..., -1:]))
