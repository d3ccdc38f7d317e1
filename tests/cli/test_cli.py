from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from lapwing import cli

SETUP = """
import pathlib
import torch
from torch import nn

def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.eye(3)[y] + 0.7 * torch.randn(n, 3, generator=g), y

def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    x, y = data(60, 0)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net

def setup():
    return {"model": model(), "train": data(60, 0), "test": data(50, 1), "validation": data(40, 2), "ood": data(9, 3)}

def raw(task):
    raise RuntimeError("raw")

def waits(task):
    if not pathlib.Path("go").exists():
        raise KeyboardInterrupt
    return task.network

def stops():
    methods = {"mine": lambda task: task.network, "raw": raw, "waits": waits}
    x, y = data(50, 1)
    return {"model": model(), "train": data(60, 0), "test": (x, y), "shifts": {"moved": (x + 1, y)}, "methods": methods}

def pair():
    return model(), data(60, 0)

def alone():
    return (model(),)

def nothing():
    return model()

def swapped():
    return data(60, 0), model()

def typo():
    return {"model": model(), "train": data(60, 0), "tests": data(9, 1)}

def bad():
    x, y = data(60, 0)
    return model(), (x / 0, y)

def needy(n):
    return model(), data(n, 0)

def interrupted():
    raise KeyboardInterrupt
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of the user's, who is in it."""
    (tmp_path / "theirs.py").write_text(SETUP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    return tmp_path


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str]:
    """Exit code and message of a command that must fail."""
    with pytest.raises(SystemExit) as info:
        cli.main(arguments)
    return info.value.code, capsys.readouterr().err


@pytest.mark.parametrize("tune", ["default", "validation", "none"])
def test_what_fit_saves_evaluate_scores(capsys: pytest.CaptureFixture[str], tune: str) -> None:
    cli.main(["fit", "theirs:setup", "--structure", "kfac", "--tune", tune, "--out", "mine"])
    said = capsys.readouterr().out
    assert {"none": "log evidence"}.get(tune, "NLL it was tuned by") in said
    told = "at the prior that predicts" if tune == "none" else r"at prior precision \S+, \S+ in the last layer"
    assert re.search(f"^error bars +{told}", said, re.MULTILINE)
    cli.main(["evaluate", "theirs:setup", "mine/posterior.safetensors"])
    said = capsys.readouterr().out
    assert re.search(rf"^error bars {told}", said, re.MULTILINE)
    assert ("lower is wider" in said) == (tune != "none")
    scores = dict(line.split()[:2] for line in said.splitlines())
    assert 0.5 < float(scores["accuracy"]) <= 1
    assert {"nll", "ece", "ood_auroc"} <= set(scores)
    assert ("ood_unfamiliar" in scores) == (tune != "none")
    cli.main(["info", "mine/posterior.safetensors"])
    said = capsys.readouterr().out
    assert (
        "WeightPosterior" in said and "Isotropic(precision=" in said and "Sequential" in said and "60 examples" in said
    )
    assert ("tuned       not" in said) == (tune == "none")


def test_health_tells_before_and_after_and_writes_a_page(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    cli.main(["fit", "theirs:setup", "--structure", "kfac", "--tune", "none", "--out", "mine"])
    cli.main(["health", "theirs:setup", "mine/posterior.safetensors", "--out", "told"])
    said = capsys.readouterr().out
    assert "plain network" in said and "curvature is that of the training data" in said and "it was not tuned" in said
    assert (folder / "told" / "health.html").is_file()
    code, err = failure(capsys, "health", "theirs:setup", "mine/posterior.safetensors", "--out", "told")
    assert code == 2 and "told, which has health.html" in err


def test_fit_takes_a_pair_and_the_last_layer(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    cli.main(["fit", "theirs:pair", "--weights", "last-layer", "--structure", "diagonal"])
    assert "of 15 weights" in capsys.readouterr().out
    before = (folder / "runs" / "fit" / "posterior.safetensors").read_bytes()
    code, err = failure(capsys, "fit", "theirs:pair")
    assert code == 2 and "runs/fit, which has posterior.safetensors. Try --out ANOTHER" in err
    assert (folder / "runs" / "fit" / "posterior.safetensors").read_bytes() == before


def test_compare_writes_numbers_and_page_and_report_makes_the_page_again(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    cli.main(["compare", "theirs:setup", "--out", "here"])
    assert "temperature scaling  validation" in capsys.readouterr().out
    results = json.loads((folder / "here" / "results.json").read_text())
    methods = {row["method"] for row in results["rows"]}
    baselines = {"plain network", "temperature scaling", "vector scaling"}
    assert methods == baselines | {"last layer", "diagonal", "KFAC", "full"}
    nll = [row["nll"]["mean"] for row in results["rows"]]
    assert nll == sorted(nll)
    page = (folder / "here" / "report.html").read_text()
    cli.main(["report", "here/results.json", "--out", "again.html"])
    assert (folder / "again.html").read_text() == page


def test_compare_goes_on_and_an_interrupt_is_exit_code_130(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, err = failure(capsys, "compare", "theirs:stops", "--out", "here", "--no-report", "--seeds", "2")
    assert code == 130 and "lapwing: interrupted" in err
    before = (folder / "here" / "run.jsonl").read_text()
    assert len(before.splitlines()) == 3
    (folder / "go").touch()
    cli.main(["compare", "theirs:stops", "--out", "here", "--seeds", "2", "--draws", "4", "--reference", "mine"])
    said = capsys.readouterr()
    assert "going on with here/run.jsonl" in said.err
    assert "RuntimeError: raw" in said.out and "joint, nats a label" in said.out
    assert (folder / "here" / "run.jsonl").read_text().startswith(before)
    assert "Take " in (folder / "here" / "report.html").read_text()
    cli.main(["report", "here/run.jsonl", "--out", "again.html"])
    assert "Take " in (folder / "again.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "theirs"], "Expected a function as module:function"),
        (["fit", "./theirs.py:setup"], "the module's name without .py"),
        (["fit", "nothere:setup"], "No module named 'nothere'. Try calling lapwing from the folder"),
        (["fit", "theirs:nothere"], "theirs.py. Try one of its functions: "),
        (
            ["evaluate", "theirs:setup", "nothere.safetensors"],
            "no file nothere.safetensors. Try its path",
        ),
        (["evaluate", "theirs:setup", "."], "no file ."),
        (["fit", "theirs:swapped"], "the model that theirs:swapped returns to be of type Module. Got a tuple"),
        (
            ["fit", "theirs:pair", "--out", "theirs.py"],
            "theirs.py to be read or written. Got 'File exists'",
        ),
        (["fit", "theirs:alone"], "no train"),
        (["fit", "theirs:needy"], "a function without arguments"),
        (["fit", "theirs:nothing"], "a tuple or a mapping. Got a Sequential"),
        (["fit", "theirs:pair", "--tune", "validation"], "no validation"),
        (["compare", "theirs:typo"], "tests, no test"),
        (["fit", "theirs:bad"], "finite inputs"),
        (["report", "nothere.json"], "Expected a JSON file of results"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, err = failure(capsys, *arguments)
    lines = [line for line in err.splitlines() if line.startswith("lapwing: ")]
    assert (code, len(lines)) == (2, 1)
    assert message in lines[0]


def test_an_interrupt_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = failure(capsys, "fit", "theirs:interrupted")
    assert (code, err) == (130, "lapwing: interrupted\n")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def setup():\n    return 1 / 0\n", ZeroDivisionError),
        ("import math\nmath.none\n", AttributeError),
        ("import not_installed\n", ModuleNotFoundError),
    ],
)
def test_an_error_of_the_user_is_not_hidden(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: type[Exception]
) -> None:
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (folder / "broken.py").write_text(code)
    with pytest.raises(error):
        cli.main(["fit", "broken:setup"])


def test_the_users_function_may_import_from_the_folder(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "lazy.py").write_text("def setup():\n    import theirs\n    return theirs.pair()\n")
    cli.main(["fit", "lazy:setup", "--structure", "diagonal", "--tune", "none"])
    assert "saved" in capsys.readouterr().out


def test_without_tyro_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(SystemExit, match=r"lapwing\[cli\]"):
        cli.main(["fit", "theirs:pair"])


def test_the_search_path_is_left_as_it_was() -> None:
    before = list(sys.path)
    for setup in ("theirs:alone", "nothere:pair"):
        with pytest.raises(SystemExit):
            cli.main(["fit", setup])
    assert sys.path == before


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        cli.main(["--help"])
    said = capsys.readouterr().out
    assert info.value.code in (0, None)
    assert all(name in said for name in ("fit", "evaluate", "compare", "report", "module:function"))
