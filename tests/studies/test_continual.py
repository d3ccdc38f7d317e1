"""Tasks of the study of continual learning, and what it does with a prior."""

from __future__ import annotations

import torch

import lapwing as lw
from benchmarks.networks import perceptron
from studies.continual import TASKS, Memory, Task, next_prior, of_task, trained


def test_a_task_has_two_digits_and_two_outputs() -> None:
    y = torch.arange(10).repeat(2)
    task = of_task(torch.zeros(20, 1, 8, 8), y, 3)
    assert task.x.shape == (4, 64)
    assert task.y.tolist() == [6, 7, 6, 7] and task.labels.tolist() == [0, 1, 0, 1]
    assert task.outputs(torch.arange(10.0)[None]).tolist() == [[6.0, 7.0]]


def test_a_network_stays_where_earlier_data_hold_it() -> None:
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    first, second = (Task(x, (x[:, number] > 0).long() + 2 * number, number) for number in (0, 1))
    model = trained(perceptron(64, 5, 2 * TASKS, seed=0), first, lw.Isotropic(1.0), 30, 0)
    before = first.outputs(model(x)).detach()
    moves = []
    for times in (1e-6, 1e4):
        copy = perceptron(64, 5, 2 * TASKS, seed=0)
        copy.load_state_dict(model.state_dict())
        prior = next_prior(copy, first, lw.Isotropic(1e-3), Memory(lw.KFAC(), times))
        assert prior is not None
        copy = trained(copy, second, prior, 20, 0)
        moves.append(float((first.outputs(copy(x)) - before).norm().detach()))
    assert moves[1] < 0.5 * moves[0]
