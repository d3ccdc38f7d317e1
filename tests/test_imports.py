"""What a process imports, each up to a second of every one."""

from __future__ import annotations

import subprocess
import sys

import lapwing as lw

CODE = """
import sys, torch, lapwing as lw
model, x = torch.nn.Linear(2, 1), torch.randn(9, 2)
lw.Laplace(lw.Gaussian(), structure=lw.KFAC()).fit(model, (x, x[:, :1]))
print({"scipy", "sympy"} & set(sys.modules))
import lapwing.metrics, lapwing.show.plots
print({"torchmetrics", "matplotlib"} & set(sys.modules))
"""


def test_a_first_fit_needs_neither_sympy_nor_scipy_and_the_rooms_none_of_the_extras() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[-3:-1] == ["set()", "set()"]


def test_processes_and_tomography_are_imported_by_their_short_names() -> None:
    import lapwing.ct
    import lapwing.gp
    from lapwing.ct import Parallel2d
    from lapwing.gp import Matern

    assert lapwing.gp is lw.gp and lapwing.ct is lw.ct
    assert Matern is lw.gp.Matern and Parallel2d is lw.ct.Parallel2d
    assert set(lapwing.gp.__all__) >= {"GP", "Matern"} and set(dir(lapwing.ct)) >= set(lapwing.ct.__all__)
