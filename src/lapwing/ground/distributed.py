"""Several processes, each with its own part of the data: what they add up, and what they join."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lapwing.ground.errors import DataError, LapwingError, UnsupportedError

T = TypeVar("T")

BROADCAST = "the same tensor in each: torch.distributed.broadcast(x, 0)"
"""What to try where tensors differ."""

LOST = "its own message above; a run with a checkpoint goes on from there, on any number of processes"
"""What to try where another process is gone."""


def several() -> bool:
    """Whether this process is one of several, as ``torchrun`` starts them, that made a process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def added(values: Tensor) -> Tensor:
    """The sum over all processes, in place; the same number, to the last digit, on each.

    Args:
        values: What this process has of it.

    Raises:
        DataError: If another process is gone.

    Cost:
        One ``all_reduce``: about twice the bytes of ``values`` sent by each process.
    """
    return _exchanged(values, dist.all_reduce)


def handed(values: Tensor, rank: int) -> Tensor:
    """What one process has, for all of them, in place.

    Args:
        values: What is handed out there, of the same shape, elsewhere written to.
        rank: The process that has it.

    Raises:
        DataError: If another process is gone.

    Cost:
        One ``broadcast``: about the bytes of ``values`` sent in all.
    """
    return _exchanged(values, lambda whole: dist.broadcast(whole, rank))


def _exchanged(values: Tensor, exchange: Callable[[Tensor], object]) -> Tensor:
    """Values after an exchange in place, in one piece where the backend takes them: nccl sends from GPUs alone."""
    whole = (values.cuda() if dist.get_backend() == "nccl" and not values.is_cuda else values).contiguous()
    with _all_there():
        exchange(whole)
    return values if whole is values else values.copy_(whole)


@contextmanager
def _all_there() -> Generator[None]:
    """Says that another process is gone, where torch says something else."""
    try:
        yield
    except RuntimeError as lost:
        got = f"one that is gone, or made another ({lost!s:.80})"
        raise DataError("every process of torch.distributed in the same call", got, LOST) from lost


def gathered_rows(rows: Tensor) -> Tensor:
    """The rows of all processes on the first axis, in order of their ranks.

    Args:
        rows: What this process has of them: any number, alike in all other axes.

    Raises:
        DataError: If another process is gone.

    Cost:
        One ``all_reduce`` of all rows.
    """
    if rows.dtype == torch.bool:
        return gathered_rows(rows.byte()).bool()
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
    with _all_there():
        dist.all_gather_object(found, value)
    return found


def all_or_none(work: Callable[[], T]) -> T:
    """What each process finds by itself; or in all of them what went wrong in one, whatever it was.

    Args:
        work: What to do, without a word to the others.

    Raises:
        DataError: If another process is gone.
    """
    found: list[T] = []
    failure: Exception | None = None
    try:
        found.append(work())
    except Exception as reason:
        failure = reason
    heard = [each for each in all_of(failure and sent(failure)) if each is not None]
    if heard:
        raise failure or heard[0]
    return found[0]


def sent(failure: Exception) -> Exception:
    """The failure, or its words where it may be of a kind that another process does not know."""
    if isinstance(failure, LapwingError | OSError):
        return failure
    return RuntimeError(f"{type(failure).__name__}: {failure}")


def once(shared: bool, write: Callable[[], object]) -> None:
    """Writes in the first process while the others wait; what goes wrong there, all say.

    Args:
        shared: Whether there are others in this call.
        write: What to do.

    Raises:
        DataError: If another process is gone.
    """
    if not shared:
        write()
    else:
        all_or_none(lambda: write() if dist.get_rank() == 0 else None)


def turn(shared: bool) -> tuple[int, int]:
    """Which of the processes that share a task this one is, and how many there are: of one, the first."""
    return (dist.get_rank(), dist.get_world_size()) if shared else (0, 1)


def shares(costs: list[int]) -> list[int]:
    """The process that each of some tasks falls to: the costliest first, each to the one that has least to do.

    Args:
        costs: Of each task.
    """
    load = [0] * dist.get_world_size()
    found = [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        found[task] = load.index(min(load))
        load[found[task]] += costs[task]
    return found


def check_alike(shared: bool, value: object, what: str, hint: str = BROADCAST) -> None:
    """Refuses what must be the same in every process and is not.

    Args:
        shared: Whether each process has a part of the data.
        value: What this process has, which can be pickled.
        what: Its name.
        hint: What to try.

    Raises:
        DataError: If another has another.
    """
    if not shared:
        return
    known = all_of(value)
    others = [rank for rank, each in enumerate(known) if each != known[0]]
    if others:
        raise DataError(f"the same {what} in every process", f"others in ranks 0 and {others[0]}", hint)


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
