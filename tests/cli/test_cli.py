from __future__ import annotations

import dataclasses
import importlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing import cli
from lapwing.cli import own_code
from lapwing.cli.completion import options_of
from lapwing.cli.files import read_images
from lapwing.cli.networks import Held, _structure
from lapwing.cli.say import say
from lapwing.cli.setups import Files
from lapwing.cli.table import read_table
from lapwing.cli.words import COMMANDS
from lapwing.ground.errors import DataError, DataWarning

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

def net():
    return model()

def counted():
    with open("calls", "a") as file:
        file.write("once ")
    return pair()

def data_alone():
    return data(7, 4)[0]

def fewer():
    return data(7, 4)[0]
"""

LINE = """
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Linear(1, 1)
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


@pytest.fixture
def saved(capsys: pytest.CaptureFixture[str]) -> str:
    """A posterior that fit saved."""
    cli.main(["fit", "theirs:setup", "--structure", "diagonal", "--out", "mine"])
    capsys.readouterr()
    return "mine/posterior.safetensors"


def test_predictions_are_those_of_the_posterior_in_every_kind_of_file(
    capsys: pytest.CaptureFixture[str], folder: Path, saved: str
) -> None:
    import theirs  # pyright: ignore[reportMissingImports]

    posterior: Any = lw.load(saved, theirs.net())
    x = theirs.data(50, 1)[0]
    expected = posterior.predict(x)
    cli.main(["predict", "theirs:setup", saved, "--out", "test.csv"])
    assert "test.csv: 50 examples; labels, probs, epistemic, unfamiliar" in capsys.readouterr().out
    table = np.genfromtxt(folder / "test.csv", delimiter=",", names=True, deletechars="")
    assert table.dtype.names == ("labels", "probs[0]", "probs[1]", "probs[2]", "epistemic", "unfamiliar")
    np.testing.assert_allclose(table["probs[1]"], expected.probs[:, 1].numpy(), rtol=1e-6)
    np.savez(folder / "new.npz", x=x.numpy())
    rows = ["u,v,w,y", *(",".join(map(str, row)) + ",0" for row in x.double().tolist())]
    (folder / "new.csv").write_text("\n".join(rows))
    for given in ("new.npz", "new.csv"):
        cli.main(["predict", "theirs:net", saved, "--inputs", given, "--out", f"{given}.npz"])
        found = np.load(folder / f"{given}.npz")
        np.testing.assert_allclose(found["probs"], expected.probs.numpy(), rtol=1e-6)
        np.testing.assert_array_equal(found["labels"], expected.labels.numpy())
    cli.main(["predict", "theirs:net", saved, "--inputs", "theirs:fewer", "--out", "of_theirs.npz"])
    assert len(np.load(folder / "of_theirs.npz")["probs"]) == 7


def test_intervals_of_real_targets(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    x = np.linspace(-1, 1, 12)
    (folder / "wave.csv").write_text("x,y\n" + "\n".join(f"{a},{np.sin(3 * a)}" for a in x))
    (folder / "line.py").write_text(LINE)
    cli.main(["fit", "line:net", "--train", "wave.csv", "--out", "mine"])
    assert "log evidence" in capsys.readouterr().out
    options = ["--inputs", "wave.csv", "--level", "0.5", "--json", "--out", "wave.npz"]
    cli.main(["predict", "line:net", "mine/posterior.safetensors", *options])
    said = capsys.readouterr()
    assert json.loads(said.out) == {
        "predictions": "wave.npz",
        "examples": 12,
        "columns": ["mean", "std", "low", "high", "epistemic", "unfamiliar"],
    }
    assert "12 examples" in said.err
    found = np.load(folder / "wave.npz")
    np.testing.assert_allclose(found["high"] - found["mean"], 0.6744898 * found["std"], rtol=1e-5)


def test_parquet_goes_out_and_in(folder: Path, saved: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    cli.main(["predict", "theirs:setup", saved, "--out", "test.parquet"])
    table = parquet.read_table(folder / "test.parquet")
    assert table.column_names[:2] == ["labels", "probs[0]"] and table.num_rows == 50
    new = read_table(folder / "test.parquet", ["probs[2]"])
    np.testing.assert_array_equal(new[:, 0], table.column("probs[2]").to_numpy())


def test_a_folder_of_images_is_training_data(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 255, (12, 2, 3), dtype=np.uint8)
    for k, values in enumerate(pixels):
        place = folder / "shots" / ("cat", "dog")[k % 2]
        place.mkdir(parents=True, exist_ok=True)
        image.fromarray(values).save(place / f"{k:02}.png")
    x, y = read_images(folder / "shots")
    assert y is not None and y.tolist() == 6 * [0] + 6 * [1]
    np.testing.assert_array_equal(np.rint(255 * x[:6, 0].numpy()), pixels[::2])
    flat = "nn.Sequential(nn.Flatten(), nn.Linear(6, 2))"
    (folder / "flat.py").write_text(f"from torch import nn\n\ndef net():\n    return {flat}\n")
    cli.main(["fit", "flat:net", "--train", "shots", "--structure", "diagonal", "--tune", "none"])
    assert "of 14 weights" in capsys.readouterr().out
    (folder / "others" / "dog").mkdir(parents=True)
    image.fromarray(pixels[1]).save(folder / "others" / "dog" / "0.png")
    code, err = failure(capsys, "evaluate", "flat:net", "runs/fit/posterior.safetensors", "--test", "others")
    assert code == 2 and "classes of the training data, cat, dog" in err and "dog in others" in err
    image.fromarray(pixels[0, :1]).save(folder / "shots" / "cat" / "99.png")
    code, err = failure(capsys, "fit", "flat:net", "--train", "shots", "--out", "other")
    assert code == 2 and "images of one size" in err and "99.png of [1, 3, 1]" in err


def test_columns_in_another_order_are_refused(folder: Path) -> None:
    (folder / "train.csv").write_text("u,v,y\n1,2,0\n")
    (folder / "test.csv").write_text("v,y,u\n2,0,1\n")
    noted = Files(train="train.csv").names()
    assert noted == {"columns": ["u", "v"]}
    Files(test="train.csv").check(noted)
    with pytest.raises(DataError, match=r"columns of the training data, u, v\. Got v, u in test\.csv"):
        Files(test="test.csv").check(noted)
    with pytest.raises(DataError, match=r"v, u in test\.csv"):
        Files(train="train.csv", validation="test.csv").names()


def test_images_of_16_bits_keep_them_and_hidden_folders_are_no_classes(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    for name in (".cache", "cat", "dog"):
        (folder / "shots" / name).mkdir(parents=True)
    pixels = np.array([[0, 1000], [30000, 65535]], dtype=np.uint16)
    image.fromarray(pixels).save(folder / "shots" / "dog" / "0.png")
    x, y = read_images(folder / "shots")
    np.testing.assert_allclose(x[0, 0].numpy(), pixels / 65535, rtol=1e-6)
    assert y is not None and y.tolist() == [1]


def test_tune_diagnose_and_export(capsys: pytest.CaptureFixture[str], folder: Path, saved: str) -> None:
    cli.main(["tune", "theirs:setup", saved, "--by", "evidence", "--out", "tuned"])
    assert "log evidence" in capsys.readouterr().out
    before = lw.store.read_header(saved)["prior"]
    assert lw.store.read_header("tuned/posterior.safetensors")["prior"] != before
    cli.main(["diagnose", "theirs:net", saved, "--json"])
    assert json.loads(capsys.readouterr().out) == {"passed": True, "rejected": [], "exit_code": 0}
    cli.main(["export", "theirs:counted", saved, "--out", "model.pt2"])
    assert (folder / "model.pt2").is_file() and (folder / "calls").read_text() == "once "
    code, err = failure(capsys, "export", "theirs:net", saved)
    assert code == 2 and "test or train of theirs:net" in err


def test_a_diagnosis_that_fails_has_an_exit_code(monkeypatch: pytest.MonkeyPatch, saved: str) -> None:
    class Failed:
        passed = False
        rejected = ()

    monkeypatch.setattr(lw, "diagnose", lambda *_, **__: Failed())
    with pytest.raises(SystemExit) as end:
        cli.main(["diagnose", "theirs:net", saved])
    assert end.value.code == 3


def test_options_come_from_a_file_and_what_is_typed_goes_before(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "run.toml").write_text(
        'tune = "none"\nout = "runs/one"\n[fit]\nstructure = "kfac"\nweights = "last-layer"\n[compare]\nreport = true\n'
    )
    cli.main(["fit", "theirs:pair", "--config", "run.toml", "--out", "runs/two"])
    assert "of 15 weights" in capsys.readouterr().out
    assert (folder / "runs" / "two" / "posterior.safetensors").is_file() and not (folder / "runs" / "one").exists()
    (folder / "wrong.toml").write_text('structur = "kfac"')
    code, err = failure(capsys, "fit", "theirs:pair", "--config=wrong.toml")
    assert code == 2 and "--structur" in err and err.count("\n") == 1


@pytest.mark.parametrize("structure", [name for name in get_args(Held) if name != "auto"])
def test_every_structure_has_a_name(structure: Held) -> None:
    assert _structure(structure, None) != lw.Auto()


def test_completion_knows_commands_and_their_options(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    cli.main(["completion", "bash"])
    (folder / "script").write_text(capsys.readouterr().out)
    asked = {
        "lapwing ev": ["evaluate"],
        "lapwing gp p": ["predict"],
        "lapwing fit x --str": ["--structure"],
        "lapwing ct propose s --cand": ["--candidates"],
        "lapwing evaluate a --val": ["--validation"],
    }
    for line, expected in asked.items():
        words = line.split()
        script = f"source ./script; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _lapwing"
        ran = subprocess.run(["bash", "-c", f'{script}; echo "${{COMPREPLY[@]}}"'], capture_output=True, text=True)
        assert ran.stdout.split() == expected, ran.stderr


def test_help_and_version_come_without_torch(folder: Path) -> None:
    code = (
        "import sys\nfrom lapwing.cli import main\n"
        "for words in (['--help'], ['fit', '--help'], ['gp', '--help'], ['completion', 'bash'], ['--version']):\n"
        "    try:\n        main(words)\n    except SystemExit as end:\n        assert not end.code\n"
        "print({'torch', 'numpy'} & set(sys.modules))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    options: dict[str, Any] = {"cwd": folder, "env": environment, "text": True, "capture_output": True}
    said = subprocess.run([sys.executable, "-c", code], check=True, **options).stdout
    assert said.endswith(f"lapwing {lw.__version__}\nset()\n")
    assert all(f"lapwing {name}" in said for name in ("fit", "gp fit", "gp predict")) and "--structure" in said


def test_completion_tells_the_options_that_functions_take() -> None:
    for name, command in COMMANDS.items():
        function = getattr(importlib.import_module(f"lapwing.cli.{command.module}"), command.function)
        kinds = get_type_hints(function)
        expected = list[str]()
        for parameter in inspect.signature(function).parameters.values():
            kind = kinds[parameter.name]
            own = [parameter.name] if parameter.kind is parameter.KEYWORD_ONLY else []
            expected += [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else own
        assert options_of(name) == [f"--{each.replace('_', '-')}" for each in expected]


def test_a_stream_in_another_encoding_changes_no_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["fit", "theirs:pair", "--structure", "blok"], ["fit", "theirs:pair", "--nope", "3"]):
        expected = failure(capsys, *words)
        with monkeypatch.context() as there:
            there.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
            assert failure(capsys, *words) == expected
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="latin-1")
    say("24 × 24 pixels, γ = 3", stream)
    stream.flush()
    assert written.getvalue().decode("latin-1") == "24 × 24 pixels, ? = 3\n"


def test_real_targets_a_few_of_which_are_far_off(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    x = np.linspace(-1, 1, 24)
    y = 2 * x + 0.1 * np.sin(40 * x)
    y[[3, 17]] += 30
    for name, part in (("train", slice(0, None, 2)), ("held_out", slice(1, None, 2))):
        lines = [f"{a},{b}" for a, b in zip(x[part], y[part], strict=True)]
        (folder / f"{name}.csv").write_text("x,y\n" + "\n".join(lines))
    (folder / "line.py").write_text(LINE)
    options = ["--train", "train.csv", "--likelihood", "student-t"]
    cli.main(["fit", "line:net", *options, "--df", "3", "--scale", "0.2", "--out", "given"])
    given: Any = lw.load("given/posterior.safetensors", importlib.import_module("line").net())
    assert given.likelihood == lw.StudentT(df=3.0, scale=0.2)
    held = ["--scale", "0.2", "--validation", "held_out.csv"]
    cli.main(["fit", "line:net", *options, *held, "--out", "kept"])
    kept: Any = lw.load("kept/posterior.safetensors", importlib.import_module("line").net())
    assert kept.likelihood == lw.StudentT(scale=0.2)
    cli.main(["fit", "line:net", *options, "--validation", "held_out.csv", "--out", "found"])
    assert "StudentT" in capsys.readouterr().out
    found: Any = lw.load("found/posterior.safetensors", importlib.import_module("line").net())
    network: Any = lw.baselines.PlainNetwork(importlib.import_module("line").net(), lw.StudentT())
    table = read_table(folder / "held_out.csv", ["x", "y"])
    held_out = (torch.from_numpy(table[:, :1]).float(), torch.from_numpy(table[:, 1:]).float())
    assert found.likelihood.df == 4.0
    assert found.likelihood.scale == pytest.approx(network.calibrated(held_out).likelihood.scale)
    with pytest.warns(DataWarning, match="has the default"):
        cli.main(["fit", "line:net", *options, "--out", "default"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gp", "fti"], "Got 'gp fti'. Try lapwing gp fit"),
        (["fit"], "Missing from lapwing fit"),
        (["fit", "theirs:pair", "--rank", "many"], "--rank"),
        (["fit", "theirs:pair", "--rank", "3"], "--rank with --structure kfac, low-rank, nystrom"),
        (["fit", "theirs:net", "--train", "theirs.py"], "Got theirs.py. Try numpy.savez"),
        (["fit", "theirs:net", "--train", "empty"], "images in empty"),
        (["fit", "theirs:net", "--train", "no_x.npz"], "an array x of inputs"),
        (["fit", "theirs:net", "--train", "uneven.npz"], "a target for each of the 3 inputs"),
        (["fit", "theirs:net", "--train", "words.csv"], "finite numbers in column 'v'. Got 'blue'"),
        (["fit", "theirs:net", "--train", "real.npz", "--likelihood", "categorical"], "a target 0.5. Try --likelihood"),
        (
            ["fit", "theirs:pair", "--df", "3"],
            "--df and --scale with --likelihood student-t. Got --df with --likelihood",
        ),
        (["fit", "theirs:pair", "--likelihood", "student-t", "--df", "0"], "a positive df"),
        (["fit", "theirs:pair", "--config", "nothere.toml"], "a TOML file of options"),
        (["fit", "theirs:pair", "--config", "theirs.py"], "a TOML file of options"),
        (["fit", "theirs:pair", "--config", "date.toml"], "a text, a number, true or false"),
        (
            ["fit", "theirs:pair", "--config", "table.toml"],
            "tables named as commands, [fit] or [gp.fit]",
        ),
        (["fit", "theirs:pair", "--config", "group.toml"], "Got 'gp.target'"),
        (["tune", "theirs:pair", "nothere", "--config", "tune.toml"], "Unrecognized options: --tune"),
        (["fit", "theirs:net", "--train", "deep"], "images of 8 or 16 bits. Got deep/0.tif of 32"),
        (["fit", "sys:setup"], "sys to have a function setup. Got none in sys"),
        (["fit", "builtins:dict"], "builtins:dict to be a function without arguments"),
        (["fit", "theirs:net", "--train", "swapped.npz", "--likelihood", "categorical"], "a target 0.5"),
        (["predict", "theirs:setup", "theirs.py", "--out", "."], "Try --out predictions.csv"),
        (["predict", "theirs:net", "nothere.safetensors"], "no test"),
        (["predict", "theirs:setup", "theirs.py", "--out", "p.csv"], "theirs.py"),
        (["predict", "theirs:setup", "theirs.py", "--out", "p.txt"], "Try --out p.csv"),
        (["tune", "theirs:pair", "nothere.safetensors", "--by", "validation"], "no validation"),
    ],
)
def test_a_wrong_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "empty").mkdir()
    np.savez(folder / "no_x.npz", y=np.zeros(3))
    np.savez(folder / "uneven.npz", x=np.zeros((3, 3)), y=np.zeros(2, dtype=int))
    np.savez(folder / "real.npz", x=np.zeros((3, 3)), y=np.array([0, 1, 0.5]))
    np.savez(folder / "swapped.npz", x=np.zeros((3, 3), dtype=">f8"), y=np.array([0, 1, 0.5], dtype=">f8"))
    (folder / "words.csv").write_text("u,v,w,y\n1,blue,3,0\n")
    (folder / "date.toml").write_text("out = 2026-01-01\n")
    (folder / "table.toml").write_text('[fitt]\nstructure = "kfac"\n')
    (folder / "group.toml").write_text('[gp]\ntarget = "price"\n')
    (folder / "tune.toml").write_text('tune = "none"\n')
    if "deep" in arguments:
        image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
        (folder / "deep").mkdir()
        image.fromarray(np.zeros((2, 2), dtype=np.float32)).save(folder / "deep" / "0.tif")
    code, err = failure(capsys, *arguments)
    lines = [line for line in err.splitlines() if line.startswith("lapwing: ")]
    assert (code, len(lines)) == (2, 1) and "Traceback" not in err
    assert message in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "theirs"], "Expected a function as module:function"),
        (["fit", "./theirs.py:setup"], "the module's name without .py"),
        (
            ["evaluate", "theirs:setup", "nothere.safetensors"],
            "no file nothere.safetensors. Try its path",
        ),
        (["fit", "theirs:swapped"], "the model that theirs:swapped returns to be of type Module. Got a tuple"),
        (["fit", "theirs:alone"], "no train"),
        (["fit", "theirs:needy"], "a function without arguments"),
        (["fit", "theirs:nothing"], "no train. Try --train FILE, or a mapping"),
        (["fit", "theirs:data_alone"], "a tuple or a mapping. Got a Tensor"),
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
    ("code", "said", "error"),
    [
        ("def setup():\n    return 1 / 0\n", "ZeroDivisionError: division by zero, from line 2", ZeroDivisionError),
        ("import math\nmath.none\n", "'none', from line 2", AttributeError),
        ("import not_installed\n", "No module named 'not_installed', from line 1", ModuleNotFoundError),
        (
            "def setup():\n    return open('lost')\n",
            "No such file or directory: 'lost', from line 2",
            FileNotFoundError,
        ),
        ("def setup(:\n", "SyntaxError: ", SyntaxError),
    ],
)
def test_an_error_of_the_user_is_one_sentence_and_all_of_it_on_demand(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    said: str,
    error: type[Exception],
) -> None:
    (folder / "broken.py").write_text(code)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    ended, err = failure(capsys, "fit", "broken:setup")
    assert (ended, err.count("\n")) == (1, 1) and said in err and "broken.py, your own code" in err
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(error):
        cli.main(["fit", "broken:setup", "--traceback"])


def test_a_mistake_of_lapwings_own_is_not_taken_for_one_of_the_user(
    monkeypatch: pytest.MonkeyPatch, saved: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        int("of lapwing")

    monkeypatch.setattr(own_code, "INSTALLED", (Path(__file__).parent, *own_code.INSTALLED))
    monkeypatch.setattr(lw, "diagnose", broken)
    with pytest.raises(ValueError, match="of lapwing"):
        cli.main(["diagnose", "theirs:net", saved])


def test_the_users_function_may_import_from_the_folder(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "lazy.py").write_text("def setup():\n    import theirs\n    return theirs.pair()\n")
    cli.main(["fit", "lazy:setup", "--structure", "diagonal", "--tune", "none"])
    assert "saved" in capsys.readouterr().out


def test_without_tyro_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(SystemExit, match=r"tyro"):
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
