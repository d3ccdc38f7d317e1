"""What a Gaussian linear model is to whatever solves with it: features J, known by what they do to blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import Data, Inputs
from lapwing.ground.ranks import check_alone
from lapwing.ground.tree import Layout
from lapwing.likelihoods import Likelihood


@final
@dataclass(frozen=True, eq=False)
class Chunk:
    """The features J of n examples, ready for any number of columns.

    For classes the outputs of ``push`` may be off by a constant at each position, which no probability sees.

    Args:
        inputs: The examples.
        outputs: Canonical outputs f at the weights the model was made linear at.
        targets: Canonical targets; empty where the examples have none.
        push: ``J V``, a change of the outputs for each change of the weights.
        pull: ``Jᵀ U``.
        width: Columns that should be pushed and pulled together, at most.
        bytes: Bytes it occupies; ``None`` if keeping it saves nothing.
    """

    inputs: Inputs
    outputs: Float[Tensor, "n *event c"]
    targets: Tensor
    push: Callable[[Float[Tensor, "d k"]], Float[Tensor, "k n *event c"]]
    pull: Callable[[Float[Tensor, "k n *event c"]], Float[Tensor, "d k"]]
    width: int
    bytes: int | None

    @property
    def examples(self) -> int:
        """Examples n."""
        return len(self.outputs)


Directions: TypeAlias = Callable[[Tensor, slice], Iterator[Tensor]]
"""From outputs ``[n, *event, c]`` of some examples, and their place, to blocks of cotangents ``[k, n, *event, c]``."""


@runtime_checkable
class LinearModel(Protocol):
    """Features J of a Gaussian linear model ``h(w, x) = f(x) + J(x) (w - w̃)`` over the data it stands on.

    A network made linear, a plain matrix, and a projector after a network are linear models; what solves, draws, or
    finds a mode sees no more of them than this.
    """

    @property
    def likelihood(self) -> Likelihood:
        """Whose output Hessian is B."""
        ...

    @property
    def data(self) -> Data:
        """The examples and targets it stands on."""
        ...

    @property
    def weights(self) -> Float[Tensor, " d"]:
        """w̃, where it was made linear; their dtype and device are the model's."""
        ...

    @property
    def layout(self) -> Layout:
        """How the d weights are named, for priors with several precisions."""
        ...

    @property
    def event(self) -> torch.Size:
        """Shape of the canonical outputs of one example."""
        ...

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        """J over all the data chunk by chunk, for blocks of so many columns."""
        ...

    def held(self, columns: int = 1) -> bool:
        """Whether the chunks of the next ``visit`` are all at hand, so that they may be read in any order."""
        ...

    def at(self, inputs: Inputs) -> Chunk:
        """The same features at other inputs, without targets: a prediction is a push there."""
        ...

    def rows(self, inputs: Inputs, directions: Directions) -> Iterator[Float[Tensor, "n k d"]]:
        """Explicit rows ``uᵀ J`` of some examples for blocks of cotangents u, a few examples at a time."""
        ...

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Jᵀ B J)`` with B at the outputs f."""
        ...

    def check(self) -> None:
        """Refuse to go on when what the model stands on was changed since; ``visit`` does where that costs nothing."""
        ...


def batches(
    model: LinearModel, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
) -> Iterator[Iterator[Chunk]]:
    """The chunks in mini-batches of at least so many examples, but for the last: the same ones in every pass.

    Args:
        model: The linear model.
        columns: Columns of the blocks to come.
        batch: Examples to a mini-batch.
        generator: Shuffles them, where all are at hand; without one they come as the data do.
    """
    check_alone(model.data.shared, "mini-batches", "CG(), which adds up over all processes")
    groups = gathered(model.visit(columns), batch)
    if generator is None or not model.held(columns):
        return groups
    lists = [list(group) for group in groups]
    return (iter(lists[i]) for i in probes.permutation(len(lists), generator=generator))


def gathered(chunks: Iterable[Chunk], batch: int) -> Iterator[Iterator[Chunk]]:
    """Consecutive chunks, together until they have ``batch`` examples; each is read before the next.

    Example:
        >>> from lapwing.linear.matrix import Matrix
        >>> model = Matrix(torch.zeros(9, 1), examples=2)
        >>> [[chunk.examples for chunk in group] for group in gathered(model.visit(), 4)]
        [[2, 2], [2, 2], [1]]
    """
    left = iter(chunks)
    for first in left:
        yield _until(first, left, batch)


def _until(first: Chunk, left: Iterator[Chunk], batch: int) -> Iterator[Chunk]:
    examples = first.examples
    yield first
    while examples < batch and (more := next(left, None)) is not None:
        examples += more.examples
        yield more
