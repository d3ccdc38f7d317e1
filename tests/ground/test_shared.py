"""A shared value is made once for what it is made from, and again for anything else."""

from __future__ import annotations

import copy
import pickle

from lapwing.ground.shared import Shared


def test_is_made_once_for_the_same_sources_and_again_for_others() -> None:
    made = list[int]()
    shared, one, other = Shared[list[int]](), [1], [1]

    def make() -> list[int]:
        made.append(1)
        return [len(made)]

    assert shared.known(one) is None
    first = shared.of(one, make=make)
    assert shared.of(one, make=make) is first is shared.known(one)
    assert shared.known(other) is shared.known(one, one) is None, "by identity, all of them"
    assert shared.of(other, make=make) == [2] and shared.known(one) is None


def test_may_be_given() -> None:
    source = object()
    assert Shared(3, source).of(source, make=lambda: 4) == 3


def test_knows_its_sources_in_a_copy() -> None:
    sources = [1.0]
    state = {"value": Shared(3, sources), "sources": sources}
    for again in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert again["sources"] is not sources
        assert again["value"].known(again["sources"]) == 3  # type: ignore[attr-defined]
