"""The page on the architecture says what happens: its walks name the functions that its calls enter, in their order."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from torch import nn

import lapwing as lw
from tests.posterior_cases import labels, normal, seeded

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = Path(lw.__file__).parent
INSIDE = f"{PACKAGE}{os.sep}"
X, Y = normal(30, 1, 8, 8), labels(30, classes=3)


class Small(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))


def entered(call: Callable[[], Any]) -> tuple[Any, list[tuple[str, str]]]:
    """What a call returns, and the functions of lapwing that it enters, file and name, in the order of first entry."""
    found: dict[int, CodeType] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and id(code) not in found and code.co_filename.startswith(INSIDE):
            found[id(code)] = code

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    names = [(Path(code.co_filename).relative_to(PACKAGE).as_posix(), code.co_qualname) for code in found.values()]
    return result, list(dict.fromkeys(names))


def walk(title: str) -> list[tuple[str, str]]:
    """The functions that a section of the page lists."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", section, re.MULTILINE)


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")  # an untrained network
def test_walks_are_made_as_they_are_written() -> None:
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC())
    posterior, fit = entered(lambda: recipe.fit(seeded(Small), (X, Y)))
    _, prediction = entered(lambda: posterior.predict(X[:4]))
    _, tuning = entered(lambda: lw.tune(posterior, (X[:20], Y[:20])))
    for title, made in (("A fit", fit), ("A prediction", prediction), ("A tuning", tuning)):
        written = walk(title)
        assert len(written) > 5
        assert [step for step in made if step in written] == written, title


def test_floors_are_those_of_the_import_contract() -> None:
    figure = PAGE.split("```text\n")[1].split("```")[0]
    drawn = [re.split(r" {2,}", line)[0].split(" | ") for line in figure.splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = [each["layers"] for each in contracts if each["name"] == "Imports only point down"]
    held = [re.findall(r"\((\w+)\)", layer) for layer in layers]
    assert [sorted(floor) for floor in drawn] == [sorted(floor) for floor in held if floor != ["__main__"]]
    assert all((PACKAGE / name).is_dir() for floor in drawn for name in floor)
