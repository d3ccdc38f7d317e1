"""Loaders in, batches out: the only room that knows what a loader yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import length_hint
from typing import Any, TypeAlias, cast, final

import torch.distributed as dist
from torch import Tensor

from lapwing.ground import distributed
from lapwing.ground.data.checks import check_there
from lapwing.ground.data.inputs import (
    Inputs,
    InputsLike,
    Values,
    as_inputs,
    as_tensor,
    check_inputs,
    chunks,
    count,
    is_array,
    is_numbers,
    place,
    take,
)
from lapwing.ground.device import users_default_device
from lapwing.ground.errors import ConfigError, DataError, ShapeError, describe
from lapwing.ground.moving import Mover
from lapwing.ground.progress import track

Unpack: TypeAlias = Callable[[Any], tuple[InputsLike, Values]]
"""A user's hook that splits one element of a loader into inputs and targets."""


Source: TypeAlias = Iterable[Any] | tuple[Values | Mapping[str, Any] | tuple[Any, ...], Values]
"""Training data: a loader, or a pair ``(x, y)`` of inputs and targets, the inputs numbers, keyword arguments or a tuple
of positional arguments."""


PAIR_BATCH = 256


UNPACK = "unpack=lambda element: (inputs, targets)"


@final
@dataclass(frozen=True)
class Batch:
    """Inputs and targets of ``n`` examples, on the network's device, inputs in its dtype."""

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return count(self.inputs)


@final
@dataclass(eq=False)
class Data:
    """A loader read as batches, again and again.

    Args:
        source: An iterable of ``(x, y)`` pairs, of mappings with ``labels``, or one pair held in memory. Of several
            inputs x is a tuple.
        like: Tensor whose device the batches move to and whose dtype floating inputs take; ``None`` leaves both.
        unpack: Splits one element of ``source`` into ``(inputs, targets)``; ``None`` knows pairs and mappings.
        shared: Whether this is one process's part of the data, and each of several processes has its own.

    Example:
        >>> import torch
        >>> data = Data((torch.zeros(5, 2), torch.zeros(5)), like=torch.zeros(1))
        >>> [len(batch) for batch in data]
        [5]
    """

    source: Source
    like: Tensor | None = None
    unpack: Unpack | None = None
    shared: bool = False
    _counted: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        whole = is_whole(self.source)
        one_batch = self.unpack is None and whole  # whose rows and keys are no batches
        readable = not one_batch and any(hasattr(self.source, name) for name in ("__iter__", "__getitem__"))
        if not readable:
            hint = "DataLoader(dataset), (x, y), or [batch] for one batch"
            raise DataError("a loader, a list of batches, or tensors (x, y)", describe(self.source), hint)
        if not (self.unpack is None or callable(self.unpack)):
            raise ConfigError("unpack= to be a function of one element", f"{self.unpack!r:.40}", UNPACK)

    def __iter__(self) -> Iterator[Batch]:
        seen = 0
        elements = as_users_code(self._elements)
        total = length_hint(self._elements) or None
        for element in track(elements, "data", total, unit="batches"):
            with users_default_device():
                inputs, targets = split(element, self.unpack)
            check_there(targets, "targets")
            batch = Batch(inputs, targets)
            if self.like is not None:
                batch = Batch(place(inputs, self.like), targets.to(self.like.device))
            if batch.targets.shape[:1] != (len(batch),):
                raise ShapeError(
                    f"as many targets as inputs in a batch ({len(batch)})",
                    f"targets of shape {list(batch.targets.shape)}",
                    "DataLoader(dataset, batch_size=256), or unpack= to say where inputs and targets are",
                )
            seen += len(batch)
            if len(batch):
                yield batch
        if not seen:
            spent = "an iterator that is already exhausted (it can be read only once)"
            empty = spent if isinstance(self.source, Iterator) else f"an empty {type(self.source).__name__}"
            raise DataError("at least one example", empty, "a DataLoader, a list of batches, or (x, y)")
        if self._counted is None:
            self._counted = seen

    def __length_hint__(self) -> int:
        """Batches, where the source knows how many."""
        return length_hint(self._elements)

    @property
    def examples(self) -> int:
        """Examples there were in the first whole pass, which is made now if there was none."""
        if self._counted is None:
            self._counted = sum(len(batch) for batch in self)
        return self._counted

    def about(self, first: int) -> int:
        """About how many examples there are, by the length of the source; counted where that is not known.

        Args:
            first: Examples of the first batch.
        """
        if is_pair(self.source):
            return sum(count(inputs) for inputs, _ in self._elements)
        return length_hint(self._elements) * first or self.examples

    def moved_by(self, mover: Mover) -> Data:
        """See ``Movable``: the same source, whose batches come to the mover's device as they are read."""
        return Data(self.source, mover(self.like), self.unpack, self.shared)

    def added(self, values: Tensor) -> Tensor:
        """A sum over all data from that over this process's part, in place."""
        return distributed.added(values) if self.shared else values

    def joined(self, rows: Any) -> Any:
        """Rows of all data from those of this process's part; what has no rows stays as it is."""
        return distributed.gathered_rows(rows) if self.shared and isinstance(rows, Tensor) and rows.ndim else rows

    @cached_property
    def span(self) -> tuple[int, int]:
        """How many examples come before this process's part, and how many there are in all."""
        counts = distributed.all_of(self.examples) if self.shared else [self.examples]
        return sum(counts[: dist.get_rank()]) if self.shared else 0, sum(counts)

    def first(self) -> Inputs:
        """The inputs of the first batch, checked to be finite."""
        inputs = next(iter(self)).inputs
        check_inputs(inputs)
        return inputs

    @cached_property
    def _elements(self) -> Iterable[Any]:
        """What the source yields; an iterator, which can be read only once, is kept in memory."""
        if is_pair(self.source):
            pair = cast("tuple[InputsLike, Values]", self.source)
            x = as_inputs(pair[0])
            y = as_tensor(pair[1])
            if y.shape[:1] != (count(x),):
                return [(x, y)]
            pieces = [slice(start, start + PAIR_BATCH) for start in range(0, len(y), PAIR_BATCH)]
            return [(take(x, piece), y[piece]) for piece in pieces]
        source = cast("Iterable[Any]", self.source)
        return list(source) if isinstance(source, Iterator) else source


@final
class Joined:
    """The batches of several data one after the other, as a loader.

    Args:
        *parts: The data.

    Example:
        >>> import torch
        >>> pair = torch.zeros(5, 2), torch.zeros(5)
        >>> Data(Joined(Data(pair), Data(pair))).examples
        10
    """

    def __init__(self, *parts: Data) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for part in self.parts:
            for batch in part:
                yield batch.inputs, batch.targets

    def __length_hint__(self) -> int:
        return sum(length_hint(part) for part in self.parts)


def inputs_of(source: Source | Inputs, unpack: Unpack | None = None) -> Iterator[Inputs]:
    """The inputs of data whose targets nobody asks for, batch by batch; there may be none.

    Args:
        source: As for ``Data``; or inputs alone: those of all examples, or a loader of them.
        unpack: As for ``Data``.

    Raises:
        DataError: If there are no examples.

    Example:
        >>> import torch
        >>> [x.shape for x in inputs_of(torch.zeros(300, 2))]
        [torch.Size([150, 2]), torch.Size([150, 2])]
        >>> [x.shape for x in inputs_of([torch.zeros(3, 2), (torch.ones(1, 2), torch.ones(1))])]
        [torch.Size([3, 2]), torch.Size([1, 2])]
    """
    whole = is_whole(source)
    if unpack is None and whole and "labels" not in (source if isinstance(source, Mapping) else ()):
        inputs = as_inputs(source)
        yield from (part for _, part in chunks(inputs, PAIR_BATCH))
    elif is_pair(source) or unpack is not None:
        yield from (batch.inputs for batch in Data(cast(Source, source), unpack=unpack))
    else:
        seen = 0
        for element in track(as_users_code(cast("Iterable[Any]", source)), "data", unit="batches"):
            try:
                inputs = split(element)[0]
            except DataError:
                alone = isinstance(element, list | tuple) and len(element) == 1
                inputs = as_inputs(element[0] if alone else element)
            seen += count(inputs)
            yield inputs
        if not seen:
            raise DataError("at least one example", f"an empty {type(source).__name__}", "a loader of inputs")


def as_users_code(source: Iterable[Any]) -> Iterator[Any]:
    """The elements of a loader, each made under the default device that the user has."""
    with users_default_device():
        elements = iter(source)
    while True:
        with users_default_device():
            try:
                element = next(elements)
            except StopIteration:
                return
        yield element


def unpack_for(source: Source | Inputs, asked: Unpack | None, fitted: Unpack | None) -> Unpack | None:
    """How the elements of a loader are split: as asked for, else as those of the training data were.

    Args:
        source: The loader; a pair of tensors and tensors alone need no splitting.
        asked: ``unpack=`` of the call; ``None`` where it was left out.
        fitted: That of the fit.

    Example:
        >>> import torch
        >>> def labelled(element): return element["x"], element["y"]
        >>> unpack_for([{"x": torch.zeros(3, 2), "y": torch.ones(3)}], None, labelled) is labelled
        True
        >>> unpack_for((torch.zeros(3, 2), torch.ones(3)), None, labelled) is None
        True
    """
    if asked is not None or is_pair(source) or is_whole(source):
        return asked
    return fitted


def is_whole(source: Any) -> bool:
    """Whether ``source`` is one batch rather than a loader of them: its rows or keys are no batches."""
    return isinstance(source, Tensor | Mapping) or is_array(source)


def is_pair(source: Any) -> bool:
    """Whether ``source`` is one pair ``(x, y)`` of inputs and targets rather than a loader of batches."""
    if not (isinstance(source, tuple) and len(source) == 2):
        return False
    x, y = source
    if isinstance(x, tuple):
        inputs = any(isinstance(each, Tensor) or is_array(each) for each in x)
    else:
        inputs = isinstance(x, Tensor | Mapping) or is_array(x) or (isinstance(x, list) and is_numbers(x))
    return inputs and is_targets(y)


def split(element: Any, unpack: Unpack | None = None) -> tuple[Inputs, Tensor]:
    """Inputs and targets of one element of a loader: a pair, several inputs then a target, or a mapping with labels.

    Raises:
        DataError: If the element is none of these, or ``unpack`` makes no inputs and targets of it.

    Example:
        >>> import torch
        >>> inputs, targets = split({"input_ids": torch.zeros(2, 3), "labels": torch.tensor([0, 1])})
        >>> sorted(inputs), targets.tolist()
        (['input_ids'], [0, 1])
    """
    if unpack is not None:
        made: Any = unpack(element)
        if isinstance(made, list | tuple) and len(made) == 2 and is_targets(made[1]):
            return as_inputs(made[0]), as_tensor(made[1])
        raise DataError("a tensor of targets in the (inputs, targets) of unpack=", describe(made), UNPACK)
    if isinstance(element, Mapping):
        inputs = {key: value for key, value in element.items() if key not in ("labels", "label")}
        for key in ("labels", "label"):
            if is_targets(element.get(key)):
                return as_inputs(inputs), as_tensor(element[key])
    elif isinstance(element, list) and is_numbers(element):
        pass  # rows of inputs, without targets
    elif isinstance(element, list | tuple) and len(element) >= 2 and is_targets(element[-1]):
        inputs = element[0] if len(element) == 2 else element[:-1]
        positional = isinstance(inputs, list) and not is_numbers(inputs)
        return as_inputs(tuple(inputs) if positional else inputs), as_tensor(element[-1])
    raise DataError("batches of (x, y) or mappings with 'labels'", describe(element), UNPACK)


def is_targets(values: object) -> bool:
    """Whether it can be the targets of a batch."""
    return isinstance(values, Tensor) or is_array(values) or is_numbers(values)
