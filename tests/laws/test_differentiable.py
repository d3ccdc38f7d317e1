"""What is predicted can be differentiated in the inputs: along any line it has the slope of finite differences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import TooLargeError, UnsupportedError
from lapwing.jacobian.live import live_rows
from lapwing.predictive import Draws
from tests.pairwise import in_turn
from tests.posterior_cases import STRUCTURES, WEIGHTS, Problem, labels, limited, mlp, normal, problem, refused, seeded

STEP = 1e-4
"""Of the differences, whose error is its fourth power."""

ITERATIVE = {"matrix-free": lw.MatrixFree(solver=lw.solvers.CG(rtol=1e-13)), "sampled": lw.Sampled(6)}
DIFFERENTIABLE = (
    "gaussian",
    "categorical",
    "bernoulli",
    "poisson",
    "negative-binomial",
    "student-t",
    "heteroscedastic",
    "images",
)
EVERY = {**STRUCTURES, **ITERATIVE}


def fits(structure: str, weights: str) -> bool:
    """KFAC is of whole parameters."""
    return not (structure.startswith(("kfac", "tridiagonal")) and weights == "subnetwork")


ROWS = in_turn(
    [(structure, weights) for weights, structure in product(WEIGHTS, EVERY) if fits(structure, weights)],
    [*DIFFERENTIABLE, "pixels"],
)
"""Every structure over every choice of weights, on one problem after the other: each structure meets several."""


def told(prediction: Any) -> Tensor:
    """One number in which all of a prediction has a part, each with a weight of its own."""
    outputs = prediction.latent
    parts = [outputs.mean, outputs.std, prediction.epistemic, prediction.uncertainty]
    parts += [getattr(prediction, name) for name in ("probs", "entropy", "std") if hasattr(prediction, name)]
    if not isinstance(outputs, Draws) and hasattr(outputs, "covariance"):
        parts.append(outputs.covariance)
    whole = torch.cat([part.flatten() for part in parts])
    return whole @ torch.linspace(-1, 1.3, len(whole), dtype=whole.dtype)


def check_slope(predict: Callable[[Tensor], Any], x: Tensor, rtol: float = 1e-6) -> None:
    """The derivative along a line is that of differences, and predictions are those without a graph."""
    line = normal(*x.shape, seed=7)
    live = x.clone().requires_grad_()
    found = told(predict(live))
    (gradient,) = torch.autograd.grad(found, live)
    values = [told(predict(x + step * STEP * line)) for step in (-2, -1, 0, 1, 2)]
    assert not any(value.requires_grad for value in values)
    slope = (values[0] - 8 * values[1] + 8 * values[3] - values[4]) / (12 * STEP)
    torch.testing.assert_close(found.detach(), values[2], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close((gradient * line).sum(), slope, rtol=rtol, atol=rtol)


def fitted(case: Problem, structure: str, weights: str = "all") -> Any:
    recipe = lw.Laplace(case.likelihood, structure=EVERY[structure], weights=WEIGHTS[weights], prior=lw.Isotropic(0.7))
    return case.fit(recipe)


@pytest.mark.parametrize(("choices", "name"), ROWS)
def test_of_every_structure_and_likelihood(choices: tuple[str, str], name: str) -> None:
    structure, weights = choices
    case = problem(name)
    check_slope(fitted(case, structure, weights).predict, case.new[:2])


@pytest.mark.parametrize("structure", EVERY)
def test_of_all_inputs_together(structure: str) -> None:
    case = problem("gaussian")
    posterior = fitted(case, structure, "last-layer" if structure == "kfac" else "all")
    check_slope(lambda x: posterior.predict(x, joint=True), case.new[:3])


@pytest.mark.parametrize(
    ("link", "structure"),
    in_turn(["probit", "pairwise", "bridge", "qmc", "mc"], ("full-weights", "sampled"), whole=("mc", "qmc")),
)
def test_of_every_link(link: Any, structure: str) -> None:
    posterior = fitted(problem("categorical"), structure).with_link(link, temperature=0.8)
    check_slope(lambda x: posterior.predict(x, samples=5, generator=3), normal(2, 3, seed=4))


NORMS = {
    "layer": lambda: nn.LayerNorm(6),
    "instance": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, affine=True), nn.Flatten()),
    "group": lambda: nn.GroupNorm(2, 6),
    "encoder": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.TransformerEncoderLayer(3, 1, 4, batch_first=True), nn.Flatten()
    ),
}


@pytest.mark.parametrize(("norm", "structure"), in_turn(NORMS, ("full-functions", "kfac", "diagonal"), ("encoder",)))
def test_behind_every_norm(norm: str, structure: str) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 6), NORMS[norm](), nn.Tanh(), nn.Linear(6, 2)).eval())
    recipe = lw.Laplace(lw.Gaussian(4.0), structure=EVERY[structure])
    check_slope(recipe.fit(model, (normal(9, 3), normal(9, 2, seed=1))).predict, normal(2, 3, seed=4))


def test_of_drawn_networks() -> None:
    posterior = fitted(problem("categorical"), "kfac")
    check_slope(lambda x: posterior.predict(x, linearised=False, samples=3, generator=3), normal(2, 3, seed=4))


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")  # an untrained network
@pytest.mark.parametrize("weights", ["all", "last-layer"])
def test_of_what_is_known(weights: str) -> None:
    case = problem("categorical")
    posterior = lw.tune(fitted(case, "kfac", weights), (case.x, case.y))
    assert posterior.knowledge is not None
    check_slope(posterior.predict, case.new[:2])


KERNELS: dict[str, Any] = {
    "Matérn": 1.3 * lw.gp.Matern(1.5) + lw.gp.Constant(),
    "smooth": lw.gp.RBF((0.7, 1.0, 2.0)) * lw.gp.Matern(2.5),
    "periodic": lw.gp.Periodic(1.2) + 0.3 * lw.gp.Linear(),
    "own": lw.gp.Custom(lambda a, b: torch.exp(-0.5 * (a[:, None] - b).square().sum(-1))),
}


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_of_gaussian_processes(kernel: str, joint: bool) -> None:
    x, y = normal(12, 3), normal(12, 2, seed=1)
    posterior = lw.GP(KERNELS[kernel], lw.Gaussian(50.0), mean="linear").fit((x, y))
    check_slope(lambda at: posterior.predict(at, joint=joint), normal(3, 3, seed=2))


@pytest.mark.parametrize("joint", [False, True])
def test_of_processes_of_classes(joint: bool) -> None:
    posterior = lw.GP(KERNELS["Matérn"], lw.Categorical()).fit((normal(12, 3), labels(12, classes=3)))
    check_slope(lambda at: posterior.predict(at, joint=joint), normal(3, 3, seed=2))


def test_of_processes_by_functions_drawn() -> None:
    solver = lw.solvers.CG(rtol=1e-12)
    recipe = lw.GP(KERNELS["Matérn"], lw.Gaussian(50.0), solver=solver, samples=8, features=40)
    check_slope(recipe.fit((normal(12, 3), normal(12, 2, seed=1))).predict, normal(3, 3, seed=2))


def test_no_graph_is_kept_where_none_is_asked_for() -> None:
    case = problem("gaussian")
    x = case.new.clone().requires_grad_()
    process = lw.GP(lw.gp.RBF(), lw.Gaussian(9.0)).fit((case.x, case.y))
    for posterior in (fitted(case, "kfac"), fitted(case, "matrix-free"), process):
        with torch.no_grad():
            assert not told(posterior.predict(x)).requires_grad
        with torch.inference_mode():
            assert not posterior.predict(case.new).std.requires_grad
    weights = [value.requires_grad for value in case.model.parameters()]
    told(fitted(case, "kfac").predict(x)).backward()
    assert [value.requires_grad for value in case.model.parameters()] == weights
    assert all(value.grad is None for value in case.model.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["network", "joint", "drawn", "process"])
def test_a_look_where_no_graph_is_asked_for_takes_none_away(kind: str, mode: Any) -> None:
    case = problem("gaussian")
    posterior = fitted(case, "kfac", "last-layer")
    if kind == "process":
        posterior = lw.GP(lw.gp.RBF(), lw.Gaussian(9.0)).fit((case.x, case.y))
    options: dict[str, Any] = {"joint": kind == "joint"}
    if kind == "drawn":
        options = {"linearised": False, "samples": 3, "generator": 3}
    gradients = []
    for look in (False, True):
        at = case.new[:2].clone().requires_grad_()
        found = posterior.predict(at, **options).latent
        if look:
            with mode():
                assert found.std.isfinite().all() and found.sample(1).isfinite().all()
        draws = found.sample(1, generator=torch.Generator().manual_seed(0))
        value = found.mean.sum() - 2 * found.std.sum() + draws.square().sum()
        gradients += torch.autograd.grad(value, at)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_the_second_derivative_of_a_solve_is_another_one() -> None:
    case = problem("gaussian")
    x = case.new[:1]
    found = []
    for structure in ("matrix-free", "full-weights"):
        posterior = fitted(case, structure)
        found.append(torch.autograd.functional.hessian(lambda at, p=posterior: p.predict(at).std.sum(), x))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


class Sorted(nn.Module):
    """A network whose way depends on its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x * self.scale if float(x.detach().sum()) > -1e9 else x)


def test_a_network_that_cannot_be_vectorised_is_refused_and_its_last_layer_is_not() -> None:
    x, y = normal(9, 3), normal(9, 2, seed=1)
    model = seeded(Sorted)
    at = x[:2].clone().requires_grad_()
    with refused(UnsupportedError, "weights=LastLayer()"):
        lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, (x, y)).predict(at)
    check_slope(lw.Laplace(lw.Gaussian(), weights=lw.LastLayer()).fit(model, (x, y)).predict, x[:2])


def test_rows_that_are_too_large_are_refused() -> None:
    case = problem("gaussian")
    with refused(TooLargeError, "4 examples of 2 outputs and 26 weights"):
        live_rows(fitted(case, "kfac").model, case.new, max_bytes=4 * 2 * 26 * 8 - 1)


def test_what_has_no_derivative_is_refused() -> None:
    case = problem("gaussian")
    at = case.new.clone().requires_grad_()
    drawn = limited(fitted(case, "kfac"), jacobian=1)
    with refused(UnsupportedError, "known by draws"):
        drawn.predict(at)
    refits = lw.HessianFree(lw.Gaussian(2.0), prior=lw.Isotropic(50.0), fits=lw.hessian_free.Probed(3, 2))
    with refused(UnsupportedError, "evaluation points alone"):
        refits.fit(case.model, (case.x, case.y), case.new).predict(at)
    ntk = lw.GP(lw.gp.NTK(mlp(1)), lw.Gaussian(9.0)).fit((case.x, case.y))
    with refused(UnsupportedError, "NTK"):
        ntk.predict(at)
    counts = case.x.abs().floor()
    solver = lw.solvers.CG(rtol=1e-6)
    tanimoto = lw.GP(lw.gp.Tanimoto(), lw.Gaussian(9.0), solver=solver, samples=4).fit((counts, case.y))
    with refused(UnsupportedError, "Tanimoto"):
        tanimoto.predict(at.detach().abs().requires_grad_())
