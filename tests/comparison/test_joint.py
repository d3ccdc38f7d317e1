"""Joint log-likelihoods of a predictor, in groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing import metrics
from lapwing.comparison import joint
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.predictive import Classification


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 2, generator=generator, dtype=torch.float64), torch.arange(n) % 3


def test_a_plain_network_scores_what_its_probabilities_score_alone() -> None:
    x, y = data(30)
    model = nn.Linear(2, 3).double()
    found = joint.joint_values(PlainNetwork(model), (x, y), draws=8)
    assert found is not None
    probs = model(x).softmax(-1).detach()
    logs = probs.log()
    expected = metrics.dyadic_values(
        lw.Categorical(), logs, y, anchors=5, labels=40, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(found.values, expected.values)


def test_functions_of_a_posterior_know_what_errors_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(60)
    posterior = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(0.01)).fit(nn.Linear(2, 3).double(), (x[:12], y[:12]))
    found = joint.joint_values(posterior, (x, y), 64, generator=torch.Generator().manual_seed(1))
    prediction = posterior.predict(x)
    assert isinstance(prediction, Classification)
    alone = joint.joint_values(PlainNetwork(nn.Identity()), (prediction.probs.log(), y), 64)
    assert found is not None and alone is not None
    assert found.estimate().value > alone.estimate().value
    monkeypatch.setattr(joint, "GROUP_BYTES", 8 * (3 * 20) ** 2)
    grouped = joint.joint_values(posterior, (x, y), 64, generator=torch.Generator().manual_seed(1))
    assert grouped is not None and grouped.group_sizes == (20, 20, 20)
    again = joint.values_of(grouped.values, grouped.group_sizes)
    assert torch.equal(again.members, grouped.members)


def test_probabilities_of_real_targets_are_not_joint_unless_they_are_certain() -> None:
    x, _ = data(30)
    y = x.sum(1, keepdim=True)
    model = nn.Linear(2, 1).double()
    assert joint.joint_values(PlainNetwork(model, lw.Gaussian()), (x, y), 8) is not None
    refits = lw.HessianFree(lw.Gaussian(), fits=lw.hessian_free.Probed(probes=4, residual=2))
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    assert joint.joint_values(refits.fit(model, (x, y), points=x), (x, y), 8) is None
