"""The one call that fits, tunes, scores and times every method, and goes on where an earlier call was stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import final

import torch
from torch import nn

from lapwing.comparison.bench import TUNINGS, Bench
from lapwing.comparison.cost import Limits
from lapwing.comparison.entries import (
    Contender,
    Tuned,
    check_contender,
    common_likelihood,
    default_methods,
)
from lapwing.comparison.fingerprint import examples, fingerprint, scoring_fingerprint
from lapwing.comparison.journal import Journal, circumstances
from lapwing.comparison.ledger import Ledger, rows_of
from lapwing.comparison.scoring import Scoring
from lapwing.comparison.table import Comparison, Row, columns_with, joined_rows
from lapwing.evaluation.task import Task
from lapwing.gp import GP
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Data, Source, Unpack, inputs_of
from lapwing.ground.errors import (
    ConfigError,
    ConvergenceWarning,
    DataError,
    DataWarning,
    TooSlowError,
    check_count,
    check_positive,
    warn,
)
from lapwing.ground.files.atomic import file_at
from lapwing.ground.progress import Bar, working
from lapwing.jacobian.network.network import like_of
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.snapshot import digest_of
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.methods.laplace import Laplace
from lapwing.predictive import Link
from lapwing.tuning import Method, Validation


def compare(
    model: nn.Module,
    train: Source,
    test: Source,
    *,
    methods: Mapping[str, Contender] | None = None,
    tunings: Mapping[str, Method] | None = None,
    validation: Source | None = None,
    ood: Source | Inputs | None = None,
    shifts: Mapping[str, Source] | None = None,
    likelihood: Likelihood | None = None,
    output: Output = None,
    unpack: Unpack | None = None,
    link: Link | None = None,
    draws: int = 0,
    seeds: int | Sequence[int] = 1,
    reference: str | tuple[str, str] | None = None,
    budget_seconds: float | None = None,
    max_bytes: int | None = None,
    out: str | PathLike[str] | None = None,
    progress: bool | None = None,
    generator: torch.Generator | None = None,
) -> Comparison:
    """Every method side by side: the plain network, its calibrated self, and others, each fitted, tuned and scored.

    A ``Laplace`` recipe is fitted once, then tuned as ``tune`` does when nobody says how and, given validation data, by
    their NLL: a row each, with the criterion that was tuned. A recipe with its own way to be tuned, ``Tuned(recipe,
    method, link)``, has one row; so has a ``HessianFree`` recipe, fitted at the inputs where it is scored, a ``GP``
    recipe, fitted to the same data and tuned by its evidence, a predictor as it is, such as a posterior or
    ``PlainNetwork(other_model)``, and whatever makes a predictor of a ``Task``: an object with ``fit(task)``, or a
    function of the task. With validation data the plain network has a second row too: temperature scaling, or for real
    targets the noise of the validation residuals. The scores are those of ``evaluate``.

    Methods are compared in pairs, on the same examples: a difference from the reference has the standard error of a
    paired test, and one within two of them is noise. The table is sorted by NLL, and ends in what to take.

    A method that fails, takes too long or too much memory is a row that says so. With ``out`` each row is written when
    it is finished, and a second call with the same file, network and data goes on: nothing finished is done again.

    Args:
        model: The trained network; left exactly as it is.
        train: The data it was trained on: a loader that can be read again and again, or a pair of tensors.
        test: Held-out data to score on, in the same order at every reading.
        methods: What is compared, by name; ``None`` takes last layer, diagonal, KFAC, and full where it fits, else
            Nyström features, draws and a subnetwork beside them, with validation data vector scaling of classes too;
            see ``default_methods``.
        tunings: Further ways to tune recipes, by name; not ``"default"`` or ``"validation"``.
        validation: Held-out data to tune on; not the test data.
        ood: Data from elsewhere, to be told apart; their targets are ignored.
        shifts: Held-out data that were made worse, such as ``corruptions.corrupt`` does, by name.
        likelihood: p(y | f); ``None`` takes that of the methods or, without methods, Categorical for integer targets
            and Gaussian for real ones.
        output: Which part of what the network returns is the output that the likelihood speaks of: a key, an index or a
            function of it. ``None`` where it returns one tensor, or something with ``logits``.
        unpack: Splits one element of a loader into inputs and targets.
        link: How posteriors average over the uncertainty of the logits; ``None`` for each one's own.
        draws: Functions drawn for the joint log-likelihood, of 40 labels of 5 examples at once; 0 leaves it out.
        seeds: How often everything is repeated, with seeds from 0, or the seeds.
        reference: Name of the method from which others differ, or that and what tuned it; ``None`` for temperature
            scaling, without it the plain network.
        budget_seconds: Seconds each method may take in one run, fitted, tuned and scored; ``None`` for any number.
        max_bytes: Memory that each may take above what is held when it begins, of the process or a GPU; a structure
            that knows beforehand refuses more. ``None`` for any amount.
        out: File of finished rows, one JSON object a line, with command, commit, versions and the numbers of single
            examples.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        generator: Source of randomness; ``None`` for one of each seed. Each method draws from a source of its own, made
            of that and its name, whatever else is compared.

    Returns:
        A ``Comparison``: print it, or see its ``rows``. A method that cannot run, for whatever reason, has a ``note``
        in place of numbers.

    Raises:
        ConfigError: If a method is none, it or a tuning is called as one that comes along, likelihoods are of several
            kinds, or there is no such reference.
        DataError: If some data can be read only once, or ``out`` is a file of something else.
        LapwingError: If the plain network cannot be scored. If no method can run, the error of the last.

    Warns:
        ConvergenceWarning: If it was interrupted; the methods that were done by then are compared.
        DataWarning: If nobody says what the likelihood is and real targets are all 0 or 1; if the test data came in
            another order, so that methods cannot be compared in pairs.

    Cost:
        A fit a recipe; about two predictions of the validation data, what the default tuning costs, and two predictions
        of the test data, a recipe; a prediction of each shift. With ``out`` two passes over the training data and one
        over all others, without the network. Beside the posteriors some ten bytes a test example, shift and row are
        kept.

    Example:
        >>> x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        >>> result = compare(model, (x[:40], y[:40]), (x[40:], y[40:]))
        >>> [row.method for row in result.rows]
        ['plain network', 'last layer', 'diagonal', 'KFAC', 'full']
        >>> posterior = result.row("KFAC", "default").predictor
    """
    shifts = shifts or {}
    for source in (train, test, ood, validation, *shifts.values()):
        check_rereadable(source)
    for name, method in (methods or {}).items():
        if name in BASELINES:
            raise ConfigError(f"methods of other names than {', '.join(BASELINES)}", f"{name!r}", f"'another {name}'")
        check_contender(name, method)
    for name in tunings or {}:
        if name in TUNINGS:
            raise ConfigError(
                f"tunings of other names than {', '.join(TUNINGS)}, which come along", f"{name!r}", f"'another {name}'"
            )
    check_order("ood", ood, unpack)
    if budget_seconds is not None:
        check_positive("budget_seconds", budget_seconds, "600")
    if max_bytes is not None:
        check_count("max_bytes", max_bytes, usual=2**32)
    check_count("draws", draws, 0, usual=64)
    chosen_seeds = listed_seeds(seeds)
    likelihood = likelihood or common_likelihood((methods or {}).values()) or likelihood_of(train, unpack)
    task = Task(model, train, validation, likelihood, output, unpack)
    if methods is None:
        methods = methods_for(task, budgeted=budget_seconds is not None)
    check_reference(reference, [*(BASELINES if validation is not None else BASELINES[:1]), *methods])
    for name, method in methods.items():
        if isinstance(method, Tuned) and method.method == "validation":
            task.held_out(f"methods[{name!r}], which is tuned by them")
    limits = Limits(budget_seconds, max_bytes)
    ways: dict[str, Method | None] = {"default": None, **(tunings or {})}
    if validation is not None:
        ways["validation"] = Validation(validation, unpack=unpack, link=link)
    journal = None if out is None else Journal(file_at(out))
    if journal is not None:
        journal.read()  # refuses a file of something else before anything runs
    with working("compare", progress):
        data = f"{digest_of(unwrapped(model)):08x}"
        scored_by = ""
        if journal is not None:
            others = {f"shift {name}": source for name, source in shifts.items()}
            if validation is not None:
                others["validation"] = validation
            choices = (likelihood, output, link, draws)
            data = fingerprint(model, train, test, unpack)
            scored_by = scoring_fingerprint(others, ood, choices, unpack)
        if likelihood.noise_precision is not None:
            likelihood = task.network.calibrated(train, unpack=unpack).likelihood
            task = replace(task, likelihood=likelihood)
        about = {} if journal is None else circumstances(task.device)
        scoring = Scoring(test, ood, shifts, draws, unpack, link, None, data)
        plan = Plan(task, scoring, methods, ways, limits, Ledger(journal, data, 0, limits, about, scored_by))
        rows, failures = plan.run(chosen_seeds, generator)
    compared = joined_rows(rows)
    own = [row for row in compared if row.method not in BASELINES]
    if failures and not any(row.runs for row in own):
        raise failures[-1]
    warn_of_order(compared)
    return Comparison(compared, columns_with(shifts), reference_of(compared, reference))


BASELINES = ("plain network", "temperature scaling")
"""Rows there are whatever the methods."""


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """What is done with every seed.

    Args:
        task: The network and its data.
        scoring: What methods are scored on.
        methods: By name.
        ways: How recipes are tuned, by name.
        limits: What each method may take.
        ledger: The rows that are finished.
    """

    task: Task
    scoring: Scoring
    methods: Mapping[str, Contender]
    ways: Mapping[str, Method | None]
    limits: Limits
    ledger: Ledger

    @property
    def steps(self) -> int:
        """Calls that are timed in one run."""
        calls: Mapping[type, int] = {Laplace: 1 + 2 * len(self.ways), GP: 3, Tuned: 3}
        plain = 1 + 2 * (self.task.validation is not None)
        return plain + sum(calls.get(type(each), 2) for each in self.methods.values())

    def run(self, seeds: Sequence[int], generator: torch.Generator | None) -> tuple[list[Row], list[Exception]]:
        """The rows of all seeds, and what stopped the methods that could not run.

        Args:
            seeds: The seeds.
            generator: Source of randomness for all; ``None`` for one of each seed.
        """
        rows = list[Row]()
        failures = list[Exception]()
        given_up = dict[tuple[str, str], TooSlowError]()
        with Bar("comparing", len(seeds) * self.steps, alike=False) as bar:
            for seed in seeds:
                scoring = replace(self.scoring, run=f"{self.scoring.run}:{seed}")
                task = replace(self.task, seed=seed)
                ledger = replace(self.ledger, seed=seed)
                root = seed if generator is None else probes.seed_from(generator)
                bench = Bench(task, scoring, self.limits, bar, ledger, failures, given_up, root)
                if not self._run_once(bench, rows):
                    break
        return rows, failures

    def _run_once(self, bench: Bench, rows: list[Row]) -> bool:
        """Add the rows of one seed; whether nobody interrupted."""
        network = bench.task.network
        before = len(rows)
        try:
            rows.append(bench.plain(network))
            if bench.task.validation is not None:
                rows.append(bench.calibrated(network, bench.task.validation))
            for name, method in self.methods.items():
                for row in bench.rows(name, method, self.ways):
                    rows.append(row)
        except KeyboardInterrupt:
            if not rows:
                raise
            if before:
                del rows[before:]
            compared = {row.method for row in rows[before:]}
            left = [name for name in self.methods if name not in compared]
            rows.extend(Row(name, "", (), "interrupted") for name in left)
            where = (
                f"in the run of seed {bench.task.seed}" if before else f"before {', '.join(left) or 'the last tuning'}"
            )
            warn(f"interrupted {where}: the rest is compared", ConvergenceWarning)
            return False
        return True


def read_comparison(out: str | PathLike[str], reference: str | tuple[str, str] | None = None) -> Comparison:
    """The rows of a file that ``compare`` wrote, those of one method over all networks, data and seeds as one.

    Args:
        out: The file.
        reference: As for ``compare``.

    Raises:
        DataError: If there is no such file, it has no rows, or it is one of something else.
        ConfigError: If there is no such reference.
    """
    path = file_at(out)
    lines = Journal(path).read()
    if not lines:
        raise DataError("a file of rows that compare wrote", f"no rows in '{path}'", "compare(..., out=) first")
    rows = joined_rows(rows_of(lines, f"'{path}'"))
    names = dict.fromkeys(name for row in rows for run in row.runs for name in run)
    shifts = [name.partition(":")[2] for name in names if name.startswith("nll:")]
    return Comparison(rows, columns_with(shifts), reference_of(rows, reference))


def methods_for(task: Task, *, budgeted: bool) -> dict[str, Contender]:
    """The methods of a task where nobody says which; see ``default_methods``."""
    module = unwrapped(task.model)
    data = Data(task.train, like_of(task.model), task.unpack)
    first = next(iter(data))
    outputs = task.network.predict(first.inputs).location[0].numel()
    weights = sum(value.numel() for value in module.parameters())
    return default_methods(
        task.likelihood,
        weights,
        data.about(len(first)),
        outputs,
        budgeted=budgeted,
        held_out=task.validation is not None,
    )


def listed_seeds(seeds: int | Sequence[int]) -> list[int]:
    """The seeds asked for.

    Raises:
        ConfigError: If there is none, or one is no whole number.

    Example:
        >>> listed_seeds(3), listed_seeds([7])
        ([0, 1, 2], [7])
    """
    if isinstance(seeds, int):
        check_count("seeds", seeds, usual=5)
        return list(range(seeds))
    if not isinstance(seeds, Iterable) or not list(seeds):
        raise ConfigError("seeds= to be a number or a list of seeds", f"{seeds!r:.40}", "seeds=5")
    for seed in seeds:
        check_count("a seed", seed, 0)
    return list(seeds)


def reference_of(rows: Sequence[Row], asked: str | tuple[str, str] | None) -> tuple[str, str] | None:
    """The row from which others differ: the one asked for, else temperature scaling where it ran, else the network.

    Raises:
        ConfigError: If there is none of that name.
    """
    if asked is None:
        ran = [row for row in rows if row.runs]
        found = [row for name in ("temperature scaling", "plain network") for row in ran if row.method == name]
    else:
        method, tuned_by = (asked, None) if isinstance(asked, str) else asked
        found = [row for row in rows if row.method == method and tuned_by in (None, row.tuned_by)]
    if found:
        return found[0].method, found[0].tuned_by
    if asked is None:
        return None
    names = ", ".join(repr(row.method) for row in rows)
    raise ConfigError("reference= to name one of the rows", f"{asked!r}", names)


def check_reference(asked: str | tuple[str, str] | None, names: Sequence[str]) -> None:
    """Refuses, before anything runs, a reference that none of the rows will have.

    Args:
        asked: The name of its method, or that and what tuned it; ``None`` for none asked for.
        names: Of the methods.

    Raises:
        ConfigError: Naming the methods.
    """
    method = asked if asked is None or isinstance(asked, str) else asked[0]
    if method is not None and method not in names:
        raise ConfigError("reference= to name one of the rows", f"{asked!r}", ", ".join(map(repr, names)))


def warn_of_order(rows: Iterable[Row]) -> None:
    """Say so where rows of one run saw the test data in another order: they cannot be compared in pairs."""
    orders = dict[str, set[int]]()
    for row in rows:
        for each in row.examples:
            orders.setdefault(each.run, set()).add(each.targets)
    if any(len(found) > 1 for found in orders.values()):
        warn(
            "the test data came in another order at another reading, so that methods are not compared on the same "
            "examples. Try a loader with shuffle=False",
            DataWarning,
        )


def likelihood_of(train: Source, unpack: Unpack | None = None) -> Likelihood:
    """Categorical for integer targets, one label a position; Gaussian for real ones.

    Labels of pixels are taken to belong to logits ``[n, c, h, w]``, as ``torch.nn.CrossEntropyLoss`` has them, those of
    tokens to logits ``[n, t, c]``.

    Args:
        train: The training data, of which the first batch is read.
        unpack: Splits one element of a loader into inputs and targets.

    Raises:
        DataError: If the data can be read only once, or are empty.

    Warns:
        DataWarning: If real targets are all 0 or 1: they are taken as real, and may be meant as labels.
    """
    check_rereadable(train)
    targets = next(iter(Data(train, unpack=unpack))).targets
    if not targets.is_floating_point():
        event_dim = max(targets.ndim - 1, 0)
        return Categorical(event_dim=event_dim, class_dim=1 if event_dim > 1 else -1)
    if targets.unique().tolist() == [0.0, 1.0]:
        warn(
            f"targets of shape {list(targets.shape)} that are all 0 or 1 are taken as real numbers, by Gaussian(). Try "
            "likelihood=Bernoulli() if each column is a label of its own, or integer labels for Categorical()",
            DataWarning,
        )
    return Gaussian()


def check_order(name: str, data: Source | Inputs | None, unpack: Unpack | None) -> None:
    """Refuses inputs that come in another order, or otherwise, at a second reading.

    Args:
        name: Of the argument.
        data: The data, of which the first batch is read twice.
        unpack: Splits one element of a loader.

    Raises:
        DataError: If they do.
    """
    if data is None:
        return
    first, again = (examples(next(iter(inputs_of(data, unpack)))) for _ in range(2))
    if first != again:
        expected = f"{name}= whose inputs are the same, in the same order, at every reading: scores are of pairs"
        raise DataError(expected, "other ones at a second reading", "shuffle=False, and no random augmentation")


def check_rereadable(data: Source | None) -> None:
    """Refuses an iterator, which is spent after one reading.

    Raises:
        DataError: If it is one.
    """
    if isinstance(data, Iterator):
        raise DataError(
            "data that can be read again and again", f"a {type(data).__name__}", "list(data), or its loader"
        )
