"""A sine seen left and right of a gap: what training on the marginal likelihood learns, beside the exact evidence.

The curve is that of Brack 2023, section 6.1, ``sin(5x + 1)``, whose source could not learn the prior precision: it fell
from 70 to below 1 and the fit was lost. Here x is uniform on [-1, -0.2] and [0.4, 1], 80 points each, noise 0.1; the
network has two hidden layers of 32 tanh units, 1153 weights, and 160 observations. Every way of training starts from
α = 70, ρ = 1 and 10 epochs on the likelihood alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import Pair, generator, uniform
from benchmarks.networks import jacobian, perceptron
from benchmarks.report import Row, figure, timed
from benchmarks.training import train
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground import probes
from lapwing.methods.marginal import Bound, ByGradient, MarginalTraining, StochasticLanczos, train_marginal
from lapwing.posteriors import Posterior, WeightPosterior
from lapwing.predictive import Predictive, Regression

LEFT, GAP, RIGHT = (-1.0, -0.2), (-0.2, 0.4), (0.4, 1.0)
POINTS, NOISE = 160, 0.1
START = 70.0
COLUMNS = ("alpha_ratio", "log_marginal", "nll_gap", "nll_sides", "seconds")


@dataclass(frozen=True)
class Data:
    """A draw of the data: to train on, to score on inside the gap, and beside the training data."""

    train: Pair
    gap: Pair
    sides: Pair

    @classmethod
    def draw(cls, seed: int) -> Data:
        """The draw of a seed."""
        source = generator(seed)

        def part(n: int, low: float, high: float) -> Pair:
            x = uniform(n, low, high, source)
            return x, torch.sin(5 * x + 1) + NOISE * probes.gaussian(x.shape, like=x, generator=source)

        def sides(n: int) -> Pair:
            (a, b), (c, d) = part(n // 2, *LEFT), part(n // 2, *RIGHT)
            return torch.cat([a, c]), torch.cat([b, d])

        return cls(sides(POINTS), part(200, *GAP), sides(200))


def network(seed: int) -> nn.Sequential:
    """Two hidden layers of 32 tanh units in float64, PyTorch's own initial weights."""
    return perceptron(1, 32, 32, 1, seed=seed).double()


def loader(pair: Pair, batch: int, seed: int) -> DataLoader[Any]:
    """Shuffled batches, the same for every way."""
    return DataLoader(TensorDataset(*pair), batch_size=batch, shuffle=True, generator=generator(seed))


def optimum(model: nn.Module, pair: Pair) -> tuple[float, float, float]:
    """α and ρ of largest evidence at the weights, and that evidence, on a dense grid in float64.

    The Jacobian comes row by row from automatic differentiation and the evidence from the eigenvalues λ of JJᵀ:

        -ρ/2 |y - f|² + n/2 log(ρ/2π) - α/2 |θ|² - ½ Σ log(1 + ρλ/α)
    """
    x, y = pair
    rows = jacobian(model, x)
    spectrum = torch.linalg.eigvalsh(rows @ rows.mT).clamp_min(0)
    error = float((model(x) - y).detach().square().sum())
    norm = float(sum(value.detach().square().sum() for value in model.parameters()))
    grid = torch.meshgrid(torch.arange(-3, 3, 0.01).double(), torch.arange(-1, 4, 0.01).double(), indexing="ij")
    alpha, rho = (10**axis for axis in grid)
    value = 0.5 * len(y) * torch.log(rho / (2 * torch.pi)) - 0.5 * rho * error - 0.5 * alpha * norm
    for eigenvalue in spectrum[spectrum > 1e-9 * spectrum.max()]:
        value -= 0.5 * torch.log1p(rho * eigenvalue / alpha)
    best = int(value.argmax())
    return float(alpha.flatten()[best]), float(rho.flatten()[best]), float(value.flatten()[best])


@dataclass(frozen=True)
class Way:
    """Options of ``train_marginal``, and whether each step sees all data in one batch."""

    options: dict[str, Any]
    whole: bool = False


WAYS = {
    "default": Way({}),
    "bound for the weights": Way({"log_det": Bound()}),
    "no log-det for the weights": Way({"log_det": None}),
    "gram, gradient": Way({"updates": ByGradient()}),
    "gram, gradient, all data": Way({"updates": ByGradient()}, whole=True),
    "bound, gradient, all data": Way({"log_det": Bound(), "updates": ByGradient()}, whole=True),
    "bound of rank 30, gradient, all data": Way({"log_det": Bound(30), "updates": ByGradient()}, whole=True),
    "lanczos, gradient, all data": Way({"log_det": StochasticLanczos(samples=4), "updates": ByGradient()}, whole=True),
    "the source's": Way({"log_det": Bound(), "updates": ByGradient(start=None), "settle": 0}),
}
"""The default updates the hyper-parameters by the evidence of all data after every epoch, the weights by ``Gram``."""


@dataclass(frozen=True)
class Length:
    """How long to train.

    Args:
        epochs: Passes over the data, the warm-up among them.
        warm_up: Passes on the likelihood alone.
        batch: Examples in a mini-batch.
    """

    epochs: int = 200
    warm_up: int = 10
    batch: int = 16
    lr: float = 1e-2
    hyper_lr: float = 2e-2

    def options(self, way: Way) -> dict[str, Any]:
        """For ``train_marginal``; with all data in one batch half as many steps, after as many of warm-up."""
        if not way.whole:
            return {"epochs": self.epochs, "warm_up": self.warm_up}
        steps = POINTS // self.batch
        return {"epochs": self.epochs * steps // 2, "warm_up": self.warm_up * steps}


def trained(way: Way, data: Data, seed: int, length: Length) -> tuple[nn.Sequential, MarginalTraining]:
    """A network trained on the marginal likelihood."""
    model = network(seed)
    result = train_marginal(
        model,
        loader(data.train, POINTS if way.whole else length.batch, seed),
        lw.Gaussian(1.0),
        prior=lw.Isotropic(START),
        lr=length.lr,
        hyper_lr=length.hyper_lr,
        generator=generator(seed),
        **(length.options(way) | way.options),
    )
    return model, result


def plain(data: Data, seed: int, length: Length, alpha: float = 0.0, rho: float = 1.0) -> nn.Module:
    """A network trained as usual: squared error, or with a prior precision and a noise precision the MAP estimate."""

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return 0.5 * rho * POINTS / len(y) * (f - y).square().sum()

    options: dict[str, Any] = {"rate": length.lr, "batch": length.batch, "decay": alpha, "seed": seed}
    return train(network(seed), *data.train, epochs=length.epochs, loss=loss, **options)


def nll(p: Predictive, y: Tensor) -> float:
    """Mean negative log predictive density, nats."""
    return -float(p.log_prob(y).mean())


def measured(name: str, way: Way, seed: int, length: Length) -> Row:
    """One way, one seed: what it learned, what the evidence wants, how it predicts beside what it is compared with."""
    data = Data.draw(seed)
    (model, result), seconds = timed(lambda: trained(way, data, seed, length))
    alpha, rho = result.history[-1].prior_precision[0], result.history[-1].noise_precision
    recipe = lw.Laplace(result.likelihood, prior=result.prior, structure=lw.Full(view="weights"))
    posterior = recipe.fit(model, data.train)
    tuned = lw.tune(posterior, lw.EvidenceGradient())
    exact, exact_rho, best = optimum(model, data.train)
    row: Row = {"way": name, "seed": seed, "seconds": seconds}
    row |= {"alpha": alpha, "alpha_tuned": tuned.prior.precision, "alpha_exact": exact}
    row |= {"alpha_ratio": alpha / exact, "rho": rho, "rho_exact": exact_rho}
    row |= {"log_marginal": posterior.log_marginal(), "log_marginal_tuned": tuned.log_marginal()}
    row |= {"log_marginal_exact": best, "newton_gain": newton_gain(posterior, model, data.train)}
    row["effective_dimension"] = float(tuned.effective_dimension())
    row |= {"nll_gap": nll(posterior.predict(data.gap[0]), data.gap[1])}
    row |= {"nll_sides": nll(posterior.predict(data.sides[0]), data.sides[1])}
    row |= {"nll_gap_plug_in": nll(PlainNetwork(model, result.likelihood).predict(data.gap[0]), data.gap[1])}
    if name == "default":
        row |= _compared(data, seed, length, alpha, rho)
        row["fit"] = fit(posterior, data, seed, length) if seed == 0 else {}
    row["history"] = history(result)
    return row


def newton_gain(posterior: Posterior, model: nn.Module, data: Pair) -> float:
    """``½ gᵀ Λ⁻¹ g``, nats, with g the gradient of the log joint density at the weights.

    How far the log evidence is above ``Posterior.log_marginal``, which is taken at the weights: 0 at a mode, more where
    they were trained on the marginal likelihood (completing the square).
    """
    assert isinstance(posterior, WeightPosterior)
    network, likelihood = posterior.network, posterior.likelihood
    loss = likelihood.nll(model(data[0]), data[1]).sum()
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
    gradient += posterior.prior.diagonal(network.uncertain, network.like) * network.weights
    return 0.5 * float(gradient @ posterior.precision_operator.solve(gradient[:, None])[:, 0])


def fit(posterior: Posterior, data: Data, seed: int, length: Length) -> dict[str, list[Any]]:
    """What a figure of the fit needs: the posterior, least squares and the curve on a grid, and the data."""
    x = torch.linspace(-1.2, 1.2, 200, dtype=torch.float64)[:, None]
    p, least = posterior.predict(x), plain(data, seed, length)(x).detach()
    assert isinstance(p, Regression)
    curves = {"x": x, "mean": p.mean, "std": p.std, "least squares": least, "curve": torch.sin(5 * x + 1)}
    return {name: values[:, 0].tolist() for name, values in (curves | dict(zip("ab", data.train, strict=True))).items()}


def history(result: MarginalTraining) -> dict[str, list[float | None]]:
    """Every term of every epoch; of many epochs every so-manieth."""
    epochs = result.history[:: max(1, len(result.history) // 200)]
    terms = {name: [getattr(e, name) for e in epochs] for name in ("nll", "log_prior", "half_log_det", "total")}
    return terms | {"alpha": [e.prior_precision[0] for e in epochs], "rho": [e.noise_precision for e in epochs]}


def _compared(data: Data, seed: int, length: Length, alpha: float, rho: float) -> Row:
    """The MAP estimate at the learned precisions, and least squares with the noise of its residuals."""
    row: Row = {}
    x, y = data.train
    for name, model, noise in (
        ("map", plain(data, seed, length, alpha, rho), rho),
        ("mse", plain(data, seed, length), None),
    ):
        noise = noise or 1 / (model(x) - y).square().mean().item()
        p = PlainNetwork(model, lw.Gaussian(noise)).predict
        row |= {f"nll_gap_{name}": nll(p(data.gap[0]), data.gap[1])}
        row |= {f"nll_sides_{name}": nll(p(data.sides[0]), data.sides[1])}
    return row


def rows(setting: Setting) -> Iterator[Row]:
    """The default on all seeds, then every other way on the first few."""
    length = replace(Length(), epochs=20, warm_up=5) if setting.quick else Length()
    seeds, others = (1, 1) if setting.quick else (setting.seeds, setting.more["others"])
    for name, way in list(WAYS.items())[: 1 if setting.quick else None]:
        for seed in range(seeds if name == "default" else min(seeds, others)):
            yield measured(name, way, seed, length)


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """What must be shown of the default: α beside the exact optimum, NLL in the gap beside other ways to train."""
    default = [row for row in found if row["way"] == "default" and "seed" in row]
    ratios = [row["alpha_ratio"] for row in default]
    yield {"verdict": "α over the exact optimum", "seeds": len(default), "from": min(ratios), "to": max(ratios)}
    for name, key in (("MAP", "nll_gap_map"), ("least squares", "nll_gap_mse")):
        better = sum(row["nll_gap"] < row[key] for row in default)
        yield {"verdict": f"NLL in the gap below {name}", "holds_on": better, "seeds": len(default)}


def draw(found: Sequence[Row]) -> Any:
    """How α moves along each way on seed 0, and the fit of the default beside least squares."""
    picture = figure(10, 4, 2)
    left, right = picture.axes
    for name in dict.fromkeys(row["way"] for row in found if "way" in row):
        alpha = next(row for row in found if row.get("way") == name and row.get("seed") == 0)["history"]["alpha"]
        left.plot([i / len(alpha) for i in range(len(alpha))], alpha, label=name)
    left.set(xlabel="share of training", ylabel="prior precision α", yscale="log")
    left.legend(fontsize=6)
    at = {name: torch.tensor(values) for name, values in next(row["fit"] for row in found if row.get("fit")).items()}
    low, high = at["mean"] - 2 * at["std"], at["mean"] + 2 * at["std"]
    right.fill_between(at["x"], low, high, alpha=0.2, label="marginal likelihood, 2 sd")
    right.plot(at["x"], at["mean"])
    right.plot(at["x"], at["least squares"], "--", label="least squares")
    right.plot(at["x"], at["curve"], ":", color="0.3", label="the curve")
    right.plot(at["a"], at["b"], ".", color="0.5", markersize=3)
    right.set(xlabel="x", ylabel="y", ylim=(-3, 3))
    right.legend(fontsize=6)
    return picture


STUDY = Study(
    rows, COLUMNS, verdict=verdict, draw=draw, seeds=10, options={"others": (1, "seeds of every way but the default")}
)

if __name__ == "__main__":
    main({"sine": STUDY})
