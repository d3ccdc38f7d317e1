"""The code of the page for tables with categories, on fewer rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import lapwing as lw

PAGE = Path(__file__).parents[2] / "docs" / "gp.md"


def test_a_data_frame_with_categories_is_a_process_in_twenty_lines() -> None:
    pytest.importorskip("pandas", reason="the page reads a data frame")
    part = PAGE.read_text(encoding="utf-8").split("## Tables with categories")[1]
    code = re.findall(r"```python\n(.*?)```", part, re.DOTALL)[0]
    assert len(code.splitlines()) <= 20
    names: dict[str, Any] = {"lw": lw}
    exec(code.replace("50_000", "300"), names)
    predicted = names["prices"].predict(names["table"]).mean[:, 0].numpy()
    left = names["target"] - predicted
    assert left.std() < 0.1  # the noise is 0.07 of the targets' spread
