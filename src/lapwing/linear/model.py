"""What a Gaussian linear model is to whatever solves with it: features J, by what they do to blocks; the plainest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeAlias, cast, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.distributed import check_alone
from lapwing.ground.layout import Layout
from lapwing.likelihoods import Gaussian, Likelihood


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
    """

    inputs: Inputs
    outputs: Float[Tensor, "n *event c"]
    targets: Tensor
    push: Callable[[Float[Tensor, "d k"]], Float[Tensor, "k n *event c"]]
    pull: Callable[[Float[Tensor, "k n *event c"]], Float[Tensor, "d k"]]
    width: int

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

    def is_cached(self, columns: int = 1) -> bool:
        """Whether the chunks of the next ``visit`` are all at hand, so that they may be read in any order."""
        ...

    def on(self, inputs: Inputs) -> Chunk:
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


@final
@dataclass(frozen=True, eq=False)
class Matrix:
    """Linear regression, ``h(w, x) = X w`` with the rows X of each example at hand, and targets; a ``LinearModel``.

    Args:
        features: X of all examples, ``[n, d]`` for one output, else ``[n, *event, c, d]``.
        targets: Canonical targets; ``None`` for 0, where only the curvature matters.
        likelihood: Whose output Hessian is B.
        at_weights: w̃; ``None`` for 0.
        examples: Examples to a chunk.

    Example:
        >>> model = Matrix(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        >>> model.diagonal().tolist(), [chunk.examples for chunk in model.visit()]
        ([1.0, 5.0], [2])
    """

    features: Float[Tensor, "n *shape d"]
    targets: Tensor | None = None
    likelihood: Likelihood = field(default_factory=Gaussian)
    at_weights: Float[Tensor, " d"] | None = None
    examples: int = 64

    @property
    def weights(self) -> Float[Tensor, " d"]:
        """w̃."""
        return self._rows.new_zeros(self._rows.shape[-1]) if self.at_weights is None else self.at_weights

    @property
    def layout(self) -> Layout:
        """One parameter."""
        return Layout(("weights",), ((len(self.weights),),))

    @property
    def event(self) -> torch.Size:
        """Shape of the outputs of one example."""
        return self._rows.shape[1:-1]

    @property
    def data(self) -> Data:
        """Features and targets, chunk by chunk."""
        return self._data

    @cached_property
    def _data(self) -> Data:
        targets = self._rows.new_zeros(self._rows.shape[:-1]) if self.targets is None else self.targets
        return Data(list(zip(self._rows.split(self.examples), targets.split(self.examples), strict=True)))

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        """See ``LinearModel.visit``."""
        return (self._chunk(batch) for batch in self.data)

    def is_cached(self, columns: int = 1) -> bool:
        """They are."""
        return True

    def on(self, inputs: Inputs) -> Chunk:
        """The model at other features."""
        return self._chunk(Batch(inputs, self.weights.new_empty(0)))

    def rows(self, inputs: Inputs, directions: Directions) -> Iterator[Float[Tensor, "n k d"]]:
        """See ``LinearModel.rows``."""
        rows = cast("Tensor", inputs)
        for cotangents in directions(rows @ self.weights, slice(0, len(rows))):
            yield torch.einsum("kne,ned->nkd", cotangents.flatten(2), rows.flatten(1, -2))

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Xᵀ B X)``."""
        total = torch.zeros_like(self.weights)
        for chunk in self.visit():
            root = self.likelihood.root(chunk.outputs, chunk.targets)
            total += (root.mT @ cast("Tensor", chunk.inputs)).square().flatten(0, -2).sum(0)
        return total

    def check(self) -> None:
        """There is nothing that could change unseen."""

    @cached_property
    def _rows(self) -> Float[Tensor, "n *event_c d"]:
        return self.features if self.features.ndim > 2 else self.features[:, None]

    def _chunk(self, batch: Batch) -> Chunk:
        rows = cast("Tensor", batch.inputs)
        f = rows @ self.weights
        y = self.likelihood.canonical_targets(f, batch.targets) if len(batch.targets) else batch.targets

        def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
            flat = rows.flatten(0, -2)  # one product, not one for each example; few columns are far faster in front
            return (block.mT.contiguous() @ flat.mT).unflatten(1, rows.shape[:-1])

        def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
            return (block.flatten(1) @ rows.flatten(0, -2)).mT

        return Chunk(rows, f, y, push, pull, max(1, 2**20 // rows[..., 0].numel()))


def batches(
    model: LinearModel, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
) -> Iterator[Iterator[Chunk]]:
    """The chunks in mini-batches of at least so many examples, but for the last: the same ones in every pass.

    Args:
        model: The linear model.
        columns: Columns of the blocks to come.
        batch: Examples to a mini-batch.
        generator: Shuffles them, where all are at hand; without one they come as the data do.

    Example:
        >>> model = Matrix(torch.zeros(9, 1), examples=2)
        >>> [[chunk.examples for chunk in group] for group in batches(model, batch=4)]
        [[2, 2], [2, 2], [1]]
    """
    check_alone(model.data.shared, "mini-batches", "CG(), which adds up over all processes")
    left = model.visit(columns)
    groups = (_until(first, left, batch) for first in left)
    if generator is None or not model.is_cached(columns):
        return groups
    lists = [list(group) for group in groups]
    return (iter(lists[i]) for i in probes.permutation(len(lists), generator=generator))


def _until(first: Chunk, left: Iterator[Chunk], batch: int) -> Iterator[Chunk]:
    """A chunk and those after it, until they have ``batch`` examples; each is read before the next."""
    examples = first.examples
    yield first
    while examples < batch and (more := next(left, None)) is not None:
        examples += more.examples
        yield more
