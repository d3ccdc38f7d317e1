"""How near 64 draws, Kronecker factors and the diagonal come to the exact posterior (Antorán 2024, section 6.3.1).

All have the prior that five steps of expectation maximisation with the exact posterior find, a precision a layer.
Distances are means over the test images: the symmetric Kullback-Leibler divergence of the probabilities by the probit
link, ``½ (KL(p, q) + KL(q, p))``, and the 2-Wasserstein distance of the Gaussian logits. Three sizes of a CNN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.report import Row
from lapwing.metrics import gaussian_wasserstein, symmetric_kl
from lapwing.posteriors import Posterior
from lapwing.predictive import Moments
from studies.sampled.evidence import SIZES
from studies.sampled.networks import Kind, cnn
from studies.sampled.setting import Images, exact, fitted, quietly, trained

SAMPLES = 64
STEPS = 5
TESTED = 200
METHODS: Mapping[str, Mapping[str, Any]] = {
    f"{SAMPLES} draws": {"structure": lw.Sampled(SAMPLES)},
    "KFAC": {"structure": lw.KFAC()},
    "diagonal": {"structure": lw.Diagonal()},
}
ALONE = "network alone"
COLUMNS = ("divergence", "wasserstein")


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every size and seed."""
    for name in setting.among(SIZES, ("small",) if setting.quick else ()):
        kind = Kind(partial(cnn, SIZES[name]))
        for seed in setting.repeats:
            images = Images.drawn(kind, seed, setting)
            model = trained(kind, images, seed, setting)
            for found in compared(model, images):
                yield {"part": name, "seed": seed} | found


def compared(model: nn.Module, images: Images) -> Iterator[Row]:
    """The distances of every method on the network of a seed."""
    x = images.test[0][:TESTED]
    with quietly():
        reference = lw.tune(with_prior(exact(model, images.train), lw.Layerwise(1.0)), lw.EM(steps=STEPS))
    outputs, probs = predicted(reference, x)
    certain = Moments.certain(outputs.mean)
    alone = distances(certain, certain.mean.softmax(-1), outputs, probs)
    common: Row = {"weights": reference.network.size}
    yield {"method": ALONE} | common | alone
    for name, choices in METHODS.items():
        posterior = fitted(model, images.train, reference.prior, **choices)
        yield {"method": name} | common | distances(*predicted(posterior, x), outputs, probs)


def with_prior(posterior: Posterior, prior: lw.Prior) -> Posterior:
    """The posterior under another prior, its curvature kept."""
    return posterior.with_hyperparameters(prior, posterior.likelihood)


def predicted(posterior: Posterior, x: Tensor) -> tuple[Any, Tensor]:
    """Logits and probabilities."""
    found: Any = posterior.predict(x, link="probit")
    return found.logits, found.probs


def distances(outputs: Any, probs: Tensor, exact_outputs: Any, exact_probs: Tensor) -> Row:
    """Means over the examples of both distances."""
    return {
        "divergence": float(symmetric_kl(probs, exact_probs).mean()),
        "wasserstein": float(gaussian_wasserstein(outputs, exact_outputs).mean()),
    }
