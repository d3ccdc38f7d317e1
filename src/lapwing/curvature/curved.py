"""The output Hessian B of a likelihood as products need it: applied without its c × c matrix, and with a thin root."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.likelihoods import Categorical, Likelihood
from lapwing.likelihoods.targets import IGNORED


def curved(
    likelihood: Likelihood,
    outputs: Float[Tensor, "n *event c"],
    targets: Tensor,
    moved: Float[Tensor, "n *event c"],
) -> Float[Tensor, "n *event c"]:
    """``B u`` at each position.

    For classes ``B u = p ∘ (u - pᵀu)``, taken after u is shifted by its entry at the most probable class: then no two
    large numbers cancel where one class has nearly all probability.

    Args:
        likelihood: The likelihood.
        outputs: Canonical outputs f.
        targets: Canonical targets, to put 0 where they are ignored.
        moved: A change u of the outputs.

    Example:
        >>> f, y, u = torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[1.0, -1.0]])
        >>> curved(Categorical(), f, y, u)
        tensor([[ 0.5000, -0.5000]])
    """
    if not isinstance(likelihood, Categorical):
        return (likelihood.hessian(outputs, targets) @ moved.unsqueeze(-1)).squeeze(-1)
    probs = torch.softmax(outputs, -1)
    largest = probs.argmax(-1, keepdim=True)
    shifted = moved - moved.gather(-1, largest)
    product = probs * (shifted - (probs * shifted).sum(-1, keepdim=True))
    return product.where((targets != IGNORED).unsqueeze(-1), 0.0)


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
