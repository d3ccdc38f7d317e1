from __future__ import annotations

import math

import pytest
import torch

from benchmarks.training import WEIGHTS, accuracy, digit_cnn, digits, train


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
        train(digit_cnn(8, hidden=32), data.x_train, data.y_train, epochs=30, lr=1e-2, weight_decay=decay)
        for decay in (0.0, 0.0, 0.1)
    ]
    plain, again, decayed = (torch.nn.utils.parameters_to_vector(run.parameters()).detach() for run in runs)
    assert accuracy(runs[0], data.x_test, data.y_test) > 0.8
    assert torch.equal(plain, again)
    assert decayed.norm() < 0.7 * plain.norm()


def test_the_minimum_is_the_map_estimate_under_the_stated_prior() -> None:
    data = digits(train=100)
    alpha = 3.0
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    train(model, data.x_train, data.y_train, epochs=1500, lr=0.1, weight_decay=alpha / 100)
    loss = torch.nn.functional.cross_entropy(model(data.x_train), data.y_train, reduction="sum")
    weights = list(model.parameters())
    loss = loss + alpha / 2 * sum(p.square().sum() for p in weights)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])
    assert float(gradient.norm()) < 1e-2 * math.sqrt(gradient.numel())


def test_accuracy_counts_the_right_ones() -> None:
    logits = torch.nn.Flatten()
    x = torch.eye(4).reshape(4, 1, 2, 2)
    assert accuracy(logits, x, torch.tensor([0, 1, 2, 0])) == 0.75
