"""The paper's toy: how far each approximation is from exact linearised Laplace, and what happens far from the data.

    python -m studies.ella toy --json FILE --figure FILE

``y = sin 2x + ε`` with noise of variance 0.2, 16 points left and right of a gap; a perceptron with three hidden layers
of 50 tanh units, 1000 steps of Adam towards the MAP estimate under the same prior precision as the posterior's: four
fixed ones, and the one that the evidence chooses at the estimate for the second. The score is ``KL(q ‖ p)`` between the
Gaussian q a method predicts at a point and the Gaussian p of exact linearised Laplace, the mean over the points of a
grid: of the target with its noise, and of the network's output without.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator, uniform
from benchmarks.networks import jacobian, perceptron, seeded
from benchmarks.report import Row, attempt, curve, figure, grouped
from benchmarks.training import train
from lapwing.ground import probes
from lapwing.posteriors import Posterior
from lapwing.predictive import Regression

NOISE, POINTS = 0.2, 16
SIDES = ((-3.0, -1.0), (1.0, 3.0))
EDGE = 4.5
PRECISIONS = (0.01, 0.1, 0.3, 1.0)
START = 0.1
DISTANCES = torch.logspace(0.0, 3.0, 61, dtype=torch.float64)[:, None]
LANDMARKS, RANK = 16, 5
COLUMNS = (
    "precision", "kl", "kl_outputs", "kl_between", "kl_beside", "kl_beyond", "variance_over_prior", "far_over_prior",
    "below diagonal", "below last layer",
)  # fmt: skip


def structures(seed: int) -> dict[str, dict[str, Any]]:
    """What each method passes to ``Laplace``."""
    return {
        "ELLA": {"structure": lw.Nystrom(RANK, LANDMARKS, residual=False, seed=seed)},
        "ELLA, residual": {"structure": lw.Nystrom(RANK, LANDMARKS, seed=seed)},
        "KFAC": {"structure": lw.KFAC()},
        "diagonal": {"structure": lw.Diagonal()},
        "last layer": {"structure": lw.Full(), "weights": lw.LastLayer()},
    }


def rows(setting: Setting) -> Iterator[Row]:
    """For each seed every method under every prior, then the variances far from the data.

    KL divergence in nats of what each method predicts from what exact linearised Laplace predicts, over draws of 16
    points and trained perceptrons; M = 16 landmarks, which are all there are, K = 5. The weaker the prior, the more
    directions matter beside the five. Below: the part of the draws in which ELLA is closer to exact. Far from the
    data: the variance over the prior's, of the perceptron and of a layer of fixed sines.
    """
    width, steps = (8, 50) if setting.quick else (50, 1000)
    for seed in setting.repeats:
        pair = draw_data(seed)
        learn = partial(trained, pair=pair, steps=steps)
        for precision in PRECISIONS[1:2] if setting.quick else PRECISIONS:
            model = learn(network(seed, width), precision=precision)
            yield from labelled(compared(model, pair, precision, seed), f"prior precision {precision:g}", seed)
            if precision == START:
                chosen = by_evidence(model, pair, precision)
                model = learn(network(seed, width), precision=chosen)
                yield from labelled(compared(model, pair, chosen, seed), "prior precision by the evidence", seed)
        for name, make in {"tanh": network, "sine": partial(network, wave=True)}.items():
            model = learn(make(seed, width), precision=1.0)
            yield from labelled(far(model, pair, seed), f"far from the data, {name}", seed)


def labelled(found: Iterable[Row], part: str, seed: int) -> Iterator[Row]:
    """Rows with what they have in common."""
    for row in found:
        yield {"part": part, "seed": seed} | row


def by_evidence(model: nn.Module, pair: Pair, precision: float) -> float:
    """The prior precision of the largest evidence of exact linearised Laplace, the noise known."""
    exact = fitted(model, pair, precision, structure=lw.Full())
    return float(lw.tune(exact, lw.EvidenceGradient(noise=False)).prior_precisions[0])


def draw_data(seed: int) -> Pair:
    """The 16 points of a seed, half of them on each side of the gap."""
    source = generator(seed)
    x = torch.cat([uniform(POINTS // 2, *side, source) for side in SIDES])
    return x, torch.sin(2 * x) + NOISE**0.5 * probes.gaussian(x.shape, like=x, generator=source)


class Sine(nn.Module):
    """The sine of every number."""

    def forward(self, x: Tensor) -> Tensor:
        """Sin x."""
        return torch.sin(x)


def network(seed: int, width: int = 50, *, wave: bool = False) -> nn.Sequential:
    """Three hidden layers of tanh units, or fixed sines, whose kernel forgets what is far away."""
    if not wave:
        return perceptron(1, width, width, width, 1, seed=seed).double()

    def layers() -> nn.Sequential:
        first = nn.Linear(1, 8 * width).requires_grad_(False)
        nn.init.normal_(first.weight, std=2.0)
        nn.init.uniform_(first.bias, -math.pi, math.pi)
        return nn.Sequential(first, Sine(), nn.Linear(8 * width, 1, bias=False)).double()

    return seeded(layers, seed)


def trained(model: nn.Module, pair: Pair, precision: float, steps: int) -> nn.Module:
    """The MAP estimate: squared error over twice the noise, plus half the precision times the squared weights."""

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return 0.5 / NOISE * (f - y).square().sum()

    return train(model, *pair, epochs=steps, rate=1e-2, batch=POINTS, decay=precision, loss=loss)


def fitted(model: nn.Module, pair: Pair, precision: float, **options: Any) -> Posterior:
    """A posterior with the noise known."""
    recipe = lw.Laplace(lw.Gaussian(1 / NOISE), prior=lw.Isotropic(precision), **options)
    return recipe.fit(model, pair)


def compared(model: nn.Module, pair: Pair, precision: float, seed: int) -> list[Row]:
    """How far each method is from exact linearised Laplace; the bands of the first seed too."""
    x = torch.linspace(-EDGE, EDGE, 181, dtype=torch.float64)[:, None]
    regions = {"between": x.abs() < 1, "beside": (x.abs() >= 1) & (x.abs() <= 3), "beyond": x.abs() > 3}
    exact = predicted(fitted(model, pair, precision, structure=lw.Full()), x)
    rows = list[Row]()
    for name, options in structures(seed).items():
        found, failure = attempt(partial(fitted, model, pair, precision, **options))
        rows.append({"method": name, "precision": precision, "failure": failure})
        if found is not None:
            own = predicted(found, x)
            kl = kl_divergence(Normal(own.mean, own.std), Normal(exact.mean, exact.std))
            rows[-1] |= {"kl": float(kl.mean()), "kl_outputs": float(latent(own, exact).mean())}
            rows[-1] |= {f"kl_{region}": float(kl[inside].mean()) for region, inside in regions.items()}
            rows[-1] |= band(own, exact, x, pair) if seed == 0 else {}
    return with_wins(rows)


def with_wins(rows: list[Row]) -> list[Row]:
    """Rows of one seed with 1 where ELLA is closer to exact than another method, 0 where it is not."""
    kl = {row["method"]: row.get("kl") for row in rows}
    for row in rows:
        if row["method"].startswith("ELLA") and row.get("kl") is not None:
            others = {name: kl.get(name) for name in ("diagonal", "last layer")}
            row |= {f"below {name}": float(row["kl"] < other) for name, other in others.items() if other is not None}
    return rows


def predicted(posterior: Posterior, x: Tensor) -> Regression:
    """The predictive distribution of a regression."""
    prediction = posterior.predict(x)
    assert isinstance(prediction, Regression)
    return prediction


def latent(own: Regression, exact: Regression) -> Tensor:
    """``KL(q ‖ p)`` of the outputs without noise; a variance below 1e-12 of the exact one counts as that."""
    least = 1e-6 * exact.outputs.std
    return kl_divergence(Normal(own.mean, torch.maximum(own.outputs.std, least)), Normal(exact.mean, exact.outputs.std))


def band(own: Regression, exact: Regression, x: Tensor, pair: Pair) -> Row:
    """What a figure of the fit needs."""
    curve = {"x": x, "mean": own.mean, "std": own.outputs.std, "exact": exact.outputs.std}
    curve |= {"train_x": pair[0], "train_y": pair[1]}
    return {"band": {name: value[:, 0].tolist() for name, value in curve.items()}}


def far(model: nn.Module, pair: Pair, seed: int) -> Iterator[Row]:
    """Variance of the outputs over the prior's, at growing distances: exactly, and with and without the residual."""
    prior = jacobian(model, DISTANCES).square().sum(1)
    chosen = {name: options for name, options in structures(seed).items() if name.startswith("ELLA")}
    for name, options in ({"exact": {"structure": lw.Full()}} | chosen).items():
        found, failure = attempt(partial(fitted, model, pair, 1.0, **options))
        row: Row = {"method": name, "failure": failure}
        if found is not None:
            ratio = predicted(found, DISTANCES).outputs.std[:, 0].square() / prior
            row |= {"variance_over_prior": float(ratio[0]), "far_over_prior": float(ratio[-1])}
            curve = {"distance": DISTANCES[:, 0].tolist(), "ratio": ratio.tolist()}
            row |= {"far": curve} if seed == 0 else {}
        yield row


def draw(found: Sequence[Row]) -> Any:
    """The bands of the first seed at precision 0.1, the divergences, and the variances far from the data."""
    made = figure(14, 4, 4)
    fits, scores, *distances = made.axes
    bands = [row for row in found if "band" in row and row["part"] == "prior precision 0.1"]
    for row in bands:
        at = {name: torch.tensor(values) for name, values in row["band"].items()}
        if row is bands[0]:
            spread = 2 * at["exact"]
            fits.fill_between(at["x"], at["mean"] - spread, at["mean"] + spread, color="0.85", label="exact")
            fits.plot(at["x"], at["mean"], "k:")
            fits.plot(at["train_x"], at["train_y"], "k.")
        (drawn,) = fits.plot(at["x"], at["mean"] + 2 * at["std"], label=row["method"], lw=1)
        fits.plot(at["x"], at["mean"] - 2 * at["std"], color=drawn.get_color(), lw=1)
    fits.set(xlabel="x", ylabel="mean ± 2 standard deviations", ylim=(-5, 5))
    means = [row for row in found if row.get("summary") and "kl" in row]
    for name, each in grouped(means, "method").items():
        own = [row for row in each if not row["part"].endswith("evidence")]
        curve(scores, own, "precision", "kl", label=name)
    scores.set(xlabel="prior precision", ylabel="KL to exact, nats", xscale="log", yscale="log")
    for panel, kind in zip(distances, ("tanh", "sine"), strict=True):
        for row in (row for row in found if "far" in row and row["part"].endswith(kind) and row["seed"] == 0):
            panel.plot(row["far"]["distance"], row["far"]["ratio"], label=row["method"])
        panel.set(xlabel=f"x, {kind} units", ylabel="variance / prior variance", xscale="log", ylim=(0, 1.1))
    for panel in made.axes:
        panel.legend(frameon=False, fontsize=7)
    return made
