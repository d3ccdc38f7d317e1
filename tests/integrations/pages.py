"""Runs the code of a page of ``docs``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str, folder: Path, pages: Path = DOCS / "integrations") -> dict[str, Any]:
    """What the blocks of Python of a page have made, one after the other.

    Args:
        name: Of the page, without its ending.
        folder: Where it runs, and what it writes is left.
        pages: Where the page is.
    """
    text = (pages / f"{name}.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(block, names)
    return names
