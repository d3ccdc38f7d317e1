"""Products with a matrix whose rows are inputs: ``torch.addmm`` and ``torch.mm``, as in GPT-2's ``Conv1D``.

Examples and positions are rows of the same matrix there; example by example they are positions again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lapwing.jacobian.layers.base import Call, Explicit, Factor, Layer
from lapwing.jacobian.layers.linear import Linear, OuterProducts


@final
@dataclass(frozen=True, eq=False)
class MatrixProduct(OuterProducts):
    """``torch.addmm(bias, x, weight)`` and ``torch.mm(x, weight)``: the transpose of the weight of a ``Linear``.

    Args:
        a: The rows x of each example as columns, in one group of i inputs, ``[n, 1, i, t]``.
    """

    @classmethod
    def signature(cls, func: Callable[..., Any]) -> inspect.Signature:
        """See ``LayerKind``; C++ hides it."""

        def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> None: ...

        def mm(input: Any, mat2: Any, *, out: Any = None) -> None: ...

        return inspect.signature(addmm if func.__name__ == "addmm" else mm)

    @classmethod
    def parameters(cls, given: dict[str, Any]) -> tuple[object, object]:
        """See ``LayerKind``; a bias that is not one number an output is not this layer's."""
        weight = given["mat2"]
        bias = given["input"] if "mat1" in given else None
        if bias is None or bias.numel() != weight.shape[1]:
            return weight, None
        return weight, bias

    @classmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, None]:
        """See ``LayerKind``."""
        rows = given["mat1"] if "mat1" in given else given["input"]
        return rows.detach(), None

    @classmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> MatrixProduct:
        """See ``LayerKind``; inputs and gradients are those of a ``Linear``."""
        same = Linear.of(layer, calls, grads, n)
        return cls(same.weight, same.bias, same.g, same.a)

    @property
    def width(self) -> int:
        """See ``OuterProducts``."""
        return self.a.shape[2]

    def inputs(self, ones: int = 0) -> Float[Tensor, "n p i t"]:
        """See ``OuterProducts``."""
        return self._linear.inputs(ones)

    def flat_weight(self, matrices: Float[Tensor, "... p o i"]) -> Float[Tensor, "... d"]:
        """See ``OuterProducts``: one row an input after the other."""
        return matrices.mT.flatten(-3)

    def weight_matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "p o i"]:
        """See ``OuterProducts``."""
        return flat.view(1, -1, self.g.shape[3]).mT

    def for_products(self) -> Factor:
        """See ``OuterProducts``."""
        if not self.factored(self.g.shape[1]):
            return Explicit(self.weight, self.bias, self.rows())
        return replace(self, g=self.g.mT.contiguous().mT, a=self.a.mT.contiguous().mT)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """See ``Linear``."""
        weight, bias = self._apart(block)
        outputs_first = weight.view(self.width, -1, block.shape[1]).transpose(0, 1)
        return self._linear.push(torch.cat([outputs_first.flatten(0, 1), bias]))

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """See ``Linear``."""
        weight, bias = self._apart(self._linear.pull(block))
        inputs_first = weight.view(-1, self.width, block.shape[2]).transpose(0, 1)
        return torch.cat([inputs_first.flatten(0, 1), bias])

    @cached_property
    def _linear(self) -> Linear:
        """The layer as that of the transposed weight."""
        return Linear(self.weight, self.bias, self.g, self.a)

    def _apart(self, block: Float[Tensor, "d c"]) -> tuple[Float[Tensor, "w c"], Float[Tensor, "b c"]]:
        """Columns of weights, those of the weight and those of the bias."""
        entries = self.width * self.g.shape[3]
        return block[:entries], block[entries:]
