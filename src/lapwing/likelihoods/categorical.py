"""One of c classes, given c logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import DataWarning, warn
from lapwing.ground.labels import IGNORED, canonical_labels, check_labels
from lapwing.ground.precision import wide
from lapwing.likelihoods.base import Likelihood
from lapwing.linalg.contrasts import contrasts
from lapwing.moments import Outputs
from lapwing.predictive.distributions import Classification
from lapwing.predictive.links import Link


@final
@dataclass(frozen=True, repr=False)
class Categorical(Likelihood):
    """p(y = k | f) = softmax(f)_k, with integer targets; the label -100 marks a position to ignore.

    B = diag(p) - p pᵀ has rank c - 1; its root is S = diag(√p) - p √pᵀ (S Sᵀ = B because Σ p = 1).

    Example:
        >>> likelihood = Categorical()
        >>> likelihood.nll(torch.zeros(1, 2), torch.tensor([1]))
        tensor([0.6931])
    """

    def canonical_targets(self, outputs: Float[Tensor, "*batch c"], targets: Tensor) -> Tensor:
        """Labels ``[n, *event]`` as 64-bit integers; see ``Likelihood.canonical_targets``."""
        return canonical_labels(outputs, targets)

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Cross-entropy logsumexp(f) - f_y in nats."""
        kept = targets != IGNORED
        index = targets.where(kept, 0).unsqueeze(-1)
        losses = -torch.log_softmax(outputs, -1).gather(-1, index).squeeze(-1)
        return losses.where(kept, 0.0)

    def _score(self, outputs: Float[Tensor, "*batch c"], targets: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch c"]:
        """Residual e_y - p."""
        kept = (targets != IGNORED).unsqueeze(-1)
        index = targets.unsqueeze(-1).where(kept, 0)
        classes = torch.arange(outputs.shape[-1], device=outputs.device)
        probs = torch.softmax(outputs, -1)
        return torch.where(classes == index, _complement(probs), -probs).where(kept, 0.0)

    def _hessian(
        self, outputs: Float[Tensor, "*batch c"], targets: Int[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "*batch c c"]:
        """B = diag(p) - p pᵀ."""
        probs = torch.softmax(outputs, -1)
        off_diagonal = -probs.unsqueeze(-1) * probs.unsqueeze(-2)
        return _mask(off_diagonal.diagonal_scatter(probs * _complement(probs), 0, -2, -1), targets)

    def _root(
        self, outputs: Float[Tensor, "*batch c"], targets: Int[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "*batch c c"]:
        """S = diag(√p) - p √pᵀ."""
        probs = torch.softmax(outputs, -1)
        half = torch.exp(0.5 * torch.log_softmax(outputs, -1))
        off_diagonal = -probs.unsqueeze(-1) * half.unsqueeze(-2)
        return _mask(off_diagonal.diagonal_scatter(half * _complement(probs), 0, -2, -1), targets)

    def hessian_entries(
        self, outputs: Float[Tensor, "*batch c"], targets: Int[Tensor, "*batch"] | None = None
    ) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        """See ``Likelihood.hessian_entries``: p (1 - p), and p.

        Exponentials are taken in the dtype of the outputs, whose rounding is as large, in float32 at least; p adds up
        to one in float64. That of the most probable class is kept apart, so that 1 - p does not cancel.
        """
        probs = wide(torch.softmax(outputs.to(torch.promote_types(outputs.dtype, torch.float32)), -1))
        most = outputs.argmax(-1, keepdim=True).to(probs.device)
        largest = probs.gather(-1, most)
        others = probs.scatter_(-1, most, 0.0).sum(-1, keepdim=True)
        total = largest + others
        if targets is not None:
            total = total.where((targets != IGNORED).to(total.device).unsqueeze(-1), torch.inf)
        probs /= total
        diagonal = torch.addcmul(probs, probs, probs, value=-1)
        diagonal.scatter_(-1, most, largest * others / total.square())
        probs.scatter_(-1, most, largest / total)
        return (diagonal, probs) if self.weight == 1.0 else (self.weight * diagonal, self.weight**0.5 * probs)

    def thin_root(
        self, outputs: Float[Tensor, "*batch c"], targets: Int[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "*batch c r"]:
        """See ``Likelihood.thin_root``; c - 1 columns.

        S √p = 0: the reflection that takes √p to the last axis leaves S Sᵀ and makes the last column zero.

        Example:
            >>> Categorical().thin_root(torch.zeros(1, 2))
            tensor([[[ 0.5000],
                     [-0.5000]]])
        """
        root = self.root(outputs, targets)
        if outputs.shape[-1] == 1:
            return root
        half = torch.exp(0.5 * torch.log_softmax(outputs, -1)).unsqueeze(-2)
        return root[..., :-1] - root[..., -1:] * (half[..., :-1] / (1 + half[..., -1:]))

    def rank(self, outputs: int) -> int:
        """See ``Likelihood.rank``."""
        return max(outputs - 1, 1)

    def root_product(
        self,
        outputs: Float[Tensor, "*batch c"],
        targets: Int[Tensor, "*batch"] | None,
        noise: Float[Tensor, "*batch r k"],
    ) -> Float[Tensor, "*batch c k"]:
        """See ``Likelihood.root_product``: a diagonal and a vector, in c numbers a position.

            S_thin ε = S u,   u = (ε, -⟨√p, ε⟩ / (1 + √p_c)),   S u = √p ∘ (u - √p ⟨√p, u⟩)

        for the c-th class, the last. Since S √p = 0, a multiple of √p is first taken from u that makes it 0 at the most
        probable class: then no two large numbers cancel where that has nearly all probability.
        """
        if outputs.shape[-1] == 1:
            return super().root_product(outputs, targets, noise)
        half, largest = _roots_of_probabilities(outputs)
        last = -(half[..., :-1, :] * noise).sum(-2, keepdim=True) / (1 + half[..., -1:, :])
        u = torch.cat([noise, last], -2)
        u = u - half * (_at(largest, u) / _at(largest, half))
        product = half * (u - half * (half * u).sum(-2, keepdim=True))
        return self.weight**0.5 * _mask(product, targets)

    def root_adjoint(
        self,
        outputs: Float[Tensor, "*batch c"],
        targets: Int[Tensor, "*batch"] | None,
        moved: Float[Tensor, "*batch c k"],
    ) -> Float[Tensor, "*batch r k"]:
        """See ``Likelihood.root_adjoint``, and ``root_product``: ``Sᵀ u = √p ∘ (u - pᵀ u)``, then the last class added.

        Taken after u is shifted by its entry at the most probable class, as in ``hessian_product``.
        """
        if outputs.shape[-1] == 1:
            return super().root_adjoint(outputs, targets, moved)
        half, largest = _roots_of_probabilities(outputs)
        shifted = moved - _at(largest, moved)
        seen = half * (shifted - (half.square() * shifted).sum(-2, keepdim=True))
        product = seen[..., :-1, :] - seen[..., -1:, :] * (half[..., :-1, :] / (1 + half[..., -1:, :]))
        return self.weight**0.5 * _mask(product, targets)

    def basis(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "c r"]:
        """See ``Likelihood.basis``: Helmert's contrasts, the changes of the logits that sum to 0.

        Example:
            >>> Categorical().basis(torch.zeros(1, 2))
            tensor([[ 0.7071],
                    [-0.7071]])
        """
        c = outputs.shape[-1]
        return super().basis(outputs) if c == 1 else contrasts(c).to(outputs)

    def hessian_product(
        self, outputs: Float[Tensor, "*batch c"], targets: Int[Tensor, "*batch"] | None = None
    ) -> Callable[[Float[Tensor, "... c"]], Float[Tensor, "... c"]]:
        """See ``Likelihood.hessian_product``: ``B u = p ∘ (u - pᵀu)``.

        Taken after u is shifted by its entry at the most probable class: then no two large numbers cancel where one
        class has nearly all probability.
        """
        probs = torch.softmax(outputs, -1)
        largest = probs.argmax(-1, keepdim=True)
        if targets is not None:
            probs = probs.where((targets != IGNORED).unsqueeze(-1), 0.0)

        def apply(moved: Tensor) -> Tensor:
            shifted = moved - moved.gather(-1, largest.expand(*moved.shape[:-1], 1))
            return self.weight * probs * (shifted - (probs * shifted).sum(-1, keepdim=True))

        return apply

    @property
    def labels(self) -> bool:
        """See ``Likelihood.labels``."""
        return True

    @property
    def classes(self) -> bool:
        """See ``Likelihood.classes``."""
        return True

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "*batch"]:
        """Labels with probability softmax(f), by inversion of the distribution function."""
        below = torch.softmax(wide(outputs), -1).cumsum(-1)
        uniform = probes.uniform(outputs.shape[:-1], like=below, generator=generator)
        uniform = uniform.clamp(max=1 - 2**-53).unsqueeze(-1) * below[..., -1:]
        return (below <= uniform).sum(-1).clamp(max=outputs.shape[-1] - 1).to(outputs.device)

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Class probabilities softmax(f)."""
        return torch.softmax(outputs, -1)

    def _predictive(
        self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None
    ) -> Classification:
        return Classification.of(outputs, link, samples=samples, generator=generator)

    def _count(self, targets: Int[Tensor, "*target"]) -> int:
        """Number of labels that are not -100."""
        return int((targets != IGNORED).sum())

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        check_labels(targets, outputs.shape[-1])
        if outputs.shape[-1] > 1 and probabilities(outputs[:1]) and probabilities(outputs):
            warn(
                "the outputs look like probabilities; Categorical() takes logits. Try the network without its softmax",
                DataWarning,
            )


def probabilities(outputs: Float[Tensor, "*batch c"]) -> bool:
    """Whether outputs look as if a softmax had made them."""
    return bool((outputs >= 0).all() and ((outputs.sum(-1) - 1).abs() < 1e-3).all())


def _complement(probs: Tensor) -> Tensor:
    """1 - p without cancellation: the largest probability's complement is the sum of the others."""
    classes = torch.arange(probs.shape[-1], device=probs.device)
    largest = classes == probs.argmax(-1, keepdim=True)
    others = probs.masked_fill(largest, 0.0).sum(-1, keepdim=True)
    return torch.where(largest, others, 1 - probs)


def _mask(matrix: Tensor, targets: Tensor | None) -> Tensor:
    return matrix if targets is None else matrix.where((targets != IGNORED).to(matrix.device)[..., None, None], 0.0)


def _roots_of_probabilities(
    outputs: Float[Tensor, "*batch c"],
) -> tuple[Float[Tensor, "*batch c 1"], Int[Tensor, "*batch 1 1"]]:
    """``√p`` as a column, and the most probable class."""
    half = torch.exp(0.5 * torch.log_softmax(outputs, -1))
    return half.unsqueeze(-1), half.argmax(-1)[..., None, None]


def _at(place: Int[Tensor, "*batch 1 1"], columns: Float[Tensor, "*batch c k"]) -> Float[Tensor, "*batch 1 k"]:
    """The row of each position at a place of its own."""
    return columns.gather(-2, place.expand(*place.shape[:-1], columns.shape[-1]))
