"""What is kept of single examples, as text."""

from __future__ import annotations

import json

import pytest
import torch

from lapwing.comparison.examples import Examples, checksum_of
from lapwing.ground.errors import DataError


def test_numbers_come_back_as_they_were() -> None:
    values = {"nll": torch.randn(50), "correct": torch.ones(50, dtype=torch.uint8), "none": torch.zeros(0)}
    kept = Examples.of("run", 7, values)
    again = Examples.read(json.loads(json.dumps(kept.state())), "a row")
    assert (again.run, again.targets) == ("run", 7)
    assert all(torch.equal(again.values[name], value) for name, value in values.items())
    assert {name: value.dtype for name, value in again.values.items()} == {n: v.dtype for n, v in values.items()}


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("values"),
        lambda state: state["values"]["nll"].update(bits="no letters!"),
        lambda state: state["values"]["nll"].update(bits="AAAA"),
        lambda state: state["values"]["nll"].update(type="object"),
        lambda state: state.update(targets="many"),
    ],
)
def test_what_is_no_such_text_is_refused(damage: object) -> None:
    state = Examples.of("run", 7, {"nll": torch.randn(5)}).state()
    assert callable(damage)
    damage(state)
    with pytest.raises(DataError, match="numbers of examples in row 3"):
        Examples.read(state, "row 3")


def test_a_checksum_tells_the_order_of_targets() -> None:
    y = torch.tensor([0, 1, 2])
    assert checksum_of(y) == checksum_of(y.int()) != checksum_of(y.flip(0))
    assert checksum_of(y.float()) == checksum_of(y.double())
