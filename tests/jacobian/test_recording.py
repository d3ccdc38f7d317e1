"""What is recorded holds for every number of examples, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.recording import recorded
from tests.checker import unchecked
from tests.posterior_cases import normal, refused, seeded


def test_a_function_of_tensors_is_that_of_any_number_of_examples() -> None:
    x = normal(11, 3)
    module = recorded(lambda x: {"sum": x.sum(1), "above": x + 1}, x)
    for n in (1, 2, 11, 30):
        values = normal(n, 3, seed=n)
        found = module(values)
        torch.testing.assert_close([found["sum"], found["above"]], [values.sum(1), values + 1])


def test_one_in_which_the_number_is_written_down_is_refused() -> None:
    def summed(x: Tensor) -> dict[str, Tensor]:
        return {"sum": x.sum(1) + torch.arange(len(x))}

    def counted(x: Tensor) -> dict[str, Tensor]:
        return {"ones": x.new_ones(len(x))}

    with refused(UnsupportedError, "for every number of examples"):
        recorded(summed, normal(11, 3))
    with refused(UnsupportedError, "ones of shape [11] for 3 examples, and not [3]"):
        recorded(counted, normal(11, 3))


@pytest.mark.parametrize("kernel", [lw.gp.Hamming(2.0), lw.gp.Columns(lw.gp.Hamming(2.0), (0, 2))], ids=str)
def test_processes_of_categories_are_for_any_number(kernel: lw.gp.Kernel) -> None:
    x = normal(12, 3).round()
    posterior = lw.GP(kernel, lw.Gaussian(50.0)).fit((x, normal(12, 1, seed=1)))
    with unchecked():
        module = posterior.module()
        for n in (1, 3, 12):
            torch.testing.assert_close(module(x[:n])["std"], posterior.predict(x[:n]).std)


def test_a_network_with_an_instance_norm_is_for_any_number_or_refused() -> None:
    norm = nn.InstanceNorm1d(2, affine=True)
    model = seeded(lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), norm, nn.Flatten(), nn.Linear(6, 2)))
    x, y = normal(9, 6), normal(9, 2, seed=1)
    posterior = lw.Laplace(lw.Gaussian(4.0), structure=lw.KFAC()).fit(model, (x, y))
    behind = seeded(lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 2, 1), *list(model)[1:]))
    with unchecked():
        module = posterior.module()
        for n in (1, 3, 9):
            torch.testing.assert_close(module(x[:n])["std"], posterior.predict(x[:n]).std)
        with refused(UnsupportedError, "weights=LastLayer()"):
            lw.Laplace(lw.Gaussian(4.0), structure=lw.KFAC()).fit(behind, (x, y)).module()
