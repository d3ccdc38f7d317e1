"""Names for the shapes and values that travel between rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
"""Named parameters of a network, in the order of ``named_parameters``."""

Inputs: TypeAlias = Tensor | Mapping[str, Any] | tuple[Any, ...]
"""What a network is called with: a tensor, keyword arguments, or positional arguments."""

Unpack: TypeAlias = Callable[[Any], tuple[Inputs, Tensor]]
"""A user's hook that splits one element of a loader into inputs and targets."""
