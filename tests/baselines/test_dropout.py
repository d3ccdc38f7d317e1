"""Monte Carlo dropout against a loop, and what drops."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lapwing.baselines import DropoutNetwork, MonteCarloDropout, Task
from lapwing.baselines.dropout import dropping
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.likelihoods import Gaussian
from lapwing.predictive import Classification, Regression
from tests.checker import unchecked
from tests.posterior_cases import normal, refused, seeded

X = normal(6, 3)


def network(outputs: int = 2) -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Sequential(nn.ReLU(), nn.Linear(8, outputs))
        )
    )


def test_it_is_a_loop_with_dropout_alone_in_training_mode() -> None:
    model = network()
    p = DropoutNetwork(model, 7, seed=3).predict(X)
    model.eval()
    model[2].train()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        expected = torch.stack([model(X) for _ in range(7)])
    assert isinstance(p, Classification)
    assert torch.equal(p.logits.values, expected)
    torch.testing.assert_close(p.probs, expected.softmax(-1).mean(0), rtol=1e-14, atol=0)
    mean_entropy = -(expected.softmax(-1) * expected.log_softmax(-1)).sum(-1).mean(0)
    torch.testing.assert_close(p.aleatoric, mean_entropy, rtol=1e-12, atol=0)


def test_real_targets_have_the_spread_of_the_passes() -> None:
    p = DropoutNetwork(network(), 50, likelihood=Gaussian(4.0)).predict(X)
    assert isinstance(p, Regression)
    values = p.outputs.values
    torch.testing.assert_close(p.variance, values.var(0) + 0.25, rtol=1e-12, atol=0)


def test_transformers_and_recurrent_networks_drop_too() -> None:
    encoder = seeded(lambda: nn.TransformerEncoderLayer(4, 2, 5, dropout=0.3, batch_first=True))
    p = DropoutNetwork(encoder, 3, likelihood=Gaussian(event_dim=1)).predict(normal(2, 5, 4))
    assert bool((p.known.std > 0).all())
    assert encoder.self_attn in dropping(encoder)
    gru = seeded(lambda: nn.GRU(3, 4, num_layers=2, dropout=0.5, batch_first=True))
    drawn = DropoutNetwork(gru, 3, likelihood=Gaussian(event_dim=1), output=0).predict(normal(2, 5, 3))
    assert bool((drawn.known.std > 0).all())


def test_a_network_without_dropout_is_told() -> None:
    plain = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.0))
    with refused(UnsupportedError, "a network with layers of dropout whose rate is above 0"):
        MonteCarloDropout().fit(Task(plain, (X, X)))
    with pytest.warns(UserWarning, match="num_layers greater than 1"):
        single = nn.LSTM(3, 4, dropout=0.5, batch_first=True)
    with refused(UnsupportedError, "a network with layers of dropout whose rate is above 0"):
        DropoutNetwork(single, 3)


@pytest.mark.parametrize("samples", [0, -1, 2.5])
def test_passes_are_a_positive_number(samples: int) -> None:
    with unchecked(), refused(ConfigError, "samples"):
        MonteCarloDropout(samples)


def test_the_seed_is_that_of_the_task() -> None:
    def fitted(seed: int) -> DropoutNetwork:
        generator = torch.Generator().manual_seed(seed)
        return MonteCarloDropout(4).fit(Task(network(), (X, X), generator=generator))

    assert torch.equal(fitted(1).predict(X).probs, fitted(1).predict(X).probs)
    assert not torch.equal(fitted(1).predict(X).probs, fitted(2).predict(X).probs)
