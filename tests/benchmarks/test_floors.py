"""Studies stand on benchmarks, which know nothing of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import benchmarks


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_no_benchmark_imports_a_study() -> None:
    files = list(Path(benchmarks.__path__[0]).rglob("*.py"))
    assert len(files) > 10
    assert [path for path in files for name in imported(path) if name.split(".")[0] == "studies"] == []
