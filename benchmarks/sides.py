"""Both sides of the benchmark of structures, each run in a process of its own: fit, evidence, tune, predict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.meter import Attempt, Meter
from benchmarks.problems import TEST, load

BATCH = 128
STRUCTURES: dict[str, tuple[str, str]] = {
    "kfac": ("all", "kron"),
    "diagonal": ("all", "diag"),
    "full": ("all", "full"),
    "last_layer": ("last_layer", "full"),
    "last_layer_kfac": ("last_layer", "kron"),
}
BACKENDS = ("CurvlinopsGGN", "AsdlGGN", "BackPackGGN", "AsdfghjklGGN")
FREEZABLE = (nn.BatchNorm2d, nn.LayerNorm, nn.Embedding)
SMALLER = (64, 16)


def ours(meter: Meter, *, problem: str, path: str, structure: str, device: str = "cpu") -> None:
    """Lapwing doing the work as a user would write it: all parameters, default settings.

    Args:
        meter: Measures the steps.
        problem: Key of ``PROBLEMS``.
        path: The file of the problem.
        structure: Key of ``STRUCTURES``.
        device: Where to compute.
    """
    import lapwing as lw

    model, data = load(problem, path, device=device)
    loader = DataLoader(TensorDataset(*data.train), batch_size=BATCH)
    weights, kind = STRUCTURES[structure]
    held = {"kron": lw.KFAC, "diag": lw.Diagonal, "full": lw.Full}[kind]()
    some = {"weights": lw.LastLayer()} if weights == "last_layer" else {}
    recipe = lw.Laplace(lw.Categorical(), structure=held, **some)

    def once() -> bool:
        fitted = meter.step("fit", lambda: recipe.fit(model, loader)).value
        if fitted is None:
            return False
        meter.step("evidence", fitted.log_marginal)
        tuned = meter.step("tune", lambda: lw.tune(fitted, lw.EvidenceGradient())).value or fitted
        return meter.step("predict", lambda: tuned.predict(data.x_test).probs).value is not None

    meter.ready()
    meter.rounds(once)


def peer(
    meter: Meter, *, problem: str, path: str, structure: str, backend: str, frozen: bool, device: str = "cpu"
) -> None:
    """laplace-torch doing the work with one backend, norm layers frozen or not, the largest batches it can take.

    Where a batch needs more memory than there is, the next smaller one is tried; any other failure is final.

    Args:
        meter: Measures the steps.
        problem: Key of ``PROBLEMS``.
        path: The file of the problem.
        structure: Key of ``STRUCTURES``.
        backend: Name in ``laplace.curvature``.
        frozen: Take norm layers and embeddings out of the posterior, which most backends cannot have in it.
        device: Where to compute.
    """
    import laplace
    import laplace.curvature

    warnings.simplefilter("ignore")
    model, data = load(problem, path, device=device)
    for module in model.modules():
        if frozen and isinstance(module, FREEZABLE):
            module.requires_grad_(False)
    weights, hessian = STRUCTURES[structure]
    pairs = TensorDataset(*data.train)

    def fit(batch: int) -> Any:
        kind = getattr(laplace.curvature, backend)
        found = laplace.Laplace(
            model, "classification", subset_of_weights=weights, hessian_structure=hessian, backend=kind
        )
        found.fit(DataLoader(pairs, batch_size=batch))
        return found

    def once() -> bool:
        fitted = _largest(meter, "fit", fit, BATCH)
        if (found := fitted.value) is None:
            return False
        meter.step("evidence", lambda: float(found.log_marginal_likelihood()))
        meter.step("tune", lambda: found.optimize_prior_precision("glm", method="marglik", prior_structure="scalar"))

        def predict(batch: int) -> torch.Tensor:
            parts = [found(x, pred_type="glm", link_approx="probit") for x in data.x_test.split(batch)]
            return torch.cat(parts)

        return _largest(meter, "predict", predict, TEST).value is not None

    meter.ready()
    meter.rounds(once)


def _largest(meter: Meter, name: str, step: Callable[[int], Any], first: int) -> Attempt[Any]:
    attempt: Attempt[Any] = Attempt(None)
    for batch in (first, *SMALLER):
        attempt = meter.step(name, lambda: step(batch), label=f"@{batch}")  # noqa: B023 - called before it changes
        if not attempt.out_of_memory:
            break
    return attempt
