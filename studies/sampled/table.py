"""Evidence at the mode of the linear model and at the trained weights, on small networks (Antorán 2024, table 5.1).

Each network has one posterior with the whole covariance, and four choices of its prior: a single precision or one for
each layer, of largest evidence at the trained weights (``EvidenceGradient``) or at the mode of the tangent model
(``EM``). Beside them the network alone, and with a temperature chosen on held-out images. All are scored on the same
test images by ``lw.compare``; differences are from temperature scaling, image by image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from torch import nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.report import Row
from lapwing import comparison
from lapwing.comparison import Tuned
from lapwing.posteriors import Posterior
from lapwing.tuning import Method
from studies.compared import compared
from studies.published import beside_published
from studies.sampled.networks import KINDS
from studies.sampled.setting import SOURCE, START, Images, quietly, recipe, trained

STEPS = 10
"""Of expectation maximisation: with a precision for each layer it need not end."""

PRIORS: Mapping[str, lw.Prior] = {"single": lw.Isotropic(START), "layerwise": lw.Layerwise(START)}
WHERE: Mapping[str, Method] = {"mode": lw.EM(steps=STEPS), "weights": lw.EvidenceGradient()}
CHOICES = {f"evidence at the {where}, {prior}": (where, prior) for where, prior in product(WHERE, PRIORS)}
"""Where the evidence is, and the prior whose precisions it chooses, by the name of the method."""

PUBLISHED: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("mode", "single"): (0.162, 0.025, 0.017, 0.017, 0.055),
    ("mode", "layerwise"): (0.162, 0.025, 0.016, 0.016, 0.061),
    ("weights", "single"): (0.310, 0.253, 0.252, 0.220, 0.153),
    ("weights", "layerwise"): (0.162, 0.205, 0.236, 0.239, 0.200),
}
"""Test NLL of table 5.1, on MNIST, in the order of ``KINDS``."""

COLUMNS = ("nll", "difference", "accuracy", "ece", "precision")


def rows(setting: Setting) -> Iterator[Row]:
    """Every choice of the prior on every network and seed."""
    for name in setting.among(KINDS):
        kind = KINDS[name]
        for seed in setting.repeats:
            images = Images.drawn(kind, seed, setting)
            model = trained(kind, images, seed, setting)
            methods = posteriors(model, ("single",) if setting.quick else tuple(PRIORS))
            with quietly():
                found = compared(
                    model,
                    images.train,
                    images.test,
                    validation=images.held_out,
                    methods=methods,
                    seed=seed,
                    facts=precisions,
                )
            yield from ({"part": name, "seed": seed} | row for row in found)


def posteriors(model: nn.Module, priors: Sequence[str]) -> dict[str, Tuned]:
    """The posterior with the whole covariance, under every choice of some priors."""
    return {
        name: Tuned(recipe(model, PRIORS[prior], structure=lw.Full(view="weights")), WHERE[where], link="probit")
        for name, (where, prior) in CHOICES.items()
        if prior in priors
    }


def precisions(row: comparison.Row) -> Row:
    """The prior precisions that were chosen, and their geometric mean; nothing of the network without a posterior."""
    if not isinstance(row.predictor, Posterior):
        return {}
    found = row.predictor.prior_precisions
    return {
        "weights": row.predictor.network.size,
        "precision": float(found.log().mean().exp()),
        "precisions": found.tolist(),
    }


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Means over the seeds beside the source's table."""
    for row in found:
        printed = published(row)
        if row.get("summary") and printed is not None:
            quantity = f"{row['part']}: test NLL, {row['method']}"
            yield beside_published(quantity, row["nll"], printed, f"{SOURCE}, table 5.1")


def published(row: Row) -> float | None:
    """The test NLL that the source has for a network and a choice of the prior; ``None`` where it has none."""
    choice = CHOICES.get(row["method"])
    return None if choice is None else PUBLISHED[choice][list(KINDS).index(row["part"])]
