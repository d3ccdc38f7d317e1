"""What a process imports, each up to a second of every one, and how many files a call passes through."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CODE = """
import sys, torch, lapwing as lw
model, x = torch.nn.Linear(2, 1), torch.randn(9, 2)
lw.Laplace(lw.Gaussian(), structure=lw.KFAC()).fit(model, (x, x[:, :1]))
print({"scipy", "sympy"} & set(sys.modules))
import lapwing.evaluation.metrics, lapwing.show.plots
print({"torchmetrics", "matplotlib"} & set(sys.modules))
"""


def test_a_first_fit_needs_neither_sympy_nor_scipy_and_the_rooms_none_of_the_extras() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[-3:-1] == ["set()", "set()"]


MOST = {"KFAC fit": 18, "first GGN product": 14, "predict": 16, "default tune": 32, "EM on Sampled": 32}
"""Files that a call may enter: who follows it has to open as many."""


def test_a_call_passes_through_few_files() -> None:
    script = Path(__file__).parent.parent / "scripts" / "path.py"
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    found = {name.strip(): int(files) for name, files in re.findall(r"^(.+?) +(\d+) files", ran.stdout, re.MULTILINE)}
    assert found.keys() == MOST.keys()
    assert {name: files for name, files in found.items() if files > MOST[name]} == {}
