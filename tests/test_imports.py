"""What a process imports, each up to a second of every one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import lapwing as lw

CODE = """
import sys, lapwing as lw
print({"torch", "numpy"} & set(sys.modules))
import torch
model, x = torch.nn.Linear(2, 1), torch.randn(9, 2)
lw.Laplace(lw.Gaussian(), structure=lw.KFAC()).fit(model, (x, x[:, :1]))
print({"scipy", "sympy"} & set(sys.modules))
import lapwing.metrics, lapwing.show.plots
print({"torchmetrics", "matplotlib"} & set(sys.modules))
"""


def test_a_first_fit_needs_neither_sympy_nor_scipy_and_the_rooms_none_of_the_extras() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    first, *_, fit, rooms = ran.stdout.splitlines()
    assert [first, fit, rooms] == 3 * ["set()"]


def test_names_are_where_editors_are_told_and_all_are_there() -> None:
    tree = ast.parse(Path(lw.__file__).read_text(encoding="utf-8"))
    told = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in told.body if isinstance(node, ast.ImportFrom) and node.module != "lapwing"]
    seen = {node.module: {name.name for name in node.names} for node in imports}
    assert seen == {module: set(names) for module, names in lw.HOMES.items()}
    assert {name for name in lw.__all__ if not hasattr(lw, name)} == set()
    named = {name for names in lw.HOMES.values() for name in names}
    assert named < set(lw.__all__) < named | set(lw.FLOORS)
    folders = {each.parent.name for each in Path(lw.__file__).parent.glob("*/__init__.py")}
    assert set(lw.FLOORS) == folders - {"cli", "demo"}


def test_processes_and_tomography_are_imported_by_their_short_names() -> None:
    import lapwing.ct
    import lapwing.gp
    from lapwing.ct import Parallel2d
    from lapwing.gp import Matern

    assert lapwing.gp is lw.gp and lapwing.ct is lw.ct
    assert Matern is lw.gp.Matern and Parallel2d is lw.ct.Parallel2d
    assert set(lapwing.gp.__all__) >= {"GP", "Matern"} and set(dir(lapwing.ct)) >= set(lapwing.ct.__all__)
