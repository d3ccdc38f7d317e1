"""What the documentation names exists: names, arguments, methods, commands and files."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lapwing as lw
from lapwing.gp import GPPosterior
from lapwing.integrations import ADAPTERS
from lapwing.methods.hessian_free import HessianFreePosterior
from lapwing.posteriors import (
    FunctionPosterior,
    MatrixFreePosterior,
    NystromPosterior,
    SampledPosterior,
    WeightPosterior,
)
from lapwing.predictive import Classification, Counts, MultiLabel, Regression

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "how-to").glob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
ROOMS = (lw, lw.solvers, lw.preconditioners, lw.structures, lw.posteriors, lw.hessian_free, lw.gp, lw.baselines)
PREDICTIONS = (Classification, Regression, MultiLabel, Counts)
POSTERIORS = (
    WeightPosterior,
    FunctionPosterior,
    MatrixFreePosterior,
    NystromPosterior,
    SampledPosterior,
    HessianFreePosterior,
    GPPosterior,
)


ABSENT = {name for name, (package, _) in ADAPTERS.items() if importlib.util.find_spec(package) is None}
"""Adapters whose package is not installed: their own tests run what the pages say of them."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def ours(page: Path) -> str:
    """A page without what it quotes of laplace-torch: its block of code, and the first column of its tables."""
    text = text_of(page)
    if page.name != "migration.md":
        return text
    text = re.sub(r"# laplace-torch\n.*?# lapwing\n", "", text, flags=re.DOTALL)
    return re.sub(r"^\|.*?(?<!\\)\|", "|", text, flags=re.MULTILINE)


def code_of(page: Path) -> list[str]:
    """Blocks of Python and what stands between backticks."""
    text = ours(page)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [*blocks, *re.findall(r"(?<![`}])`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]


def resolve(name: str) -> object:
    """What a dotted name under lapwing stands for."""
    found: object = importlib.import_module("lapwing")
    path = "lapwing"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        is_module = inspect.ismodule(found) and not hasattr(found, part) and importlib.util.find_spec(path) is not None
        found = importlib.import_module(path) if is_module else getattr(found, part)
    return found


def calls_of(page: Path) -> Iterator[ast.Call]:
    """Every call in the code of a page that is a Python expression or program."""
    for code in code_of(page):
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def called(call: ast.Call) -> object | None:
    """The function or class of lapwing that is called, if it is one."""
    match call.func:
        case ast.Attribute(ast.Name("lw"), name):
            return getattr(lw, name)
        case ast.Attribute(ast.Attribute(ast.Name("lw"), room), name) if room not in ABSENT:
            return getattr(getattr(lw, room), name)
        case ast.Attribute(ast.Call(func=ast.Attribute(ast.Name("lw"), "Laplace")), "fit"):
            return lw.Laplace(lw.Categorical()).fit
        case ast.Attribute(ast.Name("recipe"), name):
            return getattr(lw.Laplace(lw.Categorical()), name)
        case ast.Name(name) if name[0].isupper():
            return getattr(lw, name, None)
        case _:
            return None


@every_page
def test_names_resolve(page: Path) -> None:
    text = ours(page)
    names = {f"lapwing.{name}" for name in re.findall(r"\blw\.([A-Za-z_]\w*)", text)}
    names |= set(re.findall(r"(?<![\w/.-])lapwing(?:\.[A-Za-z_]\w*)+", text))
    for name in sorted(names):
        if name.split(".")[1] not in ABSENT:
            assert resolve(name) is not None, name


def test_enough_is_named_to_look_at() -> None:
    named = {name for page in PAGES for name in re.findall(r"\blw\.([A-Za-z_]\w*)", ours(page))}
    assert {"Laplace", "KFAC", "tune", "evaluate", "Validation", "save", "compare"} <= named
    assert sum(1 for page in PAGES for call in calls_of(page) if called(call)) > 40


def test_the_marginal_likelihood_of_laplace_torch_is_the_evidence_at_the_weights() -> None:
    """``tests/oracles`` shows that the two are equal; the default of ``tune`` is another criterion."""
    text = text_of(ROOT / "docs" / "migration.md")
    theirs, here = re.findall(r"```python\n# laplace-torch\n(.*?)# lapwing\n(.*?)```", text, re.DOTALL)[0]
    rows = [row for row in text.splitlines() if row.startswith("|") and ('marglik"' in row or "log_prior" in row)]
    assert 'method="marglik"' in theirs and len(rows) == 2
    for ours_ in (here, *(row.split("|")[2] for row in rows)):
        assert "lw.EvidenceGradient())" in ours_


@every_page
def test_what_is_called_takes_these_arguments(page: Path) -> None:
    for call in calls_of(page):
        function = called(call)
        if function is None or any(isinstance(x, ast.Constant) and x.value is ... for x in call.args):
            continue
        assert callable(function)
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        signature = inspect.signature(function)
        try:
            signature.bind_partial(*call.args, **keywords)
        except TypeError as error:
            raise AssertionError(f"{ast.unparse(call)}: {error}") from None


@every_page
def test_capitalised_calls_in_tables_are_public(page: Path) -> None:
    """``KFAC(sharing="expand")`` and the like."""
    for code in code_of(page):
        for name in re.findall(r"^([A-Z]\w+)\(", code):
            if page.name != "notation.md" and name not in ("BCEWithLogitsLoss", "Kronecker"):
                assert any(hasattr(room, name) for room in ROOMS), name


@every_page
@pytest.mark.parametrize(("variable", "kinds"), [("posterior", POSTERIORS), ("p", PREDICTIONS)])
def test_attributes_of_posteriors_and_predictions_exist(page: Path, variable: str, kinds: tuple[type, ...]) -> None:
    for code in code_of(page):
        for name in re.findall(rf"(?<![\w.]){variable}\.([a-z_]+)", code):
            fields = {field for kind in kinds for field in kind.__dataclass_fields__}
            assert name in fields or any(hasattr(kind, name) for kind in kinds), f"{variable}.{name}"


def exists(command: str) -> bool:
    """Whether a command of the README can be run: a target of the Makefile, a module, or a sub-command of ours."""
    words = command.split()
    if words[0] == "make":
        return re.search(rf"^{words[1]}:", text_of(ROOT / "Makefile"), re.MULTILINE) is not None
    if words[:2] == ["python", "-m"]:
        path = ROOT / Path(*words[2].split("."))
        program = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        if not program.is_file():
            return False
        said = text_of(program)
        if "benchmarks.command" in said:  # the options that all benchmarks and studies have
            said += text_of(ROOT / "benchmarks" / "command.py")
        return all(f'"{word}"' in said for word in words if word.startswith("--"))
    return words[0] == "pip"


def test_commands_of_the_readme_can_be_run() -> None:
    readme = text_of(ROOT / "README.md")
    commands = set(re.findall(r"`((?:make|python -m|pip) [^`]+)`", readme)) | set(
        re.findall(r"^make \w+", readme, re.M)
    )
    assert len(commands) >= 4
    for command in commands:
        assert exists(command), command


def test_files_of_the_readme_exist_or_are_written_by_the_demo() -> None:
    readme = text_of(ROOT / "README.md")
    files = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:md|json|html|py)|(?:[\w.-]+/){2,})`", readme)
    named = [*files, *re.findall(r"\]\(([^)]+)\)", readme)]
    assert len(named) > 8
    for file in named:
        assert (ROOT / file).exists() or Path(file).parts[:2] == ("runs", "demo"), file


@every_page
def test_citations_have_references(page: Path) -> None:
    known = set(re.findall(r"^@\w+\{([^,]+),", text_of(ROOT / "docs" / "refs.bib"), re.MULTILINE))
    cited = {key.strip() for group in re.findall(r"\{cite:\w+\}`([^`]+)`", text_of(page)) for key in group.split(",")}
    assert known and cited <= known, cited - known


def test_the_index_lists_every_page() -> None:
    trees = re.findall(r"```\{toctree\}\n(?::[^\n]*\n)+\n(.*?)```", text_of(DOCS / "index.md"), re.DOTALL)
    listed = [name for tree in trees for name in tree.split()]
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES if page.is_relative_to(DOCS)}
    assert sorted(listed) == sorted(pages - {"index"} | {"integrations/index", "gallery/index"})


def test_documents_that_are_named_exist() -> None:
    for page in [*PAGES[1:], *sorted((DOCS / "integrations").glob("*.md"))]:
        for name in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text_of(page)):
            if not name.endswith("gallery/index"):  # which `make docs` makes of the scripts in examples/
                assert (page.parent / f"{name}.md").is_file(), f"{page.name}: {name}"


def test_every_public_name_has_its_group_in_the_reference() -> None:
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert spec is not None and spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    names = [name for name in lw.__all__ if callable(getattr(lw, name))]
    assert next(iter(conf.grouped("lapwing", names).values())) == ["Laplace", "tune", "Posterior"]
    with pytest.raises(ValueError, match="differ in"):
        conf.grouped("lapwing", [*names, "Another"])


def test_every_module_of_the_reference_is_in_its_tree() -> None:
    rooms = re.search(r"^ROOMS = \{(.*?)^\}", text_of(DOCS / "conf.py"), re.DOTALL | re.MULTILINE)
    assert rooms is not None
    listed = re.findall(r"^reference/(.*)$", text_of(DOCS / "api.md"), re.MULTILINE)
    assert listed == re.findall(r'"(lapwing[\w.]*)":', rooms[1])
