"""The law of the store: a loaded posterior is the saved one, to the last bit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature.blocked import BlockedCurvature
from lapwing.ground.errors import ConfigError, DataError, UnsupportedError
from lapwing.ground.layout import Layout
from lapwing.linalg import Diagonal, LowRank
from lapwing.posteriors import FunctionPosterior, Posterior, Step, WeightPosterior
from lapwing.priors import Prior
from lapwing.store import load, read_header, save
from lapwing.store.files import POSTERIOR
from tests.checker import unchecked
from tests.pairwise import in_turn, pairwise
from tests.posterior_cases import PROBLEMS, STRUCTURES, WEIGHTS, normal, problem, refused

STEPS = (Step(-3.5, (0.1, 0.2), 4.0, 1.5), Step(-2.5, (1 / 3,), None, 1.25, 0.5))


def again(posterior: Posterior, folder: Path, model: nn.Module | None = None) -> Posterior:
    save(posterior, folder / "posterior.safetensors", training_inputs=True)
    return load(folder / "posterior.safetensors", posterior.network.module if model is None else model)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors of a frozen record, those of records inside it too."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))


def answers(posterior: Posterior, new: Any) -> list[Tensor]:
    """Everything a posterior can be asked, with the same draws."""

    def seed() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    predictives = [posterior.predict(new), posterior.predict(new, joint=True)]
    numbers = torch.tensor([posterior.log_marginal(), posterior.effective_dimension()], dtype=torch.float64)
    asked = [
        numbers,
        posterior.evidence.square_norms,
        *(tensor for predictive in predictives for tensor in tensors_of(predictive)),
        *(predictive.sample(3, generator=seed()) for predictive in predictives),
        posterior.sample_functions(new, 3, generator=seed()),
    ]
    if isinstance(posterior, WeightPosterior):
        asked += [posterior.sample(3, generator=seed()), posterior.curvature.operator.diagonal()]
        drawn = posterior.predict(new, linearised=False, samples=3, generator=seed())
        asked.append(drawn.sample(2, generator=seed()))
    return asked


def check_same(loaded: Posterior, saved: Posterior, new: Any) -> None:
    assert type(loaded) is type(saved)
    assert (loaded.likelihood, loaded.fitted, loaded.prior) == (saved.likelihood, saved.fitted, saved.prior)
    assert (loaded.survey, loaded.trace) == (saved.survey, saved.trace)
    assert (loaded.link, loaded.temperature) == (saved.link, saved.temperature)
    for ours, theirs in zip(answers(loaded, new), answers(saved, new), strict=True):
        assert torch.equal(ours, theirs)


def test_link_and_temperature_are_kept(tmp_path: Path) -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7))).with_link("pairwise", 1.25)
    check_same(again(posterior, tmp_path), posterior, case.new)


@pytest.mark.parametrize(("name", "structure"), in_turn(PROBLEMS, STRUCTURES, whole=("tokens",)))
def test_round_trip_of_every_likelihood_and_structure(name: str, structure: str, tmp_path: Path) -> None:
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=STRUCTURES[structure]))
    check_same(again(posterior, tmp_path, copy.deepcopy(case.model)), posterior, case.new)


def prior_of(kind: str, layout: Layout) -> Prior:
    """A prior of one kind whose precisions all differ."""
    if kind == "isotropic":
        return lw.Isotropic(0.7)
    if kind == "layerwise":
        return lw.Layerwise(tuple(0.5 + i / 3 for i in range(len(layout.layers))))
    return lw.DiagonalPrior(torch.linspace(0.5, 2.0, layout.size, dtype=torch.float64))


@pytest.mark.parametrize(
    ("weights", "prior", "structure"),
    pairwise(WEIGHTS, ["isotropic", "layerwise", "diagonal"], ["full-weights", "diagonal"]),
)
def test_round_trip_of_every_selection_and_prior(weights: str, prior: str, structure: str, tmp_path: Path) -> None:
    case = problem("images")
    fitted = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], weights=WEIGHTS[weights]))
    posterior = fitted.with_hyperparameters(prior_of(prior, fitted.network.uncertain), case.likelihood)
    loaded = again(posterior, tmp_path)
    check_same(loaded, posterior, case.new)
    assert loaded.network.uncertain == posterior.network.uncertain


def with_rank(posterior: Posterior, base: Diagonal | None) -> WeightPosterior:
    assert isinstance(posterior, WeightPosterior)
    return replace(posterior, curvature=BlockedCurvature(LowRank(normal(posterior.network.size, 3), base)))


@pytest.mark.parametrize("based", [False, True])
def test_round_trip_of_low_rank_curvature(based: bool, tmp_path: Path) -> None:
    case = problem("categorical")
    fitted = case.fit(lw.Laplace(case.likelihood, structure=lw.Diagonal()))
    posterior = with_rank(fitted, Diagonal(normal(fitted.network.size).exp()) if based else None)
    loaded = again(posterior, tmp_path)
    assert torch.equal(loaded.sample(3, generator=torch.Generator()), posterior.sample(3, generator=torch.Generator()))
    check_same(loaded, posterior, case.new)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_noise_prior_and_trace_of_tuning_survive_and_tuning_goes_on(structure: str, tmp_path: Path) -> None:
    case = problem("gaussian")
    posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Layerwise(), structure=STRUCTURES[structure]))
    tuned = posterior.with_hyperparameters(lw.Layerwise((0.3, 2.0)), lw.Gaussian(1.7), STEPS)
    loaded = again(tuned, tmp_path)
    check_same(loaded, tuned, case.new)
    assert loaded.fitted == case.likelihood
    further = (lw.Layerwise((5.0, 0.4)), lw.Gaussian(0.9), STEPS[:1])
    ours, theirs = loaded.with_hyperparameters(*further), tuned.with_hyperparameters(*further)
    assert ours.trace == STEPS + STEPS[:1] and ours.log_marginal() == theirs.log_marginal()
    assert torch.equal(ours.predict(case.new).variance, theirs.predict(case.new).variance)


@pytest.mark.parametrize("structure", ["full-weights", "diagonal", "kfac"])
def test_tuning_takes_the_same_steps_after_loading(structure: str, tmp_path: Path) -> None:
    case = problem("gaussian")
    posterior = lw.tune(case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure])))
    loaded = again(posterior, tmp_path)
    assert loaded.trace == posterior.trace != ()
    assert loaded.knowledge is not None and posterior.knowledge is not None
    assert torch.equal(loaded.knowledge.familiar, posterior.knowledge.familiar)
    at_mode = lw.EvidenceGradient(at="mode")
    without_inputs = replace(lw.tune(posterior, at_mode), knowledge=None)  # as of one that has no training data
    check_same(lw.tune(loaded, at_mode), without_inputs, case.new)


def test_saving_what_was_loaded_gives_the_same_bytes(tmp_path: Path) -> None:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC()))
    save(posterior, tmp_path / "a")
    posterior.log_marginal()
    save(posterior, tmp_path / "b")
    save(load(tmp_path / "a", case.model), tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


class Scaled(nn.Module):
    """Takes several inputs, one of them no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor, shift: Tensor | None = None, double: bool = False) -> Tensor:
        f = self.body(x if shift is None else x + shift)
        return 2 * f if double else f


@pytest.mark.parametrize(
    "form",
    [lambda x: x, lambda x: (x, x.flip(1), True), lambda x: {"x": x, "shift": None, "double": True}],
    ids=["tensor", "tuple", "mapping"],
)
def test_functions_over_inputs_of_every_form(form: Any, tmp_path: Path) -> None:
    x, y = normal(8, 3), torch.arange(8) % 2
    batches = [(form(x[i : i + 4]), y[i : i + 4]) for i in (0, 4)]
    recipe = lw.Laplace(lw.Categorical(), structure=lw.Full(view="functions"))
    posterior = recipe.fit(Scaled(), batches, unpack=lambda element: element)
    loaded = again(posterior, tmp_path)
    assert isinstance(posterior, FunctionPosterior)
    assert isinstance(loaded, FunctionPosterior)
    assert type(loaded.rows.inputs) is type(posterior.rows.inputs)  # type: ignore[attr-defined]
    check_same(loaded, posterior, form(normal(2, 3, seed=5)))


def test_functions_over_images_that_lie_channels_last(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    x = torch.randn(6, 3, 8, 8).to(memory_format=torch.channels_last)
    model(x)
    posterior = lw.Laplace(lw.Categorical(), structure=lw.Full(view="functions")).fit(model, (x, torch.arange(6) % 2))
    check_same(again(posterior, tmp_path), posterior, x[:2])


class TestTrainingInputs:
    """Are in a file only where somebody asked for them."""

    def fitted(self, weights: lw.All | lw.LastLayer, folder: Path, **options: bool) -> tuple[Posterior, bytes]:
        """A posterior over functions of data of two batches, and its file."""
        case = problem("categorical")
        recipe = lw.Laplace(case.likelihood, weights=weights, structure=lw.Full(view="functions"))
        posterior = recipe.fit(case.model, [(case.x[:6], case.y[:6]), (case.x[6:], case.y[6:])])
        save(posterior, folder / "a", **options)
        return posterior, (folder / "a").read_bytes()

    @pytest.mark.parametrize("weights", [lw.All(), lw.LastLayer()], ids=str)
    def test_are_not_in_a_file(
        self, weights: lw.All | lw.LastLayer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, file = self.fitted(weights, tmp_path)
        assert problem("categorical").x[2].numpy().tobytes() not in file
        assert ("training_inputs=True" in caplog.text) == isinstance(weights, lw.All)

    def test_are_there_on_request(self, tmp_path: Path) -> None:
        posterior, file = self.fitted(lw.All(), tmp_path, training_inputs=True)
        assert problem("categorical").x[2].numpy().tobytes() in file
        check_same(load(tmp_path / "a", posterior.network.module), posterior, problem("categorical").new)

    def test_of_a_last_layer_are_not_needed(self, tmp_path: Path) -> None:
        posterior, _ = self.fitted(lw.LastLayer(), tmp_path)
        check_same(load(tmp_path / "a", posterior.network.module), posterior, problem("categorical").new)

    def test_of_other_weights_come_from_the_data(self, tmp_path: Path) -> None:
        posterior, _ = self.fitted(lw.All(), tmp_path)
        model, case = posterior.network.module, problem("categorical")
        check_same(load(tmp_path / "a", model, [(case.x, case.y)]), posterior, case.new)
        alone = load(tmp_path / "a", model)
        assert alone.log_marginal() == posterior.log_marginal()
        assert "training inputs missing" in repr(alone)
        with refused(UnsupportedError, "load(path, model, data) with the training data in their order"):
            alone.predict(case.new)
        with refused(DataError, "in the order they had at the fit"):
            load(tmp_path / "a", model, (case.x.flip(0), case.y.flip(0)))

    def test_may_be_weighed_by_a_prior(self, tmp_path: Path) -> None:
        case = problem("categorical")
        recipe = lw.Laplace(case.likelihood, prior=lw.GPrior(), structure=lw.Full(view="functions"))
        save(posterior := case.fit(recipe), tmp_path / "a")
        check_same(load(tmp_path / "a", case.model, (case.x, case.y)), posterior, case.new)


def test_loaded_posterior_is_on_the_network_s_device(device: torch.device, tmp_path: Path) -> None:
    case = problem("gaussian")
    model = case.model.to(device)
    posterior = lw.Laplace(case.likelihood, structure=lw.KFAC()).fit(model, case.batches())
    loaded = again(posterior, tmp_path)
    assert isinstance(loaded, WeightPosterior)
    assert loaded.curvature.operator.device == loaded.network.weights.device == next(model.parameters()).device
    check_same(loaded, posterior, case.new)
    save(posterior, tmp_path / "moved")
    moved = load(tmp_path / "moved", copy.deepcopy(model).cpu())
    assert moved.log_marginal() == pytest.approx(posterior.log_marginal(), rel=1e-12)


def test_header_tells_what_is_inside(tmp_path: Path) -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=lw.KFAC(), weights=lw.LastLayer())
    posterior = case.fit(recipe).with_hyperparameters(lw.Isotropic(0.7), case.likelihood, STEPS[1:])
    save(posterior, tmp_path / "a")
    header = read_header(tmp_path / "a")
    assert header["posterior"] == "WeightPosterior"
    assert header["versions"]["torch"] == str(torch.__version__)
    assert header["prior"] == {"kind": "Isotropic", "precision": 0.7, "mean": None, "earlier": None}
    assert header["likelihood"]["kind"] == header["fitted"]["kind"] == "Categorical"
    assert header["network"]["uncertain"] == ["3.weight", "3.bias"]
    assert header["network"]["size"] == posterior.network.size
    assert header["network"]["fingerprint"] == posterior.network.fingerprint()
    assert header["network"]["parameters"]["0.weight"] == {"shape": [4, 3], "dtype": "float64"}
    assert (header["totals"]["examples"], header["totals"]["nll"]) == (10, posterior.totals.nll)
    assert header["trace"][0]["prior_precision"] == [1 / 3]
    assert header["curvature"]["operator"]["kind"] == "BlockDiagonal"
    assert header["curvature"]["operator"]["blocks"][0]["kind"] == "Kronecker"


def test_loading_never_unpickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood))

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pickle, name, refuse)
    assert again(posterior, tmp_path).log_marginal() == posterior.log_marginal()


def test_posteriors_of_others_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    class Odd(Posterior):
        pass

    Odd.__abstractmethods__ = frozenset()
    case = problem("categorical")
    fitted = case.fit(lw.Laplace(case.likelihood))
    common = {name: getattr(fitted, name) for name, each in Posterior.__dataclass_fields__.items() if each.init}
    with pytest.raises(UnsupportedError, match=r"Got Odd, whose curvature is not held"):
        save(Odd(**common), tmp_path / "a")  # type: ignore[abstract]
    assert not list(tmp_path.iterdir())


def test_unknown_kinds_of_posteriors_are_refused(tmp_path: Path) -> None:
    case = problem("categorical")
    save(case.fit(lw.Laplace(case.likelihood)), tmp_path / "a")
    header = read_header(tmp_path / "a")
    tensors = POSTERIOR.tensors(tmp_path / "a", header)
    del header["format"], header["schema"], header["checksum"]
    POSTERIOR.write(tmp_path / "b", header | {"posterior": "SamplePosterior"}, tensors)
    with pytest.raises(DataError, match="'SamplePosterior'"):
        load(tmp_path / "b", case.model)


def test_a_path_that_is_no_file_is_refused_before_anything_is_solved(tmp_path: Path) -> None:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.Sampled(2)))
    with refused(ConfigError, "the path of a file"):
        save(posterior, tmp_path)
    number: Any = 3
    with unchecked(), refused(ConfigError, "the path"):
        save(posterior, number)
    with unchecked(), refused(ConfigError, "the path"):
        load(number, case.model)
    assert posterior.found is None


def test_a_file_that_is_not_there_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "digits.safetensors").touch()
    for read in (read_header, load):
        with refused(ConfigError, f"where there is none. Try '{tmp_path / 'digits.safetensors'}'"):
            read(tmp_path / "digit.safetensors")
        with refused(ConfigError, "a directory. Try the path that save(posterior, path) was given"):
            read(tmp_path)
        with refused(ConfigError, "where there is none"):
            read(tmp_path / "folder" / "digits.safetensors")
