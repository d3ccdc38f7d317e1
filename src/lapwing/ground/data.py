"""Loaders in, batches out: the only room that knows what a loader yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Number
from operator import length_hint
from typing import Any, Protocol, TypeAlias, cast, final, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from lapwing.ground import ranks
from lapwing.ground.device import users_default_device
from lapwing.ground.errors import ConfigError, DataError, ShapeError, describe
from lapwing.ground.progress import track

Inputs: TypeAlias = Tensor | Mapping[str, Any] | tuple[Any, ...]
"""What a network is called with: a tensor, keyword arguments, or positional arguments."""


@runtime_checkable
class Array(Protocol):
    """What NumPy reads as an array: its own, a data frame, a column of one, a tensor."""

    def __array__(self) -> Any:
        """The values as NumPy has them."""
        ...


Values: TypeAlias = Tensor | Array | list[Any]
"""Numbers: a tensor, an array, a data frame, or nested lists; see ``as_tensor``."""

InputsLike: TypeAlias = Inputs | Array | list[Any]
"""What users pass as inputs: those, or arrays, data frames and nested lists in place of tensors; see ``as_inputs``."""

Unpack: TypeAlias = Callable[[Any], tuple[InputsLike, Values]]
"""A user's hook that splits one element of a loader into inputs and targets."""

Source: TypeAlias = Iterable[Any] | tuple[Values | Mapping[str, Any], Values]
"""Training data: a loader, or a pair ``(x, y)`` of inputs and targets, the inputs numbers or keyword arguments."""

PAIR_BATCH = 256
NUMBERS = "frame.select_dtypes('number'), or columns encoded as numbers, such as pandas.get_dummies(frame, dtype=float)"
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
@dataclass(frozen=True)
class Data:
    """A loader read as batches, again and again.

    Args:
        source: An iterable of ``(x, y)`` pairs, of mappings with ``labels``, or one pair held in memory.
        like: Tensor whose device the batches move to and whose dtype floating inputs take; ``None`` leaves both.
        unpack: Splits one element of ``source`` into ``(inputs, targets)``; ``None`` knows pairs and mappings.
        shared: Whether this is one process's part of the data, and each of several processes has its own.

    Example:
        >>> data = Data((torch.zeros(5, 2), torch.zeros(5)), like=torch.zeros(1))
        >>> [len(batch) for batch in data]
        [5]
    """

    source: Source
    like: Tensor | None = None
    unpack: Unpack | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        whole = isinstance(self.source, Tensor | Mapping) or is_array(self.source)
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
        vars(self).setdefault("examples", seen)

    @cached_property
    def examples(self) -> int:
        """Examples there were in the first whole pass, which is made now if there was none."""
        return sum(len(batch) for batch in self)

    def about(self, first: int) -> int:
        """About how many examples there are, by the length of the source; counted where that is not known.

        Args:
            first: Examples of the first batch.
        """
        if is_pair(self.source):
            return count(cast("tuple[Inputs, Tensor]", self.source)[0])
        return length_hint(self._elements) * first or self.examples

    def added(self, values: Tensor) -> Tensor:
        """A sum over all data from that over this process's part, in place."""
        return ranks.added(values) if self.shared else values

    def joined(self, rows: Any) -> Any:
        """Rows of all data from those of this process's part; what has no rows stays as it is."""
        return ranks.joined(rows) if self.shared and isinstance(rows, Tensor) and rows.ndim else rows

    @cached_property
    def span(self) -> tuple[int, int]:
        """How many examples come before this process's part, and how many there are in all."""
        counts = ranks.all_of(self.examples) if self.shared else [self.examples]
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
            x, y = as_inputs(pair[0]), as_tensor(pair[1])
            if y.shape[:1] != (count(x),):
                return [(x, y)]
            pieces = [slice(start, start + PAIR_BATCH) for start in range(0, len(y), PAIR_BATCH)]
            return [(take(x, piece), y[piece]) for piece in pieces]
        source = cast("Iterable[Any]", self.source)
        return list(source) if isinstance(source, Iterator) else source


def inputs_of(source: Source | Inputs, unpack: Unpack | None = None) -> Iterator[Inputs]:
    """The inputs of data whose targets nobody asks for, batch by batch; there may be none.

    Args:
        source: As for ``Data``; or inputs alone: those of all examples, or a loader of them.
        unpack: As for ``Data``.

    Raises:
        DataError: If there are no examples.

    Example:
        >>> [x.shape for x in inputs_of(torch.zeros(300, 2))]
        [torch.Size([150, 2]), torch.Size([150, 2])]
        >>> [x.shape for x in inputs_of([torch.zeros(3, 2), (torch.ones(1, 2), torch.ones(1))])]
        [torch.Size([3, 2]), torch.Size([1, 2])]
    """
    whole = isinstance(source, Tensor | Mapping) or is_array(source)
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


def several() -> bool:
    """Whether this process is one of several, as ``torchrun`` starts them, that made a process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_pair(source: Any) -> bool:
    """Whether ``source`` is one pair ``(x, y)`` of inputs and targets rather than a loader of batches."""
    if not (isinstance(source, tuple) and len(source) == 2):
        return False
    x, y = source
    inputs = isinstance(x, Tensor | Mapping) or is_array(x) or (isinstance(x, list) and is_numbers(x))
    return inputs and is_targets(y)


def split(element: Any, unpack: Unpack | None = None) -> tuple[Inputs, Tensor]:
    """Inputs and targets of one element of a loader: a pair, several inputs then a target, or a mapping with labels.

    Raises:
        DataError: If the element is none of these, or ``unpack`` makes no inputs and targets of it.

    Example:
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


def is_array(value: object) -> bool:
    """Whether NumPy reads it as an array: its own, a data frame, or a column of one; a tensor and a number are none."""
    return isinstance(value, Array) and not isinstance(value, Tensor | np.generic)


def is_numbers(values: object) -> bool:
    """Whether lists or tuples, nested or not, hold plain numbers, by the first of them."""
    first = values
    while isinstance(first, list | tuple) and first:
        first = first[0]
    return first is not values and isinstance(first, Number)


def is_targets(values: object) -> bool:
    """Whether it can be the targets of a batch."""
    return isinstance(values, Tensor) or is_array(values) or is_numbers(values)


def as_inputs(inputs: Any) -> Inputs:
    """Inputs with tensors in place of arrays and data frames, and of nested lists of numbers as a whole.

    A list among several inputs stays what it is, as other plain values do.

    Example:
        >>> as_inputs([[1.0, 2.0]]).shape, as_inputs({"x": np.ones(3), "size": [4, 4]})["size"]
        (torch.Size([1, 2]), [4, 4])
    """
    if is_array(inputs) or (isinstance(inputs, list) and is_numbers(inputs)):
        return as_tensor(inputs)
    if isinstance(inputs, Mapping | tuple):
        return over_tensors(lambda value: as_tensor(value) if is_array(value) else value, inputs)
    return cast(Inputs, inputs)


def as_tensor(values: Any, like: Tensor | None = None) -> Tensor:
    """Numbers as a tensor, which shares the memory of an array; a tensor is returned as it is.

    Integers and truth values stay what they are, numbers of Python that are not whole become float64. Columns of a data
    frame become those of one matrix, in the type that holds them all.

    Args:
        values: A tensor, an array, a data frame or a column of one, or nested lists of numbers.
        like: Whose device what was no tensor takes, and its floating numbers the dtype; ``None`` leaves both.

    Raises:
        DataError: If they are no numbers, with the name of the column.

    Example:
        >>> as_tensor([[0, 1], [2, 3]]).dtype, as_tensor([0.5]).dtype
        (torch.int64, torch.float64)
    """
    if isinstance(values, Tensor):
        return values
    columns = getattr(values, "columns", None)
    if columns is None:
        name = getattr(values, "name", None)
        array = _numbers(values, "values" if name is None else f"column {name!r}")
    else:
        names = list(columns)
        if len(set(names)) < len(names) or not names:
            raise DataError("a data frame with columns of different names", f"{names!r:.60}", "renaming them")
        array = np.stack([_numbers(values[name], f"column {name!r}") for name in names], axis=1)
    found = _from_numpy(array)
    if like is None:
        return found
    return found.to(like.device, like.dtype if found.is_floating_point() else None)


def _numbers(values: Any, what: str) -> NDArray[Any]:
    """An array of numbers, none of which is masked: NumPy would give what stands behind a mask."""
    masked = int(np.ma.count_masked(values)) if isinstance(values, np.ma.MaskedArray) else 0
    if masked:
        raise DataError(f"numbers in {what}", f"{masked} masked ones", "leaving out rows with masked numbers")
    try:
        array = np.asarray(values)
    except ValueError as reason:  # lists of different lengths
        raise DataError(f"{what} with rows of one length", f"{reason!s:.80}", "rows padded to one length") from reason
    if array.dtype.kind not in "biufc":
        first = f" such as {array.flat[0]!r:.40}" if array.size else ""
        raise DataError(f"numbers in {what}", f"values of type {array.dtype}{first}", NUMBERS)
    return array


def _from_numpy(array: NDArray[Any]) -> Tensor:
    """A tensor of an array, copied where PyTorch has not its type or layout."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "u" and size > 1:
        array = array.astype(np.int64)
    elif kind == "f" and size > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def place(inputs: Inputs, like: Tensor) -> Inputs:
    """Inputs on the device of ``like``; floating tensors also take its dtype.

    Raises:
        DataError: If one is on the meta device.
    """

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        check_there(value, "inputs")
        value = value.detach()
        return value.to(like.device, like.dtype) if value.is_floating_point() else value.to(like.device)

    return over_tensors(move, inputs)


def ordinary(value: Any) -> Any:
    """The same value; a tensor made in inference mode, which autograd would refuse, is copied out of it."""
    inference = isinstance(value, Tensor) and value.is_inference() and not torch.is_inference_mode_enabled()
    return value.clone() if inference else value


def checked(inputs: InputsLike, like: Tensor) -> Inputs:
    """Inputs to be predicted as tensors, on the device and in the dtype of ``like``.

    Raises:
        DataError: If there are none, or they are not finite.
    """
    placed = place(as_inputs(inputs), like)
    if not count(placed):
        raise DataError("at least one example", "none", "x[None] for a single example")
    check_inputs(placed)
    return placed


def over_tensors(change: Any, *inputs: Inputs) -> Inputs:
    """Inputs with ``change`` applied to every value, whatever holds them; to the values of several inputs together."""
    first = inputs[0]
    if isinstance(first, Mapping):
        return {key: change(*(cast("Any", each)[key] for each in inputs)) for key in first}
    return tuple(map(change, *inputs)) if isinstance(first, tuple) else change(*inputs)


def tensors(inputs: Inputs) -> list[Tensor]:
    """Every tensor among the inputs, in order."""
    values = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    return [value for value in values if isinstance(value, Tensor)]


def bits(value: Tensor) -> memoryview:
    """The bytes of a tensor, in the order of its axes."""
    held = value.detach().to_dense().resolve_conj()
    return held.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data


def count(inputs: Inputs) -> int:
    """Examples in the inputs: the first axis of the first tensor that has one.

    Raises:
        DataError: If there is no such tensor.
    """
    for tensor in tensors(inputs):
        if tensor.ndim:
            return tensor.shape[0]
    hint = "x[None] for a single example, or tensors of one batch as the network is called with them"
    raise DataError("inputs with an axis of examples", describe(inputs), hint)


def take(inputs: Inputs, index: slice | Tensor) -> Inputs:
    """The examples at ``index``; values without the axis of examples stay as they are.

    Example:
        >>> take((torch.arange(3), "flag"), slice(1, 3))
        (tensor([1, 2]), 'flag')
    """
    n = count(inputs)

    def pick(value: Any) -> Any:
        return value[index] if isinstance(value, Tensor) and value.ndim and value.shape[0] == n else value

    return over_tensors(pick, inputs)


def concatenated(parts: list[Inputs]) -> Inputs:
    """Inputs one after the other; values without the axis of examples are those of the first part."""
    n = count(parts[0])

    def join(*values: Any) -> Any:
        batched = isinstance(values[0], Tensor) and values[0].ndim and len(values[0]) == n
        return torch.cat(values) if batched else values[0]

    return over_tensors(join, *parts)


def chunks(inputs: Inputs, size: int) -> Iterator[tuple[slice, Inputs]]:
    """Consecutive pieces of at most ``size`` examples, as even as can be, each with its place."""
    n = count(inputs)
    size = -(-n // -(-n // size))
    for start in range(0, n, size):
        place_ = slice(start, min(start + size, n))
        yield place_, (inputs if n <= size else take(inputs, place_))


def check_there(values: Tensor, what: str) -> None:
    """Raise if a tensor has no values, as on the meta device."""
    if values.is_meta:
        came = f"{describe(values)} on the meta device, which holds shapes alone"
        raise DataError(f"{what} with values", came, "tensors of device='cpu'")


def check_finite(values: Tensor, what: str, hint: str) -> None:
    """Raise unless every entry is finite, with a name for the values and what to try; integers always pass."""
    check_there(values, what)
    if bool(values.detach().sum().isfinite()):  # one number, before a mask of all is made
        return
    if bad := int((~torch.isfinite(values)).sum()):
        raise DataError(f"finite {what}", f"{bad} NaN or infinite of {values.numel()}", hint)


def check_inputs(inputs: Inputs) -> None:
    """Raise unless every tensor among the inputs is finite."""
    for tensor in tensors(inputs):
        check_finite(tensor, "inputs", "cleaning the data")
