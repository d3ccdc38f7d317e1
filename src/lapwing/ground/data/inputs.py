"""What a network is called with: numbers of users as tensors, and what is done to all tensors of an input alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lapwing.ground.data.checks import check_finite, check_there
from lapwing.ground.errors import DataError, ShapeError, describe

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


NUMBERS = "frame.select_dtypes('number'), or columns encoded as numbers, such as pandas.get_dummies(frame, dtype=float)"


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
    kind = array.dtype.kind
    size = array.dtype.itemsize
    if kind == "u" and size > 1:
        array = array.astype(np.int64)
    elif kind == "f" and size > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def is_array(value: object) -> bool:
    """Whether NumPy reads it as an array: its own, a data frame, or a column of one; a tensor and a number are none."""
    return isinstance(value, Array) and not isinstance(value, Tensor | np.generic)


def is_numbers(values: object) -> bool:
    """Whether lists or tuples, nested or not, hold plain numbers, by the first of them."""
    first = values
    while isinstance(first, list | tuple) and first:
        first = first[0]
    return first is not values and isinstance(first, Number)


def over_tensors(change: Any, *inputs: Inputs) -> Inputs:
    """Inputs with ``change`` applied to every value, whatever holds them; to the values of several inputs together."""
    first = inputs[0]
    if isinstance(first, Mapping):
        return {key: change(*(cast("Any", each)[key] for each in inputs)) for key in first}
    return tuple(map(change, *inputs)) if isinstance(first, tuple) else change(*inputs)


def tensors(inputs: Inputs) -> list[Tensor]:
    """Every tensor among the inputs, in order."""
    if isinstance(inputs, Mapping):
        values = tuple(inputs.values())
    elif isinstance(inputs, tuple):
        values = inputs
    else:
        values = (inputs,)
    return [value for value in values if isinstance(value, Tensor)]


def count(inputs: Inputs) -> int:
    """Examples in the inputs: the first axis of the first tensor that has one.

    Raises:
        DataError: If there is no such tensor.
    """
    for tensor in tensors(inputs):
        if tensor.ndim:
            return tensor.shape[0]
    hint = "x[None] for a single example, tensors as the network is called with them, or of a loader batch by batch"
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
    """Inputs one after the other; values without the axis of examples are those of the first part.

    Raises:
        ShapeError: If examples are of several shapes.
    """
    n = count(parts[0])

    def join(*values: Any) -> Any:
        batched = isinstance(values[0], Tensor) and values[0].ndim and len(values[0]) == n
        if not batched:
            return values[0]
        shapes = sorted({tuple(value.shape[1:]) for value in values})
        if len(shapes) > 1:
            got = f"some of {list(shapes[0])} and some of {list(shapes[-1])}"
            hint = (
                "padding them to one length, or a structure that reads the data batch by batch, KFAC() or LowRank(100)"
            )
            raise ShapeError("examples of one shape where those of several batches are kept together", got, hint)
        return torch.cat(values)

    return over_tensors(join, *parts)


def chunks(inputs: Inputs, size: int) -> Iterator[tuple[slice, Inputs]]:
    """Consecutive pieces of at most ``size`` examples, as even as can be, each with its place."""
    n = count(inputs)
    size = -(-n // -(-n // size))
    for start in range(0, n, size):
        piece = slice(start, min(start + size, n))
        yield piece, (inputs if n <= size else take(inputs, piece))


def bits(value: Tensor) -> memoryview:
    """The bytes of a tensor, in the order of its axes."""
    held = value.detach().to_dense().resolve_conj()
    return held.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data


def place(inputs: Inputs, like: Tensor, *, live: bool = False) -> Inputs:
    """Inputs on the device of ``like``; floating tensors also take its dtype.

    Args:
        inputs: The inputs.
        like: A tensor of the weights.
        live: Whether tensors keep their graph.

    Raises:
        DataError: If one is on the meta device.
    """

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        check_there(value, "inputs")
        if not live:
            value = value.detach()
        return value.to(like.device, like.dtype) if value.is_floating_point() else value.to(like.device)

    return over_tensors(move, inputs)


def ordinary(value: Any) -> Any:
    """The same value; a tensor made in inference mode, which autograd would refuse, is copied out of it."""
    inference = isinstance(value, Tensor) and value.is_inference() and not torch.is_inference_mode_enabled()
    return value.clone() if inference else value


def checked(inputs: InputsLike, like: Tensor, *, live: bool = False) -> Inputs:
    """Inputs to be predicted as tensors, on the device and in the dtype of ``like``.

    Args:
        inputs: The inputs.
        like: A tensor of the weights.
        live: Whether tensors keep their graph.

    Raises:
        DataError: If there are none, or they are not finite.
    """
    placed = place(as_inputs(inputs), like, live=live)
    if not count(placed):
        raise DataError("at least one example", "none", "x[None] for a single example")
    check_inputs(placed)
    return placed


def check_inputs(inputs: Inputs) -> None:
    """Raise unless every tensor among the inputs is finite."""
    for tensor in tensors(inputs):
        check_finite(tensor, "inputs", "cleaning the data")
