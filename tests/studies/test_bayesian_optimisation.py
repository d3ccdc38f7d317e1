"""A run takes as many values as it says, and models are compared run by run."""

from __future__ import annotations

import pytest

from studies.bayesian_optimisation import PEER, Effort, Problem, measured, verdict

LITTLE = Effort(restarts=1, raw=4, samples=8, steps=2)


def test_regrets_are_compared_with_those_of_the_same_seeds() -> None:
    regrets = {PEER: [1.0, 2.0], "process": [1.0, 1.0], "network": [4.0]}
    rows = [
        {"function": "Branin", "model": model, "seed": seed, "regret": regret, "regrets": [regret]}
        for model, values in regrets.items()
        for seed, regret in enumerate(values)
    ]
    process, network = verdict(rows)
    assert process["holds"] and process["ratio"] == pytest.approx(2 / 3) and process["seeds"] == 2
    assert process["stderr"] == pytest.approx(0.5) and process["peer_median"] == 1.0
    assert not network["holds"] and network["ratio"] == 4.0 and network["seeds"] == 1


@pytest.mark.parametrize("model", [PEER, "process", "network"])
def test_a_run_never_loses_the_best_it_saw(model: str) -> None:
    pytest.importorskip("botorch", reason="BoTorch is not installed")
    row = measured(Problem("Branin", 2, rounds=2), model, 0, LITTLE)
    assert row["evaluations"] == 10 and len(row["regrets"]) == 2
    assert row["regrets"][0] >= row["regrets"][1] == row["regret"] >= 0.0
