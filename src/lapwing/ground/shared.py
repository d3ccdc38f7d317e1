"""A value that several results share: made for the first of them that asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


def fields_of(result: Any) -> dict[str, Any]:
    """The fields of a frozen result by name, for pickle and ``copy``: what was computed from them is computed again."""
    return {each.name: getattr(result, each.name) for each in fields(result) if each.init}


@final
class Shared(Generic[T]):
    """One value that results share as long as what it is made from is the same; made for the first that asks.

    A frozen result that is changed in one field has the other fields of the old one, this among them: what was computed
    from the fields that stayed is not computed again.

    Args:
        value: The value, where there is one already.
        sources: What it was made from.

    Example:
        >>> shared, weights = Shared(), (2.0, 3.0)
        >>> shared.known(weights), shared.of(weights, make=lambda: sum(weights)), shared.known(weights)
        (None, 5.0, 5.0)
        >>> shared.known((1.0,)) is None
        True
    """

    def __init__(self, value: T | None = None, *sources: object) -> None:
        self._made: tuple[T | None, tuple[object, ...]] = (value, sources)  # one attribute: threads see both or neither

    def known(self, *sources: object) -> T | None:
        """The value made from these objects; ``None`` where there is none.

        Args:
            sources: What it is made from, told apart by identity.
        """
        value, made_from = self._made
        same = len(made_from) == len(sources) and all(a is b for a, b in zip(made_from, sources, strict=True))
        return value if same else None

    def of(self, *sources: object, make: Callable[[], T]) -> T:
        """The value made from these objects, made now where there is none.

        Args:
            sources: What it is made from.
            make: Makes it.
        """
        value = self.known(*sources)
        return self.replaced(make(), *sources) if value is None else value

    def moved_by(self, mover: Callable[[Any], Any]) -> Shared[T]:
        """See ``ground.moving.Movable``: the value and what it was made from.

        Args:
            mover: Moves each.
        """
        value, made_from = self._made
        return Shared(mover(value), *(mover(source) for source in made_from))

    def replaced(self, value: T, *sources: object) -> T:
        """Another value in place of the old one.

        Args:
            value: The value.
            sources: What it is made from.
        """
        self._made = (value, sources)
        return value
