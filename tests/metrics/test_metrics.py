from __future__ import annotations

import pytest
import torch

from lapwing import metrics


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["accuracy", "nll", "ece", "adaptive_ece", "brier"])
def test_scores_follow_the_device_and_are_computed_in_float64(
    name: str, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    probs = torch.randn(200, 3, generator=generator).softmax(-1).to(dtype)
    targets = torch.randint(0, 3, (200,), generator=generator)
    score = getattr(metrics, name)
    there, in_float64 = score(probs.to(device), targets), score(probs.double(), targets)
    assert isinstance(there, float)
    assert there == pytest.approx(in_float64, rel=1e-13)


def test_curves_and_detection_follow_the_device(device: torch.device, generator: torch.Generator) -> None:
    probs = torch.randn(200, 3, generator=generator).softmax(-1).to(device)
    targets = torch.randint(0, 3, (200,), generator=generator)
    assert metrics.rejection_curve(probs, targets).accuracy.device == probs.device
    assert metrics.reliability(probs, targets).accuracy.device == probs.device
    confidence = probs.amax(-1)
    both = metrics.auroc(confidence[:100], confidence[100:].cpu())
    assert both == metrics.auroc(confidence[:100].cpu(), confidence[100:].cpu())
