"""Gaussian processes of tables: ``lapwing gp fit | predict``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import lapwing as lw
from lapwing.cli.say import make_folder, say
from lapwing.cli.table import names_of, no_target, read_table, write_table
from lapwing.gp import GPPosterior
from lapwing.gp.kernels.base import Kernel
from lapwing.gp.kernels.stationary import RBF, Matern
from lapwing.gp.recipe import lengthscales, standard_deviations
from lapwing.ground import probes
from lapwing.ground.errors import ConfigError, DataError, DataWarning, check_fraction, warn
from lapwing.ground.files.records import Records
from lapwing.ground.precision import wide
from lapwing.ground.progress import track
from lapwing.show.report.regression import write_regression_report

KERNELS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Smoothness by name."""

ROWS = 2048
"""Rows predicted between two looks at the progress bar."""


def fit(
    data: Path,
    /,
    *,
    target: str,
    columns: tuple[str, ...] = (),
    kernel: Literal["matern12", "matern32", "matern52", "rbf"] = "matern32",
    out: Path = Path("runs/gp/fit"),
    held_out: float = 0.1,
    seed: int = 0,
) -> dict[str, Any]:
    """Fit a Gaussian process to a table, choose its hyper-parameters, and save it.

    Args:
        data: A CSV file whose first line names the columns, or an .npz file.
        target: The column to predict.
        columns: The columns to predict it from; all others if not given.
        kernel: The kernel; each column has a length-scale of its own.
        out: Folder for posterior.safetensors, in the units of the table, and report.html, with scores on rows held out.
        held_out: Part of the rows held out for the report; the posterior saved has them too.
        seed: Of everything random.
    """
    check_fraction("held_out", held_out, "--held-out 0.1")
    if target in columns:
        expected = f"other columns than {target!r}, the target, to predict it from"
        raise ConfigError(expected, f"--columns {' '.join(columns)}", "--columns without it, or another --target")
    there = names_of(data)
    if len(there) > 1 and target not in there:
        raise no_target(data, target)
    names = [name for name in columns or there if name != target]
    table = read_table(data, [*names, target])
    if not names or len(table) < 4:
        got = f"{len(table)} rows of {', '.join([*names, target][:9])}"
        raise DataError(f"four rows or more of {target!r} and other columns in {data}", got, "a table with more")
    make_folder(out, "posterior.safetensors", "report.html")
    x, y = _tensors(table)
    order = probes.permutation(len(x), generator=torch.Generator().manual_seed(seed))
    count = max(1, round(held_out * len(x)))
    test = order[:count]
    train = order[count:]
    posterior: Any = lw.tune(_recipe(kernel, x[train], y[train], seed).fit((x[train], y[train])))
    page = write_regression_report(posterior, (x[test], y[test]), names, target, out / "report.html")
    evidence = float(posterior.log_marginal())
    say(str(page))
    say(f"log evidence  {evidence:.6g} nats")
    saved = out / "posterior.safetensors"
    lw.save(posterior.updated((x[test], y[test])), saved, notes={"columns": names, "target": target})
    say(f"saved         {saved}")
    counts = {"rows": len(train), "held_out": count}
    return {"posterior": str(saved), "page": str(page), "log_evidence": evidence, "columns": names} | counts


def predict(
    posterior: Path, data: Path, /, *, out: Path = Path("runs/gp/predict"), level: float = 0.95
) -> dict[str, Any]:
    """Predict the rows of a table: mean, standard deviation and interval of the target, noise included.

    Args:
        posterior: What lapwing gp fit saved.
        data: A table with the columns it was fitted to, in any order.
        out: Folder for predictions.csv, one line a row.
        level: Probability of the interval.
    """
    check_fraction("level", level, "--level 0.95")
    if not posterior.is_file():
        raise DataError("a posterior that lapwing gp fit saved", f"no file {posterior}", "its path, or lapwing gp fit")
    header = lw.store.read_header(posterior)
    kind = str(header.get("posterior"))
    process: Any = lw.load(posterior) if kind == "GPPosterior" else None
    if process is None or process.data.outputs > 1:
        hint = "what lapwing gp fit saved"
        raise DataError("a Gaussian process of one output", f"{posterior}, a {kind:.40}", hint)
    notes: dict[str, Any] = Records().read(dict[str, Any], header.get("notes", {}), "notes")
    columns: tuple[str, ...] = Records().read(tuple[str, ...], notes.get("columns", []), "notes.columns")
    names = list(columns) or names_of(data)
    table = read_table(data, names)
    _warn_of_units(process, names, table)
    make_folder(out, "predictions.csv")
    parts = list[Tensor]()
    for rows in track(torch.from_numpy(table).split(ROWS), "predictions", unit="blocks"):
        prediction: Any = process.predict(rows)
        parts.append(torch.cat([prediction.mean, prediction.std, *prediction.interval(level)], 1))
    found = torch.cat(parts).mT.numpy()
    file = out / "predictions.csv"
    told = ("mean", "std", "low", "high")
    write_table(file, dict(zip(told, found, strict=True)))
    say(f"{file}: {len(table)} rows, intervals at {100 * level:g} %")
    return {"predictions": str(file), "rows": len(table), "columns": list(told), "level": level}


def _tensors(table: np.ndarray) -> tuple[Float[Tensor, "n p"], Float[Tensor, " n"]]:
    """Inputs and targets, which are the last column."""
    values = torch.from_numpy(table)
    return values[:, :-1], values[:, -1]


def _warn_of_units(process: GPPosterior, names: Sequence[str], table: np.ndarray) -> None:
    """Warn of columns that are all far from where the posterior has seen any."""
    inputs = wide(process.data.inputs).cpu().numpy()
    for name, known, new in zip(names, inputs.T, table.T, strict=False):
        low = known.min()
        high = known.max()
        if not (np.abs(new - (low + high) / 2) <= 1.5 * (high - low)).any():
            warn(
                f"column {name!r} has values from {new.min():.4g} to {new.max():.4g}, where the posterior has seen "
                f"{low:.4g} to {high:.4g}. Is it in another unit?",
                DataWarning,
            )


def _recipe(kernel: str, x: Float[Tensor, "n p"], y: Float[Tensor, " n"], seed: int) -> lw.GP:
    """A process that varies once over the data, in the units of the table."""
    scales = lengthscales(x)
    variance = float(standard_deviations(y[:, None]).square()) or 1.0
    shape: Kernel = RBF(scales) if kernel == "rbf" else Matern(scales, KERNELS[kernel])
    return lw.GP(variance * shape, seed=seed)
