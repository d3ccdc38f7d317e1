from __future__ import annotations

import math

import torch

from studies.sampled.matern import Toy, network, process, train


def test_the_toy_is_standardised_and_lies_beside_its_gap() -> None:
    toy = Toy.draw(0, points=30)
    x, y = toy.train
    assert x.shape == y.shape == (60, 1) and toy.sides[0].shape == (30, 1) and toy.gap[0].shape == (30, 1)
    for values in toy.train:
        assert abs(float(values.mean())) < 1e-12 and abs(float(values.std()) - 1) < 1e-12
    left, right = x[:30].max(), x[30:].min()
    assert bool(((toy.gap[0] > left - 0.1) & (toy.gap[0] < right + 0.1)).all())
    assert toy.precision == toy.noise**-2
    assert torch.equal(Toy.draw(0, points=30).train[1], y) and not torch.equal(Toy.draw(1, points=30).train[1], y)


def test_draws_of_the_process_have_its_covariance() -> None:
    x = torch.tensor([0.0, 0.3, 1.5], dtype=torch.float64)
    source = torch.Generator().manual_seed(0)
    draws = torch.stack([process(x, source) for _ in range(4000)])
    for i, j in ((0, 0), (0, 1), (1, 2)):
        r = math.sqrt(3) * abs(float(x[i] - x[j])) / 0.5
        assert abs(float((draws[:, i] * draws[:, j]).mean()) - (1 + r) * math.exp(-r)) < 0.08


def test_the_network_ignores_the_scale_of_its_hidden_layers() -> None:
    model, x = network(0, width=7), torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    before = model(x)
    for layer in (model[0], model[3]):
        for p in layer.parameters():
            p.data *= 0.2
    torch.testing.assert_close(model(x), before, rtol=1e-8, atol=1e-10)


def test_training_fits() -> None:
    toy = Toy.draw(0, points=30)
    model = train(network(0, width=20), toy.train, 300)
    assert float((model(toy.train[0]).detach() - toy.train[1]).square().mean()) < 0.2
    assert not model.training
