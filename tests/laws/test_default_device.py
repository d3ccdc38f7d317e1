"""Whatever the default device is, answers are those on the network's own; code of the user has the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from tests.posterior_cases import labels, normal, refused, seeded

X, Y = normal(9, 3), labels(9, classes=3)
REAL = normal(9, 1, seed=2)


@contextmanager
def default(device: str | None) -> Iterator[None]:
    """As after ``torch.set_default_device``, for the block."""
    with nullcontext() if device is None else torch.device(device):
        yield


class Watching(nn.Module):
    """A network that looks where tensors are made while it runs."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.first, self.head, self.found = nn.Linear(3, 4), nn.Linear(4, outputs), set[str]()

    def forward(self, x: Tensor) -> Tensor:
        self.found.add(torch.empty(0).device.type)
        return self.head(torch.tanh(self.first(x)))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def tuned(method: Any, structure: Any = None) -> Callable[[nn.Module], Any]:
    def predicted(model: nn.Module) -> Tensor:
        posterior = lw.Laplace(lw.Categorical(), structure=structure or lw.KFAC()).fit(model, (X, Y))
        return lw.tune(posterior, method).predict(X).probs

    return predicted


def predicted(**options: Any) -> Callable[[nn.Module], Any]:
    recipe = lw.Laplace(lw.Categorical(), **options)
    return lambda model: recipe.fit(model, (X, Y), generator=generator()).predict(X).probs


def asked(question: Callable[[Any], Any]) -> Callable[[nn.Module], Any]:
    return lambda model: question(lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, (X, Y)))


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "full": predicted(structure=lw.Full()),
    "functions": predicted(structure=lw.Full(view="functions")),
    "diagonal": predicted(structure=lw.Diagonal(), prior=lw.Layerwise()),
    "low rank": predicted(structure=lw.LowRank(3)),
    "matrix-free": predicted(structure=lw.MatrixFree()),
    "drawn": predicted(structure=lw.Sampled(samples=3)),
    "Nyström": predicted(structure=lw.Nystrom()),
    "last layer": predicted(weights=lw.LastLayer()),
    "subnetwork": predicted(weights=lw.Subnetwork(5, by="random")),
    "sampled labels": predicted(curvature=lw.MCFisher(2)),
    "g-prior": predicted(prior=lw.GPrior()),
    "evidence": tuned(lw.EvidenceGradient()),
    "MacKay": tuned(lw.MacKay()),
    "EM": tuned(lw.EM(samples=3, steps=20, noise=False), lw.Full()),
    "validation": tuned(lw.Validation((X, Y))),
    "weights": asked(lambda posterior: posterior.sample(2, generator=generator())),
    "functions drawn": asked(lambda posterior: posterior.sample_functions(X[:2], 2, generator=generator())),
    "numbers": asked(lambda posterior: [posterior.log_marginal(), posterior.effective_dimension()]),
    "draws": asked(lambda posterior: posterior.predict(X, link="mc", generator=generator()).probs),
    "scores": asked(lambda posterior: list(lw.evaluate(posterior, (X, Y)).values())),
    "plain network": lambda model: lw.baselines.PlainNetwork(model).predict(X).probs,
    "refits": lambda model: (
        lw.HessianFree(lw.Categorical(), prior=lw.Isotropic(50.0), fits=lw.hessian_free.PerPoint())
        .fit(model, (X, Y), X[:1])
        .predict(X[:1])
        .logits.variance
    ),
    "training": lambda model: lw.train_marginal(model, (X, Y), lw.Categorical(), epochs=3).history[-1].nll,
}


@pytest.mark.filterwarnings("ignore::lapwing.ConvergenceWarning")
@pytest.mark.parametrize("call", list(CALLS))
def test_answers_are_those_without_a_default_device(call: str) -> None:
    answers: list[Tensor] = []
    for device in ("meta", None):
        model = seeded(Watching)
        with default(device):
            answer = CALLS[call](model)
        answers.append(torch.as_tensor(answer))
        assert model.found == {device or "cpu"}  # type: ignore[comparison-overlap]
    torch.testing.assert_close(*answers, rtol=0.0, atol=0.0)


def test_files_hold_the_same(tmp_path: Path) -> None:
    model = seeded(Watching)
    posterior = lw.Laplace(lw.Categorical()).fit(model, (X, Y))
    lw.save(posterior, tmp_path / "plain")
    with torch.device("meta"):
        lw.save(posterior, tmp_path / "other")
        loaded: Any = lw.load(tmp_path / "other", model, (X, Y))
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "other").read_bytes()
    assert torch.equal(loaded.predict(X).probs, posterior.predict(X).probs)


def test_intervals_are_the_same() -> None:
    posterior = lw.Laplace(lw.Gaussian()).fit(seeded(lambda: Watching(1)), (X, REAL))
    with torch.device("meta"):
        found = posterior.predict(X).interval(0.9)
    torch.testing.assert_close(found, posterior.predict(X).interval(0.9), rtol=0.0, atol=0.0)


def test_a_loader_makes_its_batches_on_the_default_device() -> None:
    class Loader:
        def __iter__(self) -> Iterator[Any]:
            yield torch.zeros(9, 3), Y

    model = seeded(Watching)
    with torch.device("meta"), refused(lw.LapwingError, "on the meta device"):
        lw.Laplace(lw.Categorical()).fit(model, Loader())
    assert torch.empty(0).device.type == "cpu"


META = X.to("meta")
DOORS: dict[str, Callable[[nn.Module], Any]] = {
    "fit": lambda model: lw.Laplace(lw.Categorical()).fit(model, (META, Y)),
    "targets": lambda model: lw.Laplace(lw.Categorical()).fit(model, (X, Y.to("meta"))),
    "predict": lambda model: lw.Laplace(lw.Categorical()).fit(model, (X, Y)).predict(META),
    "scores": lambda model: lw.evaluate(lw.baselines.PlainNetwork(model), (X, Y.to("meta"))),
    "plain network": lambda model: lw.baselines.PlainNetwork(model).predict(META),
    "normalised": lambda model: lw.normalised(model, META),
    "process": lambda _: lw.GP().fit((X, REAL)).predict(META),
}


@pytest.mark.parametrize("door", list(DOORS))
def test_inputs_without_values_are_refused(door: str) -> None:
    with refused(lw.LapwingError, "on the meta device"):
        DOORS[door](seeded(Watching))
