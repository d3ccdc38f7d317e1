"""Ella on a network without layers of its own to know: a vision transformer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.predictive import Classification
from tests.posterior_cases import Linearised, Problem, labels, normal, seeded
from tests.structures.nystrom.test_structure import VARIANCE, covariance_of, fitted, landmark_rows


class Patches(nn.Module):
    """A small vision transformer: patches, a class token, positions, one block of attention, a head."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 8) / 3)
        self.places = nn.Parameter(torch.randn(1, 5, 8) / 3)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, 0.1, activation="gelu", batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, outputs)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.places
        return self.head(self.norm(self.block(tokens))[:, 0])


@pytest.mark.parametrize("outputs", [3, 6])
def test_works_on_a_vision_transformer(outputs: int) -> None:
    """By rows with 3 outputs, by forward mode with more outputs than directions."""
    model = seeded(lambda: Patches(outputs))
    images = normal(10, 1, 4, 4), normal(3, 1, 4, 4, seed=2)
    case = Problem(model, lw.Categorical(), images[0], labels(10, classes=outputs), images[1])
    posterior = fitted(case, rank=4, samples=9, residual=False)
    dense = Linearised(case, posterior.network)
    rows = dense.jacobian(case.x).flatten(0, 1)
    some = landmark_rows(posterior, rows)
    values, vectors = torch.linalg.eigh(some @ some.mT)
    features = [j @ some.mT @ (vectors[:, -4:] / values[-4:].sqrt()) for j in (rows, dense.new[1])]
    hessian = torch.block_diag(*case.likelihood.hessian(dense.outputs(case.x), case.y))
    inner = features[0].mT @ hessian @ features[0] + torch.eye(4, dtype=torch.float64) / VARIANCE
    expected = features[1] @ torch.linalg.solve(inner, features[1].mT)
    torch.testing.assert_close(covariance_of(posterior, case.new), expected, rtol=1e-7, atol=1e-9)
    probs = posterior.predict(case.new, "mc", samples=8, generator=torch.Generator().manual_seed(0))
    assert isinstance(probs, Classification) and probs.probs.shape == (3, outputs)
