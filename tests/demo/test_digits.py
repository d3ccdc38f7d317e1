from __future__ import annotations

import pytest
import torch

from lapwing.demo.digits import digits, trained

pytest.importorskip("sklearn")


def test_parts_are_disjoint_and_of_the_size_asked_for() -> None:
    data = digits(0, train=30, validation=20, test=40)
    parts = (data.train, data.validation, data.test, data.unseen)
    assert [len(x) for x, _ in parts] == [30, 20, 40, 40]
    images = torch.cat([x for x, _ in parts]).flatten(1)
    assert len(torch.unique(images, dim=0)) == len(images)
    assert (images.min(), images.max()) == (0, 1)


def test_every_digit_is_unseen_once_in_five_seeds() -> None:
    held_out = [digits(seed).held_out for seed in range(5)]
    assert held_out[0] == (0, 1, 2)
    assert {digit for three in held_out for digit in three} == set(range(10))


def test_labels_are_those_of_scikit_learn_without_the_unseen() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    known = {tuple(image): label for image, label in zip((pixels / 16).tolist(), labels.tolist(), strict=True)}
    data = digits(4, train=40, validation=20, test=40)
    kept = [digit for digit in range(10) if digit not in data.held_out]
    assert data.held_out == (8, 9, 0)
    for image, label in zip(data.train[0], data.train[1].tolist(), strict=True):
        assert known[tuple(image.flatten().tolist())] == kept[label]
    assert all(known[tuple(image.flatten().tolist())] in data.held_out for image in data.unseen[0])


def test_a_seed_is_a_split_and_a_network_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (trained(digits(seed, 40, 20, 20).train, seed, epochs=2) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert len(weights[0]) == 1703
    assert not first.training
