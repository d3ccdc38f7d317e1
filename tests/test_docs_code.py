"""The code of the documentation runs as printed: blocks of the README alone, those of a page one after the other."""

from __future__ import annotations

import importlib.util
import re
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from tests.integrations.pages import DOCS

ROOT = DOCS.parent
ELSEWHERE = {"baselines", "hugging-face", "distributed"}
"""Pages whose code runs in tests of their own: they go on with what it made, or need several processes."""

SMALLER = {
    "gp": {"rows = 50_000": "rows = 300", "300": "60", "(10, 100, 1000)": "(10, 30)"},
    "continual": {"range(1000)": "range(20)"},
    "comparing": {"seeds=2": "seeds=1"},
    "ct": {"steps=300": "steps=5"},
}
"""What takes longer than a test may, and what the test puts in its place."""

OPTIONAL = ("pandas",)
"""Packages that a block may import: where one is missing the block is left out."""


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def pages() -> list[Path]:
    """Those with code, but for the adapters' own, which their tests run with the packages they are about."""
    found = [*DOCS.glob("*.md"), *(DOCS / "how-to").glob("*.md")]
    return sorted(page for page in found if blocks_of(page) and page.stem not in ELSEWHERE)


def run(code: str, names: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.ConvergenceWarning)  # of networks that are trained for a moment
        exec(code, names)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that writes files does so in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


@pytest.mark.parametrize("number", range(len(blocks_of(ROOT / "README.md"))))
def test_every_block_of_the_readme_runs_alone(number: int) -> None:
    names: dict[str, Any] = {}
    run(blocks_of(ROOT / "README.md")[number], names)
    assert any(isinstance(made, lw.Posterior | lw.comparison.Comparison) for made in names.values())


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    missing = [name for name in OPTIONAL if importlib.util.find_spec(name) is None]
    for block in blocks_of(page):
        if any(f"import {name}" in block for name in missing):
            continue
        for printed, smaller in SMALLER.get(page.stem, {}).items():
            block = block.replace(printed, smaller)
        run(block, names)


def test_what_is_made_smaller_is_on_its_page() -> None:
    for stem, changes in SMALLER.items():
        code = "\n".join(blocks_of(DOCS / f"{stem}.md"))
        assert all(printed in code for printed in changes), stem


def test_the_code_for_several_processes_runs_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tests/laws/test_distributed.py`` has several; here are the variables that ``torchrun`` sets."""
    accelerate = pytest.importorskip("accelerate", reason="the page prepares a model by it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    names: dict[str, Any] = {}
    try:
        for block in blocks_of(DOCS / "distributed.md"):
            run(block, names)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert Path("fitted.safetensors").is_file()
