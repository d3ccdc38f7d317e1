"""Inference mode and autocast around the library's calls change nothing."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from tests.posterior_cases import labels, mlp, normal


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.MatrixFree()], ids=lambda x: type(x).__name__)
def test_fits_tuning_and_predictions_are_those_without_the_mode(structure: lw.KFAC | lw.MatrixFree) -> None:
    model, x, y = mlp(3).float(), normal(12, 3).float(), labels(12, classes=3)

    def found() -> torch.Tensor:
        posterior = lw.Laplace(lw.Categorical(), structure=structure).fit(model, (x, y))
        tuned = lw.tune(posterior, lw.EvidenceGradient() if isinstance(structure, lw.KFAC) else lw.ELBO(steps=3))
        return torch.cat([tuned.predict(x, "probit").probs.flatten(), posterior.predict(x, "probit").probs.flatten()])

    plain = found()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(found(), plain)
    with torch.inference_mode():
        x, y = x.clone(), y.clone()  # made in inference mode, which autograd would refuse to keep
        assert torch.equal(found(), plain)
