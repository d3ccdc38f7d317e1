"""Which tensor of all that a network returns is its output: the one that the likelihood speaks of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from torch import Tensor

from lapwing.ground.errors import ConfigError, ShapeError, describe

Output: TypeAlias = str | int | Callable[[Any], Tensor] | None
"""A key or attribute, an index, or a function of what the network returns; ``None`` where it returns one tensor, or
something with ``.logits``."""

SHOWN = 6
"""Parts of a returned value that a message lists; the rest it counts."""


def check_output(output: object) -> None:
    """Refuses what picks no output.

    Raises:
        ConfigError: If it is no key, no index and no function.

    Example:
        >>> check_output("logits")
    """
    if isinstance(output, bool) or not (output is None or isinstance(output, str | int) or callable(output)):
        raise ConfigError(
            "output= to be a key, an index or a function of what the network returns",
            f"{output!r:.40}",
            "output='logits', output=0 or output=lambda returned: returned['logits']",
        )


def output_of(returned: Any, output: Output = None) -> Tensor:
    """The output among what a network returned.

    Of several tensors in a tuple or list none is taken by its place: which of a detector's is the first is no reason to
    take it for the classes.

    Args:
        returned: What a call of the network gave.
        output: Which part of it.

    Returns:
        The tensor itself, or the ``logits`` of a mapping or object, where ``output`` is ``None``.

    Raises:
        ConfigError: If there is no such part.
        ShapeError: If the part is no tensor, or ``output`` is ``None`` and there are several.

    Example:
        >>> import torch
        >>> boxes, logits = torch.zeros(5, 4), torch.ones(5, 3)
        >>> output_of({"boxes": boxes, "logits": logits}).shape, output_of((boxes, logits), 1).shape
        (torch.Size([5, 3]), torch.Size([5, 3]))
    """
    if output is None:
        return _only(returned)
    part = output(returned) if callable(output) else _part(returned, output)
    if not isinstance(part, Tensor):
        raise ShapeError(
            f"output={_named(output)} to give one tensor of what the network returns, {shown_output(returned)}",
            describe(part),
            "a function that takes it apart further: output=lambda returned: ...",
        )
    return part


def _only(returned: Any) -> Tensor:
    """The one tensor that was returned, or the one called ``logits``."""
    if isinstance(returned, Tensor):
        return returned
    logits = returned.get("logits") if isinstance(returned, Mapping) else getattr(returned, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    keys = list(returned) if isinstance(returned, Mapping) else []
    example = repr(keys[0]) if keys else "0"
    raise ShapeError(
        "a network that returns one tensor, or a mapping or an object with logits",
        shown_output(returned),
        f"output= to say which is the output the likelihood speaks of: a key or an index, such as output={example}, or "
        "a function of what it returns",
    )


def _part(returned: Any, output: str | int) -> Any:
    """A part by its key, attribute or index."""
    indexed = isinstance(output, int) and isinstance(returned, tuple | list)
    if indexed or isinstance(returned, Mapping):  # those of transformers have an index too
        try:
            return cast("Any", returned)[output]
        except LookupError:
            pass
    elif isinstance(output, str) and not isinstance(returned, Tensor) and hasattr(returned, output):
        return getattr(returned, output)
    raise ConfigError(
        f"a network that returns something with output={output!r} in it",
        shown_output(returned),
        "no output=, for it is a tensor" if isinstance(returned, Tensor) else "output= with one that is there",
    )


def _named(output: Output) -> str:
    return name_of(output) if callable(output) else repr(output)


def name_of(function: Callable[[Any], Tensor]) -> str:
    """What a function that takes the output is called; of another callable its class.

    Example:
        >>> name_of(lambda returned: returned["logits"])
        '<lambda>'
    """
    return getattr(function, "__qualname__", type(function).__name__)


def shown_output(returned: Any) -> str:
    """What a network returned, with the shapes of its parts.

    Example:
        >>> import torch
        >>> shown_output((torch.zeros(5, 4), torch.zeros(5, 3)))
        'a tuple of 2: [5, 4], [5, 3]'
    """
    if isinstance(returned, Mapping):
        parts = [f"{key!r} {_shape(part)}" for key, part in returned.items()]
    elif isinstance(returned, tuple | list):
        parts = [_shape(part) for part in returned]
    else:
        return describe(returned)
    more = [f"{len(parts) - SHOWN} more"] if len(parts) > SHOWN else []
    return f"a {type(returned).__name__} of {len(parts)}: {', '.join(parts[:SHOWN] + more)}"


def _shape(part: Any) -> str:
    return f"{list(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
