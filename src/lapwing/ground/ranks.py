"""Several processes, each with its own part of the data: what they add up, and what they join."""

from __future__ import annotations

from typing import NoReturn, TypeVar

import torch.distributed as dist
from torch import Tensor

from lapwing.ground.errors import DataError, UnsupportedError

T = TypeVar("T")

LOST = "its own message above; a run with a checkpoint goes on from there, on any number of processes"
"""What to try where another process is gone."""


def added(values: Tensor) -> Tensor:
    """The sum over all processes, in place; the same number, to the last digit, on each.

    Args:
        values: What this process has of it.

    Raises:
        DataError: If another process is gone.

    Cost:
        One ``all_reduce``: about twice the bytes of ``values`` sent by each process.
    """
    whole = (values.cuda() if dist.get_backend() == "nccl" and not values.is_cuda else values).contiguous()
    try:
        dist.all_reduce(whole)
    except RuntimeError as lost:
        raise_lost(lost)
    return values if whole is values else values.copy_(whole)


def joined(rows: Tensor) -> Tensor:
    """The rows of all processes on the first axis, in order of their ranks.

    Args:
        rows: What this process has of them: any number, alike in all other axes.

    Raises:
        DataError: If another process is gone.

    Cost:
        One ``all_reduce`` of all rows.
    """
    counts = all_of(len(rows))
    start = sum(counts[: dist.get_rank()])
    whole = rows.new_zeros(sum(counts), *rows.shape[1:])
    whole[start : start + len(rows)] = rows
    return added(whole)


def all_of(value: T) -> list[T]:
    """A value of each process, in order of their ranks.

    Args:
        value: That of this process, which can be pickled.

    Raises:
        DataError: If another process is gone.
    """
    found: list[T] = [value] * dist.get_world_size()
    try:
        dist.all_gather_object(found, value)
    except RuntimeError as lost:
        raise_lost(lost)
    return found


def check_alone(shared: bool, what: str, hint: str) -> None:
    """Refuses what needs all data in one process.

    Args:
        shared: Whether each process has a part of them.
        what: What needs them.
        hint: What to try.

    Raises:
        UnsupportedError: If they are shared.
    """
    if shared:
        raise UnsupportedError(
            f"one process for {what}", f"{dist.get_world_size()}, each with a part of the data", hint
        )


def raise_lost(lost: RuntimeError) -> NoReturn:
    """Says that another process is gone.

    Raises:
        DataError: Always.
    """
    got = f"one that is gone, or made another ({lost!s:.80})"
    raise DataError("every process of torch.distributed in the same call", got, LOST) from lost
