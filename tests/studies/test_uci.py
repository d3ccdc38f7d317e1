"""The study of the UCI sets, on sets made up here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge

from benchmarks.command import main
from benchmarks.table import summarised
from studies import uci


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    (made / "uci").mkdir()
    for seed, name in enumerate(uci.SETS[:2]):
        random = np.random.default_rng(seed)
        x = np.concatenate([random.normal(3.0, 2.0, (60, 3)), np.ones((60, 1))], 1).astype(np.float32)
        y = np.sin(x[:, 0]) + x[:, 1] + 0.1 * random.normal(size=60)
        test = np.zeros((60, 10), bool)
        test[:6, 0] = test[6:12, 1] = True
        np.savez(made / "uci" / f"{name}.npz", x=x, y=y, test_mask=test)
    return made


def test_a_split_is_standardised_by_its_training_part(folder: Path) -> None:
    data = uci.split(folder / "uci" / "yacht.npz", 1)
    (x, y), (new, truth) = data.train, data.test
    assert (x.shape, y.shape, new.shape, truth.shape) == ((54, 4), (54, 1), (6, 4), (6, 1))
    torch.testing.assert_close(x.mean(0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(x.std(0)[:3], torch.ones(3, dtype=torch.float64))
    assert not x[:, 3].any() and not new[:, 3].any()  # a constant column
    other = uci.split(folder / "uci" / "yacht.npz", 0)
    assert not torch.isin(other.test[1].round(decimals=6), truth.round(decimals=6)).any()


def test_a_perceptron_ends_where_the_gradient_is_gone(folder: Path) -> None:
    data = uci.split(folder / "uci" / "yacht.npz", 0).train
    options = {"units": 4, "iterations": 400, "decay": 1e-2}
    model = uci.trained(data, 0, **options)
    loss = (model(data[0]) - data[1]).square().mean() + 1e-2 * sum(p.square().sum() for p in model.parameters())
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert max(float(g.abs().max()) for g in gradients) < 1e-5
    assert uci.trained(data, 0, **options)[0].weight.equal(model[0].weight)


def test_scores_are_those_of_a_normal_density() -> None:
    mean, std, y = torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [0.5]]), torch.tensor([[0.0], [3.0], [1.0]])
    found = uci.scores(mean, std, 0.5, y)
    density = torch.distributions.Normal(mean, std).log_prob(y)
    assert found["nll"] == pytest.approx(-float(density.mean()))
    assert found["coverage"] == pytest.approx(2 / 3)
    assert found["noise_ratio"] == pytest.approx(0.5 / math.sqrt(10 / 3))


def test_the_study_runs_and_counts(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "uci.json"
    main({"uci": uci.STUDY}, ["--quick", "--splits", "1", "--data", str(folder), "--json", str(path)])
    found = json.loads(path.read_text())["rows"]
    assert [row["method"] for row in found[:3]] == ["lapwing", "plain network", "BayesianRidge"]
    assert {row["data"] for row in found[:6]} == {"yacht", "energy"} and len(found) == 6 + 6 + 4
    data = uci.split(folder / "uci" / "yacht.npz", 0)
    fitted = BayesianRidge().fit(data.train[0].numpy(), data.train[1][:, 0].numpy())
    residuals = torch.as_tensor(fitted.predict(data.test[0].numpy())) - data.test[1][:, 0]
    assert found[2]["rmse"] == pytest.approx(float(residuals.square().mean().sqrt()))
    below = found[12]
    better = [a["data"] for a, b in ((found[0], found[2]), (found[3], found[5])) if a["nll"] < b["nll"]]
    assert below["verdict"] == "NLL below BayesianRidge" and below["holds_on"] == len(better)
    assert sorted([*better, *below["not_on"]]) == ["energy", "yacht"]
    assert f'"NLL below BayesianRidge", "holds_on": {len(better)}, "sets": 2' in capsys.readouterr().out


def test_a_quick_run_makes_up_data_where_there_are_none(tmp_path: Path) -> None:
    main({"uci": uci.STUDY}, ["--quick", "--splits", "1", "--only", "wine", "--json", str(tmp_path / "uci.json")])
    rows = json.loads((tmp_path / "uci.json").read_text())["rows"]
    assert [row["data"] for row in rows[:3]] == ["wine"] * 3 and all(row["nll"] < 5 for row in rows[:3])


def test_counts_are_over_means_of_the_splits() -> None:
    def row(name: str, method: str, nll: float, coverage: float = 0.95, ratio: float = 1.0) -> uci.Row:
        return {"data": name, "method": method, "nll": nll, "coverage": coverage, "noise_ratio": ratio}

    found = [row("a", "lapwing", 0.0, coverage=1.0), row("a", "lapwing", 1.0, coverage=0.9, ratio=0.5)]
    found += [row("b", "lapwing", 2.0, coverage=0.8, ratio=1.6)]
    for name in ("a", "b"):
        found += [row(name, "BayesianRidge", 1.0), row(name, "plain network", 0.4)]
    counts = {row["verdict"]: (row["holds_on"], row["not_on"]) for row in uci.verdicts([*found, *summarised(found)])}
    assert list(counts.values()) == [(1, ["b"]), (0, ["a", "b"]), (1, ["b"]), (1, ["b"])]
