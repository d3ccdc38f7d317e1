"""What a command works on: a function of the user's, and data from files."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import lapwing as lw

if TYPE_CHECKING:
    from lapwing.likelihoods import Likelihood

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
"""What a function may return by name; a tuple has them in this order."""

Law = Literal["auto", "categorical", "gaussian", "student-t", "bernoulli", "poisson"]
"""What targets are, by name."""


@final
@dataclass(frozen=True)
class Files:
    """Data that the function does not return, or in place of what it returns.

    Args:
        train: Training data: .npz of x and y, a .csv or .parquet table, a folder of images with a folder for each
            class, or module:function.
        validation: Held-out data, likewise.
        test: Test data, likewise.
        ood: Inputs from elsewhere, likewise; targets may be absent.
        target: Column of a table that is predicted.
        likelihood: What targets are; auto takes whole numbers for classes and others for real, with Gaussian noise.
            Of student-t a few may be far off.
        df: Degrees of freedom of student-t, 4 if not given: the fewer, the less do targets weigh that are far off.
        scale: Scale of student-t, in the units of the targets; of fit the likeliest for the validation data, if there
            are any and it is not given, else 1.
    """

    train: str | None = None
    validation: str | None = None
    test: str | None = None
    ood: str | None = None
    target: str = "y"
    likelihood: Law = "auto"
    df: float | None = None
    scale: float | None = None

    @property
    def given(self) -> dict[str, str]:
        """Where data come from, by what they are."""
        named = {"train": self.train, "validation": self.validation, "test": self.test, "ood": self.ood}
        return {name: source for name, source in named.items() if source is not None}

    def read(self, source: str, model: Any, *, inputs_alone: bool = False) -> Any:
        """The data of a source, a file or ``module:function``, for a network.

        Args:
            source: As it was given.
            model: The network.
            inputs_alone: Whether targets may be absent.
        """
        from lapwing.cli.files import read_data

        if is_function(source):
            return function_of(source)()
        options: dict[str, Any] = {"target": self.target, "law": self.likelihood, "inputs_alone": inputs_alone}
        return read_data(source, model=model, **options)

    def names(self) -> dict[str, list[str]]:
        """By which names the numbers of the training data go, see ``names_in``.

        Raises:
            DataError: If other data go by others.
        """
        from lapwing.cli.files import names_in

        noted = {} if self.train is None else names_in(self.train, self.target)
        self.check(noted)
        return noted

    def check(self, noted: Mapping[str, Any], *inputs: str) -> None:
        """Refuse data that go by other names than a posterior was fitted to.

        Args:
            noted: The names of its training data.
            inputs: Further data.
        """
        from lapwing.cli.files import check_names

        for name, source in [*self.given.items(), *(("inputs", each) for each in inputs)]:
            columns_alone = {kind: noted[kind] for kind in noted if name != "ood" or kind == "columns"}
            if not is_function(source):
                check_names(source, self.target, columns_alone)


FROM_SETUP = Files()
"""No files: the function returns the data."""


def read(setup: str, *needed: str, files: Files | None = None, inputs_alone: bool = False) -> dict[str, Any]:
    """What a user's function returns, by name, and the data of files.

    Args:
        setup: ``module:function``.
        needed: Names the command cannot do without, besides the model.
        files: Data from elsewhere, and what their targets are.
        inputs_alone: Whether files may hold no targets.

    Raises:
        ConfigError: If there is no such function, or it returns something else.
    """
    import torch

    from lapwing.ground.errors import ConfigError, check_kind

    files = files or Files()
    files.names()
    result = function_of(setup)()
    if isinstance(result, torch.nn.Module):
        result = {"model": result}
    if not isinstance(result, Mapping | tuple):
        raise ConfigError(
            f"{setup} to return a tuple or a mapping", f"a {type(result).__name__}", "return model, train"
        )
    task: dict[str, Any] = dict(result if isinstance(result, Mapping) else zip(NAMES, result, strict=False))
    likelihood = _likelihood(files)
    if likelihood is not None:
        task["likelihood"] = likelihood
    for name, source in files.given.items():
        task[name] = files.read(source, task.get("model"), inputs_alone=inputs_alone or name == "ood")
    unknown = sorted(set(task) - set(NAMES))
    missing = [each for each in ("model", *needed) if each not in task]
    if unknown or missing:
        got = ", ".join(unknown + [f"no {each}" for each in missing])
        by_file = "".join(f"--{each} FILE, " for each in missing if each != "model")
        hint = f"{by_file}{'or ' * bool(by_file)}a mapping with names of {', '.join(NAMES)}"
        raise ConfigError(f"{setup} to return {', '.join(('model', *needed))}", got, hint)
    check_kind(f"the model that {setup} returns", task["model"], (torch.nn.Module,), "return model, train")
    return task


def _likelihood(files: Files) -> Likelihood | None:
    """The likelihood that is named, with its numbers; ``None`` where none is.

    Raises:
        ConfigError: If numbers of Student-t noise are given to another.
    """
    from lapwing.ground.errors import ConfigError

    given = {"df": files.df, "scale": files.scale}
    numbers: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if files.likelihood == "student-t":
        return lw.StudentT(**numbers)
    if numbers:
        named = ", ".join(f"--{name}" for name in numbers)
        got = f"{named} with --likelihood {files.likelihood}"
        raise ConfigError("--df and --scale with --likelihood student-t", got, f"leaving {named} out")
    kinds: dict[str, Callable[[], Likelihood]] = {
        "categorical": lw.Categorical,
        "gaussian": lw.Gaussian,
        "bernoulli": lw.Bernoulli,
        "poisson": lw.Poisson,
    }
    return None if files.likelihood == "auto" else kinds[files.likelihood]()


def is_function(source: str) -> bool:
    """Whether it reads ``module:function`` and is no file."""
    module, colon, name = source.partition(":")
    words = [*module.split("."), name]
    return bool(colon) and all(word.isidentifier() for word in words) and not Path(source).exists()


def function_of(setup: str) -> Callable[[], Any]:
    """The function that a user names; what goes wrong inside the user's own module passes through.

    Raises:
        ConfigError: If there is no such module, or no such function in it.
    """
    from lapwing.ground.errors import ConfigError

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
        raise ConfigError(
            f"{module} to have a function {name}", f"none in {getattr(found, '__file__', None) or module}", known
        )
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError) as error:  # of a builtin the signature may be unknown
        raise ConfigError(f"{setup} to be a function without arguments", str(error), f"def {name}():") from error
    return function
