"""Which tensor of all that a network returns is its output: said by the user, never guessed by its place."""

from __future__ import annotations

import pickle
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.errors import ConfigError, MismatchError, ShapeError
from tests.checker import unchecked
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import labels, normal, refused, seeded

X, Y = normal(12, 3), labels(12, classes=3)
BOXES, LOGITS = normal(5, 4), normal(5, 3)
Pair = namedtuple("Pair", ["boxes", "logits"])


class Detector(nn.Module):
    """Two heads on one body: boxes of four numbers, and logits of three classes."""

    def __init__(self, returned: Any = None) -> None:
        super().__init__()
        self.body, self.boxes, self.classes = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(5, 3)
        self.returned = returned

    def forward(self, x: Tensor) -> Any:
        z = torch.tanh(self.body(x))
        logits = self.classes(z)
        return logits if self.returned is None else self.returned(self.boxes(z), logits)


class Returning(nn.Module):
    """Whatever it is called with, it returns the same."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, x: Tensor) -> Any:
        return self.returned


def taken(returned: Any, output: Any = None) -> Tensor:
    """What is taken for the output of a network that returns this."""
    return PlainNetwork(Returning(returned), **({} if output is None else {"output": output})).outputs(X)


def logits_of(returned: Any) -> Tensor:
    """A function of what the network returns that can be pickled."""
    return returned["out"][1]


KINDS = {
    "index": (lambda b, f: (b, f), 1),
    "from the end": (lambda b, f: [b, f], -1),
    "key": (lambda b, f: {"boxes": b, "classes": f}, "classes"),
    "attribute": (lambda b, f: SimpleNamespace(boxes=b, classes=f), "classes"),
    "function": (lambda b, f: {"out": (b, f)}, logits_of),
}
"""What comes back, and ``output=``."""


def detector(kind: str | None = None) -> tuple[nn.Module, Any]:
    returned, output = (None, None) if kind is None else KINDS[kind]
    model = seeded(lambda: Detector(returned))
    for value in model.get_submodule("boxes").parameters():
        value.requires_grad_(False)
    return model, output


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_posterior_of_one_of_several_outputs_is_that_of_a_network_with_this_one(kind: str, tmp_path: Path) -> None:
    (model, output), (plain, _) = detector(kind), detector()
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC())
    with unchanged(model):
        posterior = recipe.fit(model, (X, Y), output=output)
    expected = recipe.fit(plain, (X, Y))
    assert torch.equal(posterior.predict(X).probs, expected.predict(X).probs)
    assert dict(lw.evaluate(posterior, (X, Y))) == dict(lw.evaluate(expected, (X, Y)))
    assert pickle.loads(pickle.dumps(posterior.network.output)) == output

    lw.save(posterior, tmp_path / "file")
    if callable(output):
        with refused(MismatchError, "the function logits_of"):
            lw.load(tmp_path / "file", model)
    else:
        with refused(MismatchError, f"fitted to, output={output!r}"):
            lw.load(tmp_path / "file", model, output="boxes")
    loaded: Any = lw.load(tmp_path / "file", model, (X, Y), output=output if callable(output) else None)
    assert torch.equal(loaded.predict(X).probs, expected.predict(X).probs)


@pytest.mark.parametrize("weights", [lw.LastLayer(), lw.Names("classes.*"), lw.Subnetwork(5), lw.LastLayer("classes")])
def test_weights_are_chosen_by_the_output_that_was_asked_for(weights: Any) -> None:
    (model, output), (plain, _) = detector("index"), detector()
    recipe = lw.Laplace(lw.Categorical(), weights=weights)
    posterior, expected = recipe.fit(model, (X, Y), output=output), recipe.fit(plain, (X, Y))
    assert posterior.network.names == expected.network.names
    assert torch.equal(posterior.predict(X).logits.variance, expected.predict(X).logits.variance)


def test_a_comparison_hands_it_to_every_method() -> None:
    targets, recipe = normal(12, 3, seed=1), lw.Laplace(lw.Gaussian(), structure=lw.Diagonal())
    methods = {
        "diagonal": recipe,
        "refits": lw.HessianFree(lw.Gaussian(), prior=lw.Isotropic(300.0), fits=lw.hessian_free.PerPoint()),
    }

    def compared(kind: str | None) -> list[float]:
        model, output = detector(kind)
        few = (X[:2], targets[:2])
        rows = lw.compare(model, (X, targets), few, methods=methods, validation=few, output=output).rows
        return [row.runs[0]["nll"] for row in rows]

    assert compared("index") == compared(None)


def test_training_hands_it_to_every_stage() -> None:
    (model, output), (plain, _) = detector("index"), detector()
    for trained, picked in ((model, output), (plain, None)):
        lw.train_marginal(trained, (X, Y), lw.Categorical(), epochs=3, warm_up=1, settle=1, output=picked)
    assert torch.equal(PlainNetwork(plain).predict(X).probs, PlainNetwork(model, output=output).predict(X).probs)


DOORS: dict[str, Any] = {
    "fit": lambda model: lw.Laplace(lw.Categorical()).fit(model, (X, Y)),
    "last layer": lambda model: lw.Laplace(lw.Categorical(), weights=lw.LastLayer()).fit(model, (X, Y)),
    "refits": lambda model: lw.HessianFree(lw.Categorical()).fit(model, (X, Y)),
    "comparison": lambda model: lw.compare(model, (X, Y), (X, Y)),
    "plain network": lambda model: PlainNetwork(model).predict(X),
    "normalised": lambda model: lw.normalised(model, X),
    "training": lambda model: lw.train_marginal(model, (X, Y), lw.Categorical(), epochs=3),
}


@pytest.mark.parametrize("door", list(DOORS))
def test_of_several_outputs_none_is_taken_by_its_place(door: str) -> None:
    model = seeded(lambda: Detector(lambda b, f: (b, f)))
    with nullcontext() if door == "training" else unchanged(model), refused(ShapeError, "a tuple of 2: ["):
        DOORS[door](model)


def test_a_list_is_refused_with_the_cure() -> None:
    with refused(ShapeError, "[12, 4], [12, 3]. Try output="):
        PlainNetwork(seeded(lambda: Detector(lambda b, f: [b, f]))).predict(X)


@pytest.mark.parametrize(
    "returned", [LOGITS, {"logits": LOGITS, "loss": None}, SimpleNamespace(logits=LOGITS), Pair(BOXES, LOGITS)]
)
def test_one_tensor_and_what_is_called_logits_are_found(returned: Any) -> None:
    assert torch.equal(taken(returned), LOGITS)


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        ({"out": LOGITS, "loss": None}, "a dict of 2: 'out' [5, 3], 'loss' a NoneType"),
        ((), "a tuple of 0"),
        ((LOGITS,), "a tuple of 1: [5, 3]"),
        (None, "a NoneType"),
    ],
)
def test_all_else_is_asked_about(returned: Any, got: str) -> None:
    with refused(ShapeError, got):
        taken(returned)


@pytest.mark.parametrize(
    ("output", "returned", "kind", "said"),
    [
        (2, (BOXES, LOGITS), ConfigError, "with output=2 in it"),
        ("classes", {"logits": LOGITS}, ConfigError, "'logits' [5, 3]"),
        ("0", (BOXES, LOGITS), ConfigError, "a tuple of 2"),
        (0, LOGITS, ConfigError, "no output=, for it is a tensor"),
        ("shape", LOGITS, ConfigError, "no output=, for it is a tensor"),
        (0, ((BOXES, LOGITS),), ShapeError, "output=0 to give one tensor"),
        (logits_of, {"out": (BOXES, "three")}, ShapeError, "output=logits_of to give one tensor"),
    ],
)
def test_an_output_that_is_not_there(output: Any, returned: Any, kind: Any, said: str) -> None:
    with refused(kind, said):
        taken(returned, output)


@pytest.mark.parametrize("output", [1.5, True, ("logits",)])
def test_an_output_that_picks_nothing(output: Any) -> None:
    with unchecked(), refused(ConfigError, "a key, an index or a function"):
        lw.Laplace(lw.Categorical()).fit(detector()[0], (X, Y), output=output)
    with unchecked(), refused(ConfigError, "a key, an index or a function"):
        PlainNetwork(detector()[0], output=output)
