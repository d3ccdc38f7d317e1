from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from lapwing.evaluation.metrics import symmetric_kl
from lapwing.ground.errors import ConfigError, DataError, LapwingError, ShapeError
from tests.checker import unchecked


def test_it_is_the_mean_of_both_divergences(generator: torch.Generator) -> None:
    p, q = torch.randn(2, 6, 2, 4, generator=generator, dtype=torch.float64).softmax(-1)
    found = symmetric_kl(p, q)
    expected = 0.5 * (stats.entropy(p.numpy(), q.numpy(), axis=-1) + stats.entropy(q.numpy(), p.numpy(), axis=-1))
    assert found.shape == (6, 2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert symmetric_kl(p, p).abs().max() == 0
    torch.testing.assert_close(symmetric_kl(q, p), found)


def test_probabilities_that_underflowed_count_as_the_smallest_number() -> None:
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    tiny = torch.finfo(torch.float32).tiny
    expected = 0.25 * (np.log(2) + np.log(0.5 / tiny))
    assert float(symmetric_kl(one, other)) == pytest.approx(expected, rel=1e-6)
    assert float(symmetric_kl(one, one)) == 0


HALF = torch.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("probs", "reference", "error", "message"),
    [
        (HALF, HALF[:2], ShapeError, r"the reference, \[2, 2\]. Got \[3, 2\]"),
        (torch.tensor(1.0), torch.tensor(1.0), ShapeError, r"class probabilities \[\*n, c\]. Got a single number"),
        (HALF.numpy(), HALF, ConfigError, r"probs to be .*Got ndarray.*torch.as_tensor\(probs\)"),
        (HALF, HALF.numpy(), ConfigError, r"reference to be .*Got ndarray.*torch.as_tensor\(reference\)"),
        (HALF[:0], HALF[:0], DataError, "at least one element"),
        (2 * HALF, HALF, DataError, "sum to 1"),
        (HALF, HALF * torch.nan, DataError, "finite probabilities"),
        (HALF, torch.tensor([[1.5, -0.5]]).expand(3, 2), DataError, "probabilities >= 0"),
    ],
)
def test_bad_input_costs_a_sentence(probs: Any, reference: Any, error: type[LapwingError], message: str) -> None:
    with unchecked(), pytest.raises(error, match=message):
        symmetric_kl(probs, reference)
