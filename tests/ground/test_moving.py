"""What is moved holds the same in the same places, on the other device; what was one object stays one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapwing.ground.moving import Mover
from lapwing.ground.shared import Shared


@dataclass(frozen=True, eq=False)
class Held:
    one: Tensor
    many: tuple[Tensor, ...]
    named: dict[str, object]
    shared: Shared[Tensor]
    count: int = 3


def test_every_tensor_is_moved_and_what_was_one_stays_one() -> None:
    a, b, source = torch.ones(3), torch.zeros(2), (1.0, 2.0)
    given = Held(a, (a, b), {"b": b, "name": "x"}, Shared(b, a, source))
    mover = Mover("meta")
    there = mover(given)
    assert there.one.device.type == there.named["b"].device.type == "meta"
    assert there.many == (there.one, there.named["b"]), "each tensor once"
    assert there.shared.known(there.one, source) is there.many[1]
    assert there.named["name"] == "x" and there.count == 3
    assert given.one is a and given.shared.known(a, source) is b
    assert mover(given) is there


def test_what_is_there_already_stays_unless_copies_are_asked_for() -> None:
    given = Held(torch.ones(3), (), {}, Shared())
    assert Mover("cpu")(given).one is given.one
    copied = Mover("cpu", copy=True)(given)
    assert copied.one is not given.one and torch.equal(copied.one, given.one)
    plain = (1, ["a"], None, Shared)
    assert Mover("meta")(plain) is plain
