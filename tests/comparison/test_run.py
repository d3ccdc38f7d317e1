"""One call compares every method; what it takes when nobody says what."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.comparison import Comparison, Task, Tuned, compare, likelihood_of, read_comparison, recipes
from lapwing.comparison.joint import joint_values
from lapwing.evaluation.evaluate import Predictor, evaluated
from lapwing.evaluation.plain_network import PlainNetwork, Temperature
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, DataWarning, LapwingError, TooLargeError
from lapwing.tuning.method import P
from tests.checker import unchecked
from tests.curvature.unchanged import unchanged
from tests.modules import Counting
from tests.posterior_cases import refused


def classes(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three overlapping clouds."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    centres = torch.tensor([[0.0, 2.0], [2.0, 0.0], [-1.5, -1.5]], dtype=torch.float64)
    return centres[y] + torch.randn(n, 2, generator=generator, dtype=torch.float64), y


def trained(data: tuple[torch.Tensor, torch.Tensor], outputs: int, steps: int = 60) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, y = data
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) if outputs > 1 else (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    return model.eval()


@cache
def classifier() -> nn.Sequential:
    return trained(classes(45, 0), 3)


@pytest.fixture
def model() -> nn.Sequential:
    """A copy for each test of a network that is trained once."""
    return copy.deepcopy(classifier())


@pytest.mark.no_cover
def test_rows_hold_what_the_parts_give_on_their_own(model: nn.Sequential) -> None:
    train, validation, test = classes(45, 0), classes(30, 1), classes(40, 2)
    foreign = (test[0] + 9.0, test[1])
    classical = lw.EvidenceGradient()
    result = compare(model, train, test, ood=foreign, validation=validation, tunings={"classical": classical})
    names = [(row.method, row.tuned_by) for row in result.rows]
    structures = ("last layer", "diagonal", "KFAC", "full")
    assert names[:2] == [("plain network", ""), ("temperature scaling", "validation")]
    assert names[2] == ("vector scaling", "")
    assert names[3:] == [(name, how) for name in structures for how in ("default", "classical", "validation")]

    fitted = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, train)
    criteria = {"default": "validation_nll", "classical": "evidence", "validation": "validation_nll"}
    for how, method in (("default", None), ("classical", classical), ("validation", lw.Validation(validation))):
        tuned = lw.tune(fitted, method)
        (run,) = result.row("KFAC", how).runs
        for name, value in lw.evaluate(tuned, test, ood=foreign).items():
            assert run[name] == pytest.approx(value, rel=1e-9), name
        step = tuned.trace[-1]
        value = {"bound": step.bound, "evidence": step.log_marginal, "validation_nll": step.validation_nll}
        assert [name for name in value if name in run] == [criteria[how]]
        assert run[criteria[how]] == pytest.approx(value[criteria[how]], rel=1e-9)
        assert run["prior_precision"] == pytest.approx(float(tuned.prior.precisions(tuned.network.uncertain)))
        assert tuned.knowledge is not None and result.row("KFAC", how).certain == tuned.knowledge.certain
        known = run["prior_precision"] * tuned.knowledge.factor, run["prior_precision"] * tuned.knowledge.head_factor
        assert (run["knowledge_precision"], run["knowledge_precision_head"]) == pytest.approx(known)
        assert min(run[f"{step}_seconds"] for step in ("fit", "tune", "predict")) > 0
        (kept,) = result.row("KFAC", how).examples
        sure = [1 - kept.values["foreign_uncertainty"], kept.values["confidence"]]
        predict: Any = tuned.predict
        expected = [predict(x).probs.amax(-1) for x in (foreign[0], test[0])]
        torch.testing.assert_close(sure, expected, check_dtype=False)
    plain = result.row("plain network").runs[0]
    assert plain["nll"] == pytest.approx(nn.functional.cross_entropy(model(test[0]), test[1]).item())
    assert "evidence" not in plain


def test_gaussian_processes_have_a_row_each() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    y = (6 * x[:, :1]).sin() + 0.1 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    train, test = (x[:40], y[:40]), (x[40:], y[40:])
    ours = lw.tune(lw.GP().fit(train))
    network = trained(train, 1)
    batches = [{"x": x[rows], "y": y[rows]} for rows in torch.arange(60).split(20)]
    methods = {"KFAC": lw.Laplace(lw.Gaussian(), structure=lw.KFAC()), "recipe": lw.GP(), "fitted": ours}
    result = compare(network, batches[:2], batches[2:], methods=methods, unpack=lambda batch: (batch["x"], batch["y"]))
    assert [(row.method, row.tuned_by) for row in result.rows[2:]] == [("recipe", "default"), ("fitted", "")]
    (recipe,), (fitted,) = (row.runs for row in result.rows[2:])
    for name, value in lw.evaluate(ours, test).items():
        assert recipe[name] == pytest.approx(value) and fitted[name] == pytest.approx(value)
    assert recipe["evidence"] == pytest.approx(ours.log_marginal()) and min(recipe["fit_seconds"], 1) > 0


def test_the_row_of_a_method_holds_its_posterior(model: nn.Sequential) -> None:
    train, test = classes(45, 0), classes(40, 2)
    row = compare(model, train, test, methods={"mine": lw.Laplace(lw.Categorical())}).rows[-1]
    assert row.predictor is not None
    assert lw.evaluate(row.predictor, test)["nll"] == pytest.approx(row.values("nll")[0])


def test_evidence_alone_without_validation_data(model: nn.Sequential) -> None:
    result = compare(model, classes(45, 0), classes(40, 2), methods={"mine": lw.Laplace(lw.Categorical())})
    assert [(row.method, row.tuned_by) for row in result.rows] == [("plain network", ""), ("mine", "default")]


def test_several_prior_precisions_have_no_column(model: nn.Sequential) -> None:
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Layerwise(), structure=lw.Diagonal())
    result = compare(model, classes(45, 0), classes(40, 2), methods={"layers": recipe})
    assert "prior_precision" not in [column.name for column in result.columns]


def test_real_targets_take_noise_from_residuals() -> None:
    x, _ = classes(45, 0)
    data = x, torch.sin(x.sum(1, keepdim=True))
    model = trained(data, 1)
    more, _ = classes(40, 3)
    held_out = more, torch.sin(more.sum(1, keepdim=True))
    result = compare(model, data, held_out, validation=held_out, methods={})
    assert [(row.method, row.tuned_by) for row in result.rows] == [
        ("plain network", ""),
        ("plain network", "validation"),
    ]
    columns = [column.name for column in result.columns]
    assert columns[:4] == ["rmse", "nll", "crps", "picp"]
    best = result.row("plain network", "validation").values("nll")[0]  # tuned on the test data: the least there is
    assert best <= result.row("plain network").values("nll")[0]


def test_a_method_that_cannot_run_says_why(model: nn.Sequential) -> None:
    methods = {
        "fits": lw.Laplace(lw.Categorical(), structure=lw.Diagonal()),
        "does not": lw.Laplace(lw.Categorical(), structure=lw.Full(max_bytes=10)),
    }
    result = compare(model, classes(45, 0), classes(40, 2), methods=methods)
    row = result.row("does not", "default")
    assert row.runs == ()
    assert "at most 10 bytes" in row.note
    assert row.note in result.table()


class Broken:
    """A user's way of tuning that fails as Python fails, or is interrupted."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def tune(self, posterior: P, progress: bool | None) -> P:
        raise self.error("of\nits own")


def test_any_error_of_a_method_is_a_row_and_what_came_before_an_interrupt_is_kept(model: nn.Sequential) -> None:
    methods = {
        "mine": lw.Laplace(lw.Categorical(), structure=lw.Diagonal()),
        "odd": PlainNetwork(nn.Linear(3, 3).double()),
    }
    data = (model, classes(45, 0), classes(40, 2))
    result = compare(*data, methods=methods, tunings={"broken": Broken(ZeroDivisionError)})
    assert result.row("mine", "default").runs
    assert result.row("mine", "broken").note == "ZeroDivisionError: of its own"
    assert "RuntimeError: mat1 and mat2 shapes" in result.row("odd").note
    with pytest.warns(ConvergenceWarning, match="interrupted before odd"):
        ended = compare(*data, methods=methods, tunings={"broken": Broken(KeyboardInterrupt)})
    assert [(row.method, row.tuned_by) for row in ended.rows] == [
        ("plain network", ""),
        ("mine", "default"),
        ("odd", ""),
    ]
    assert ended.row("mine", "default").runs and ended.row("odd").note == "interrupted"


def test_what_is_no_method_is_refused_before_anything_runs(model: nn.Sequential) -> None:
    with unchecked(), pytest.raises(ConfigError, match=r"methods\['mine'\] to be one of Laplace"):
        compare(model, classes(45, 0), classes(40, 2), methods={"mine": lw.KFAC()})  # type: ignore[dict-item]


def test_a_reference_that_is_no_method_is_refused_before_anything_runs(model: nn.Sequential) -> None:
    ran = list[Task]()

    def noted(task: Task) -> Predictor:
        ran.append(task)
        return task.network

    for reference in ("ours", ("ours", "validation")):
        with refused(ConfigError, "reference= to name one of the rows"):
            compare(model, classes(9, 0), classes(9, 1), methods={"mine": noted}, reference=reference)
    assert not ran


def test_hessian_free_posteriors_and_predictors_have_one_row_each() -> None:
    x, _ = classes(15, 0)
    train, test, foreign = (x, x.sum(1, keepdim=True)), (x[:6] + 0.1, x[:6, :1]), (x[:4] + 5.0, x[:4, :1])
    model, other = trained(train, 1), trained(test, 1)
    recipe = lw.HessianFree(
        lw.Gaussian(4.0), prior=lw.Isotropic(20.0), fits=lw.hessian_free.Probed(probes=4, residual=2)
    )
    plain = PlainNetwork(other, lw.Gaussian(2.0))
    methods = {"refits": recipe, "other": plain}
    result = compare(model, train, test, ood=foreign, validation=test, methods=methods)
    assert [(row.method, row.tuned_by) for row in result.rows[2:]] == [("refits", ""), ("other", "")]
    fitted = recipe.fit(model, train, points=torch.cat([test[0], foreign[0]]))
    for name, predictor in (("refits", fitted), ("other", plain)):
        (run,) = result.row(name).runs
        for score, value in lw.evaluate(predictor, test, ood=foreign).items():
            assert run[score] == pytest.approx(value, rel=1e-9), (name, score)
    (run,) = result.row("refits").runs
    assert run["prior_precision"] == 20.0 and run["fit_seconds"] > 0


def test_the_plain_network_is_scored_by_the_likelihood_of_the_methods() -> None:
    (x, y), (new, labels) = classes(45, 0), classes(40, 2)
    model, eye = trained((x, y), 3), torch.eye(3, dtype=torch.float64)
    methods = {"mine": lw.Laplace(lw.Bernoulli(), structure=lw.Diagonal())}
    result = compare(model, (x, eye[y]), (new, eye[labels]), methods=methods)
    loss = nn.functional.binary_cross_entropy_with_logits(model(new), eye[labels], reduction="none").sum(1).mean()
    assert result.row("plain network").values("nll")[0] == pytest.approx(loss.item(), rel=1e-9)
    assert "rmse" not in [column.name for column in result.columns]
    methods["else"] = lw.Laplace(lw.Gaussian())
    with pytest.raises(ConfigError, match=r"Got Bernoulli, Gaussian. Try likelihood=Bernoulli\(\)"):
        compare(model, (x, eye[y]), (new, eye[labels]), methods=methods)


def test_if_none_can_run_the_reason_is_raised(model: nn.Sequential) -> None:
    methods = {"does not": lw.Laplace(lw.Categorical(), structure=lw.Full(max_bytes=10))}
    with pytest.raises(TooLargeError, match="at most 10 bytes"):
        compare(model, classes(45, 0), classes(40, 2), methods=methods)


def test_a_temperature_that_does_not_exist_is_a_note(model: nn.Sequential) -> None:
    x, y = classes(45, 0)
    wrong = model(x).argmin(1)
    methods = {"mine": lw.Laplace(lw.Categorical(), structure=lw.Diagonal())}
    result = compare(model, (x, y), classes(40, 2), validation=(x, wrong), methods=methods)
    assert "better than chance" in result.row("temperature scaling", "validation").note


@pytest.mark.parametrize("which", ["train", "test", "validation", "ood"])
def test_data_that_can_be_read_once_are_refused(model: nn.Sequential, which: str) -> None:
    sources: dict[str, Any] = {"train": classes(45, 0), "test": classes(40, 2)}
    sources[which] = iter([classes(40, 2)])
    with pytest.raises(DataError, match="again and again"):
        compare(model, **sources)


def test_bad_test_data_are_an_error_not_a_note(model: nn.Sequential) -> None:
    x, y = classes(40, 2)
    with pytest.raises(LapwingError, match="labels"):
        compare(model, classes(45, 0), (x, y + 7))


def test_the_network_is_left_as_it_was() -> None:
    """Its buffers too, which a forward pass writes to: the posteriors in the rows would refuse to predict."""
    model = Counting(2, 3)
    methods = {"KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC())}
    with unchanged(model):
        result = compare(model, classes(45, 0), classes(40, 2), validation=classes(30, 1), methods=methods)
    row = result.row("KFAC", "validation")
    assert row.predictor is not None, row.note
    row.predictor.predict(classes(40, 2)[0])


def test_no_function_hides_a_module() -> None:
    """``import lapwing.x`` then ``lapwing.x.y`` would find the function."""
    modules = [name for name in lw.__all__ if importlib.util.find_spec(f"lapwing.{name}")]
    assert {"ct", "gp", "metrics"} <= set(modules)
    assert all(getattr(lw, name) is importlib.import_module(f"lapwing.{name}") for name in modules)


def test_default_recipes_all_have_the_likelihood() -> None:
    found = recipes(lw.Poisson())
    assert list(found) == ["last layer", "diagonal", "KFAC", "full"]
    assert {recipe.likelihood for recipe in found.values()} == {lw.Poisson()}
    assert found["last layer"].weights == lw.LastLayer()


@pytest.mark.parametrize(
    ("targets", "likelihood"),
    [
        (torch.zeros(4, dtype=torch.long), lw.Categorical()),
        (torch.zeros(4, 7, dtype=torch.long), lw.Categorical(event_dim=1)),
        (torch.zeros(4, 7, 5, dtype=torch.long), lw.Categorical(event_dim=2, class_dim=1)),
        (torch.zeros(4, 1), lw.Gaussian()),
    ],
)
def test_likelihood_follows_the_targets(targets: torch.Tensor, likelihood: object) -> None:
    assert likelihood_of((torch.zeros(4, 2), targets)) == likelihood


@pytest.mark.parametrize("columns", [(), (3,)])
def test_labels_written_as_real_numbers_are_not_taken_without_a_word(columns: tuple[int, ...]) -> None:
    targets = (torch.arange(12) % 2).double().reshape(-1, *columns)
    with pytest.warns(DataWarning, match=r"Gaussian\(\).*likelihood=Bernoulli\(\)"):
        assert likelihood_of((torch.zeros(len(targets), 2), targets)) == lw.Gaussian()


def test_likelihood_does_not_eat_the_first_batch_of_an_iterator() -> None:
    with pytest.raises(DataError, match="again and again"):
        likelihood_of(iter([(torch.zeros(4, 2), torch.zeros(4))]))


def raw(task: Task) -> Predictor:
    raise RuntimeError("of its own")


def endless(task: Task) -> Predictor:
    while True:
        time.sleep(0.02)
        task.network.predict(torch.zeros(1, 2, dtype=torch.float64))


def large(task: Task) -> Predictor:
    torch.ones(2**26).sum()  # 256 MiB
    return task.network


def leaving(task: Task) -> Predictor:
    raise SystemExit(3)


@final
@dataclass(frozen=True)
class Scaled:
    """A user's method with an object of its own."""

    factor: float

    def fit(self, task: Task) -> Predictor:
        return PlainNetwork(task.model, task.likelihood, Temperature(self.factor), task.output)


def test_whatever_stops_a_method_is_a_row(model: nn.Sequential) -> None:
    methods = {"raw": raw, "endless": endless, "large": large, "leaving": leaving, "mine": Scaled(2.0)}
    data = model, classes(45, 0), classes(40, 2)
    with unchanged(model):
        result = compare(*data, methods=methods, budget_seconds=1.0, max_bytes=2**27, seeds=2)
    notes = {row.method: row.note for row in result.rows}
    assert notes["raw"] == "RuntimeError: of its own"
    assert "at most 1 s" in notes["endless"]
    assert notes["leaving"] == "RuntimeError: SystemExit(3)"
    if sys.platform == "linux":
        assert "at most 128 MiB" in notes["large"]
    assert notes["mine"] == notes["plain network"] == ""
    assert len(result.row("mine").runs) == 2


def test_bytes_are_refused_beforehand_where_a_structure_knows() -> None:
    recipe = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights"))
    methods = {"full": Tuned(recipe), "mine": Scaled(2.0)}
    model = nn.Sequential(nn.Linear(2, 700), nn.Tanh(), nn.Linear(700, 3)).double()
    result = compare(model, classes(45, 0), classes(40, 2), methods=methods, max_bytes=2**26)
    assert "of at most 67,108,864 bytes" in result.row("full", "default").note
    assert result.row("mine").runs


def test_tuned_recipes_have_their_own_way_and_link(model: nn.Sequential) -> None:
    train, validation, test = classes(45, 0), classes(30, 1), classes(40, 2)
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC())
    methods = {
        "held out": Tuned(recipe, "validation", link="probit"),
        "evidence": Tuned(recipe, lw.EvidenceGradient(), link="bridge"),
    }
    result = compare(model, train, test, methods=methods, validation=validation)
    assert [(row.method, row.tuned_by) for row in result.rows[2:]] == [
        ("held out", "validation"),
        ("evidence", "EvidenceGradient"),
    ]
    tuned = lw.tune(recipe.fit(model, train), lw.Validation(validation, link="probit"))
    expected = lw.evaluate(tuned, test, link="probit")["nll"]
    assert result.row("held out", "validation").values("nll") == pytest.approx((expected,))
    classical = lw.tune(recipe.fit(model, train), lw.EvidenceGradient())
    expected = lw.evaluate(classical, test, link="bridge")["nll"]
    assert result.row("evidence", "EvidenceGradient").values("nll") == pytest.approx((expected,))
    with pytest.raises(ConfigError, match=r"validation data for methods\['held out'\]"):
        compare(model, train, test, methods=methods)


def test_shifts_joint_scores_and_differences_are_those_of_the_parts(model: nn.Sequential) -> None:
    train, test = classes(45, 0), classes(40, 2)
    shifts = {"moved": (test[0] + 1.0, test[1])}
    result = compare(
        model, train, test, methods={"mine": Scaled(2.0)}, shifts=shifts, draws=4, ood=test[0] + 9.0, reference="mine"
    )
    mine = PlainNetwork(model, temperature=Temperature(2.0))
    (run,) = result.row("mine").runs
    assert run["nll:moved"] == pytest.approx(lw.evaluate(mine, shifts["moved"])["nll"])
    joint = joint_values(mine, test, 4)
    assert joint is not None and run["joint"] == pytest.approx(joint.estimate(per_label=True).value)
    assert result.reference == ("mine", "")
    plain = result.row("plain network")
    losses = [evaluated(each, test).losses for each in (PlainNetwork(model), mine)]
    difference = result.difference(plain)
    assert difference is not None
    assert difference.value == pytest.approx(float((losses[0] - losses[1]).mean()), rel=1e-5)
    for column in ("nll:moved", "joint", "accuracy", "ood_auroc"):
        assert result.difference(plain, column) is not None
    assert [column.name for column in result.columns if column.tabled][-5:-3] == ["joint", "nll:moved"]
    with pytest.raises(ConfigError, match="reference="):
        compare(model, train, test, methods={"mine": Scaled(2.0)}, reference="ours")


def test_test_data_in_another_order_cannot_be_paired(model: nn.Sequential) -> None:
    loader = DataLoader(TensorDataset(*classes(40, 2)), batch_size=8, shuffle=True)
    with pytest.warns(DataWarning, match="shuffle=False"):
        result = compare(model, classes(45, 0), loader, methods={"mine": Scaled(2.0)})
    assert not result.differs


COUNTED = list[str]()
"""Methods and seeds, as they are fitted."""

WATCHED = dict[Path, list[str]]()
"""Files, and what was in each as a method was fitted."""


def counting(name: str) -> Callable[[Task], Predictor]:
    """A method that says when it is fitted."""

    def fit(task: Task) -> Predictor:
        COUNTED.append(f"{name} {task.seed}")
        for file, contents in WATCHED.items():
            contents.append(file.read_text())
        return task.network

    return fit


def resumable(out: Path) -> Comparison:
    methods = {"one": counting("one"), "two": Scaled(3.0), "fails": raw, "three": counting("three")}
    model = nn.Linear(2, 3).double()
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).reshape(3, 2) / 6)
        model.bias.zero_()
    return compare(model, classes(45, 0), classes(40, 2), methods=methods, seeds=2, out=out)


def test_killed_half_way_and_started_again_it_repeats_no_finished_row(tmp_path: Path) -> None:
    """What a killed run leaves is what is in its file while a method is fitted, and perhaps a line cut short."""
    out = tmp_path / "run.jsonl"
    COUNTED.clear()
    WATCHED[out] = []
    resumable(out)
    assert COUNTED == ["one 0", "three 0", "one 1", "three 1"]
    before = WATCHED.pop(out)[-1]
    assert len(before.splitlines()) == 9  # all but the last of two runs of five rows
    out.write_text(before + '{"torn')
    COUNTED.clear()
    result = resumable(out)
    assert COUNTED == ["three 1"]
    assert out.read_text().startswith(before) and len(out.read_text().splitlines()) == 10
    COUNTED.clear()
    again = resumable(out)
    assert not COUNTED
    assert again.table() == result.table() == read_comparison(out).table()
    assert result.row("fails").note == "RuntimeError: of its own"
    assert all(len(row.runs) == 2 for row in result.rows if row.method != "fails")


def test_other_data_other_recipes_and_wider_limits_are_other_rows(model: nn.Sequential, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    data = model, classes(45, 0), classes(40, 2)
    compare(*data, methods={"mine": Scaled(2.0), "slow": endless}, budget_seconds=0.2, out=out)
    compare(*data, methods={"mine": Scaled(2.0), "slow": endless}, budget_seconds=0.2, out=out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["key"]["method"] for line in lines] == ["plain network", "mine", "slow"]
    about = lines[1]["about"]
    assert {"command", "commit", "versions", "device", "threads", "finished"} == set(about)
    compare(*data, methods={"mine": Scaled(4.0), "slow": endless}, budget_seconds=0.4, out=out)
    compare(*data[:2], classes(40, 3), methods={"mine": Scaled(4.0)}, out=out)
    methods = [json.loads(line)["key"]["method"] for line in out.read_text().splitlines()[3:]]
    assert methods == ["mine", "slow", "plain network", "mine"]


def test_recipes_of_a_file_are_fitted_for_what_is_missing_alone(model: nn.Sequential, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    data = model, classes(45, 0), classes(40, 2)
    methods = {"KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC())}
    first = compare(*data, methods=methods, tunings={"classical": lw.EvidenceGradient()}, out=out)
    second = compare(*data, methods=methods, tunings={"MacKay": lw.MacKay()}, out=out)
    assert len(out.read_text().splitlines()) == 4
    assert second.row("KFAC", "default").runs == first.row("KFAC", "default").runs
    assert second.row("KFAC", "default").predictor is None and second.row("KFAC", "MacKay").predictor is not None


def test_a_file_without_rows_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        read_comparison(tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds"),
        ({"seeds": []}, "seeds="),
        ({"seeds": [-1]}, "a seed"),
        ({"budget_seconds": 0.0}, "budget_seconds"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"draws": -1}, "draws"),
    ],
)
def test_options_that_make_no_sense_are_refused(model: nn.Sequential, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(model, classes(45, 0), classes(40, 2), methods={}, **options)


def test_a_method_is_not_called_as_a_row_that_is_there_anyway(model: nn.Sequential) -> None:
    with refused(ConfigError, "of other names than plain network"):
        compare(model, classes(45, 0), classes(40, 2), methods={"plain network": lw.baselines.PlainNetwork(model)})


def test_a_tuning_that_changed_under_its_name_is_done_again(model: nn.Sequential, tmp_path: Path) -> None:
    data = model, classes(45, 0), classes(40, 2)
    methods = {"full": lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights"))}
    out = tmp_path / "run.jsonl"
    found = []
    for steps in (1, 50, 50):
        tunings = {"mine": lw.EvidenceGradient(steps=steps)}
        result = compare(*data, methods=methods, tunings=tunings, out=out)
        found.append(result.row("full", "mine").runs[0]["prior_precision"])
    alone = compare(*data, methods=methods, tunings={"mine": lw.EvidenceGradient(steps=50)})
    assert found[1] == found[2] == alone.row("full", "mine").runs[0]["prior_precision"] != found[0]
    assert len(read_comparison(out).row("full", "mine").runs) == 1


def test_a_recipe_that_changed_under_its_name_is_no_second_run(model: nn.Sequential, tmp_path: Path) -> None:
    data = model, classes(45, 0), classes(40, 2)
    for structure in (lw.Diagonal(), lw.KFAC()):
        latest = compare(
            *data, methods={"mine": lw.Laplace(lw.Categorical(), structure=structure)}, out=tmp_path / "run.jsonl"
        )
    row = read_comparison(tmp_path / "run.jsonl").row("mine", "default")
    assert [run["nll"] for run in row.runs] == [run["nll"] for run in latest.row("mine", "default").runs]


def test_another_bound_of_bytes_does_not_do_finished_rows_again(model: nn.Sequential, tmp_path: Path) -> None:
    methods = {"full": Tuned(lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights")))}
    out = tmp_path / "run.jsonl"
    for max_bytes in (2**31, 2**30):
        compare(model, classes(45, 0), classes(40, 2), methods=methods, out=out, max_bytes=max_bytes)
    assert len(out.read_text().splitlines()) == 2


def test_a_network_of_the_same_weights_and_another_activation_is_another(model: nn.Sequential, tmp_path: Path) -> None:
    other = nn.Sequential(*(nn.ReLU() if isinstance(layer, nn.Tanh) else layer for layer in model))
    methods = {"KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC())}
    data = classes(45, 0), classes(40, 2)
    one, two = (compare(each, *data, methods=methods, out=tmp_path / "run.jsonl") for each in (model, other))
    assert one.row("plain network").runs[0]["nll"] != two.row("plain network").runs[0]["nll"]


def test_data_from_elsewhere_in_another_order_are_refused(model: nn.Sequential) -> None:
    x, y = classes(400, 3)
    loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
    with refused(DataError, "ood= whose inputs are the same"):
        compare(model, classes(45, 0), classes(40, 2), ood=loader)


def test_shifted_data_in_another_order_have_no_pairs(model: nn.Sequential) -> None:
    loader = DataLoader(TensorDataset(*classes(400, 3)), batch_size=40, shuffle=True)
    methods = {"KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC())}
    with pytest.warns(DataWarning, match="order"):
        result = compare(model, classes(45, 0), classes(40, 2), methods=methods, shifts={"s": loader})
    assert result.difference(result.row("KFAC", "default"), "nll:s") is None


def test_what_a_fit_took_is_no_longer_there_for_the_scores(model: nn.Sequential) -> None:
    def slow(task: Task) -> PlainNetwork:
        time.sleep(0.4)
        network = PlainNetwork(task.model, task.likelihood)
        return SlowToPredict(network, 0.4)  # type: ignore[return-value]

    result = compare(
        model, classes(45, 0), classes(40, 2), methods={"slow": slow, "mine": Scaled(2.0)}, budget_seconds=0.6
    )
    assert "at most" in result.row("slow").note


@dataclass(frozen=True)
class SlowToPredict:
    """A network that waits before it answers."""

    network: PlainNetwork
    seconds: float

    @property
    def likelihood(self) -> lw.Likelihood:
        return self.network.likelihood

    def predict(self, x: Any) -> Any:
        time.sleep(self.seconds)
        return self.network.predict(x)


@pytest.mark.parametrize("name", ["default", "validation"])
def test_a_tuning_is_not_called_as_one_that_comes_along(model: nn.Sequential, name: str) -> None:
    with refused(ConfigError, "tunings of other names than default, validation"):
        compare(model, classes(45, 0), classes(40, 2), methods={}, tunings={name: lw.EvidenceGradient()})


@pytest.mark.parametrize("generator", [None, 3])
def test_what_a_method_draws_does_not_depend_on_which_others_there_are(
    model: nn.Sequential, generator: int | None
) -> None:
    swag = lw.baselines.SWAG(epochs=2, rank=2, samples=2)
    kfac = Tuned(lw.Laplace(lw.Categorical(), structure=lw.KFAC()), lw.MacKay())
    found = []
    for methods in ({"SWAG": swag, "KFAC": kfac}, {"another": swag, "KFAC": kfac, "SWAG": swag}):
        source = None if generator is None else torch.Generator().manual_seed(generator)
        result = compare(model, classes(45, 0), classes(40, 2), methods=methods, draws=8, seeds=2, generator=source)
        rows = [result.row("SWAG"), result.row("KFAC", "MacKay")]
        found.append([(row.values("nll"), row.values("joint")) for row in rows])
        assert len(set(rows[0].values("nll"))) == 2
    assert found[0] == found[1]


def scaled_by(temperature: float) -> Callable[[Task], Predictor]:
    return lambda task: PlainNetwork(task.model, temperature=Temperature(temperature))


def test_a_function_that_changed_under_its_name_is_done_again(model: nn.Sequential, tmp_path: Path) -> None:
    data = model, classes(45, 0), classes(40, 2)
    ways: list[Callable[[Task], Predictor]] = [
        scaled_by(2.0),
        scaled_by(2.0),
        scaled_by(3.0),
        lambda task: task.network,
    ]
    found = [
        compare(*data, methods={"mine": way}, out=tmp_path / "run.jsonl").row("mine").values("nll") for way in ways
    ]
    assert found[0] == found[1] and len(set(found)) == 3
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 4


def test_other_training_inputs_are_other_data(model: nn.Sequential, tmp_path: Path) -> None:
    x, y = classes(45, 0)
    methods = {"KFAC": Tuned(lw.Laplace(lw.Categorical(), structure=lw.KFAC()), lw.MacKay())}
    one, other = (
        compare(model, (inputs, y), classes(40, 2), methods=methods, draws=8, out=tmp_path / "run.jsonl")
        for inputs in (x, 3 * x)
    )
    assert one.row("KFAC", "MacKay").values("joint") != other.row("KFAC", "MacKay").values("joint")


def test_scored_by_more_it_is_no_second_run(model: nn.Sequential, tmp_path: Path) -> None:
    data = model, classes(45, 0), classes(40, 2)
    for draws in (0, 8):
        result = compare(*data, methods={"mine": Scaled(2.0)}, draws=draws, out=tmp_path / "run.jsonl")
    again = read_comparison(tmp_path / "run.jsonl")
    assert result.row("mine").values("joint") == again.row("mine").values("joint") != ()
    assert [len(row.runs) for row in again.rows] == [1, 1]


def test_an_interrupted_run_is_left_out_where_one_is_whole(model: nn.Sequential) -> None:
    def ended(task: Task) -> Predictor:
        if task.seed == 1:
            raise KeyboardInterrupt
        return task.network

    with pytest.warns(ConvergenceWarning, match="in the run of seed 1"):
        result = compare(model, classes(45, 0), classes(40, 2), methods={"mine": Scaled(2.0), "ended": ended}, seeds=3)
    assert [(row.method, len(row.runs)) for row in result.rows] == [("plain network", 1), ("mine", 1), ("ended", 1)]
    assert result.row("ended").note == "interrupted"
