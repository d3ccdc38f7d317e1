from __future__ import annotations

import torch

from lapwing.demo import tour
from lapwing.demo.gap import EDGES, NOISE, curve, fitted, gap


def test_no_data_are_in_the_gap_but_the_unseen() -> None:
    data = gap(0)
    for x, y in (data.train, data.test):
        assert ((x < EDGES[1]) | (x > EDGES[2])).all()
        assert x.shape == y.shape
    assert ((data.unseen[0] > EDGES[1]) & (data.unseen[0] < EDGES[2])).all()
    assert not torch.isin(data.train[0], data.test[0]).any()


def test_noise_is_as_stated() -> None:
    x, y = gap(1).test
    assert abs(float((y - curve(x)).std()) / NOISE - 1) < 0.15


def test_the_network_learns_the_curve() -> None:
    data = gap(0)
    x, y = data.test
    errors = [float((fitted(data.train, 0, steps)(x) - y).detach().square().mean()) for steps in (1, 300)]
    assert errors[1] < 0.2 * errors[0]


def test_every_row_is_better_than_the_plain_network_but_the_naive_one() -> None:
    """Tuned without held-out data; none is the network itself with a prior that leaves no uncertainty."""
    compared = tour.compare_curves(0, tour.Size(), False)
    plain = compared.row("plain network", "").values("nll")[0]
    worse = {row.method for row in compared.rows if row.values("nll")[0] > plain}
    assert {row.method for row in compared.rows} > {"last layer", "KFAC", "full"}
    assert all("naive" in name for name in worse)
    assert all(row.values("prior_precision")[0] < 1e3 for row in compared.rows if row.values("fit_seconds"))
