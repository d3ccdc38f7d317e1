"""What a Gaussian process is conditioned on, and whether a kernel and a mean go together with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lapwing.gp.kernels.base import Kernels
from lapwing.gp.trend import Mean, Trend, orthonormalised
from lapwing.ground.data.checks import check_there
from lapwing.ground.data.inputs import Values, as_tensor
from lapwing.ground.data.sources import Data, Source
from lapwing.ground.errors import DataError, DataWarning, ShapeError, warn
from lapwing.ground.precision import moved, wide
from lapwing.ground.results import Shown

NAMED = 5
"""Rows an error message names."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Observations(Shown):
    """Inputs, targets and how noisy each is.

    Args:
        inputs: X, ``[n, p]``.
        targets: y, ``[n, c]``.
        relative: Noise variance of each observation over ``1/ρ``, ``[n]``.
    """

    inputs: Float[Tensor, "n p"]
    targets: Float[Tensor, "n c"]
    relative: Float[Tensor, " n"]

    @classmethod
    def of(cls, data: Source, relative_noise: Float[Tensor, " n"] | None = None) -> Observations:
        """What a pair of tensors or a loader holds.

        Raises:
            DataError: If there are no data, or they are not finite, or a noise is not positive.
            ShapeError: If inputs or targets have other shapes.
        """
        batches: list[Any] = list(Data(data))
        inputs = torch.cat([batch.inputs for batch in batches])
        y = torch.cat([batch.targets for batch in batches])
        if not (inputs.is_floating_point() or inputs.is_complex()):
            inputs = wide(inputs)
        if inputs.ndim != 2 or not inputs.shape[1] or inputs.dtype not in (torch.float32, torch.float64):
            got = f"{inputs.dtype} {list(inputs.shape)}"
            hint = "x.flatten(1)" if inputs.ndim > 2 else "x[:, None] for a single dimension, x.float()"
            raise ShapeError("inputs of shape [n, p], float32 or float64", got, hint)
        targets = y[:, None] if y.ndim == 1 else y
        if targets.ndim != 2 or not targets.shape[1] or targets.is_complex():
            raise ShapeError("real targets of shape [n] or [n, c]", f"{y.dtype} {list(y.shape)}", "y.flatten(1)")
        check_finite_rows(inputs, "inputs")
        check_finite_rows(targets, "targets")
        ones = inputs.new_ones(len(inputs))
        relative = ones if relative_noise is None else torch.as_tensor(relative_noise).to(inputs)
        if relative.shape != ones.shape or not bool(((relative > 0) & relative.isfinite()).all()):
            got = f"shape {list(relative.shape)}, from {float(relative.min()):.3g} to {float(relative.max()):.3g}"
            hint = "relative_noise=sigma**2 * likelihood.precision"
            raise DataError(f"{len(ones)} positive noise variances", got, hint)
        return cls(inputs, targets.to(inputs), relative)

    def __len__(self) -> int:
        """N."""
        return len(self.inputs)

    @property
    def outputs(self) -> int:
        """C."""
        return self.targets.shape[1]

    @cached_property
    def distinct(self) -> Observations:
        """What these say of a function, from inputs that do not repeat, in the order in which they first appear.

        Targets at one input count as their average by ``1 / v_i``, whose noise variance v has ``1 / v = Σ 1 / v_i``.
        """
        count = int(self._places.max()) + 1
        if count == len(self):
            return self
        weight = 1 / wide(self.relative)[:, None]
        both = torch.cat([weight, weight * wide(self.targets)], 1)
        sums = both.new_zeros(count, both.shape[1]).index_add_(0, self._places.to(both.device), both)
        inputs = self.inputs.new_empty(count, self.inputs.shape[1]).index_copy_(0, self._places, self.inputs)
        return Observations(inputs, (sums[:, 1:] / sums[:, :1]).to(inputs), (1 / sums[:, 0]).to(inputs))

    @cached_property
    def _places(self) -> Int[Tensor, " n"]:
        """Which of the distinct inputs each has."""
        return numbered(self.inputs)

    @property
    def without_copies(self) -> Observations:
        """These in float64, of rows that say the same only the first."""
        highest = numbered(torch.cat([self.inputs, self.targets, self.relative[:, None]], 1)).cummax(0).values
        return self.select((highest.diff(prepend=highest.new_full((1,), -1)) > 0).nonzero()[:, 0])

    def reach(self, size: int) -> int:
        """How many stand before the one at the input number ``size``, counted without repeats from 0."""
        return int((self._places.cummax(0).values < size).sum())

    def places(self, index: Int[Tensor, " m"]) -> Int[Tensor, " k"]:
        """Which of these were made at some of the distinct inputs.

        Args:
            index: The inputs.
        """
        return torch.isin(self._places, index).nonzero()[:, 0]

    def repeated(self, noise: Float[Tensor, " c"]) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
        """The log density of targets given their averages at one input, and its derivative in the noise's logarithm.

            -½ (Σ_i log 2π v_i - Σ_j log 2π v_j + Σ_i (y_i - ȳ_j(i))² / v_i)        for each output

        with i over all observations and j over distinct inputs: what ``distinct`` leaves out of the evidence, nats.

        Args:
            noise: ``1/ρ`` of each output, float64.
        """
        if self.distinct is self:
            return torch.zeros_like(noise), torch.zeros_like(noise)
        averages = self.distinct
        each = wide(self.relative)
        away = wide(self.targets) - wide(averages.targets[self._places])
        rest = (away.square() / each[:, None]).sum(0) / noise
        spare = len(self) - len(averages)
        logs = each.log().sum() - wide(averages.relative).log().sum()
        return -0.5 * (spare * torch.log(2 * math.pi * noise) + logs + rest), -0.5 * (spare - rest)

    def select(self, index: slice | Int[Tensor, " m"]) -> Observations:
        """Some of them, in float64.

        Args:
            index: Which.
        """
        return Observations(wide(self.inputs[index]), wide(self.targets[index]), wide(self.relative[index]))

    def joined(self, more: Observations) -> Observations:
        """These and then others, as these are.

        Raises:
            ShapeError: If they have other columns or outputs.
        """
        self.check(more.inputs)
        if more.outputs != self.outputs:
            hint = "targets of the same outputs as before"
            raise ShapeError(f"targets of {self.outputs} outputs", f"{more.outputs}", hint)
        return Observations(
            torch.cat([self.inputs, more.inputs.to(self.inputs)]),
            torch.cat([self.targets, more.targets.to(self.targets)]),
            torch.cat([self.relative, more.relative.to(self.relative)]),
        )

    def to(self, device: torch.device | str) -> Observations:
        """These on another device.

        Args:
            device: Where to.
        """
        return Observations(moved(self.inputs, device), moved(self.targets, device), moved(self.relative, device))

    def check(self, x: Values) -> Float[Tensor, "m p"]:
        """New inputs, as these are.

        Raises:
            DataError: If there are none, or they are not finite.
            ShapeError: If they have another shape.
        """
        return checked_inputs(x, self.inputs)


def numbered(rows: Float[Tensor, "n p"]) -> Int[Tensor, " n"]:
    """Which of the distinct rows each is, these in the order in which they first appear."""
    _, found = rows.unique(dim=0, return_inverse=True)
    order = torch.arange(len(found), device=found.device)
    first = torch.full_like(found, len(found)).scatter_reduce_(0, found, order, "amin")
    return first.argsort(stable=True).argsort(stable=True)[found]


def checked_inputs(x: Values, like: Float[Tensor, "n p"]) -> Float[Tensor, "m p"]:
    """New inputs, as others are; see ``Observations.check``."""
    x = as_tensor(x)
    p = like.shape[1]
    if x.ndim != 2 or x.shape[1] != p or x.is_complex():
        hint = "x[:, None] for a single dimension" if p == 1 else "x[None] for a single input"
        hint = hint if x.ndim < 2 else "the columns of the data, in their order"
        raise ShapeError(f"real inputs of shape [m, {p}]", f"{x.dtype} {list(x.shape)}", hint)
    if not len(x):
        raise DataError("at least one input", "none", "x[None] for a single one")
    check_finite_rows(x, "inputs")
    return x.to(like)


def check_finite_rows(values: Float[Tensor, "n p"] | Int[Tensor, "n p"] | Bool[Tensor, "n p"], what: str) -> None:
    """Refuse rows that are not finite, by their numbers.

    Raises:
        DataError: Naming the first few.
    """
    check_there(values, what)
    bad = (~values.isfinite()).any(1).nonzero()[:, 0].tolist()
    if bad:
        first = ", ".join(map(str, bad[:NAMED])) + (", ..." if len(bad) > NAMED else "")
        hint = "leaving these rows out, or filling them in"
        raise DataError(f"finite {what}", f"NaN or infinite ones in {len(bad)} of {len(values)} rows: {first}", hint)


def check_suitable(kernel: Kernels, mean: Mean, data: Observations) -> None:
    """Refuse a kernel for other inputs, and a plane that the inputs do not span; warn of targets that never vary.

    Raises:
        ShapeError: If the kernel takes inputs of another width, or returns another shape.
        DataError: If observations do not tell a linear mean.
    """
    some = data.inputs[:2]
    kernels = kernel if isinstance(kernel, tuple) else (kernel,)
    if isinstance(kernel, tuple) and len(kernel) != data.outputs:
        got = f"{len(kernel)} for {data.outputs} outputs"
        raise ShapeError("a kernel for all outputs, or one an output", got, "kernel=(Matern(1.0), RBF(2.0)) for two")
    for each in kernels:
        found = each(some, some[:1])
        if found.shape != (len(some), 1):
            hint = "torch.exp(-torch.cdist(a, b)) as a model"
            raise ShapeError("a kernel from [n, p] and [m, p] to [n, m]", f"{list(found.shape)}", hint)
    n, p = data.inputs.shape
    basis = Trend(mean)(data.inputs)
    if orthonormalised(basis, basis)[0].shape[1] < basis.shape[1]:
        raise DataError(
            f"inputs that tell a linear mean: {p + 1} or more, no column constant or a sum of others",
            f"{n} observations of {p} columns that do not",
            "mean='constant'",
        )
    same = (data.targets == data.targets[0]).all(0)
    if len(data) > 1 and bool(same.any()):
        value = float(data.targets[0, same][0])
        warn(f"all targets of an output are {value:.6g}: tuning will find neither function nor noise", DataWarning)
