"""What each side of the comparison of Gaussian processes does, in a process of its own."""

# The peer's annotations name every class its modules could return.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false, reportCallIssue=false
# pyright: reportOptionalCall=false, reportOperatorIssue=false

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import gpytorch
import torch
from torch import Tensor

import lapwing as lw
from benchmarks.data import Pair
from benchmarks.meter import Meter
from lapwing.gp import GPPosterior, KernelMatrix, Matern
from lapwing.gp.kernels import matrix

COLUMNS, ROWS, RANK, LARGEST = 65, 128, 500, 49_000
"""A mean and 64 samples; rows of a step of dual descent; of the preconditioner; most observations solved for."""


class Regression(gpytorch.models.ExactGP):
    """The exact process of the peer: the kernel of ours, no mean.

    Args:
        x: Inputs.
        y: Targets ``[n]``.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        positive = gpytorch.constraints.GreaterThan(1e-8)
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood(noise_constraint=positive))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), matern(x.shape[1])

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Variational(gpytorch.models.ApproximateGP):
    """The peer's variational process with inducing points that are learnt.

    Args:
        points: Where they start.
    """

    def __init__(self, points: Tensor) -> None:
        family = gpytorch.variational.CholeskyVariationalDistribution(len(points))
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, family))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), matern(points.shape[1])

    forward = Regression.forward


def matern(dimensions: int) -> gpytorch.kernels.ScaleKernel:
    """A variance and one length-scale a dimension."""
    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=dimensions))


def given(kernel: gpytorch.kernels.ScaleKernel, likelihood: Any, logs: Tensor) -> None:
    """Set hyper-parameters, as ``log_hyperparameters`` has them: variance, length-scales, noise variance."""
    kernel.outputscale = float(logs[0].exp())
    kernel.base_kernel.lengthscale = logs[1:-1].exp()[None].to(kernel.base_kernel.raw_lengthscale)
    likelihood.noise = float(logs[-1].exp())


def found(model: Regression) -> Tensor:
    """The hyper-parameters of the peer, as ``log_hyperparameters`` of a posterior has them."""
    kernel = model.covar_module
    parts = [kernel.outputscale[None], kernel.base_kernel.lengthscale[0], model.likelihood.noise]
    return torch.cat([part.detach().double() for part in parts]).log()


def process(x: Tensor, y: Tensor, logs: Tensor, **options: Any) -> GPPosterior:
    """Ours, with given hyper-parameters."""
    fitted = lw.GP(1.0 * Matern((1.0,) * x.shape[1]), lw.Gaussian(1.0), mean="zero", dtype=x.dtype, **options).fit(
        (x, y)
    )
    return fitted.with_log_hyperparameters(logs)


def scored(mean: Tensor, variance: Tensor, truth: Tensor) -> dict[str, float]:
    """RMSE, and negative log likelihood in nats, noise included."""
    apart = (truth - mean).square()
    nll = 0.5 * float((apart / variance + variance.log()).mean()) + 0.5 * math.log(2 * math.pi)
    return {"rmse": float(apart.mean().sqrt()), "nll": nll}


def predicted(meter: Meter, case: str, side: Callable[..., Pair]) -> None:
    """Measure solving and predicting, and tell scores and the processor's seconds, which no neighbour adds to."""
    held = torch.load(case)
    x, y, new, truth, logs = (held[name] for name in ("x", "y", "new", "truth", "logs"))
    warnings.simplefilter("ignore")
    side(x[:50], y[:50], new[:5], logs)  # what is done at first use is not counted
    meter.ready()
    begun = time.process_time()
    done = meter.step("predict", lambda: side(x, y, new, logs))
    if done.value is not None:
        meter.tell("predict", cpu_seconds=time.process_time() - begun, **scored(*done.value, truth))


def ours(meter: Meter, *, case: str) -> None:
    """By the solver that ``"auto"`` takes."""

    def side(x: Tensor, y: Tensor, new: Tensor, logs: Tensor) -> Pair:
        prediction: Any = process(x, y, logs).predict(new)
        return prediction.mean[:, 0], prediction.variance[:, 0]

    predicted(meter, case, side)


def exact(meter: Meter, *, case: str, fast: bool, tolerance: float = 0.01, double: bool = False) -> None:
    """Conjugate gradients with a pivoted Cholesky preconditioner of rank 100, to a relative residual, theirs 0.01."""

    def side(x: Tensor, y: Tensor, new: Tensor, logs: Tensor) -> Pair:
        dtype = torch.float64 if double else torch.float32
        model = Regression(x.to(dtype), y.to(dtype)).to(dtype).eval()
        given(model.covar_module, model.likelihood, logs)
        settings = gpytorch.settings
        with (
            torch.no_grad(), settings.fast_pred_var(fast), settings.max_preconditioner_size(100),
            settings.eval_cg_tolerance(tolerance), settings.max_cg_iterations(1000),
        ):  # fmt: skip
            prediction = model.likelihood(model(new.to(dtype)))
            return prediction.mean, prediction.variance

    predicted(meter, case, side)


def variational(meter: Meter, *, case: str, points: int, epochs: int) -> None:
    """Inducing points and everything else by Adam on the lower bound, from the same hyper-parameters."""

    def side(x: Tensor, y: Tensor, new: Tensor, logs: Tensor) -> Pair:
        source = torch.Generator().manual_seed(0)
        batches = (part for _ in range(epochs) for part in torch.randperm(len(x), generator=source).split(1024))
        model, likelihood = trained(x, y, logs, points, batches)
        with torch.no_grad():
            prediction = likelihood(model(new))
            return prediction.mean, prediction.variance

    predicted(meter, case, side)


def trained(
    x: Tensor, y: Tensor, logs: Tensor, points: int, batches: Iterable[Tensor], *, learn: bool = True
) -> tuple[Variational, gpytorch.likelihoods.GaussianLikelihood]:
    """The peer's variational process after a step of Adam on the lower bound for each mini-batch.

    Args:
        x: Inputs.
        y: Targets ``[n]``.
        logs: Hyper-parameters to start from.
        points: Inducing points, at random inputs first.
        batches: Which observations.
        learn: Whether hyper-parameters are learnt too.
    """
    model = Variational(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:points]]).to(x)
    positive = gpytorch.constraints.GreaterThan(1e-8)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=positive).to(x)
    given(model.covar_module, likelihood, logs)
    for part in (model.covar_module, likelihood):
        part.requires_grad_(learn)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(x))
    adam = torch.optim.Adam(
        [each for each in (*model.parameters(), *likelihood.parameters()) if each.requires_grad], 0.01
    )
    for part in batches:
        adam.zero_grad()
        (-bound(model(x[part]), y[part])).backward()
        adam.step()
    return model.eval(), likelihood.eval()


def growth(meter: Meter, *, n: int) -> None:
    """On n generated rows in 8 dimensions: a product, a step of dual descent, two steps of conjugate gradients.

    The product is with a column, the steps with 65. More of them take no more memory. No kernel matrix is kept, however
    small, so that all sizes are one curve.
    """
    matrix.CACHE = 0
    source = torch.Generator().manual_seed(0)
    x, block = torch.rand(n, 8, generator=source), torch.randn(n, COLUMNS, generator=source)
    index = torch.randperm(n, generator=source)[:ROWS]
    warnings.simplefilter("ignore")
    meter.ready()
    operator = KernelMatrix(1.0 * Matern((0.5,) * 8), x)
    for _ in range(3):
        meter.step("step of dual descent", lambda: operator.product_rows(index, block))
    meter.step("product", lambda: operator @ block[:, :1])
    if n <= LARGEST:
        solver = lw.solvers.CG(max_iterations=2, preconditioner=lw.preconditioners.PivotedCholesky(RANK))
        recipe = lw.GP(1.0 * Matern((0.5,) * 8), lw.Gaussian(10.0), mean="zero", solver=solver)
        process = recipe.fit((x, torch.sin(6 * x[:, 0])))
        meter.step("mean and 64 functions, two steps of conjugate gradients", lambda: process.functions)


def climbed(model: Regression, x: Tensor, y: Tensor, steps: int, limit: float) -> list[tuple[float, Tensor]]:
    """The peer's search: Adam on its estimate of the evidence; seconds and hyper-parameters after each step.

    Args:
        model: With the hyper-parameters to start from.
        x: Inputs.
        y: Targets.
        steps: Most steps.
        limit: Seconds after which no further one begins.
    """
    path, start = [(0.0, found(model))], time.perf_counter()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()
    with gpytorch.settings.max_preconditioner_size(100):
        while len(path) <= steps and path[-1][0] < limit:
            adam.zero_grad()
            (-evidence(model(x), y)).backward()
            adam.step()
            path.append((time.perf_counter() - start, found(model)))
    return path


def descended(start: GPPosterior, steps: int, part: int) -> list[tuple[float, Tensor]]:
    """Our search, as ``climbed``: the evidence of a random part, and from there pathwise gradients of all rows.

    Args:
        start: With the hyper-parameters to start from.
        steps: Steps of the pathwise gradient.
        part: Rows of the part.
    """
    path, begun, process = [(0.0, start.log_hyperparameters())], time.perf_counter(), start
    for method in (lw.gp.Subset(part), lw.gp.Pathwise(steps=steps)):
        process = method.tune(process)
        path.append((time.perf_counter() - begun, process.log_hyperparameters()))
    return path
