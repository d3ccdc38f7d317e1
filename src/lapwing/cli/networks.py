"""Posteriors of networks: ``lapwing fit | tune | evaluate | predict | health | diagnose | export | info``.

``setup`` is ``module:function``, a function of yours without arguments that returns what there is to work on:
``(model, train)``, ``(model, train, test)``, a mapping with any of the names ``model``, ``train``, ``test``,
``validation``, ``ood``, ``likelihood``, ``unpack`` and ``output``, or the model alone where files have the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import lapwing as lw
from lapwing.cli.say import make_folder, make_room, say
from lapwing.cli.setups import FROM_SETUP, Files, read

if TYPE_CHECKING:
    from lapwing.evaluation.evaluate import Predictor
    from lapwing.likelihoods import Likelihood
    from lapwing.posteriors import Posterior
    from lapwing.structures import Structure

Held = Literal[
    "auto", "full", "kfac", "ekfac", "tridiagonal", "diagonal", "low-rank", "nystrom", "matrix-free", "sampled"
]
"""How the covariance can be held, by name."""

Tuner = Literal["default", "validation", "mixup", "elbo", "em", "evidence", "mackay"]
"""What can choose the prior precision, by name."""

FAILED = 3
"""Exit code of a diagnosis that draws do not pass."""


def fit(
    setup: str,
    /,
    *,
    data: Files = FROM_SETUP,
    structure: Held = "auto",
    rank: int | None = None,
    weights: Literal["all", "last-layer"] = "all",
    tune: Literal["none"] | Tuner = "default",
    out: Path = Path("runs/fit"),
) -> dict[str, Any]:
    """Fit a posterior to a trained network, tune it, and save it.

    Args:
        setup: module:function of yours that returns (model, train), a mapping of names, or a model; see lapwing --help.
        data: Where the data are, if the function returns none.
        structure: How the covariance is held.
        rank: Of low-rank and nystrom: directions kept; of kfac: directions kept of a large layer.
        weights: Which weights are uncertain.
        tune: What chooses the prior precision, and the noise of real targets.
        out: Folder for posterior.safetensors.
    """
    from lapwing.comparison import likelihood_of

    held = _structure(structure, rank)
    names = data.names()
    task = read(setup, "train", *(["validation"] if tune == "validation" else []), files=data)
    make_folder(out, "posterior.safetensors")
    chosen = lw.LastLayer() if weights == "last-layer" else lw.All()
    likelihood = _calibrated(task.get("likelihood") or likelihood_of(task["train"], task.get("unpack")), task)
    recipe = lw.Laplace(likelihood, structure=held, weights=chosen)
    options = {name: task.get(name) for name in ("output", "unpack")}
    posterior = recipe.fit(task["model"], task["train"], **options)
    if tune != "none":
        posterior = _tuned(posterior, tune, task)
    return _saved(posterior, out / "posterior.safetensors", names)


def tune(
    setup: str,
    posterior: Path,
    /,
    *,
    data: Files = FROM_SETUP,
    by: Tuner = "default",
    out: Path = Path("runs/tune"),
) -> dict[str, Any]:
    """Tune a saved posterior anew, without fitting it again, and save it as another.

    Args:
        setup: module:function of yours that returns (model, train) or a mapping of names.
        posterior: What lapwing fit saved.
        data: Where the data are, if the function returns none.
        by: What chooses the prior precision, and the noise of real targets; validation needs held-out data.
        out: Folder for posterior.safetensors.
    """
    task = read(setup, *(["validation"] if by == "validation" else []), files=data)
    loaded: Any = loaded_for(posterior, task, data)
    make_folder(out, "posterior.safetensors")
    return _saved(_tuned(loaded, by, task), out / "posterior.safetensors", notes_of(posterior))


def _structure(name: Held, rank: int | None) -> Structure:
    """The structure of a name.

    Raises:
        ConfigError: If a rank is given to one that has none.
    """
    from lapwing.ground.errors import ConfigError

    ranked = {"kfac": lw.KFAC, "low-rank": lw.LowRank, "nystrom": lw.Nystrom}
    kinds = {
        "auto": lw.Auto,
        "full": lw.Full,
        "ekfac": lw.EKFAC,
        "tridiagonal": lw.structures.TridiagonalKFAC,
        "diagonal": lw.Diagonal,
        "matrix-free": lw.MatrixFree,
        "sampled": lw.Sampled,
    }
    if rank is None:
        return (kinds | ranked)[name]()
    if name not in ranked:
        raise ConfigError(f"--rank with --structure {', '.join(ranked)}", f"--structure {name}", "leaving --rank out")
    return ranked[name](rank=rank)


def _calibrated(likelihood: Likelihood, task: Mapping[str, Any]) -> Likelihood:
    """The likelihood, with the spread of validation data where it has one that is its default and tuning leaves it."""
    if not likelihood.spread_is_default or "validation" not in task:
        return likelihood
    network = lw.baselines.PlainNetwork(task["model"], likelihood, output=task.get("output"))
    found = network.calibrated(task["validation"], unpack=task.get("unpack")).likelihood
    say(f"likelihood           {found}")
    return found


def _tuned(posterior: Posterior, by: Tuner, task: Mapping[str, Any]) -> Posterior:
    """The posterior at what a tuner chooses, with the training or held-out data of a task where it reads them."""
    unpack = task.get("unpack")
    if by == "default":
        return lw.tune(posterior)
    if by == "validation":
        return lw.tune(posterior, lw.Validation(task["validation"], unpack=unpack))
    methods = {
        "mixup": lw.Mixup,
        "elbo": lw.ELBO,
        "em": lw.EM,
        "evidence": lw.EvidenceGradient,
        "mackay": lw.MacKay,
    }
    return lw.tune(posterior, methods[by]())


def _saved(posterior: Posterior, file: Path, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Save a posterior with notes of its data, and tell what it is."""
    lw.save(posterior, file, notes=notes or None)
    nll = posterior.trace[-1].validation_nll if posterior.trace else None
    evidence = float(posterior.log_marginal()) if nll is None else None
    dimension = float(posterior.effective_dimension())
    told = f"log evidence         {evidence:.6g} nats" if nll is None else f"NLL it was tuned by  {nll:.4g} nats"
    say(told if nll is None else f"{told} an example, token or pixel")
    say(f"effective dimension  {dimension:.4g} of {posterior.network.size} weights")
    say(f"prior                {posterior.prior}")
    say(f"error bars           {told_at(posterior)}")
    say(f"saved                {file}")
    return {
        "posterior": str(file),
        "log_evidence": evidence,
        "tuned_by_nll": nll,
        "effective_dimension": dimension,
        "weights": posterior.network.size,
        "prior": str(posterior.prior),
        "prior_precisions": posterior.prior_precisions.tolist(),
    }


def told_at(posterior: Any) -> str:
    """At which prior its error bars are, the scale of knowledge where it has one."""
    knowledge = getattr(posterior, "knowledge", None)
    if knowledge is None:
        return "at the prior that predicts"
    own = "; probabilities are the network's own" if knowledge.certain else ""
    precisions = posterior.prior_precisions
    least = "" if len(precisions) == 1 else "at least "
    words = f"{least}{knowledge.in_words(float(precisions.min()))}"
    return f"at prior precision {words} (1 / weight², lower is wider){own}"


def evaluate(setup: str, posterior: Path, /, *, data: Files = FROM_SETUP) -> dict[str, Any]:
    """Score a saved posterior on test data.

    Args:
        setup: module:function of yours that returns a mapping with model and test, and if you wish ood.
        posterior: What lapwing fit saved.
        data: Where the data are, if the function returns none.
    """
    task = read(setup, "test", files=data)
    loaded = loaded_for(posterior, task, data)
    scores = lw.evaluate(loaded, task["test"], ood=task.get("ood"), unpack=task.get("unpack"))
    say(str(scores))
    say(f"error bars {told_at(loaded)}")
    return dict(scores)


def predict(
    setup: str,
    posterior: Path,
    /,
    *,
    inputs: str | None = None,
    data: Files = FROM_SETUP,
    level: float = 0.95,
    out: Path = Path("runs/predict/predictions.csv"),
) -> dict[str, Any]:
    """Predict with a saved posterior: probabilities, or means and intervals, and how little is known of each input.

    Args:
        setup: module:function of yours that returns (model, train, test), a mapping of names, or a model.
        posterior: What lapwing fit saved.
        inputs: What is predicted: .npz with x, a .csv or .parquet table, a folder of images, or module:function; the
            test data if not given.
        data: Where the data are, if the function returns none; of a table the column --target is left out.
        level: Probability of the intervals, of real targets and counts.
        out: A .csv, .parquet or .npz file, one line an example; .npz keeps arrays.
    """
    from lapwing.cli.predictions import predicted
    from lapwing.cli.table import check_ending, write_table
    from lapwing.ground.errors import check_fraction

    check_fraction("level", level, "--level 0.95")
    check_ending(out)
    task = _with_inputs(setup, inputs, data)
    loaded = loaded_for(posterior, task, data, *([] if inputs is None else [inputs]))
    make_room(out)
    columns = predicted(loaded, task["test"], level, unpack=task.get("unpack"))
    write_table(out, columns)
    count = len(next(iter(columns.values())))
    say(f"{out}: {count} examples; {', '.join(columns)}")
    return {"predictions": str(out), "examples": count, "columns": list(columns)}


def _with_inputs(setup: str, inputs: str | None, files: Files) -> dict[str, Any]:
    """The task of a user's function; its test data are the inputs, where they are named."""
    if inputs is None:
        return read(setup, "test", files=files, inputs_alone=True)
    task = read(setup, files=files, inputs_alone=True)
    task["test"] = files.read(inputs, task["model"], inputs_alone=True)
    return task


def health(
    setup: str, posterior: Path, /, *, data: Files = FROM_SETUP, out: Path = Path("runs/health")
) -> dict[str, Any]:
    """Tell before and after on test data, the least known inputs, and what gives cause for doubt; write a page.

    Args:
        setup: module:function of yours that returns a mapping with model and test, and if you wish train.
        posterior: What lapwing fit saved.
        data: Where the data are, if the function returns none.
        out: Folder for health.html.
    """
    task = read(setup, "test", files=data)
    loaded: Any = loaded_for(posterior, task, data)
    make_folder(out, "health.html")
    found = lw.health(loaded, task["test"], train=task.get("train"), unpack=task.get("unpack"))
    say(str(found))
    page = found.write(out / "health.html")
    say(str(page))
    return {"page": str(page), "facts": found.facts, "warnings": found.warnings} | found.comparison.to_dict()


def diagnose(
    setup: str, posterior: Path, /, *, data: Files = FROM_SETUP, samples: int = 200, seed: int = 0
) -> dict[str, Any]:
    """Test whether draws of a saved posterior have the covariance it claims; exit code 3 if they do not.

    Args:
        setup: module:function of yours that returns a model, (model, train) or a mapping of names.
        posterior: What lapwing fit saved.
        data: Where the data are, if the function returns none.
        samples: Draws that are tested.
        seed: Of the draws.
    """
    task = read(setup, files=data, inputs_alone=True)
    loaded = loaded_for(posterior, task, data)
    found = lw.diagnose(loaded, samples, generator=seed)
    say(str(found))
    rejected = [check.name for check in found.rejected]
    return {"passed": found.passed, "rejected": rejected, "exit_code": 0 if found.passed else FAILED}


def export(
    setup: str,
    posterior: Path,
    /,
    *,
    data: Files = FROM_SETUP,
    out: Path = Path("runs/export/model.pt2"),
) -> dict[str, Any]:
    """Write what a saved posterior predicts as a program that runs where lapwing is not installed.

    Args:
        setup: module:function of yours that returns (model, train) or a mapping of names.
        posterior: What lapwing fit saved.
        data: Where the data are, if the function returns none.
        out: The file: .pt2 for torch.export.load, .onnx for ONNX Runtime.
    """
    from lapwing.ground.data.sources import inputs_of
    from lapwing.ground.errors import ConfigError

    task = read(setup, files=data, inputs_alone=True)
    source = task.get("test", task.get("train"))
    if source is None:
        got = f"{', '.join(task)} alone"
        hint = "--test FILE, or one of them in what it returns"
        raise ConfigError(f"test or train of {setup}, whose inputs tell what the program takes", got, hint)
    loaded: Any = loaded_for(posterior, task, data)
    make_room(out)
    example = next(iter(inputs_of(source, task.get("unpack"))))
    lw.export(loaded, out, example=example)
    say(f"saved  {out}, {out.stat().st_size:,} bytes")
    return {"program": str(out), "bytes": out.stat().st_size}


def info(file: Path, /) -> dict[str, Any]:
    """Tell what a saved posterior is, without its network.

    Args:
        file: What lapwing fit or lapwing.save saved.
    """
    header = lw.store.read_header(file)
    say(f"posterior   {header['posterior']}, {file.stat().st_size:,} bytes")
    for name in ("likelihood", "prior"):
        if name in header:
            say(f"{name:<10}  {outlined(header[name])}")
    if "network" in header:
        network = header["network"]
        say(f"network     {network.get('class')}, SHA-256 {str(network.get('fingerprint'))[:12]}")
    if "totals" in header:
        totals = header["totals"]
        say(f"fitted to   {totals.get('examples')} examples")
    trace = header.get("trace") or []
    say(f"tuned       {f'in {len(trace)} steps' if trace else 'not'}")
    versions = header.get("versions", {})
    say(f"written by  {', '.join(f'{name} {version}' for name, version in versions.items())}")
    for name, value in header.get("notes", {}).items():
        say(f"note        {name}: {value}")
    return header | {"bytes": file.stat().st_size}


def outlined(record: Any) -> str:
    """A record of a header in one line: its kind, and what is short of the rest."""
    if not isinstance(record, Mapping):
        return f"{record}"
    options = [f"{name}={value}" for name, value in record.items() if name != "kind" and len(f"{value}") < 40]
    return f"{record.get('kind', '')}({', '.join(options)})"


def notes_of(posterior: Path) -> Mapping[str, Any]:
    """What a saved posterior says of the data it was fitted to."""
    return lw.store.read_header(posterior).get("notes", {})


def loaded_for(posterior: Path, task: Mapping[str, Any], data: Files, *inputs: str) -> Predictor:
    """The saved posterior around the network of a task.

    Args:
        posterior: Its file.
        task: What the user's function returned, and files held.
        data: The files.
        inputs: Further ones.

    Raises:
        DataError: If there is no such file, it is one over an image, or data go by other names than those it knows.
    """
    from lapwing.evaluation.evaluate import Predictor
    from lapwing.ground.errors import DataError

    if not posterior.is_file():
        raise DataError("a posterior that lapwing fit saved", f"no file {posterior}", "its path, or lapwing fit first")
    data.check(notes_of(posterior), *inputs)
    loaded = lw.load(posterior, task["model"], output=task.get("output"))
    if not isinstance(loaded, Predictor):
        raise DataError("a posterior that lapwing fit saved", f"{posterior}, one over an image", "lapwing ct propose")
    return loaded
