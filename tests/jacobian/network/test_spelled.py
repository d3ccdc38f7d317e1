"""Embedding bags spelled out, against PyTorch's own, and posteriors of networks that begin with one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapwing as lw
from lapwing.jacobian.network.spelled import bag
from tests.posterior_cases import labels, normal, seeded

TABLE, TOKENS = normal(7, 3), torch.tensor([[0, 6, 6, 2], [5, 1, 3, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sum"},
        {"mode": "mean"},
        {"mode": "max"},
        {"mode": "sum", "per_sample_weights": normal(3, 4, seed=2)},
        *({"mode": mode, "padding_idx": index} for mode in ("sum", "mean", "max") for index in (1, -6)),
        *({"mode": mode, "offsets": torch.tensor([0, 3, 3])} for mode in ("sum", "mean", "max")),
        {"mode": "mean", "offsets": torch.tensor([0, 2, 9, 12]), "include_last_offset": True},
        {"mode": "sum", "offsets": torch.tensor([0, 5]), "per_sample_weights": normal(12, seed=2)},
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_the_kernel(options: dict[str, Any]) -> None:
    tokens = TOKENS.flatten() if "offsets" in options else TOKENS
    found = []
    for function in (bag, F.embedding_bag):
        table = TABLE.clone().requires_grad_()
        values = function(tokens, table, **options)
        found.append((values, *torch.autograd.grad(values, table, normal(*values.shape, seed=3))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


class Averaged(nn.Module):
    """An embedding bag of ordinary operations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1).tanh())


class Bagged(Averaged):
    """The same by the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).tanh())


def test_posteriors_are_those_of_the_lookups_and_their_mean() -> None:
    tokens, y = labels(6, 4, classes=5), labels(6, classes=2)
    models = [seeded(Averaged), seeded(Bagged)]
    models[1].load_state_dict(models[0].state_dict())
    found = []
    for model in models:
        recipes: list[Any] = [lw.LowRank(5), lw.MatrixFree(), lw.Sampled(4, seed=1), lw.KFAC()]
        fits = [lw.Laplace(lw.Categorical(), structure=structure).fit(model, (tokens, y)) for structure in recipes]
        hessian = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights"), curvature=lw.Hessian(damping=9.0))
        fits.append(hessian.fit(model, (tokens, y)))
        found.append([fit.predict(tokens, "probit").probs for fit in fits])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
