"""A device without float64, imitated on the CPU: float64 is the host's, float32 the device's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lapwing.ground import precision

HOST = torch.device("cpu", 0)
"""The host, told from the device by its number: a tensor made there is on "cpu" like any other."""

DEVICE_OF: Any = torch.Tensor.device.__get__
"""What reads the device of a tensor."""


class Devices(TorchFunctionMode):
    """Tells the host from the device where operations do not: a tensor of float64 says that it is on cpu:0.

    A tensor that is made from nothing is the host's where no device is named, or it is cpu:0, or the word "cpu": any
    other is that of some tensor. What goes ``.to`` cpu:0, or to a tensor there, goes to the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_host = True
        self.goes_to_host = False

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function == DEVICE_OF:
            return HOST if wide(args[0]) else function(*args)
        outer = (self.is_host, self.goes_to_host)
        device = options.get("device")
        self.is_host = device is None or is_host(device)
        self.goes_to_host = function is torch.Tensor.to and any(map(is_host, (*args[1:], device)))
        try:
            return function(*args, **options)
        finally:
            self.is_host, self.goes_to_host = outer


class WithoutDouble(TorchDispatchMode):
    """Refuses each operation that a device without float64 would.

    A tensor of float64 is taken for one on the host, any other float for one on the device. So an operation may return
    float64 where all floats that it takes are float64, numbers apart; where it makes a tensor from nothing on the host,
    or draws it, as generators are the host's; where it copies numbers into a tensor, or moves one beside another;
    inside ``lapwing.ground.precision``; and where a gradient goes back.
    """

    def __init__(self, devices: Devices) -> None:
        super().__init__()
        self._devices = devices

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        if any(wide(leaf) for leaf in tree_leaves(found)) and not self._allowed(function, args, kwargs or {}):
            came = [f"{each.dtype} {list(each.shape)}" for each in floats((args, kwargs))]
            raise AssertionError(f"{function} made float64 on a device without it, of {came or 'nothing'}")
        return found

    def _allowed(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        given = floats((args, kwargs))
        if given and all(wide(each) for each in given if each.ndim) and any(map(wide, given)):
            return True
        if not given and (self._devices.is_host or function.overloadpacket is torch.ops.aten.randn):
            return True
        backward = torch._C._current_autograd_node()  # pyright: ignore[reportPrivateUsage]
        copied = function.overloadpacket is torch.ops.aten.copy_
        return copied or self._devices.goes_to_host or backward is not None or moved_by_policy()


def is_host(device: object) -> bool:
    """Whether something says that it is the host, or is a tensor there."""
    return wide(device) or device == "cpu" or (isinstance(device, torch.device) and device == HOST)


def wide(leaf: object) -> bool:
    """Whether something is a tensor of float64."""
    return isinstance(leaf, Tensor) and leaf.dtype in (torch.float64, torch.complex128)


def floats(tree: object) -> list[Tensor]:
    """The tensors of floating point numbers in something."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def moved_by_policy() -> bool:
    """Whether the policy's own module asks for it."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename == precision.__file__:
            return True
        frame = frame.f_back
    return False


@contextmanager
def without_double() -> Generator[None]:
    """Until it ends the CPU is a device without float64."""
    without = mock.patch.object(precision, "WITHOUT_DOUBLE", frozenset({"cpu"}))
    with without, mock.patch.object(precision, "HOST", HOST), Devices() as devices, WithoutDouble(devices):
        yield


def refused(work: Callable[[], object]) -> bool:
    """Whether a device without float64 refuses some work."""
    try:
        with without_double():
            work()
    except AssertionError:
        return True
    return False
