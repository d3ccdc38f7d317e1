"""The one call that fits, tunes, scores and times every method, and what it takes when nobody says what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from lapwing.comparison.bench import Bench, Contender
from lapwing.comparison.table import Comparison, Row
from lapwing.evaluation.baselines import PlainNetwork
from lapwing.evaluation.evaluate import Predictor
from lapwing.gp import GP
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.errors import ConfigError, ConvergenceWarning, DataError, DataWarning, check_kind, warn
from lapwing.ground.progress import Bar, working
from lapwing.jacobian.network.output import Output
from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.methods.hessian_free import HessianFree
from lapwing.methods.laplace import Laplace
from lapwing.predictive import Link
from lapwing.structures import AFFORDABLE, KFAC, Diagonal, Full
from lapwing.structures.selection import LastLayer
from lapwing.tuning import Method, Validation


def compare(
    model: nn.Module,
    train: Source,
    test: Source,
    *,
    methods: Mapping[str, Contender] | None = None,
    tunings: Mapping[str, Method] | None = None,
    ood: Source | Inputs | None = None,
    validation: Source | None = None,
    likelihood: Likelihood | None = None,
    output: Output = None,
    unpack: Unpack | None = None,
    link: Link | None = None,
    progress: bool | None = None,
    generator: torch.Generator | None = None,
) -> Comparison:
    """Every method side by side: the plain network, its calibrated self, and posteriors, each tuned and scored.

    Each ``Laplace`` recipe is fitted once, then tuned as ``tune`` does when nobody says how and, given validation
    data, by their NLL: a row each, with the criterion that was tuned. A ``HessianFree`` recipe, fitted at the inputs
    where it is scored, has one row; so has a ``GP`` recipe, fitted to the same data and tuned by its evidence, and a
    predictor such as ``PlainNetwork(other_model)`` or a Gaussian process, scored as it is. With
    validation data the plain network has a second row too: temperature scaling, or for real targets the noise of the
    validation residuals. The scores are those of ``evaluate``.

    Args:
        model: The trained network; left exactly as it is.
        train: The data it was trained on: a loader that can be read again and again, or a pair of tensors.
        test: Held-out data to score on.
        methods: Recipes and predictors by name; ``None`` takes last layer, diagonal, KFAC, and full where it fits.
        tunings: Further ways to tune, by name.
        ood: Data from elsewhere, to be told apart; their targets are ignored.
        validation: Held-out data to tune on; not the test data.
        likelihood: p(y | f); ``None`` takes that of the methods or, without methods, Categorical for integer targets
            and Gaussian for real ones.
        output: Which part of what the network returns is the output that the likelihood speaks of: a key, an index or a
            function of it. ``None`` where it returns one tensor, or something with ``logits``.
        unpack: Splits one element of a loader into inputs and targets.
        link: How posteriors average over the uncertainty of the logits; ``None`` for each one's own.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        generator: Source of randomness, for recipes and links that need it.

    Returns:
        A ``Comparison``: print it, or see its ``rows``. A method that cannot run, for whatever reason, has a ``note``
        in place of numbers.

    Raises:
        ConfigError: If a method is no recipe and no predictor, or their likelihoods are of several kinds.
        DataError: If some data can be read only once.
        LapwingError: If the plain network cannot be scored. If no method can run, the error of the last.

    Warns:
        ConvergenceWarning: If it was interrupted; the methods that were done by then are compared.
        DataWarning: If nobody says what the likelihood is and real targets are all 0 or 1.

    Cost:
        A fit a recipe; about two predictions of the validation data, what the default tuning costs, and two predictions
        of the test data, a recipe.

    Example:
        >>> x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        >>> result = compare(model, (x[:40], y[:40]), (x[40:], y[40:]))
        >>> [row.method for row in result.rows]
        ['plain network', 'last layer', 'diagonal', 'KFAC', 'full']
        >>> posterior = result.row("KFAC", "default").predictor
    """
    for source in (train, test, ood, validation):
        check_rereadable(source)
    device = next(model.parameters(), torch.zeros(())).device
    for name, method in (methods or {}).items():
        kinds = (Laplace, HessianFree, GP, Predictor)
        check_kind(f"methods[{name!r}]", method, kinds, "Laplace(likelihood), or PlainNetwork(model)")
    likelihood = likelihood or common_likelihood((methods or {}).values()) or likelihood_of(train, unpack)
    chosen: Mapping[str, Contender] = recipes(likelihood) if methods is None else methods
    ways: dict[str, Method | None] = {"default": None, **(tunings or {})}
    if validation is not None:
        ways["validation"] = Validation(validation, unpack=unpack, link=link)
    steps = 1 + 2 * (validation is not None)
    calls: Mapping[type, int] = {Laplace: 1 + 2 * len(ways), GP: 3}
    steps += sum(calls.get(type(each), 2) for each in chosen.values())
    with working("compare", progress), Bar("comparing", steps, alike=False) as bar:
        bench = Bench(train, test, ood, output, unpack, link, device, generator, bar)
        network = PlainNetwork(model, likelihood, output=output)
        if likelihood.noise_precision is not None:
            network = network.calibrated(train, unpack=unpack)
        rows = [bench.plain("plain network", network)]
        if validation is not None:
            rows.append(bench.calibrated(network, validation))
        contenders: list[Row] = []
        try:
            for name, method in chosen.items():
                for row in bench.rows(name, method, model, ways):
                    contenders.append(row)
        except KeyboardInterrupt:
            compared = {row.method for row in contenders}
            left = [name for name in chosen if name not in compared]
            contenders.extend(Row(name, "", (), "interrupted") for name in left)
            warn(f"interrupted before {', '.join(left) or 'the last tuning'}: the rest is compared", ConvergenceWarning)
    if bench.failures and not any(row.runs for row in contenders):
        raise bench.failures[-1]
    return Comparison(tuple(rows + contenders))


def recipes(likelihood: Likelihood) -> dict[str, Laplace]:
    """The posteriors a comparison fits by default: last layer, diagonal, KFAC, and full where ``Auto`` would afford it.

    Args:
        likelihood: p(y | f).
    """
    return {
        "last layer": Laplace(likelihood, weights=LastLayer()),
        "diagonal": Laplace(likelihood, structure=Diagonal()),
        "KFAC": Laplace(likelihood, structure=KFAC()),
        "full": Laplace(likelihood, structure=Full(max_flops=AFFORDABLE)),
    }


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


def common_likelihood(methods: Iterable[Contender]) -> Likelihood | None:
    """The likelihood of the methods, by which the plain network is scored too; ``None`` without methods.

    Raises:
        ConfigError: If they have likelihoods of several kinds.
    """
    found = [likelihood for method in methods if (likelihood := method.likelihood) is not None]
    kinds = sorted({type(likelihood).__name__ for likelihood in found})
    if len(kinds) > 1:
        raise ConfigError("methods with one kind of likelihood", ", ".join(kinds), f"likelihood={kinds[0]}()")
    return next(iter(found), None)


def check_rereadable(data: Source | None) -> None:
    """Refuses an iterator, which is spent after one reading.

    Raises:
        DataError: If it is one.
    """
    if isinstance(data, Iterator):
        raise DataError(
            "data that can be read again and again", f"a {type(data).__name__}", "list(data), or its loader"
        )
