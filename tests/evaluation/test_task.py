"""What a method is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.evaluation.task import Task
from lapwing.ground.errors import ConfigError


def test_the_network_at_its_word_has_output_and_likelihood() -> None:
    x = torch.randn(6, 2)
    model = nn.Linear(2, 3)
    task = Task(model, (x, torch.zeros(6, 2)), likelihood=lw.Gaussian(4.0), output=lambda returned: returned[:, :2])
    torch.testing.assert_close(task.network.outputs(x), model(x)[:, :2].detach())
    assert task.network.likelihood == lw.Gaussian(4.0)


def test_a_method_that_needs_validation_data_says_so() -> None:
    x, y = torch.randn(6, 2), torch.zeros(6, dtype=torch.long)
    task = Task(nn.Linear(2, 3), (x, y))
    with pytest.raises(ConfigError, match="validation data for VectorScaling"):
        task.held_out("VectorScaling")
    assert Task(nn.Linear(2, 3), (x, y), validation=(x, y)).held_out("VectorScaling") == (x, y)


def test_a_network_without_parameters_is_on_the_cpu() -> None:
    assert Task(nn.Identity(), (torch.zeros(2, 2), torch.zeros(2))).device == torch.device("cpu")
