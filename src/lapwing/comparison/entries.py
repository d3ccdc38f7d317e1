"""What can be compared, and what is where nobody says what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from lapwing.baselines import VectorScaling
from lapwing.evaluation.evaluate import Predictor
from lapwing.evaluation.task import Entry, Task
from lapwing.gp import GP
from lapwing.ground.errors import ConfigError, check_kind
from lapwing.likelihoods import Likelihood
from lapwing.methods.hessian_free import HessianFree
from lapwing.methods.laplace import Laplace
from lapwing.predictive import Link
from lapwing.structures import AFFORDABLE, KFAC, Diagonal, Full, Nystrom, Sampled, Structure
from lapwing.structures.full import flops
from lapwing.structures.selection import LastLayer, Subnetwork
from lapwing.tuning import Method, Validation

TunedBy: TypeAlias = Method | Literal["default", "validation"]
"""A way to tune: an object, or that of ``tune``, or by the validation data of the comparison."""


@final
@dataclass(frozen=True, eq=False)
class Tuned:
    """A recipe with its own way to tune it and its own link; it has one row.

    Args:
        recipe: The recipe.
        method: What chooses prior and noise; ``"default"`` for what ``tune`` does when nobody says how,
            ``"validation"`` for the validation data of the comparison.
        link: How it averages over the uncertainty of the logits; ``None`` for what tuning chooses.

    Example:
        >>> import lapwing as lw
        >>> Tuned(lw.Laplace(lw.Categorical()), lw.EvidenceGradient(), link="probit").word
        'EvidenceGradient'
    """

    recipe: Laplace | GP
    method: TunedBy = "default"
    link: Link | None = None

    def __post_init__(self) -> None:
        check_kind("the recipe", self.recipe, (Laplace, GP), "Laplace(likelihood)")
        if self.method not in ("default", "validation"):
            check_kind("method=", self.method, (Method,), "'default', 'validation', or EvidenceGradient()")

    @property
    def word(self) -> str:
        """How the table names what tuned it."""
        if isinstance(self.method, str):
            return self.method
        return "validation" if isinstance(self.method, Validation) else type(self.method).__name__

    @property
    def likelihood(self) -> Likelihood | None:
        """p(y | f)."""
        return self.recipe.likelihood


Contender: TypeAlias = Laplace | HessianFree | GP | Tuned | Predictor | Entry | Callable[[Task], Predictor]
"""What can be compared: a recipe, which is fitted and tuned; a tuned one; a predictor as it is; what makes one."""


def check_contender(name: str, method: object) -> None:
    """Refuses what cannot be compared.

    Raises:
        ConfigError: Naming what can.
    """
    known = (Laplace, HessianFree, GP, Tuned, Predictor)
    made = (callable(method) or isinstance(method, Entry)) and not isinstance(method, type | Structure)
    if not made:
        check_kind(f"methods[{name!r}]", method, known, "Laplace(likelihood), or PlainNetwork(model)")


def common_likelihood(methods: Iterable[Contender]) -> Likelihood | None:
    """The likelihood of the methods, by which the plain network is scored too; ``None`` where none has one.

    Raises:
        ConfigError: If they have likelihoods of several kinds.
    """
    found = [likelihood for method in methods if (likelihood := getattr(method, "likelihood", None)) is not None]
    kinds = sorted({type(likelihood).__name__ for likelihood in found})
    if len(kinds) > 1:
        raise ConfigError("methods with one kind of likelihood", ", ".join(kinds), f"likelihood={kinds[0]}()")
    return next(iter(found), None)


def recipes(likelihood: Likelihood) -> dict[str, Laplace]:
    """The posteriors that every comparison fits by default: last layer, diagonal, KFAC, and full where ``Auto`` would.

    Args:
        likelihood: p(y | f).
    """
    return {
        "last layer": Laplace(likelihood, weights=LastLayer()),
        "diagonal": Laplace(likelihood, structure=Diagonal()),
        "KFAC": Laplace(likelihood, structure=KFAC()),
        "full": Laplace(likelihood, structure=Full(max_flops=AFFORDABLE)),
    }


LARGE = 5e7
"""Weights times examples from which a method that solves, or has a pass a landmark, is tried only within a budget."""

SUBNETWORK = 500
"""Weights of the subnetwork."""

DRAWS = 64
"""Draws of the weights."""

LANDMARKS = 500
"""Landmarks of the Nyström features, at most."""


def default_methods(
    likelihood: Likelihood,
    weights: int,
    examples: int,
    outputs: int,
    *,
    budgeted: bool = False,
    held_out: bool = False,
) -> dict[str, Contender]:
    """What a comparison fits where nobody says which, by the size of the network and its data.

    Structured vector scaling, of classes with held-out data, and the posteriors of ``recipes``. Where the full
    covariance takes too long, also Nyström features (ELLA), draws of it, and that of a subnetwork; of large networks
    only where the seconds of each are bounded.

    Args:
        likelihood: p(y | f).
        weights: Of the network.
        examples: To train on.
        outputs: Of each.
        budgeted: Whether a method that takes too long is stopped.
        held_out: Whether there are validation data.

    Example:
        >>> import lapwing as lw
        >>> list(default_methods(lw.Categorical(), weights=5000, examples=1000, outputs=3))
        ['last layer', 'diagonal', 'KFAC', 'full', 'Nyström', '64 draws', 'subnetwork of 500']
    """
    found: dict[str, Contender] = {}
    if held_out and likelihood.classes:
        found["vector scaling"] = VectorScaling()
    found |= recipes(likelihood)
    targets = examples * outputs
    in_full = min(flops(weights, targets), flops(targets, weights)) <= AFFORDABLE
    if in_full or (weights * examples > LARGE and not budgeted):
        return found
    landmarks = min(LANDMARKS, targets)
    return found | {
        "Nyström": Laplace(likelihood, structure=Nystrom(min(20, landmarks), landmarks)),
        f"{DRAWS} draws": Laplace(likelihood, structure=Sampled(DRAWS)),
        f"subnetwork of {SUBNETWORK}": Laplace(
            likelihood, structure=Full(view="weights"), weights=Subnetwork(min(SUBNETWORK, weights))
        ),
    }
