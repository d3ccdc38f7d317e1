"""laplace-torch doing the work: one backend, norm layers frozen or not, the largest batches it can take."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.meter import Attempt, Meter
from benchmarks.structures.problems import BATCH, TEST, load

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


def work(
    meter: Meter, *, problem: str, path: str, structure: str, backend: str, frozen: bool, device: str = "cpu"
) -> None:
    """Fit, evidence, tune and predict with one backend.

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
    pairs = TensorDataset(data.x_train, data.y_train)

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
