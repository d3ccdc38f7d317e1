"""lapwing doing the work, as a user would write it."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from benchmarks.meter import Meter
from benchmarks.structures.problems import BATCH, load

RECIPES: dict[str, Callable[[], lw.Laplace]] = {
    "kfac": lambda: lw.Laplace(lw.Categorical(), structure=lw.KFAC()),
    "diagonal": lambda: lw.Laplace(lw.Categorical(), structure=lw.Diagonal()),
    "full": lambda: lw.Laplace(lw.Categorical(), structure=lw.Full()),
    "last_layer": lambda: lw.Laplace(lw.Categorical(), structure=lw.Full(), weights=lw.LastLayer()),
    "last_layer_kfac": lambda: lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=lw.LastLayer()),
}


def work(meter: Meter, *, problem: str, path: str, structure: str, device: str = "cpu") -> None:
    """Fit, evidence, tune and predict, all parameters, default settings.

    Args:
        meter: Measures the steps.
        problem: Key of ``PROBLEMS``.
        path: The file of the problem.
        structure: Key of ``RECIPES``.
        device: Where to compute.
    """
    model, data = load(problem, path, device=device)
    loader = DataLoader(TensorDataset(data.x_train, data.y_train), batch_size=BATCH)
    recipe = RECIPES[structure]()

    def once() -> bool:
        fitted = meter.step("fit", lambda: recipe.fit(model, loader)).value
        if fitted is None:
            return False
        meter.step("evidence", fitted.log_marginal)
        tuned = meter.step("tune", lambda: lw.tune(fitted, lw.EvidenceGradient())).value or fitted
        return meter.step("predict", lambda: tuned.predict(data.x_test).probs).value is not None

    meter.ready()
    meter.rounds(once)
