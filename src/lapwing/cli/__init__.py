"""The command line: ``lapwing fit | evaluate | health | info | compare | report``, and ``lapwing gp``, ``lapwing ct``.

``lapwing gp fit | predict`` is for tables, ``lapwing ct reconstruct | propose | demo`` for scans.
``fit``, ``evaluate``, ``health`` and ``compare`` take ``module:function``, a function of yours without arguments that
returns what there is to work on: ``(model, train)``, ``(model, train, test)``, or a mapping with any of the names
``model``, ``train``, ``test``, ``validation``, ``ood``, ``likelihood``, ``unpack`` and ``output``; ``compare`` also
takes ``shifts``, ``methods`` and ``tunings``. The module is looked for in the current folder too. What a command writes
goes to the folder ``--out``, by default ``runs/`` and its name, and never over what an earlier run has left there, but
for ``compare``, which goes on with its own.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

import lapwing as lw
from lapwing.cli import ct, gp
from lapwing.cli.say import make_folder, say
from lapwing.comparison import likelihood_of
from lapwing.comparison.journal import told_on_page
from lapwing.evaluation.evaluate import Predictor
from lapwing.ground.errors import ConfigError, DataError, LapwingError, check_kind
from lapwing.show.report import comparison_page, write_comparison, write_json, write_report

NAMES = (
    "model",
    "train",
    "test",
    "validation",
    "ood",
    "likelihood",
    "unpack",
    "output",
    "shifts",
    "methods",
    "tunings",
)


def fit(
    setup: str,
    /,
    *,
    out: Path = Path("runs/fit"),
    structure: Literal["auto", "full", "kfac", "diagonal"] = "auto",
    weights: Literal["all", "last-layer"] = "all",
    tune: Literal["default", "validation", "none"] = "default",
) -> None:
    """Fit a posterior to a trained network, tune it, and save it.

    Args:
        setup: module:function of yours that returns (model, train) or a mapping of names; see lapwing --help.
        out: Folder for posterior.safetensors.
        structure: How the covariance is held.
        weights: Which weights are uncertain.
        tune: What chooses the prior precision, and the noise of real targets.
    """
    task = read(setup, "train", *(["validation"] if tune == "validation" else []))
    make_folder(out, "posterior.safetensors")
    held = {"auto": lw.Auto, "full": lw.Full, "kfac": lw.KFAC, "diagonal": lw.Diagonal}[structure]()
    chosen = lw.LastLayer() if weights == "last-layer" else lw.All()
    likelihood = task.get("likelihood") or likelihood_of(task["train"], task.get("unpack"))
    recipe = lw.Laplace(likelihood, structure=held, weights=chosen)
    options = {name: task.get(name) for name in ("output", "unpack")}
    posterior = recipe.fit(task["model"], task["train"], **options)
    if tune == "default":
        posterior = lw.tune(posterior)
    elif tune == "validation":
        method = lw.Validation(task["validation"], unpack=task.get("unpack"))
        posterior = lw.tune(posterior, method)
    lw.save(posterior, out / "posterior.safetensors")
    nll = posterior.trace[-1].validation_nll if posterior.trace else None
    evidence = f"log evidence         {posterior.log_marginal():.6g} nats"
    say(evidence if nll is None else f"NLL it was tuned by  {nll:.4g} nats an example, token or pixel")
    say(f"effective dimension  {posterior.effective_dimension():.4g} of {posterior.network.size} weights")
    say(f"prior                {posterior.prior}")
    say(f"error bars           {told_at(posterior)}")
    say(f"saved                {out / 'posterior.safetensors'}")


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


def evaluate(setup: str, posterior: Path, /) -> None:
    """Score a saved posterior on test data.

    Args:
        setup: module:function of yours that returns a mapping with model and test, and if you wish ood.
        posterior: What lapwing fit saved.
    """
    task = read(setup, "test")
    loaded = loaded_for(posterior, task)
    scores = lw.evaluate(loaded, task["test"], ood=task.get("ood"), unpack=task.get("unpack"))
    say(str(scores))
    say(f"error bars {told_at(loaded)}")


def health(setup: str, posterior: Path, /, *, out: Path = Path("runs/health")) -> None:
    """Tell before and after on test data, the least known inputs, and what gives cause for doubt; write a page.

    Args:
        setup: module:function of yours that returns a mapping with model and test, and if you wish train.
        posterior: What lapwing fit saved.
        out: Folder for health.html.
    """
    task = read(setup, "test")
    loaded: Any = loaded_for(posterior, task)
    make_folder(out, "health.html")
    found = lw.health(loaded, task["test"], train=task.get("train"), unpack=task.get("unpack"))
    say(str(found))
    say(str(found.write(out / "health.html")))


def info(file: Path, /) -> None:
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


def outlined(record: Any) -> str:
    """A record of a header in one line: its kind, and what is short of the rest."""
    if not isinstance(record, Mapping):
        return f"{record}"
    options = [f"{name}={value}" for name, value in record.items() if name != "kind" and len(f"{value}") < 40]
    return f"{record.get('kind', '')}({', '.join(options)})"


def loaded_for(posterior: Path, task: Mapping[str, Any]) -> Predictor:
    """The saved posterior around the network of a task.

    Raises:
        DataError: If there is no such file, or it is one over an image.
    """
    if not posterior.is_file():
        raise DataError("a posterior that lapwing fit saved", f"no file {posterior}", "its path, or lapwing fit first")
    loaded = lw.load(posterior, task["model"], output=task.get("output"))
    if not isinstance(loaded, Predictor):
        raise DataError("a posterior that lapwing fit saved", f"{posterior}, one over an image", "lapwing ct propose")
    return loaded


def compare(
    setup: str,
    /,
    *,
    out: Path = Path("runs/compare"),
    seeds: int = 1,
    draws: int = 0,
    reference: str | None = None,
    budget_seconds: float | None = None,
    max_bytes: int | None = None,
    report: bool = True,
) -> None:
    """Compare every method on a trained network, and write a report; what was interrupted goes on.

    Every row is written to run.jsonl when it is finished. Called again with the same folder, network and data it does
    only what is missing. The exit code is 0 when all rows are there, those of methods that failed among them, 2 for
    an error, and 130 when it was interrupted.

    Args:
        setup: module:function of yours that returns (model, train, test) or a mapping of names; with validation every
            posterior is tuned by it too, with ood uncertainty is scored by how well it tells those data apart, with
            shifts, data by name, it is scored on these, with methods, by name, these are compared.
        out: Folder for run.jsonl, results.json and report.html.
        seeds: How often everything is repeated.
        draws: Functions drawn for the joint log-likelihood; 0 leaves it out.
        reference: Method from which others differ; temperature scaling, or the plain network, if not given.
        budget_seconds: Seconds that each method may take.
        max_bytes: Memory that each method may take.
        report: Whether to write report.html.
    """
    task = read(setup, "train", "test")
    if (out / "run.jsonl").is_file():
        say(f"going on with {out / 'run.jsonl'}", sys.stderr)
    else:
        make_folder(out, "results.json", "report.html")
    data = [task.pop(name) for name in ("model", "train", "test")]
    options: dict[str, Any] = {"seeds": seeds, "draws": draws, "reference": reference}
    options |= {"budget_seconds": budget_seconds, "max_bytes": max_bytes, "out": out / "run.jsonl"}
    result = lw.compare(*data, **task, **options)
    device = next(data[0].parameters(), torch.zeros(())).device
    write_json(comparison_page(result, out, about=told_on_page(device)), out / "results.json")
    say(result.table())
    say(f"{out / 'run.jsonl'}, {out / 'results.json'}")
    if report:
        say(f"{write_report(out / 'results.json')}")
    if any(row.note == "interrupted" for row in result.rows):
        raise KeyboardInterrupt


def report(results: Path, /, *, out: Path | None = None) -> None:
    """Make one self-contained page of a results.json, or of the rows of a run.jsonl.

    Args:
        results: What lapwing compare or the demo wrote.
        out: Where the page goes; report.html beside the results if not given.
    """
    if results.suffix != ".jsonl":
        say(str(write_report(results, out)))
        return
    found = lw.comparison.read_comparison(results)
    say(str(write_comparison(found, out or results.with_name("report.html"))))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error of lapwing is one line on stderr and exit code 2.

    Args:
        arguments: What was typed; ``None`` takes ``sys.argv``.
    """
    try:
        import tyro
    except ImportError:
        sys.exit("The command line needs tyro. Try pip install 'lapwing[cli]'.")
    logging.basicConfig(format="%(name)s: %(message)s")
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"
    logging.getLogger("lapwing").setLevel(logging.INFO)
    sys.path.insert(0, str(Path.cwd()))  # as python -m has it, as long as the user's code may import
    typed = list(sys.argv[1:] if arguments is None else arguments)
    prog = "lapwing"
    about = __doc__
    commands: dict[str, Callable[..., None]] = {
        "fit": fit,
        "evaluate": evaluate,
        "health": health,
        "info": info,
        "compare": compare,
        "report": report,
    }
    if typed[:1] == ["gp"]:
        typed = typed[1:]
        prog = "lapwing gp"
        about = gp.__doc__
        commands = {"fit": gp.fit, "predict": gp.predict}
    elif typed[:1] == ["ct"]:
        typed = typed[1:]
        prog = "lapwing ct"
        about = ct.__doc__
        commands = {"reconstruct": ct.reconstruct, "propose": ct.propose, "demo": ct.demo}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog=prog,
            description=(about or "").replace("``", ""),
            args=typed,
            config=(tyro.conf.OmitArgPrefixes,),
        )
    except LapwingError as error:
        say(f"lapwing: {error}", sys.stderr)
        sys.exit(2)
    except OSError as error:
        file = error.filename or "a file"
        said = error.strerror or str(error)
        say(f"lapwing: Expected {file} to be read or written. Got {said!r}. Try another path.", sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        say("lapwing: interrupted", sys.stderr)
        sys.exit(130)
    finally:
        sys.path.pop(0)
        warnings.formatwarning = before


def read(setup: str, *needed: str) -> dict[str, Any]:
    """What a user's function returns, by name.

    Args:
        setup: ``module:function``.
        needed: Names the command cannot do without, besides the model.

    Raises:
        ConfigError: If there is no such function, or it returns something else.
    """
    result = function_of(setup)()
    if not isinstance(result, Mapping | tuple):
        raise ConfigError(
            f"{setup} to return a tuple or a mapping", f"a {type(result).__name__}", "return model, train"
        )
    task: dict[str, Any] = dict(result if isinstance(result, Mapping) else zip(NAMES, result, strict=False))
    wrong = sorted(set(task) - set(NAMES)) + [f"no {each}" for each in ("model", *needed) if each not in task]
    if wrong:
        raise ConfigError(
            f"{setup} to return {', '.join(('model', *needed))}", ", ".join(wrong), f"a mapping with names of {NAMES}"
        )
    check_kind(f"the model that {setup} returns", task["model"], (torch.nn.Module,), "return model, train")
    return task


def function_of(setup: str) -> Callable[[], Any]:
    """The function that a user names; what goes wrong inside the user's own module passes through.

    Raises:
        ConfigError: If there is no such module, or no such function in it.
    """
    expected = "a function as module:function, such as mymodule:setup"
    module, _, name = setup.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ConfigError(expected, repr(setup), "the module's name without .py, one colon, the function's name")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import of theirs
        raise ConfigError(expected, str(error), "calling lapwing from the folder of the module") from error
    function = getattr(found, name, None)
    if not callable(function):
        functions = inspect.getmembers(found, inspect.isfunction)
        own = [key for key, value in functions if value.__module__ == module]
        known = f"one of its functions: {', '.join(own)}" if own else f"def {name}(): return model, train"
        raise ConfigError(f"{module} to have a function {name}", f"none in {found.__file__}", known)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(f"{setup} to be a function without arguments", str(error), f"def {name}():") from error
    return function
