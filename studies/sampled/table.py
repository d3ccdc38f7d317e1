"""Evidence at the mode of the linear model and at the trained weights, on small networks (Antorán 2024, table 5.1).

Each network has one posterior with the whole covariance, and four choices of its prior: a single precision or one for
each layer, of largest evidence at the trained weights (``EvidenceGradient``) or at the mode of the tangent model
(``EM``). Beside them the network alone, and with a temperature chosen on held-out images. All are scored on the same
test images; differences are from temperature scaling, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.report import Row
from benchmarks.tasks import probabilities, scored
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.posteriors import Posterior
from lapwing.tuning import Method
from studies.published import beside_published
from studies.sampled.networks import KINDS
from studies.sampled.setting import SOURCE, START, Images, exact, quietly, trained

STEPS = 10
"""Of expectation maximisation: with a precision for each layer it need not end."""

PRIORS: Mapping[str, lw.Prior] = {"single": lw.Isotropic(START), "layerwise": lw.Layerwise(START)}
WHERE: Mapping[str, Method] = {"mode": lw.EM(steps=STEPS), "weights": lw.EvidenceGradient()}
PUBLISHED: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("mode", "single"): (0.162, 0.025, 0.017, 0.017, 0.055),
    ("mode", "layerwise"): (0.162, 0.025, 0.016, 0.016, 0.061),
    ("weights", "single"): (0.310, 0.253, 0.252, 0.220, 0.153),
    ("weights", "layerwise"): (0.162, 0.205, 0.236, 0.239, 0.200),
}
"""Test NLL of table 5.1, on MNIST, in the order of ``KINDS``."""

ALONE = "network alone"
SCALED = "temperature scaling"
COLUMNS = ("nll", "difference", "accuracy", "ece", "precision")


def rows(setting: Setting) -> Iterator[Row]:
    """Every choice of the prior on every network and seed."""
    for name in setting.among(KINDS):
        kind = KINDS[name]
        for seed in setting.repeats:
            images = Images.drawn(kind, seed, setting)
            model = trained(kind, images, seed, setting)
            priors = ("single",) if setting.quick else tuple(PRIORS)
            for found in of_network(model, images, priors):
                yield {"part": name, "seed": seed} | found


def of_network(model: nn.Module, images: Images, priors: Sequence[str]) -> Iterator[Row]:
    """The network of a seed alone, with a temperature, and with the posterior of each of some priors."""
    x, labels = images.test
    plain = PlainNetwork(model, lw.Categorical())
    calibrated = probabilities(plain.calibrated(images.held_out), x)
    base = scored(calibrated, labels, "nll")["nll"]
    yield {"method": ALONE} | scores(probabilities(plain, x), labels, base)
    yield {"method": SCALED} | scores(calibrated, labels, base)
    posterior = exact(model, images.train)
    for where, prior in product(WHERE, priors):
        tuned = chosen(posterior, PRIORS[prior], WHERE[where])
        row: Row = {"method": f"evidence at the {where}, {prior}", "where": where, "prior": prior}
        row |= {"weights": posterior.network.size, "precision": float(tuned.prior_precisions.log().mean().exp())}
        yield (
            row
            | {"precisions": tuned.prior_precisions.tolist()}
            | scores(probabilities(tuned, x, link="probit"), labels, base)
        )


def chosen(posterior: Posterior, prior: lw.Prior, method: Method) -> Posterior:
    """The posterior under another prior, whose precisions a method chooses."""
    with quietly():
        return lw.tune(posterior.with_hyperparameters(prior, posterior.likelihood), method)


def scores(probs: Tensor, labels: Tensor, base: float) -> Row:
    """Scores on the test images, and how far the NLL is from that of temperature scaling."""
    found = scored(probs, labels, "nll", "accuracy", "ece")
    return found | {"difference": found["nll"] - base}


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Means over the seeds beside the source's table."""
    for row in found:
        printed = published(row)
        if row.get("summary") and printed is not None:
            quantity = f"{row['part']}: test NLL, {row['method']}"
            yield beside_published(quantity, row["nll"], printed, f"{SOURCE}, table 5.1")


def published(row: Row) -> float | None:
    """The test NLL that the source has for a network and a choice of the prior; ``None`` where it has none."""
    if "where" not in row:
        return None
    return PUBLISHED[row["where"], row["prior"]][list(KINDS).index(row["part"])]
