"""Both sides of the comparison of Gaussian processes are one process; its parts are rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gp, gp_sides
from benchmarks.command import Setting
from benchmarks.meter import Attempt


class Once:
    """A meter that measures nothing and keeps what it is told."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def ready(self) -> None: ...

    def step(self, name: str, work: Any) -> Attempt[Any]:
        return Attempt(work())

    def tell(self, name: str, **facts: Any) -> None:
        self.facts |= facts


MORE = gp.STUDY.more({}, quick=True)
QUICK = Setting(quick=True, seeds=1, more=MORE)


@pytest.mark.filterwarnings("ignore")
def test_both_sides_predict_alike(tmp_path: Path) -> None:
    data = gp.split("pol", 0, QUICK)
    case, once = tmp_path / "case.pt", Once()
    torch.save(data | {"logs": gp.initial(data)}, case)
    scores: list[dict[str, float]] = []
    for side, options in ((gp_sides.ours, {}), (gp_sides.exact, {"fast": False})):
        side(once, case=str(case), **options)  # type: ignore[operator]
        scores.append(dict(once.facts))
        assert scores[-1].pop("cpu_seconds") > 0
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    gp_sides.variational(once, case=str(case), points=30, epochs=2)  # type: ignore[arg-type]
    assert once.facts["rmse"] < 1.1


def test_hyper_parameters_of_both_sides_are_one_vector() -> None:
    x, logs = torch.rand(9, 3), torch.tensor([0.3, -0.2, 0.1, 0.4, -3.0]).double()
    model = gp_sides.Regression(x, x[:, 0])
    gp_sides.given(model.covar_module, model.likelihood, logs)
    torch.testing.assert_close(gp_sides.found(model), logs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gp_sides.process(x, x[:, 0], logs).log_hyperparameters(), logs)


def test_the_search_makes_rows_of_each_side() -> None:
    rows = list(gp.rows(Setting(quick=True, seeds=1, only=("search",), more=MORE)))
    assert {row["side"] for row in rows} == {gp.OURS, gp.PEER, gp.EXACT}
    assert min(row["gap"] for row in rows) == 0.0
    (told,) = gp.verdict(rows)
    assert told["peer_took"] > 0 and set(told) >= {gp.OURS, gp.PEER}
