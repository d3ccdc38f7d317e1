"""Jacobian rows that can be differentiated, against the slow ones and against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from lapwing.methods.marginal.live_batch import LiveBatch, live
from tests.curvature import naive
from tests.curvature.naive import known
from tests.posterior_cases import labels, mlp, normal, refused, seeded

CASES = [
    "mlp",
    "multi_label",
    "counts",
    "lenet",
    "batch_norm",
    "layer_norm",
    "transformer_batch_first",
    "bare_parameter",
]

TARGETS: list[tuple[Likelihood, int, Tensor]] = [
    (Gaussian((0.5, 3.0)), 2, normal(5, 2, seed=3)),
    (Categorical(), 3, labels(5, classes=3)),
    (Bernoulli(), 2, labels(5, 2, classes=2).double()),
    (Poisson(), 2, labels(5, 2, classes=4).double()),
    (HeteroscedasticGaussian(), 2, normal(5, 1, seed=3)),
]


def batch_of(name: str) -> tuple[naive.Known, LiveBatch]:
    case = known(name)
    return case, LiveBatch(live(case.case.model), case.case.likelihood, case.case.inputs, case.case.targets)


def difference(model: nn.Module, value: Callable[[], Tensor]) -> tuple[float, float]:
    """The derivative of a value along one direction of the weights: by autograd, and by central differences."""
    params = list(model.parameters())
    directions = [normal(*p.shape, seed=i) for i, p in enumerate(params)]
    grads = torch.autograd.grad(value(), params, allow_unused=True, materialize_grads=True)
    exact = sum(float((g * v).sum()) for g, v in zip(grads, directions, strict=True))
    ends = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            for p, v in zip(params, directions, strict=True):
                p.add_(v, alpha=sign * 1e-6)
        ends.append(value().item())
        with torch.no_grad():
            for p, v in zip(params, directions, strict=True):
                p.sub_(v, alpha=sign * 1e-6)
    return exact, (ends[0] - ends[1]) / 2e-6


@pytest.mark.parametrize("name", CASES)
def test_rows_are_the_jacobian_times_the_root(name: str) -> None:
    case, batch = batch_of(name)
    rows = batch.rows().detach().flatten(0, 1)
    torch.testing.assert_close(rows.mT @ rows, naive.ggn(case))


NORMS = {
    "layer": lambda: nn.LayerNorm(6),
    "instance": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, affine=True), nn.Flatten()),
    "group": lambda: nn.GroupNorm(2, 6),
}


@pytest.mark.parametrize("norm", NORMS)
def test_rows_behind_a_norm_are_differentiated_through_it(norm: str) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 6), NORMS[norm](), nn.Tanh(), nn.Linear(6, 2)))

    def value() -> Tensor:
        return LiveBatch(live(model), Gaussian(2.0), normal(5, 3), normal(5, 2, seed=3)).rows().pow(3).sum()

    exact, finite = difference(model, value)
    assert exact == pytest.approx(finite, rel=1e-6)


@pytest.mark.parametrize(("likelihood", "outputs", "targets"), TARGETS, ids=lambda x: type(x).__name__)
def test_a_function_of_the_rows_is_differentiated_through_the_jacobian_and_the_root(
    likelihood: Likelihood, outputs: int, targets: Tensor
) -> None:
    model, x = mlp(outputs), normal(5, 3)

    def value() -> Tensor:
        rows = LiveBatch(live(model), likelihood, x, targets).rows().flatten(0, 1)
        return torch.logdet(torch.eye(len(rows), dtype=torch.float64) + rows @ rows.mT)

    exact, finite = difference(model, value)
    assert exact == pytest.approx(finite, rel=1e-6)


def test_pulled_vectors_are_combinations_of_all_rows_and_are_differentiated_too() -> None:
    model, x, y = mlp(3), normal(5, 3), labels(5, classes=3)
    vectors = normal(3, 5, 2)

    def pulled() -> list[Tensor]:
        return LiveBatch(live(model), Categorical(), x, y).pull(vectors)

    rows = LiveBatch(live(model), Categorical(), x, y).rows()
    expected = torch.einsum("nkd,kns->sd", rows, vectors)
    torch.testing.assert_close(torch.stack(pulled()), expected)
    exact, finite = difference(model, lambda: pulled()[0] @ pulled()[1])
    assert exact == pytest.approx(finite, rel=1e-6)


def test_mixed_rows_are_combinations_of_the_rows_of_each_example() -> None:
    case, batch = batch_of("mlp")
    mixing = normal(2, 3, 4)
    expected = torch.einsum("skn,nkd->nsd", mixing, batch.rows())
    torch.testing.assert_close(batch.rows(mixing), expected)
    assert case.network.size == expected.shape[-1]


def test_the_pull_scales_gradients_and_nothing_else() -> None:
    model, x, y = mlp(), normal(5, 3), normal(5, 2, seed=1)
    grads, values = [], []
    for pull in (1.0, 0.25):
        value = LiveBatch(live(model, pull), Gaussian(), x, y).rows().square().sum()
        values.append(value.item())
        grads.append(torch.autograd.grad(value, model[0].weight)[0])
    assert values[0] == values[1]
    torch.testing.assert_close(grads[1], 0.25 * grads[0])


def test_frozen_parameters_are_no_part_of_it() -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    batch = LiveBatch(live(model), Gaussian(), normal(5, 3), normal(5, 2))
    assert batch.rows().shape == (5, 2, 4 + 4 * 2 + 2)


def test_a_network_that_cannot_be_vectorised_gets_a_sentence() -> None:
    _, batch = batch_of("branching")
    with refused(UnsupportedError, "vectorised over examples"):
        batch.rows()


def test_bad_data_get_a_sentence() -> None:
    model = mlp()
    with refused(DataError, "finite outputs"):
        LiveBatch(
            live(model), Gaussian(), normal(5, 3).index_fill(0, torch.tensor([1]), torch.nan), normal(5, 2)
        ).rows()
    with torch.no_grad():
        model[0].bias[0] = torch.inf
    with refused(DataError, "finite weights"):
        live(model)
