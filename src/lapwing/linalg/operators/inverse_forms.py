"""``X A⁻¹ Xᵀ`` of rows X for a fixed A, in plain PyTorch: modules that hold what they need of A in buffers.

Nothing is checked and nothing depends on numbers: they can be traced, exported and differentiated in X.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class InverseForm(nn.Module, abc.ABC):
    """``X A⁻¹ Xᵀ`` from the rows X."""

    @abc.abstractmethod
    def forward(self, rows: Float[Tensor, "m k d"]) -> Float[Tensor, "m k k"]:
        """``X A⁻¹ Xᵀ`` of each of m blocks of rows."""

    @abc.abstractmethod
    def of_outer_products(self, places: Int[Tensor, "c i"]) -> OuterForm:
        """The same of rows ``X = I ⊗ aᵀ``, from a alone.

        Args:
            places: Coordinate of A that entry i of a has in row c.
        """


class OuterForm(nn.Module, abc.ABC):
    """``X A⁻¹ Xᵀ`` of ``X = I ⊗ aᵀ``, from a."""

    @abc.abstractmethod
    def forward(self, inputs: Float[Tensor, "m i"]) -> Float[Tensor, "m c c"]:
        """``X A⁻¹ Xᵀ`` of each of m vectors a."""


@final
class SumForm(InverseForm):
    """``X (diag(v) + F Fᵀ - G Gᵀ) Xᵀ``.

    Args:
        variance: v; ``None`` for none.
        added: F; ``None`` for none.
        taken: G; ``None`` for none.

    Example:
        >>> form = SumForm(torch.tensor([2.0, 3.0]), taken=torch.tensor([[1.0], [1.0]]))
        >>> form(torch.tensor([[[1.0, 0.0]]])).item()
        1.0
    """

    variance: Tensor | None
    added: Tensor | None
    taken: Tensor | None

    def __init__(
        self,
        variance: Float[Tensor, " d"] | None = None,
        added: Float[Tensor, "d r"] | None = None,
        taken: Float[Tensor, "d s"] | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("variance", variance)
        self.register_buffer("added", added)
        self.register_buffer("taken", taken)

    def forward(self, rows: Float[Tensor, "m k d"]) -> Float[Tensor, "m k k"]:
        """See ``InverseForm``."""
        return summed(self._parts(rows))

    def _parts(self, rows: Tensor) -> Iterable[Tensor]:
        if self.variance is not None:
            own = rows.to(self.variance)
            yield (own * self.variance) @ own.mT
        if self.added is not None:
            factor = rows.to(self.added) @ self.added
            yield factor @ factor.mT
        if self.taken is not None:
            factor = rows.to(self.taken) @ self.taken
            yield -(factor @ factor.mT)

    def of_outer_products(self, places: Int[Tensor, "c i"]) -> SumOuterForm:
        """See ``InverseForm``."""
        parts = (self.variance, self.added, self.taken)
        return SumOuterForm(*(None if part is None else gathered(part, places) for part in parts))


@final
class SumOuterForm(OuterForm):
    """The same of ``X = I ⊗ aᵀ``.

    Args:
        variance: v by output and input.
        added: F likewise.
        taken: G likewise.
    """

    variance: Tensor | None
    added: Tensor | None
    taken: Tensor | None

    def __init__(
        self,
        variance: Float[Tensor, "c i"] | None,
        added: Float[Tensor, "c i r"] | None,
        taken: Float[Tensor, "c i s"] | None,
    ) -> None:
        super().__init__()
        self.register_buffer("variance", variance)
        self.register_buffer("added", added)
        self.register_buffer("taken", taken)

    def forward(self, inputs: Float[Tensor, "m i"]) -> Float[Tensor, "m c c"]:
        """See ``OuterForm``."""
        return summed(self._parts(inputs))

    def _parts(self, inputs: Tensor) -> Iterable[Tensor]:
        if self.variance is not None:
            yield torch.diag_embed(inputs.to(self.variance).square() @ self.variance.mT)
        if self.added is not None:
            factor = torch.einsum("mi,cir->mcr", inputs.to(self.added), self.added)
            yield factor @ factor.mT
        if self.taken is not None:
            factor = torch.einsum("mi,cir->mcr", inputs.to(self.taken), self.taken)
            yield -(factor @ factor.mT)


@final
class KroneckerForm(InverseForm):
    """``X A⁻¹ Xᵀ`` for ``A⁻¹ = (L ⊗ R) diag(v) (L ⊗ R)ᵀ`` with orthonormal L and R, on arrays ``[p, o, i]``.

    Args:
        left: L; ``None`` for the identity.
        right: R; ``None`` for the identity.
        variances: v, as arrays.

    Example:
        >>> form = KroneckerForm(None, None, torch.tensor([[[1.0, 4.0]]]))
        >>> form(torch.tensor([[[1.0, 1.0]]])).item()
        5.0
    """

    left: Tensor | None
    right: Tensor | None
    variances: Tensor

    def __init__(
        self,
        left: Float[Tensor, "*p o o"] | None,
        right: Float[Tensor, "*q i i"] | None,
        variances: Float[Tensor, "p o i"],
    ) -> None:
        super().__init__()
        self.register_buffer("left", left)
        self.register_buffer("right", right)
        self.register_buffer("variances", variances)

    def forward(self, rows: Float[Tensor, "m k d"]) -> Float[Tensor, "m k k"]:
        """See ``InverseForm``."""
        arrays = rows.to(self.variances).unflatten(2, self.variances.shape)
        if self.left is not None:
            arrays = self.left.mT @ arrays
        if self.right is not None:
            arrays = arrays @ self.right
        factor = (arrays * self.variances.sqrt()).flatten(2)
        return factor @ factor.mT

    def of_outer_products(self, places: Int[Tensor, "c i"]) -> KroneckerOuterForm:
        """See ``InverseForm``."""
        variances = self.variances[0]
        index = torch.arange(variances.numel(), device=places.device).view(variances.shape)
        outputs, inputs = found_among(places, index)
        left = None if self.left is None else self.left.view(self.left.shape[-2:])
        right = None if self.right is None else self.right.view(self.right.shape[-2:])
        whole = torch.equal(inputs, torch.arange(places.shape[1], device=places.device))
        return KroneckerOuterForm(left, right, variances, outputs, None if whole else inputs, len(places))


@final
class KroneckerOuterForm(OuterForm):
    """The same of ``X = I ⊗ aᵀ``: ``L diag(v (Rᵀ a)²) Lᵀ`` for the outputs that it holds, and 0 for others.

    Args:
        left: L; ``None`` for the identity.
        right: R; ``None`` for the identity.
        variances: v.
        outputs: The outputs.
        inputs: Which of a; ``None`` for all.
        size: Outputs c there are.
    """

    left: Tensor | None
    right: Tensor | None
    variances: Tensor
    inputs: Tensor | None
    outputs: Tensor | None

    def __init__(
        self,
        left: Float[Tensor, "o o"] | None,
        right: Float[Tensor, "i i"] | None,
        variances: Float[Tensor, "o i"],
        outputs: Int[Tensor, " o"],
        inputs: Int[Tensor, " i"] | None,
        size: int,
    ) -> None:
        super().__init__()
        everything = torch.arange(size, device=outputs.device)
        self.register_buffer("left", left)
        self.register_buffer("right", right)
        self.register_buffer("variances", variances)
        self.register_buffer("inputs", inputs)
        self.register_buffer("outputs", None if torch.equal(outputs, everything) else outputs)
        self.size = size

    def forward(self, inputs: Float[Tensor, "m i"]) -> Float[Tensor, "m c c"]:
        """See ``OuterForm``."""
        own = inputs.to(self.variances)
        if self.inputs is not None:
            own = own[:, self.inputs]
        if self.right is not None:
            own = own @ self.right
        spread = own.square() @ self.variances.mT
        covariance = torch.diag_embed(spread) if self.left is None else (self.left * spread[:, None]) @ self.left.mT
        if self.outputs is None:
            return covariance
        m = inputs.shape[0]
        rows = own.new_zeros(m, self.size, len(self.outputs)).index_copy(1, self.outputs, covariance)
        return own.new_zeros(m, self.size, self.size).index_copy(2, self.outputs, rows)


@final
class BlocksForm(InverseForm):
    """``X A⁻¹ Xᵀ`` of a block-diagonal A: the sum over its blocks.

    Args:
        blocks: That of each block.
        index: The coordinates of each block, in its order.
    """

    def __init__(self, blocks: Sequence[InverseForm], index: Sequence[Int[Tensor, " _"]]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        for number, place in enumerate(index):
            self.register_buffer(f"index{number}", place)

    def forward(self, rows: Float[Tensor, "m k d"]) -> Float[Tensor, "m k k"]:
        """See ``InverseForm``."""
        return summed(block(rows[..., self._index(number)]) for number, block in enumerate(self.blocks))

    def of_outer_products(self, places: Int[Tensor, "c i"]) -> BlocksOuterForm:
        """See ``InverseForm``."""
        found = list[OuterForm]()
        for number, block in enumerate(self.blocks):
            assert isinstance(block, InverseForm)
            index = self._index(number)
            own = torch.full((int(places.max()) + 1,), -1, device=places.device)
            own[index] = torch.arange(len(index), device=places.device)
            found.append(block.of_outer_products(own[places]))
        return BlocksOuterForm(found)

    def _index(self, number: int) -> Tensor:
        return self.get_buffer(f"index{number}")


@final
class BlocksOuterForm(OuterForm):
    """The same of ``X = I ⊗ aᵀ``.

    Args:
        blocks: That of each block.
    """

    def __init__(self, blocks: Sequence[OuterForm]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, inputs: Float[Tensor, "m i"]) -> Float[Tensor, "m c c"]:
        """See ``OuterForm``."""
        return summed(block(inputs) for block in self.blocks)


def summed(parts: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    each = iter(parts)
    total = next(each)
    for part in each:
        total = total + part
    return total


def gathered(values: Float[Tensor, "d *r"], places: Int[Tensor, "c i"]) -> Float[Tensor, "c i *r"]:
    """The values at some places, 0 where a place is negative.

    Example:
        >>> gathered(torch.tensor([5.0, 7.0]), torch.tensor([[1, -1]])).tolist()
        [[7.0, 0.0]]
    """
    held = (places >= 0).view(*places.shape, *[1] * (values.ndim - 1))
    return torch.where(held, values[places.clamp_min(0)], 0.0)


def found_among(places: Int[Tensor, "c i"], index: Int[Tensor, "o w"]) -> tuple[Int[Tensor, " o"], Int[Tensor, " w"]]:
    """The rows and columns of a table in which the numbers of a smaller one stand.

    Args:
        places: The table; what is negative stands nowhere.
        index: All numbers of it, from 0, a row those of one row.

    Example:
        >>> found_among(torch.tensor([[1, -1], [0, -1]]), torch.tensor([[0], [1]]))
        (tensor([1, 0]), tensor([0]))
    """
    row = torch.zeros(index.numel(), dtype=torch.long, device=places.device)
    column = torch.zeros_like(row)
    rows, columns = (places >= 0).nonzero(as_tuple=True)
    row[places[rows, columns]] = rows
    column[places[rows, columns]] = columns
    return row[index[:, 0]], column[index[0]]
