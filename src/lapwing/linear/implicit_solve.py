"""Solves that can be differentiated, whatever solves: the derivative of ``A⁻¹ b`` in b is another solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

Solve = Callable[[Tensor], Tensor]


def implicit_solve(solve: Solve, b: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    """``x = A⁻¹ b`` for a symmetric A that does not depend on b; ``dL/db = A⁻¹ dL/dx``, as often as it is asked for.

    Args:
        solve: Solves with A.
        b: Right-hand sides.

    Cost:
        A solve, and another for each derivative.

    Example:
        >>> b = torch.ones(2, 1, requires_grad=True)
        >>> implicit_solve(lambda block: block / 4, b).square().sum().backward()
        >>> b.grad.flatten().tolist()
        [0.125, 0.125]
    """
    found: Tensor = _Solve.apply(b, solve)  # pyright: ignore[reportAssignmentType]
    return found


@final
class _Solve(torch.autograd.Function):
    """See ``implicit_solve``."""

    @staticmethod
    def forward(ctx: Any, b: Tensor, solve: Solve) -> Tensor:
        """``A⁻¹ b``."""
        ctx.solve = solve
        return solve(b)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """``A⁻¹`` of the gradient."""
        return _Solve.apply(grads[0], ctx.solve), None
