"""The gallery's scripts: what they name exists. `make docs` runs them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lapwing as lw

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.rglob("*.py"))
INSTALLED = {"lapwing", "matplotlib", "sklearn", "torch"}
"""What ``pip install '.[demo]'`` brings."""

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def syntax(script: Path) -> ast.Module:
    return ast.parse(script.read_text(encoding="utf-8"), filename=str(script))


def dotted(node: ast.expr) -> list[str]:
    """The names of ``lw.gp.Matern``, none of what is no such chain."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return [*before, node.attr]
    return []


def of_lapwing(names: list[str]) -> object:
    """What ``lw.gp.Matern`` stands for; an ``AttributeError`` where there is nothing."""
    found: object = lw
    for name in names[1:]:
        found = getattr(found, name)
    return found


def calls(script: Path) -> Iterator[ast.Call]:
    """Calls of what lapwing has."""
    for node in ast.walk(syntax(script)):
        if isinstance(node, ast.Call) and dotted(node.func)[:1] == ["lw"]:
            yield node


def test_there_are_scripts_in_every_room_of_the_gallery() -> None:
    rooms = {script.parent for script in SCRIPTS}
    assert len(SCRIPTS) >= 14
    assert {path.parent for path in EXAMPLES.rglob("GALLERY_HEADER.rst")} == rooms | {EXAMPLES}
    listed = re.search(
        r"^ROOMS_OF_EXAMPLES = \((.*)\)$", (EXAMPLES.parent / "docs" / "conf.py").read_text(), re.MULTILINE
    )
    assert listed is not None and set(ast.literal_eval(f"({listed[1]})")) == {room.name for room in rooms}


@every_script
def test_names_exist_and_calls_take_their_arguments(script: Path) -> None:
    called = list(calls(script))
    assert called
    for node in ast.walk(syntax(script)):
        if isinstance(node, ast.Attribute) and dotted(node)[:1] == ["lw"]:
            of_lapwing(dotted(node))
    for call in called:
        function = of_lapwing(dotted(call.func))
        assert callable(function), ast.unparse(call)
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        try:
            inspect.signature(function).bind_partial(*call.args, **keywords)
        except TypeError as error:
            raise AssertionError(f"{ast.unparse(call)}: {error}") from None


@every_script
def test_imports_are_installed_and_lapwing_is_lw(script: Path) -> None:
    for node in ast.walk(syntax(script)):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0]: alias.asname for alias in node.names}
            assert names.get("lapwing", "lw") == "lw"
            assert set(names) <= INSTALLED
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.module.split(".")[0] in INSTALLED - {"lapwing"}


@every_script
def test_a_script_has_a_heading_a_seed_and_a_figure(script: Path) -> None:
    heading = (ast.get_docstring(syntax(script)) or "").splitlines()
    assert len(heading) > 3 and heading[1] == "=" * len(heading[0])
    text = script.read_text(encoding="utf-8")
    assert "torch.manual_seed(" in text
    assert "plt.show()" in text


@pytest.mark.parametrize(
    ("wrong", "message"), [("lw.Laplas(lw.Gaussian())", "Laplas"), ("lw.KFAC(ranks=3)", "unexpected keyword")]
)
def test_a_wrong_name_or_argument_is_found(wrong: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(wrong)
    with pytest.raises((AttributeError, AssertionError), match=message):
        test_names_exist_and_calls_take_their_arguments(script)
