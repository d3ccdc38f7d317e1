"""On a device without float64 everything is computed: fits, tuning, predictions, processes, images.

The device is imitated on the CPU (``tests/without_double.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.cli.imaging import ImagingEffort, imaged
from lapwing.ct import (
    Design,
    Parallel2d,
    Projector,
    equidistant,
    filtered_back_projection,
    log_density,
    noise_level,
    tv_reconstruction,
    walnut,
)
from lapwing.predictive.links import Link
from lapwing.structures import Structure
from tests.posterior_cases import labels, mlp, normal, problem
from tests.without_double import without_double

CPU = torch.device("cpu")

X, NEW = normal(12, 3).float(), normal(5, 3, seed=1).float()
THREE = labels(12, classes=3)
REAL = torch.stack([X[:, 0].sin(), X.prod(1)], 1) + 0.1 * normal(12, 2, seed=2).float()

STRUCTURES: dict[str, Structure] = {
    "full over weights": lw.Full(view="weights"),
    "full over functions": lw.Full(view="functions"),
    "diagonal": lw.Diagonal(),
    "KFAC": lw.KFAC(),
    "KFAC of leading eigenpairs": lw.KFAC(rank=2),
    "low rank": lw.LowRank(6),
    "Nyström": lw.Nystrom(8, samples=36),
    "sampled": lw.Sampled(6),
    "matrix-free": lw.MatrixFree(),
    "auto": lw.Auto(),
}

EXACT = ("full over weights", "full over functions", "diagonal", "low rank", "Nyström")
"""Structures that take precisions of single weights, and whose evidence is exact."""

LIKELIHOODS = (
    "gaussian",
    "categorical",
    "bernoulli",
    "poisson",
    "negative-binomial",
    "student-t",
    "heteroscedastic",
    "tokens",
    "pixels",
)

TUNERS = ("gradient", "gradient at the mode", "MacKay", "ELBO", "EM", "validation", "mixup")

NETWORKS = ("convolution", "last layer", "subnetwork")

PROCESSES = ("Cholesky", "CG", "classes", "Student-t")

RELATIVE = torch.linspace(0.5, 3.0, 31, dtype=torch.float64)

KNOWN = {name: problem(name) for name in LIKELIHOODS} | {"convolution": problem("images")}
"""Networks and data, of double precision, made where there is a device that has it."""

SINGLE = {outputs: mlp(outputs).float() for outputs in (2, 3)}
"""Networks by their outputs; that of three classes is sure of itself, so that data not seen want it less so."""

SINGLE[3][3].weight.data *= 3  # type: ignore[index]

WALNUT = walnut((8, 8), generator=torch.Generator().manual_seed(0)).float()


def placed(device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors on a device, of single precision."""
    return tuple(t.to(device, torch.float32) if t.is_floating_point() else t.to(device) for t in tensors)


def on(device: torch.device, model: nn.Module) -> nn.Module:
    """A network on a device, of single precision."""
    return copy.deepcopy(model).to(device, torch.float32)


def seeded() -> torch.Generator:
    """Randomness, the same at every call."""
    return torch.Generator().manual_seed(0)


def fitted(device: torch.device, structure: Structure, outputs: int = 3, **options: Any) -> Any:
    """A posterior of a network of three classes, or of two real outputs."""
    x, y = placed(device, X, THREE if outputs == 3 else REAL)
    likelihood = lw.Categorical() if outputs == 3 else lw.Gaussian(25.0)
    recipe = lw.Laplace(likelihood, structure=structure, **options)
    return recipe.fit(on(device, SINGLE[outputs]), (x, y), generator=seeded())


def known(posterior: Any, device: torch.device) -> list[Tensor]:
    """Means and variances of its outputs, from which functions can be drawn too."""
    (new,) = placed(device, NEW)
    outputs = posterior.outputs(new).marginal()
    drawn = posterior.sample_functions(new, 2, generator=seeded())
    assert bool(drawn.isfinite().all())
    return [outputs.mean, outputs.variance]


def of_structure(name: str, device: torch.device) -> list[Tensor]:
    posterior = fitted(device, STRUCTURES[name])
    before = known(posterior, device)
    held = placed(device, NEW, labels(5, classes=3))
    return [*before, *known(lw.tune(posterior, lw.Validation(held, bounds=(0.2, 5.0))), device)]


def of_prior(name: str, device: torch.device) -> list[Tensor]:
    """Precisions in groups, or relative to one another, by the evidence."""
    layout = fitted(CPU, lw.Diagonal()).network.uncertain
    found = list[Tensor]()
    for prior in (lw.Layerwise(2.0), lw.GPrior(0.7).scaled_by(RELATIVE, layout)):
        posterior = fitted(device, STRUCTURES[name], prior=prior)
        tuned = lw.tune(posterior, lw.EvidenceGradient(steps=5))
        found += [torch.tensor([posterior.log_marginal(), tuned.log_marginal(), tuned.effective_dimension()])]
        found += known(tuned, device)
    return found


def of_likelihood(name: str, device: torch.device) -> list[Tensor]:
    case = KNOWN[name]
    x, y, new = placed(device, case.x, case.y, case.new)
    posterior = lw.Laplace(case.likelihood, structure=lw.KFAC()).fit(on(device, case.model), (x, y))
    tuned = lw.tune(posterior, lw.Validation((x, y), bounds=(0.2, 5.0)))
    predicted: Any = tuned.predict(new)
    scores = lw.evaluate(tuned, (x, y))
    interval = predicted.interval(0.9) if hasattr(predicted, "interval") else ()
    return [predicted.uncertainty, *interval, torch.tensor(list(scores.values()))]


def of_link(link: Any, device: torch.device) -> list[Tensor]:
    (new,) = placed(device, NEW)
    posterior = fitted(device, lw.KFAC())
    joint = posterior.predict(new, link, joint=True, generator=seeded()).probs
    return [posterior.predict(new, link, generator=seeded()).probs, joint]


def of_tuner(name: str, device: torch.device) -> list[Tensor]:
    held = placed(device, NEW, labels(5, classes=3))
    tuners: dict[str, Any] = {
        "gradient": lw.EvidenceGradient(),
        "gradient at the mode": lw.EvidenceGradient(at="mode"),
        "MacKay": lw.MacKay(),
        "ELBO": lw.ELBO(steps=3),
        "EM": lw.EM(steps=3),
        "validation": lw.Validation(held, temperature=True, bounds=(0.2, 5.0)),
        "mixup": lw.Mixup(examples=24),
    }
    structure = lw.Sampled(6) if name == "EM" else lw.Full(view="weights")
    outputs = 2 if name in ("MacKay", "gradient at the mode") else 3
    posterior = fitted(device, structure, outputs, prior=lw.Layerwise(1.0) if name == "MacKay" else lw.Isotropic(1.0))
    return known(lw.tune(posterior, tuners[name]), device)


def of_network(name: str, device: torch.device) -> list[Tensor]:
    case = KNOWN["convolution"]
    images, y, new = placed(device, case.x, case.y, case.new)
    weights = {"convolution": lw.All(), "last layer": lw.LastLayer(), "subnetwork": lw.Subnetwork(7)}[name]
    structure = lw.Full(view="weights") if name == "subnetwork" else lw.KFAC()
    recipe = lw.Laplace(lw.Categorical(), structure=structure, weights=weights)
    predicted: Any = recipe.fit(on(device, case.model), (images, y)).predict(new)
    return [predicted.probs]


def of_process(name: str, device: torch.device) -> list[Tensor]:
    x, y, classes, new = placed(device, X, REAL, THREE, NEW)
    kernel = 1.0 * lw.gp.Matern(1.5)
    products: dict[str, Any] = {
        "solver": lw.solvers.CG(rtol=1e-6),
        "dtype": torch.float32,
        "samples": 4,
        "features": 60,
    }
    recipes: dict[str, Any] = {
        "Cholesky": lw.GP(kernel, lw.Gaussian(50.0)),
        "CG": lw.GP(kernel, lw.Gaussian(50.0), **products),
        "classes": lw.GP(1.0 * lw.gp.RBF(1.2), lw.Categorical()),
        "Student-t": lw.GP(1.0 * lw.gp.RBF(1.2), lw.StudentT(3.0, 0.2)),
    }
    targets = {"classes": classes, "Student-t": y[:, :1]}
    process: Any = recipes[name].fit((x, targets.get(name, y)))
    evidence: Any = lw.gp.Evidence(steps=3)
    tuned = process if name == "CG" else lw.tune(process, evidence)
    outputs = tuned.outputs(new).marginal()
    drawn = tuned.sample_functions(new, 2, generator=seeded())
    assert bool(drawn.isfinite().all())
    return [outputs.mean, outputs.variance]


def of_refits(device: torch.device) -> list[Tensor]:
    x, y, new = placed(device, X, REAL, NEW)
    recipe = lw.HessianFree(lw.Gaussian(2.0), prior=lw.Isotropic(50.0), fits=lw.hessian_free.Probed(3, 2))
    posterior = recipe.fit(on(device, SINGLE[2]), (x, y), new)
    return [posterior.outputs(new).marginal().variance]


def of_training(device: torch.device) -> list[Tensor]:
    x, y = placed(device, X, THREE)
    trained = lw.train_marginal(on(device, SINGLE[3]), (x, y), lw.Categorical(), epochs=2)
    return [torch.tensor(trained.history[-1].total)]


def of_image(device: torch.device) -> list[Tensor]:
    """The steps of ``lapwing ct demo``."""
    whole = Projector(Parallel2d((8, 8), equidistant(4), detector=8), device=device)
    operator = whole.select([0, 2])
    (truth,) = placed(device, WALNUT)
    y = operator.push(truth.flatten())
    y = y + 0.05 * y.mean() * normal(*y.shape, seed=3).to(y)
    std = float(0.05 * y.mean())
    assert noise_level(y, operator.geometry).value > 0
    images = [
        filtered_back_projection(y, operator.geometry),
        tv_reconstruction(y, operator, 3.0, precision=std**-2).value,
    ]
    effort = ImagingEffort(channels=4, steps=10, samples=4, draws=8)
    _, posterior = imaged(operator, y, std, effort, generator=seeded(), progress=False)
    design = Design.after(posterior, whole, 4, [0, 2], samples=8, generator=seeded())
    assert len(design.propose(1)) == 1
    assert log_density(posterior.mean, posterior.deviations, truth, size=2) < 100
    return [*images, posterior.std]


Work = Callable[[torch.device], list[Tensor]]


def each(kind: str, names: Iterable[str], work: Callable[[str, torch.device], list[Tensor]]) -> dict[str, Work]:
    """A case of each name."""
    return {f"{kind} {name}": partial(work, name) for name in names}


CASES: dict[str, Work] = {
    **each("structure", STRUCTURES, of_structure),
    **each("prior", EXACT, of_prior),
    **each("likelihood", LIKELIHOODS, of_likelihood),
    **each("link", get_args(Link), of_link),
    **each("tuner", TUNERS, of_tuner),
    **each("network", NETWORKS, of_network),
    **each("process", PROCESSES, of_process),
    "refits": of_refits,
    "training": of_training,
    "image": of_image,
}


@pytest.mark.parametrize("name", CASES)
def test_a_device_without_double_gives_the_answers_of_one_that_has_it(name: str) -> None:
    expected = CASES[name](CPU)
    with without_double():
        found = CASES[name](CPU)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=2e-2, atol=1e-4)
