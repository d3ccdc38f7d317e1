from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.data import digits
from benchmarks.networks import WEIGHTS, digit_cnn
from benchmarks.tasks import probabilities
from benchmarks.training import factor, kept_tensors, minimise, train
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.files import atomic
from lapwing.metrics import accuracy


@pytest.mark.parametrize(
    ("pixels", "kernel", "weights"), [(28, 5, 14_915), (28, 3, 14_821), (8, 5, 14_984), (8, 3, 14_983)]
)
def test_the_network_has_the_weights_it_states_and_no_width_comes_closer(pixels, kernel, weights) -> None:
    model = digit_cnn(pixels, kernel=kernel)
    assert sum(p.numel() for p in model.parameters()) == weights
    assert model(torch.zeros(3, 1, pixels, pixels)).shape == (3, 10)
    step = model[-1].in_features
    for width in (step - 1, step + 1):
        other = sum(p.numel() for p in digit_cnn(pixels, kernel=kernel, hidden=width).parameters())
        assert abs(other - WEIGHTS) >= abs(weights - WEIGHTS)


def test_weights_follow_the_seed_and_leave_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (digit_cnn(8, seed=seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_digits_are_all_there_and_shuffled_by_their_seed() -> None:
    split = digits()
    assert (len(split.y_train), len(split.y_test)) == (1297, 500)
    assert split.x_train.shape[1:] == (1, 8, 8) and split.x_train.max() == 1 and split.x_train.min() == 0
    assert not torch.equal(split.y_train, digits(seed=1).y_train)


def test_training_learns_repeats_itself_and_decays_the_weights() -> None:
    data = digits(train=300)
    runs = [
        train(digit_cnn(8, hidden=32), data.x_train, data.y_train, epochs=30, rate=1e-2, decay=decay)
        for decay in (0.0, 0.0, 0.1)
    ]
    plain, again, decayed = (torch.nn.utils.parameters_to_vector(run.parameters()).detach() for run in runs)
    assert accuracy(probabilities(PlainNetwork(runs[0]), data.x_test), data.y_test) > 0.8
    assert torch.equal(plain, again)
    assert decayed.norm() < 0.7 * plain.norm()


def test_the_minimum_is_the_map_estimate_under_the_stated_prior() -> None:
    data = digits(train=100)
    alpha = 3.0
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    train(model, data.x_train, data.y_train, epochs=1500, rate=0.1, decay=alpha / 100)
    loss = torch.nn.functional.cross_entropy(model(data.x_train), data.y_train, reduction="sum")
    weights = list(model.parameters())
    loss = loss + alpha / 2 * sum(p.square().sum() for p in weights)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])
    assert float(gradient.norm()) < 1e-2 * math.sqrt(gradient.numel())


def test_rates_fall_as_stated() -> None:
    assert [factor("cosine", done, 4) for done in (0, 2, 4)] == pytest.approx([1, 0.5, 0])
    assert factor("constant", 3, 4) == 1


def test_one_example_alone_is_left_out() -> None:
    data = digits(train=101)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))
    assert not train(model, *data.train, epochs=1).training


def test_a_minimum_has_no_gradient() -> None:
    model = torch.nn.Linear(2, 1).double()
    x, y = torch.eye(2).double(), torch.ones(2, 1).double()
    left = minimise(model, lambda: (model(x) - y).square().sum() + sum(p.square().sum() for p in model.parameters()))
    assert left < 1e-4


def test_tensors_are_made_once_for_the_same_key(tmp_path: Path) -> None:
    made: list[tuple[object, ...]] = []

    def asked(*key: object) -> Mapping[str, Tensor]:
        def make() -> dict[str, Tensor]:
            made.append(key)
            return {"a": torch.full([2, 3], float(len(made))).mT}

        return kept_tensors(make, tmp_path / "below", "name", *key)

    keys = [(1, torch.ones(2)), (1, torch.tensor([1.0, 1.5])), (2, torch.ones(2))]
    first = [asked(*key)["a"] for key in keys]
    again = [asked(*key)["a"] for key in keys]
    assert len(made) == 3 and all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert all(path.name.startswith("name-") and path.suffix == ".safetensors" for path in tmp_path.rglob("*.*"))


def test_a_file_that_was_not_written_whole_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tensors: dict[str, Tensor], path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(atomic, "save_file", broken)
        kept_tensors(lambda: {"a": torch.zeros(1)}, tmp_path, "name")
    assert kept_tensors(lambda: {"a": torch.ones(1)}, tmp_path, "name")["a"] == 1
