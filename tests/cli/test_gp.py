"""``lapwing gp``: a table in, a posterior and a page out; what is no table of numbers is named."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing import cli
from lapwing.cli.gp import ROWS
from lapwing.ground.errors import DataWarning
from lapwing.store.files import POSTERIOR
from tests.posterior_cases import normal

X = normal(40, 2) * torch.tensor([3.0, 50.0])
Y = 20 * torch.sin(X[:, 0]) + normal(40, seed=1) + 100
FILE = "runs/gp/fit/posterior.safetensors"


def table(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(list(values) for values in columns.values()), strict=True))
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table, who is in it."""
    monkeypatch.chdir(tmp_path)
    columns = {"width": X[:, 0].tolist(), "a, b": X[:, 1].tolist(), "town": ["Bath"] * 40, "y": Y.tolist()}
    table(tmp_path / "data.csv", columns)
    return tmp_path


def test_what_fit_saves_predicts_rows_in_the_units_of_the_table(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    cli.main(["gp", "fit", "data.csv", "--target", "y", "--columns", "width", "a, b", "--held-out", "0.2"])
    assert "log evidence" in capsys.readouterr().out
    count = ROWS + 2  # more than are predicted at a time
    new = normal(count, 2, seed=2) * torch.tensor([3.0, 50.0])
    table(folder / "new.csv", {"note": ["x"] * count, "a, b": new[:, 1].tolist(), "width": new[:, 0].tolist()})
    cli.main(["gp", "predict", FILE, "new.csv", "--level", "0.8"])
    process: Any = lw.load(FILE)
    expected = process.predict(new)
    low, high = expected.interval(0.8)
    found = np.loadtxt("runs/gp/predict/predictions.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(found, torch.cat([expected.mean, expected.std, low, high], 1).numpy(), rtol=1e-12)
    assert len(process.data) == 40 and float((process.mean(X)[:, 0] - Y).square().mean().sqrt()) < 3
    page = (folder / "runs" / "gp" / "fit" / "report.html").read_text()
    assert "width" in page and "a, b" in page and "in 80 %" in page and "32 rows and scored on 8" in page


def test_arrays_are_columns(folder: Path) -> None:
    np.savez(folder / "data.npz", x=X.numpy(), y=Y.numpy())
    cli.main(["gp", "fit", "data.npz", "--target", "y", "--kernel", "rbf", "--out", "arrays"])
    assert lw.store.read_header("arrays/posterior.safetensors")["notes"] == {"columns": ["x[0]", "x[1]"], "target": "y"}
    process: Any = lw.load("arrays/posterior.safetensors")
    assert isinstance(process.kernel.kernel, lw.gp.RBF)
    torch.testing.assert_close(process.data.targets[:, 0].sort().values, Y.sort().values)


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (["fit", "data.csv", "--target", "y"], "", "finite numbers in column 'town'. Got 'Bath' in line 2 of data.csv"),
        (["fit", "data.csv", "--target", "z", "--columns", "width"], "", "a column 'z' in data.csv, the --target"),
        (["fit", "data.csv", "--target", "z"], "", "Got columns width, a, b, town, y. Try --target NAME, one of"),
        (
            ["fit", "data.csv", "--target", "y", "--columns", "y", "width"],
            "",
            "'y', the target, to predict it from. Got",
        ),
        (["fit", "other.csv", "--target", "y"], "y\n1\n2\n3\n4\n5\n", "'y' and other columns in other.csv. Got 5 rows"),
        (["fit", "data.csv", "--target", "y", "--columns", "length"], "", "none or several of length"),
        (
            ["fit", "other.csv", "--target", "y"],
            "x,y\n1,2\n3\n",
            "2 entries a line, as the header has. Got 1 in line 3",
        ),
        (["fit", "other.csv", "--target", "y"], "x,y\n1,\n3,4\n", "numbers in column 'y'. Got '' in line 2"),
        (["fit", "other.csv", "--target", "y"], "x,y\n1,2\n3,4\n1,nan\n5,4\n", "'y'. Got 'nan' in line 4"),
        (["fit", "other.csv", "--target", "y"], "x,y\n1,2\n", "four rows or more"),
        (["fit", "other.csv", "--target", "y"], "x,y\n", "rows below the header"),
        (["fit", "other.csv", "--target", "y"], "x,y,y\n1,2,3\n", "none or several of y. Try names among x, y, y"),
        (["fit", "other.csv", "--target", "y"], "x;y\n1;2\n", "Try commas between columns, not as in 'x;y'"),
        (["fit", "other.csv", "--target", "y"], "", "Try a first line that names the columns"),
        (["fit", "nothere.csv", "--target", "y"], "", "nothere.csv to be read or written"),
        (["fit", "data.csv", "--target", "y", "--held-out", "1.5"], "", "held_out between 0 and 1"),
        (["fit", "data.csv", "--target", "y", "--columns", "width", "--out", "data.csv"], "", "data.csv to be read or"),
        (["predict", "nothere.safetensors", "data.csv"], "", "no file nothere.safetensors"),
        (["predict", ".", "data.csv"], "", "no file ."),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], content: str, message: str
) -> None:
    (folder / "other.csv").write_text(content)
    with pytest.raises(SystemExit) as info:
        cli.main(["gp", *arguments])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lapwing: ")]
    assert (info.value.code, len(lines)) == (2, 1)
    assert message in lines[0]


@pytest.mark.parametrize("noisy", [1.0, float("nan")])
def test_columns_in_another_unit_and_rows_without_a_number(
    capsys: pytest.CaptureFixture[str], folder: Path, noisy: float
) -> None:
    lw.save(lw.GP().fit((X, Y)), "p.safetensors", notes={"columns": ["width", "length"]})
    table(folder / "new.csv", {"width": [0.1, noisy], "length": [50e3, 60e3]})
    if noisy == 1.0:
        with pytest.warns(DataWarning, match=r"column 'length' .* another unit"):
            cli.main(["gp", "predict", "p.safetensors", "new.csv"])
        assert "2 rows" in capsys.readouterr().out
        return
    with pytest.raises(SystemExit):
        cli.main(["gp", "predict", "p.safetensors", "new.csv"])
    assert "finite numbers in column 'width'. Got 'nan' in line 3 of new.csv" in capsys.readouterr().err


def test_what_is_no_process_of_one_output(capsys: pytest.CaptureFixture[str]) -> None:
    process = lw.GP().fit((X, torch.stack([Y, Y], 1)))
    for saved, kind in ((process, "GPPosterior"), (process.draw_functions(1), "FunctionSamples")):
        lw.save(saved, "p.safetensors")
        with pytest.raises(SystemExit):
            cli.main(["gp", "predict", "p.safetensors", "data.csv"])
        assert f"one output. Got p.safetensors, a {kind}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [({"notes": [1]}, "notes as "), ({"notes": {"columns": 5}}, "notes.columns"), ({"posterior": ...}, "a None")],
)
def test_a_header_that_is_no_fit_of_a_table(
    capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    lw.save(lw.GP().fit((X, Y)), "p.safetensors", notes={"columns": ["width", "height"]})
    header = POSTERIOR.header(Path("p.safetensors"))
    tensors = POSTERIOR.tensors(Path("p.safetensors"), header)
    body = {name: value for name, value in (header | change).items() if value is not ...}
    POSTERIOR.write(Path("p.safetensors"), body, tensors)
    with pytest.raises(SystemExit):
        cli.main(["gp", "predict", "p.safetensors", "data.csv"])
    assert message in capsys.readouterr().err


def test_a_table_without_a_column_of_the_fit(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    lw.save(lw.GP().fit((X, Y)), "p.safetensors", notes={"columns": ["width", "height"]})
    with pytest.raises(SystemExit):
        cli.main(["gp", "predict", "p.safetensors", "data.csv"])
    assert "none or several of height" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut short", b"", b"PK\x05\x06" + 18 * b"\0" + b"more"])
def test_a_damaged_file_of_arrays_is_one_line(capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    Path("bad.npz").write_bytes(content)
    with pytest.raises(SystemExit):
        cli.main(["gp", "fit", "bad.npz", "--target", "y"])
    assert "lapwing: Expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((4, 2)), "y": np.zeros(3)}, "of one length"),
        ({"x": np.array(["a", "b"]), "y": np.zeros(2)}, "x <U1 [2]"),
        ({"x": np.zeros((2, 2, 2)), "y": np.zeros(2)}, "[2, 2, 2]"),
        ({"x": np.array([None, 1]), "y": np.zeros(2)}, "numpy.savez"),
        ({"x": np.array([1.0, np.inf]), "y": np.zeros(2)}, "finite numbers in x of bad.npz. Got inf in row 1"),
    ],
)
def test_arrays_that_are_no_table(capsys: pytest.CaptureFixture[str], arrays: dict[str, Any], message: str) -> None:
    np.savez("bad.npz", **arrays)
    with pytest.raises(SystemExit):
        cli.main(["gp", "fit", "bad.npz", "--target", "y"])
    assert message in capsys.readouterr().err
