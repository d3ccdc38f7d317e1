"""Nothing moves PyTorch's global generator but draws that were asked for without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lapwing as lw
from tests.pairwise import in_turn
from tests.posterior_cases import STRUCTURES, normal, problem

SOLVED: dict[str, Any] = {"sampled": lw.Sampled(5), "matrix-free": lw.MatrixFree()}
WAYS = ("default", "validation")


@pytest.mark.filterwarnings("ignore::lapwing.ConvergenceWarning")
@pytest.mark.parametrize(
    ("choices", "way"),
    in_turn(
        [*(("categorical", one) for one in (*STRUCTURES, *SOLVED)), ("gaussian", "kfac"), ("gaussian", "matrix-free")],
        WAYS,
        whole=[("categorical", "kfac"), ("categorical", "sampled")],
    ),
)
def test_fit_tune_and_predict_leave_it_alone(choices: tuple[str, str], way: str) -> None:
    name, structure = choices
    case = problem(name)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    recipe = lw.Laplace(case.likelihood, structure=(STRUCTURES | SOLVED)[structure])
    posterior = case.fit(recipe, generator=torch.Generator().manual_seed(1))
    held_out = normal(8, 3, seed=5), case.y[:8]
    tuned = lw.tune(posterior, None if way == "default" else lw.Validation(held_out, bounds=(1e-1, 1e2)))
    tuned.predict(case.new)
    lw.evaluate(tuned, held_out)
    assert torch.equal(torch.random.get_rng_state(), before)
