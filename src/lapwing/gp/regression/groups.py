"""Outputs that share a kernel and a noise, and so their solves; where the coefficients of each stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import Kernel, Kernels
from lapwing.gp.kernels.matrix import KernelMatrix
from lapwing.linalg import Diagonal
from lapwing.linear.problem import Problem


@final
@dataclass(frozen=True, eq=False)
class OutputGroup:
    """Outputs whose functions have one kernel and one noise.

    Args:
        outputs: Which they are.
        matrix: K at the distinct inputs.
        problem: ``K + N``.
    """

    outputs: tuple[int, ...]
    matrix: KernelMatrix
    problem: Problem

    @classmethod
    def of(
        cls, outputs: tuple[int, ...], matrix: KernelMatrix, noise: float, relative: Float[Tensor, " n"]
    ) -> OutputGroup:
        """Outputs with noise variances that are known up to a factor.

        Args:
            outputs: Which they are.
            matrix: K.
            noise: ``1/ρ``.
            relative: Noise variance at each distinct input over it.
        """
        return cls(outputs, matrix, Problem(matrix, Diagonal(noise * relative)))

    @property
    def kernel(self) -> Kernel:
        """K."""
        return self.matrix.kernel

    @property
    def noise(self) -> Float[Tensor, " n"]:
        """Noise variance at each distinct input."""
        return self.problem.prior.values

    def columns(self, width: int, outputs: int) -> list[int]:
        """Which columns of a block are theirs.

        Args:
            width: Columns of the block, all outputs of a draw together.
            outputs: c.
        """
        return [draw + output for draw in range(0, width, outputs) for output in self.outputs]


def grouped(
    kernel: Kernels, noises: Sequence[float], inputs: Float[Tensor, "n p"], relative: Float[Tensor, " n"], shared: bool
) -> tuple[OutputGroup, ...]:
    """All outputs together, or each alone.

    Args:
        kernel: k.
        noises: ``1/ρ`` of each output.
        inputs: The distinct inputs.
        relative: Noise variance at each over ``1/ρ``.
        shared: Whether all outputs have one kernel and one noise.
    """
    if shared and not isinstance(kernel, tuple):
        return (OutputGroup.of(tuple(range(len(noises))), KernelMatrix(kernel, inputs), noises[0], relative),)
    if isinstance(kernel, tuple):
        matrices = [KernelMatrix(each, inputs) for each in kernel]
    else:
        matrices = [KernelMatrix(kernel, inputs)] * len(noises)
    return tuple(
        OutputGroup.of((output,), matrix, noise, relative)
        for output, (matrix, noise) in enumerate(zip(matrices, noises, strict=True))
    )
