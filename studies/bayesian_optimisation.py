"""Bayesian optimisation: networks and Gaussian processes of ours in BoTorch's loop, beside its own SingleTaskGP.

    python -m studies.bayesian_optimisation --json FILE

Branin, Ackley in two dimensions and Hartmann in six, in the unit cube, from Sobol points that are the same for all
models. A round fits the model to all values so far, standardised, and takes the two points that BoTorch's optimiser
finds best by ``qLogExpectedImprovement``. A row a function, model and seed: the regret, optimum less best value seen.

``SingleTaskGP`` is BoTorch's as it comes, fitted by its own optimiser. ``process`` is ``lw.GP(mean="constant")`` tuned
by the evidence, ``network`` a layer of 60 tanh units, trained anew each round and tuned by the evidence.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.report import Row

PEER = "SingleTaskGP"
TENTH = 1.1
"""Regret over that of the peer up to which a model is said to reach it."""


@dataclass(frozen=True)
class Problem:
    """What is maximised.

    Args:
        name: Of BoTorch's test function.
        dimensions: Inputs.
        rounds: Rounds.
        points: Points of a round.
    """

    name: str
    dimensions: int
    rounds: int
    points: int = 2

    @property
    def start(self) -> int:
        """Sobol points to begin with."""
        return 2 * self.dimensions + 2

    def function(self) -> Any:
        """The function, negated."""
        from botorch import test_functions

        kind = getattr(test_functions, self.name)
        options = {} if self.name == "Branin" else {"dim": self.dimensions}
        return kind(negate=True, **options).double()


PROBLEMS = (Problem("Branin", 2, 10), Problem("Ackley", 2, 15), Problem("Hartmann", 6, 15))


@dataclass(frozen=True)
class Effort:
    """How hard BoTorch's optimiser looks.

    Args:
        restarts: Starts of the ascent.
        raw: Points that these are chosen from.
        samples: Draws of the acquisition function.
        steps: Most steps of an ascent.
    """

    restarts: int = 4
    raw: int = 64
    samples: int = 64
    steps: int = 30


def single_task(x: Tensor, y: Tensor, seed: int) -> Any:
    """BoTorch's own."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def process(x: Tensor, y: Tensor, seed: int) -> Any:
    """A Gaussian process of ours."""
    return lw.botorch.GPModel(lw.tune(lw.GP(mean="constant").fit((x, y)), progress=False))


def network(x: Tensor, y: Tensor, seed: int) -> Any:
    """A network of ours, trained anew."""
    options: dict[str, Any] = {"epochs": 300, "standardise": False, "random_state": seed, "progress": False}
    regressor = lw.sklearn.LaplaceRegressor(perceptron, **options)
    return lw.botorch.LaplaceModel(regressor.fit(x.numpy(), y[:, 0].numpy()).posterior_)


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """One hidden layer of 60 tanh units, of inputs in the unit cube."""
    return nn.Sequential(Centred(), nn.Linear(inputs, 60), nn.Tanh(), nn.Linear(60, outputs))


class Centred(nn.Module):
    """The unit cube around 0, with sides of 2."""

    def forward(self, x: Tensor) -> Tensor:
        """``2 x - 1``."""
        return 2 * x - 1


MODELS: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    PEER: single_task,
    "process": process,
    "network": network,
}


def proposed(model: Any, best: float, problem: Problem, effort: Effort, seed: int) -> Tensor:
    """The points that the acquisition function wants next, in the model's units of inputs.

    Args:
        model: Of values in units of their spread.
        best: Largest of them.
        problem: How many points.
        effort: How hard it is looked for them.
        seed: Of draws and starts.
    """
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler

    sampler = SobolQMCNormalSampler(torch.Size([effort.samples]), seed=seed)
    acquisition = qLogExpectedImprovement(model, best_f=best, sampler=sampler)
    bounds = torch.zeros(2, problem.dimensions, dtype=torch.float64)
    bounds[1] = 1.0
    candidates, _ = optimize_acqf(
        acquisition,
        bounds,
        q=problem.points,
        num_restarts=effort.restarts,
        raw_samples=effort.raw,
        options={"maxiter": effort.steps, "seed": seed},
    )
    return candidates.detach()


def measured(problem: Problem, name: str, seed: int, effort: Effort) -> Row:
    """One run: the regret after each round."""
    from botorch.utils.sampling import draw_sobol_samples
    from botorch.utils.transforms import unnormalize

    function = problem.function()
    cube = torch.zeros(2, problem.dimensions, dtype=torch.float64)
    cube[1] = 1.0
    x = draw_sobol_samples(cube, problem.start, 1, seed=seed)[:, 0]
    y = function(unnormalize(x, function.bounds))[:, None]
    regrets = list[float]()
    begun = time.perf_counter()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.simplefilter("ignore")
        for turn in range(problem.rounds):
            scaled = (y - y.mean()) / y.std()
            model = MODELS[name](x, scaled, seed)
            more = proposed(model, float(scaled.max()), problem, effort, 100 * seed + turn)
            x = torch.cat([x, more])
            y = torch.cat([y, function(unnormalize(more, function.bounds))[:, None]])
            regrets.append(float(function.optimal_value - y.max()))
    return {
        "function": problem.name,
        "model": name,
        "seed": seed,
        "evaluations": len(x),
        "regret": regrets[-1],
        "log10_regret": float(torch.tensor(regrets[-1]).clamp_min(1e-12).log10()),
        "seconds": time.perf_counter() - begun,
        "regrets": regrets,
    }


def rows(setting: Setting) -> Iterator[Row]:
    """Every seed, function and model."""
    effort = Effort(restarts=2, raw=16, samples=16, steps=10) if setting.quick else Effort()
    wanted = setting.among(each.name for each in PROBLEMS)
    for seed in range(1 if setting.quick else setting.seeds):
        for problem in PROBLEMS:
            if problem.name not in wanted:
                continue
            tried = replace(problem, rounds=1) if setting.quick else problem
            for name in setting.among(MODELS):
                case: Row = {"function": problem.name, "model": name, "seed": seed}
                yield setting.resumed(case, partial(measured, tried, name, seed, effort))


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """The mean regret of each model over that of the peer, with the standard error of the paired differences."""
    runs = {(row["function"], row["model"], row["seed"]): row["regret"] for row in found if "regrets" in row}
    for function, model in dict.fromkeys((function, model) for function, model, _ in runs):
        seeds = [seed for f, m, seed in runs if (f, m) == (function, model) and (function, PEER, seed) in runs]
        if model == PEER or not seeds:
            continue
        own = torch.tensor([runs[function, model, seed] for seed in seeds])
        peer = torch.tensor([runs[function, PEER, seed] for seed in seeds])
        difference = own - peer
        yield {
            "verdict": f"{function}: regret of {model} at most {TENTH} times that of {PEER}",
            "holds": bool(own.mean() <= TENTH * peer.mean()),
            "ratio": float(own.mean() / peer.mean()),
            "mean": float(own.mean()),
            "median": float(own.median()),
            "peer_mean": float(peer.mean()),
            "peer_median": float(peer.median()),
            "stderr": float(difference.std() / len(seeds) ** 0.5) if len(seeds) > 1 else None,
            "seeds": len(seeds),
        }


STUDY = Study(rows, ("regret", "log10_regret", "seconds"), counts=("evaluations",), verdict=verdict, seeds=10)

if __name__ == "__main__":
    main({"bayesian_optimisation": STUDY})
