"""A sine seen left and right of a gap at fixed prior precisions, and a thousand draws (Brack 2023, sections 6.1, 6.2).

The network and the data are those of ``studies.sine``; the source states neither. It is trained, as the source has it,
on the lower bound of the marginal likelihood that the bound of Bai and Golub gives, with α fixed at 70 or at 1 and the
noise at its true precision. Draws are by contour quadrature, and functions those of the networks with drawn weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import generator
from benchmarks.report import Row, attempt
from lapwing.methods.marginal import Bound, ByGradient, train_marginal
from lapwing.posteriors import MatrixFreePosterior
from studies.sine import NOISE, Data, Length, loader, network, nll, plain

ALPHAS = (70.0, 1.0)
FUNCTIONS = 100
DRAWS = 1000
BEYOND = 1.5
"""Networks a prediction averages, draws that are tested, and how far away "beyond" ends; it begins at 1.2."""

COLUMNS = ("std_sides", "std_gap", "std_beyond", "off_least_squares", "nll_sides", "nll_gap", "nll_gap_linearised")


def rows(setting: Setting) -> Iterator[Row]:
    """For each precision a row a seed, and one about draws from the posterior of the first seed."""
    length = Length(epochs=4, warm_up=1) if setting.quick else Length()
    draws = 50 if setting.quick else DRAWS
    networks = 10 if setting.quick else FUNCTIONS
    for alpha in ALPHAS[:1] if setting.quick else ALPHAS:
        part = f"α = {alpha:g}"
        for seed in setting.repeats:
            yield setting.resumed({"part": part, "seed": seed}, partial(measured, alpha, seed, length, networks))
        case: Row = {"part": f"draws at {part}", "draws": draws}
        yield setting.resumed(case, partial(tested, alpha, length, draws))


def measured(alpha: float, seed: int, length: Length, networks: int = FUNCTIONS) -> Row:
    """How far functions spread, how near their mean is to least squares, and scores.

    Args:
        alpha: Prior precision.
        seed: Of data and weights.
        length: Of the training.
        networks: That a prediction averages.
    """
    data = Data.draw(seed)
    posterior = fitted(alpha, data, seed, length)
    least = plain(data, seed, length)
    beyond = torch.linspace(1.2, BEYOND, 20, dtype=torch.float64)[:, None]
    inputs = {"sides": data.sides[0], "gap": data.gap[0], "beyond": torch.cat([-beyond, beyond])}
    weights = posterior.sample(networks, generator=generator(seed))
    found = {name: functions(posterior, weights, x) for name, x in inputs.items()}
    row: Row = {f"std_{name}": float(values.std(0).mean()) for name, values in found.items()}
    with torch.no_grad():
        off = found["sides"].mean(0) - least(data.sides[0])
    row["off_least_squares"] = float(off.square().mean().sqrt())
    for name, (x, y) in {"sides": data.sides, "gap": data.gap}.items():
        averaged = posterior.predict(x, linearised=False, samples=networks, generator=seed)
        row[f"nll_{name}"] = nll(averaged, y)
        row[f"nll_{name}_linearised"] = nll(posterior.predict(x), y)
    return row


def fitted(alpha: float, data: Data, seed: int, length: Length) -> MatrixFreePosterior:
    """The posterior of a network trained on the bound of the marginal likelihood, by products alone."""
    model: nn.Module = network(seed)
    likelihood = lw.Gaussian(1 / NOISE**2)
    prior = lw.Isotropic(alpha)
    train_marginal(
        model,
        loader(data.train, length.batch, seed),
        likelihood,
        prior=prior,
        log_det=Bound(),
        updates=ByGradient(start=None),
        epochs=length.epochs,
        warm_up=length.warm_up,
        settle=0,
        lr=length.lr,
        hyper_lr=0.0,
        noise=False,
        generator=generator(seed),
    )
    structure = lw.MatrixFree(sqrt=lw.solvers.Contour(rtol=1e-6, max_iterations=3000))
    posterior = lw.Laplace(likelihood, prior=prior, structure=structure).fit(model, data.train)
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior


def functions(posterior: MatrixFreePosterior, weights: Tensor, x: Tensor) -> Tensor:
    """Outputs of the networks with drawn weights, ``[s, n]``."""
    network = posterior.network
    with torch.no_grad():
        return torch.stack([network(x, network.with_weights(drawn))[:, 0] for drawn in weights])


def tested(alpha: float, length: Length, draws: int) -> Row:
    """Whether draws have the distances and the directions they should have."""
    posterior = fitted(alpha, Data.draw(0), 0, length)
    found, failure = attempt(lambda: lw.diagnose(posterior, draws, generator=1))
    if found is None:
        return {"failure": failure}
    expected, seen = found.quantiles()
    row: Row = {"ks_p": found["radius"].p_value, "passed": found.passed, "said": str(found)}
    return row | {"qq_error": float((seen / expected - 1).abs().max()), "failure": ""}
