"""The free energy of the logits."""

from __future__ import annotations

import pytest
import torch

from lapwing.baselines import Energy, Task
from lapwing.ground.errors import ConfigError
from tests.posterior_cases import labels, mlp, normal, refused

X, Y = normal(40, 3), labels(40, classes=2)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_it_is_minus_the_log_of_the_sum_of_exponentials(temperature: float) -> None:
    model = mlp().eval()
    found = Energy(temperature).fit(Task(model, (X, Y))).predict(X).strangeness
    expected = -temperature * (model(X) / temperature).exp().sum(-1).log()
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=0)


def test_a_temperature_is_positive() -> None:
    with refused(ConfigError, "a positive temperature"):
        Energy(0.0)
