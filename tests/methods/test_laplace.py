"""The recipe: what it accepts, and that the network is left alone whatever happens."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, LapwingError, MismatchError
from lapwing.jacobian.network.unwrapping import unwrapped
from tests.pairwise import in_turn
from tests.posterior_cases import STRUCTURES, labels, mlp, normal, portrait, problem, refused, seeded

X, Y, NEW = normal(12, 3), labels(12, classes=3), normal(4, 3, seed=2)
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def classify(model: nn.Module, data: Any, **options: Any) -> lw.Posterior:
    return lw.Laplace(lw.Categorical()).fit(model, data, **options)


class TestRecipe:
    def test_is_frozen_and_comparable(self) -> None:
        recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC())
        assert recipe == lw.Laplace(lw.Categorical(), structure=lw.KFAC()) != lw.Laplace(lw.Categorical())
        with pytest.raises(FrozenInstanceError):
            recipe.prior = lw.Isotropic(2.0)  # type: ignore[misc]

    def test_shows_progress_on_request(self, capsys: pytest.CaptureFixture[str]) -> None:
        classify(mlp(3), (X, Y))
        assert capsys.readouterr().err == ""
        classify(mlp(3), (X, Y), progress=True)
        assert "batch" in capsys.readouterr().err

    def test_finds_the_network_in_its_wrappers(self) -> None:
        model = mlp(3)
        assert unwrapped(model) is model
        assert unwrapped(nn.DataParallel(model)) is model
        assert unwrapped(nn.DataParallel(torch.compile(model))) is model  # type: ignore[arg-type]
        assert unwrapped(torch.compile(nn.DataParallel(torch.compile(model)))) is model  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("arguments", "choices", "got"),
        [
            ((mlp(3), "classification"), {"hessian_structure": "kron"}, "a Sequential, a str, hessian_structure="),
            ((mlp(3),), {"likelihood": "regression"}, "a Sequential"),
            ((lw.Categorical(),), {"prior_precision": 2.0}, "a Categorical, prior_precision="),
        ],
    )
    def test_the_call_of_laplace_torch_is_pointed_to_ours(self, arguments: Any, choices: Any, got: str) -> None:
        with refused(ConfigError, got):
            lw.Laplace(*arguments, **choices)

    def test_every_default_is_the_one_documented(self) -> None:
        recipe = lw.Laplace(lw.Categorical())
        defaults = (lw.Isotropic(1.0), lw.Auto(), lw.All(), lw.GGN())
        assert (recipe.prior, recipe.structure, recipe.weights, recipe.curvature) == defaults


class TestFormats:
    @pytest.mark.parametrize(
        "data",
        [
            [(X[:5], Y[:5]), (X[5:], Y[5:])],
            [[X[:5], Y[:5]], [X[5:], Y[5:]]],
            DataLoader(TensorDataset(X, Y), batch_size=5),
            DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True),
            (X.float(), Y),
        ],
        ids=["tuples", "lists", "loader", "shuffled", "float32"],
    )
    def test_of_pairs(self, data: Any) -> None:
        usual = classify(mlp(3), (X, Y))
        tolerance = 1e-5 if isinstance(data, tuple) else 1e-12
        assert classify(mlp(3), data).log_marginal() == pytest.approx(usual.log_marginal(), rel=tolerance)

    def test_of_an_iterator(self) -> None:
        batches = iter([(X[:5], Y[:5]), (X[5:], Y[5:])])
        usual = classify(mlp(3), (X, Y))
        assert classify(mlp(3), batches).log_marginal() == pytest.approx(usual.log_marginal(), rel=1e-12)

    @every_structure
    def test_of_hugging_face(self, structure: str) -> None:
        """Mappings with labels in; the network takes keywords and returns an object with logits."""

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = mlp(3)

            def forward(self, features: Tensor, scale: Tensor, labels: Tensor | None = None) -> Any:
                assert labels is None
                return SimpleNamespace(loss=None, logits=self.inner(scale * features))

        rows = [{"features": X[i], "scale": torch.tensor([1.0]), "labels": Y[i]} for i in range(12)]
        recipe = lw.Laplace(lw.Categorical(), structure=STRUCTURES[structure])
        posterior = recipe.fit(Model(), DataLoader(rows, batch_size=5))
        usual = recipe.fit(mlp(3), (X, Y))
        assert posterior.log_marginal() == pytest.approx(usual.log_marginal(), rel=1e-12)
        probs = posterior.predict({"features": NEW, "scale": torch.ones(4, 1)}).probs
        torch.testing.assert_close(probs, usual.predict(NEW).probs, rtol=1e-10, atol=1e-12)

    @every_structure
    def test_of_several_inputs_and_a_tuple_of_outputs(self, structure: str) -> None:
        class Sum(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = mlp(3)

            def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, None]:
                return self.inner(a + b), None

        recipe = lw.Laplace(lw.Categorical(), structure=STRUCTURES[structure])
        loader = DataLoader(TensorDataset(X - 1, torch.ones_like(X), Y), batch_size=5)
        posterior = recipe.fit(Sum(), loader, output=0)
        probs = posterior.predict((NEW - 1, torch.ones_like(NEW))).probs
        torch.testing.assert_close(probs, recipe.fit(mlp(3), (X, Y)).predict(NEW).probs, rtol=1e-10, atol=1e-12)

    def test_of_ones_own(self) -> None:
        posterior = classify(mlp(3), [{"question": X, "answer": Y}], unpack=lambda it: (it["question"], it["answer"]))
        assert posterior.log_marginal() == classify(mlp(3), (X, Y)).log_marginal()

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_where_gradients_are_switched_off(self, mode: Any) -> None:
        model = mlp(3)
        usual = classify(model, (X, Y))
        with mode():
            posterior = classify(model, (X, Y))
            probs = posterior.predict(NEW * 1.0).probs
        assert torch.equal(probs, usual.predict(NEW).probs)
        assert posterior.log_marginal() == usual.log_marginal()


class Interrupting(nn.Module):
    """Passes its input on, and interrupts when a countdown outside of the module reaches zero."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.countdown = SimpleNamespace(left=0)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        self.countdown.left -= 1
        if self.countdown.left == 0:
            raise self.error
        return x


class TestInterruption:
    @pytest.mark.parametrize(
        ("moment", "error"),
        in_turn(product(["full-weights", "full-functions", "kfac"], range(1, 8)), [KeyboardInterrupt, RuntimeError]),
    )
    def test_leaves_the_module_untouched(self, moment: tuple[str, int], error: type[BaseException]) -> None:
        structure, call = moment
        layer = Interrupting(error)
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), layer, nn.Dropout(), nn.Linear(4, 3)))
        model[1].eval()
        before = portrait(model)
        recipe = lw.Laplace(lw.Categorical(), structure=STRUCTURES[structure])
        batches = list(zip(X.split(3), Y.split(3), strict=True))
        layer.countdown.left = call
        with pytest.raises((error, LapwingError)) as info:  # what fails in a network is explained
            recipe.fit(model, batches)
        causes = [info.value, info.value.__cause__, getattr(info.value.__cause__, "__cause__", None)]
        assert error in map(type, causes)
        assert portrait(model) == before
        posterior = recipe.fit(model, batches)
        layer.countdown.left = 1
        with pytest.raises((error, DataError)):
            posterior.predict(NEW)
        assert portrait(model) == before


class TestServing:
    @every_structure
    def test_networks_in_train_mode_are_used_in_eval_mode_and_put_back(self, structure: str) -> None:
        case = problem("images")
        served, trained = copy.deepcopy(case.model).eval(), copy.deepcopy(case.model).train()
        trained[1].eval()
        recipe = lw.Laplace(case.likelihood, structure=STRUCTURES[structure])
        posteriors = [recipe.fit(model, case.batches()) for model in (served, trained)]
        a, b = (posterior.predict(case.new).probs for posterior in posteriors)
        assert torch.equal(a, b)
        assert not any(part.training for part in served.modules())
        assert [part.training for part in trained] == [True, False, True, True, True]

    @pytest.mark.parametrize("write", ["step", "load", "buffer"])
    def test_a_network_trained_on_after_the_fit_is_refused(self, write: str) -> None:
        case = problem("images")
        model = copy.deepcopy(case.model)
        posterior = lw.Laplace(case.likelihood).fit(model, case.batches())
        if write == "step":
            with torch.no_grad():
                model[0].weight.add_(0.1)
        elif write == "load":
            model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
        else:
            model[1].running_mean.add_(1.0)
        words = "as it was when the posterior was fitted"
        for ask in (lambda: posterior.predict(case.new), lambda: posterior.sample_functions(case.new)):
            with refused(MismatchError, words):
                ask()
        with refused(MismatchError, words):
            posterior.log_marginal()


def test_inputs_and_targets_are_given_together() -> None:
    recipe: Any = lw.Laplace(lw.Categorical())
    with refused(ConfigError, "Try fit(model, (x, y))"):
        recipe.fit(mlp(3), X, Y)
