"""Second moments by their eigenvalues and eigenvectors."""

from __future__ import annotations

import torch

from lapwing.curvature.moment import Moment
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose_nonzero
from tests.linalg.cases import spd


def test_groups_keep_all_their_pairs() -> None:
    moment, total = Moment(decompose_nonzero), torch.stack([spd(3, 9.0), spd(3, 9.0, seed=1)])
    moment.add_total(total.clone())
    found = moment.decomposed
    assert isinstance(found, Eigenbasis) and not moment.cut
    torch.testing.assert_close(found.matrix, total)
