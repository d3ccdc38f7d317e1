"""What every posterior promises, whatever it stands on: a network, a kernel, a projector after a network, or refits."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ct import Geometry, ImagePosterior, Parallel2d, Projector, UNet, equidistant
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.ground.moving import Mover
from lapwing.jacobian.network.network import Network
from lapwing.structures import Structure
from tests.checker import unchecked
from tests.posterior_cases import labels, mlp, normal, refused

X, NEW = normal(12, 3), normal(5, 3, seed=1)
Y = torch.stack([X[:, 0].sin(), X.prod(1)], 1) + 0.1 * normal(12, 2, seed=2)
THREE = labels(12, classes=3)

THREADS = 3


@dataclass(frozen=True, eq=False)
class Case:
    """A posterior, and what is needed to ask it.

    Args:
        posterior: The posterior.
        targets: Of ``X``; ``None`` where there is nothing to score.
        module: The network it stands on.
    """

    posterior: Any
    targets: Tensor | None = None
    module: nn.Module | None = None

    def loaded(self, path: Path, device: str = "cpu") -> Any:
        """What a file has, on a device."""
        if self.module is None:
            return lw.load(path, device=device)
        return lw.load(path, copy.deepcopy(self.module).to(device))


def network(structure: Structure) -> Case:
    """Of three classes."""
    model = mlp(3)
    return Case(lw.Laplace(lw.Categorical(), structure=structure).fit(model, (X, THREE)), THREE, model)


def regression(**options: Any) -> Case:
    """Two outputs of one kernel."""
    recipe = lw.GP(1.0 * lw.gp.Matern(1.5), lw.Gaussian(50.0), samples=8, features=60, **options)
    return Case(recipe.fit((X, Y)), Y)


def refits() -> Case:
    """Of a network, at the new inputs and those of the data."""
    model = mlp(2)
    recipe = lw.HessianFree(lw.Gaussian(2.0), prior=lw.Isotropic(50.0), fits=lw.hessian_free.Probed(3, 2))
    return Case(recipe.fit(model, (X, Y), torch.cat([NEW, X])), Y, model)


def image() -> Case:
    """Of a few rays through a small one."""
    net = UNet(2, scales=1, channels=4, generator=torch.Generator().manual_seed(0)).double()
    operator = Projector(Parallel2d((4, 5), equidistant(3), 6), torch.float64)
    solver = lw.solvers.CG(rtol=1e-12, preconditioner=lw.LowRank(5))
    y = normal(operator.shape[0], seed=1)
    found = ImagePosterior.of(net, normal(1, 1, 4, 5), operator, y, noise_std=0.5, samples=3, solver=solver)
    return Case(found, None, net)


CASES: dict[str, Callable[[], Case]] = {
    "full over weights": lambda: network(lw.Full(view="weights")),
    "full over functions": lambda: network(lw.Full(view="functions")),
    "KFAC": lambda: network(lw.KFAC()),
    "Nyström": lambda: network(lw.Nystrom(20, samples=36)),
    "sampled": lambda: network(lw.Sampled(6)),
    "matrix-free": lambda: network(lw.MatrixFree()),
    "Gaussian process": regression,
    "Gaussian process by products": lambda: regression(solver=lw.solvers.CG(rtol=1e-10)),
    "Gaussian process of classes": lambda: Case(lw.GP(1.0 * lw.gp.RBF(1.2), lw.Categorical()).fit((X, THREE)), THREE),
    "Gaussian process with Student-t noise": lambda: Case(
        lw.GP(1.0 * lw.gp.RBF(1.2), lw.StudentT(3.0, 0.2)).fit((X, Y[:, :1])), Y[:, :1]
    ),
    "refits": refits,
    "image": image,
}

UNSAVED = ("matrix-free",)
"""Those whose curvature is in their training data alone."""


@cache
def case_of(name: str) -> Case:
    """One for all tests that leave it as it is."""
    return CASES[name]()


every_posterior = pytest.mark.parametrize("name", CASES)
every_predictor = pytest.mark.parametrize("name", [name for name in CASES if name != "image"])
every_sampler = pytest.mark.parametrize("name", [name for name in CASES if name not in ("image", "refits")])


def numbers(posterior: Any, x: Tensor = NEW) -> list[Tensor]:
    """What it predicts; an image, which has no inputs, predicts itself."""
    if isinstance(posterior, ImagePosterior):
        return [posterior.mean, posterior.std]
    outputs = posterior.outputs(x).marginal()
    return [outputs.mean, outputs.variance]


def draws(posterior: Any, samples: int, generator: torch.Generator | int | None) -> Tensor:
    """Of functions at the new inputs, or of an image."""
    if isinstance(posterior, ImagePosterior):
        return posterior.sample(samples, generator=generator)
    return posterior.sample_functions(NEW, samples, generator=generator)


def check_same(found: list[Tensor], expected: list[Tensor], rtol: float = 1e-7) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=rtol, atol=rtol)


@every_predictor
def test_predictions_of_some_inputs_are_those_of_all(name: str) -> None:
    case = case_of(name)
    posterior = case.posterior
    part = torch.tensor([3, 0])
    check_same(numbers(posterior, NEW[part]), [each[part] for each in numbers(posterior)])
    prediction = posterior.predict(NEW)
    classes = isinstance(posterior.likelihood, lw.Categorical)
    shown = prediction.probs if classes else prediction.mean
    assert case.targets is not None
    assert shown.shape == (5, 3 if classes else case.targets.shape[1]) and bool(shown.isfinite().all())


@every_predictor
def test_what_is_known_is_told_and_strangers_only_beside_familiar_inputs(name: str) -> None:
    prediction = case_of(name).posterior.predict(NEW)
    assert prediction.epistemic.shape == (5,) and bool((prediction.epistemic >= 0).all())
    assert prediction.known.std.shape == prediction.location.shape
    with refused(UnsupportedError, "familiar inputs"):
        _ = prediction.unfamiliar


@every_predictor
def test_it_is_evaluated(name: str) -> None:
    case = case_of(name)
    scores = lw.evaluate(case.posterior, (X, case.targets))
    assert {"nll"} < scores.keys() and all(torch.tensor(value).isfinite() for value in scores.values())


@every_sampler
def test_functions_are_sampled_by_one_signature(name: str) -> None:
    posterior = case_of(name).posterior
    parameters = inspect.signature(posterior.sample_functions).parameters
    assert list(parameters) == ["x", "samples", "generator"]
    assert parameters["samples"].default == 1 and parameters["generator"].default is None
    assert posterior.sample_functions(NEW).shape == (1, *posterior.outputs(NEW).mean.shape)
    found = draws(posterior, 6 if name == "sampled" else 4_000, 0)
    variance = found.var(0)
    if name != "sampled":  # whose draws are those there are
        error = (numbers(posterior)[0] - found.mean(0)).abs()
        assert bool((error <= 5 * (variance / len(found)).sqrt() + 1e-6).all())
    with refused(ConfigError, "samples"):
        posterior.sample_functions(NEW, 0)


@every_predictor
def test_predictions_take_a_generator_or_its_seed(name: str) -> None:
    posterior = case_of(name).posterior
    by_draws = {"link": "mc"} if "link" in inspect.signature(posterior.predict).parameters else {}

    def predicted(generator: torch.Generator | int) -> list[Tensor]:
        prediction = posterior.predict(NEW, **by_draws, generator=generator)
        shown = "probs" if isinstance(posterior.likelihood, lw.Categorical) else "std"
        return [prediction.location, getattr(prediction, shown)]

    found = predicted(5)
    check_same(predicted(5), found)
    first, second = (predicted(torch.Generator().manual_seed(5)) for _ in range(2))
    check_same(first, second)
    drawn = name == "Gaussian process by products" or (bool(by_draws) and name not in ("refits", "sampled"))
    assert torch.equal(predicted(6)[1], found[1]) != drawn
    for wrong in (True, "0"):
        with unchecked(), refused(ConfigError, "generator"):
            posterior.predict(NEW, generator=wrong)


@pytest.mark.parametrize("name", [name for name in CASES if name != "refits"])
def test_a_generator_or_its_seed_draw_the_same_each_time(name: str) -> None:
    posterior = case_of(name).posterior
    numbers(posterior)  # so that draws are not solved for together with the mean
    found = draws(posterior, 3, 5)
    assert torch.equal(draws(posterior, 3, 5), found)
    assert not torch.equal(draws(posterior, 3, 6), found)
    first, second = (draws(posterior, 3, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    before = torch.random.get_rng_state()
    draws(posterior, 3, 5)
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        one, two = draws(posterior, 3, None), draws(posterior, 3, None)
        torch.manual_seed(1)
        again = draws(posterior, 3, None)
    assert torch.equal(one, again) and not torch.equal(one, two)
    for wrong in (True, "0"):
        with unchecked(), refused(ConfigError, "generator"):
            draws(posterior, 3, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in CASES if name not in UNSAVED])
def test_it_comes_back_from_a_file(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    expected = numbers(case.posterior)
    lw.save(case.posterior, tmp_path / "posterior", training_inputs=True)
    found = case.loaded(tmp_path / "posterior")
    check_same(numbers(found), expected)
    if name != "refits":
        check_same([draws(found, 2, 3)], [draws(case.posterior, 2, 3)])


@every_posterior
def test_it_travels_to_other_processes(name: str) -> None:
    posterior = case_of(name).posterior
    expected = numbers(posterior)
    for other in (pickle.loads(pickle.dumps(posterior)), copy.deepcopy(posterior)):
        check_same(numbers(other), expected)


@every_posterior
def test_threads_get_the_answers_of_one(name: str) -> None:
    expected = numbers(case_of(name).posterior)
    shared = CASES[name]().posterior
    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(lambda _: numbers(shared), range(2 * THREADS)))
    for answer in answers:
        check_same(answer, expected)


def tensors_of(value: Any, found: dict[int, Tensor] | None = None) -> dict[int, Tensor]:
    """Every tensor in the fields of a posterior and of its network, by where it lies; but for the prior's, and data."""
    found = {} if found is None else found
    if isinstance(value, Tensor) and value.numel():
        found[value.data_ptr()] = value
    elif isinstance(value, Network):
        tensors_of([*value.module.parameters(), *value.module.buffers(), *value.params.values(), value.index], found)
    elif isinstance(value, tuple | list):
        for part in value:
            tensors_of(part, found)
    elif is_dataclass(value) and not isinstance(value, lw.Prior | Data | Geometry):
        for each in fields(value):
            tensors_of(getattr(value, each.name), found)
    return found


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("Gaussian process")])
def test_all_of_it_moves(name: str, device: torch.device) -> None:
    posterior = case_of(name).posterior
    expected = numbers(posterior)
    copied = posterior.moved_by(Mover("cpu", copy=True))
    assert not tensors_of(copied).keys() & tensors_of(posterior).keys() and tensors_of(copied)
    check_same(numbers(copied), expected)
    there = posterior.to(device)
    assert {value.device.type for value in tensors_of(there).values()} == {device.type}
    found = numbers(there, NEW.to(device))
    assert all(value.device.type == device.type for value in found)
    check_same(found, expected, rtol=1e-6)
    if name != "refits":
        check_same([draws(copied, 2, 3)], [draws(posterior, 2, 3)])
    check_same(numbers(posterior.to(device).to("cpu")), expected, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("Gaussian process")])
def test_it_moves_with_what_it_was_solved_for(name: str, device: torch.device) -> None:
    posterior = case_of(name).posterior
    expected = numbers(posterior)
    there = posterior.to(device)
    check_same(numbers(there, NEW.to(device)), expected)
    assert there.data.inputs.device.type == device.type
    check_same([draws(there, 2, 3)], [draws(posterior, 2, 3)], rtol=1e-5)
    check_same(numbers(posterior.to(device)), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in CASES if name not in UNSAVED])
def test_it_comes_back_on_another_device(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    expected = numbers(case.posterior)
    lw.save(case.posterior, tmp_path / "posterior", training_inputs=True)
    found = case.loaded(tmp_path / "posterior", "cuda")
    there = numbers(found, NEW.cuda())
    assert all(value.is_cuda for value in there)
    check_same(there, expected, rtol=1e-6)
