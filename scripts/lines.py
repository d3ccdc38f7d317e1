"""Files and lines of code of each folder: docstrings, comments and blank lines aside.

python scripts/lines.py src [studies benchmarks ...]
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(path: Path) -> int:
    """Lines with code of one file."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in SILENT | {tokenize.ENCODING}]
    written = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            written -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(written)


def main() -> None:
    """Print a line for every folder, and one for each argument."""
    for root in sys.argv[1:] or ["src"]:
        files, lines = Counter[Path](), Counter[Path]()
        for path in sorted(Path(root).rglob("*.py")):
            files[path.parent] += 1
            lines[path.parent] += code_lines(path)
        for folder in files:
            print(f"{folder!s:45s} {files[folder]:4d} files {lines[folder]:7,d} lines")
        print(f"{root + ', all of it':45s} {files.total():4d} files {lines.total():7,d} lines")


if __name__ == "__main__":
    main()
