"""laplace-torch's calls: the behaviours that its public tests check, and its own numbers where it is installed.

Its ``test_{baselaplace, lllaplace, subnetlaplace, serialization, subset_params}.py`` have functions that look at no
internals; those named at the tests below have one here that checks the same. Not covered: the masks of its utils
(``test_score_based_subnet_masks``, ``test_layer_subnet_masks``, ``test_full_subnet_mask``): ``lw.Subnetwork``,
``lw.Names`` and ``lw.Mask`` stand for them; its function-space methods; ``test_map_location``, which pickles it; and
what its own backends cannot do and these can (``test_{compatible, incompatible}_backend``, ``test_dict_data_diagEF``,
``test_parametric_fit_y_shape``: targets ``[n]`` are taken for outputs ``[n, 1]``).
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import re
import sys
import warnings
from collections.abc import Generator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MultivariateNormal, Normal
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import ConfigError, MismatchError, NumericalError
from lapwing.integrations import laplace_torch
from lapwing.integrations.laplace_torch import (
    BaseLaplace,
    DiagLaplace,
    DiagLLLaplace,
    DiagSubnetLaplace,
    FullLaplace,
    FullLLLaplace,
    FullSubnetLaplace,
    KronLaplace,
    KronLLLaplace,
    Laplace,
    LLLaplace,
    LowRankLaplace,
    SubnetLaplace,
)
from tests.integrations.pages import run_page
from tests.pairwise import in_turn, pairwise

ALL = (FullLaplace, KronLaplace, DiagLaplace, LowRankLaplace)
LAST = (FullLLLaplace, KronLLLaplace, DiagLLLaplace)
ADDITIVE = (FullLaplace, KronLaplace, DiagLaplace)
SUBNET = torch.tensor([1, 10, 44, 104])
kinds = pytest.mark.parametrize("kind", [*ALL, *LAST])
everywhere = pytest.mark.parametrize("likelihood", ["classification", "regression"])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 20), nn.Linear(20, 2)).double()


def loader_of(likelihood: str, batch: int = 3) -> DataLoader[Any]:
    """Ten examples."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(10, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(10, 2, dtype=torch.float64, generator=generator)
    return DataLoader(TensorDataset(x, y if likelihood == "regression" else (y[:, 0] > 0).long()), batch_size=batch)


def tensors_of(loader: DataLoader[Any]) -> tuple[Tensor, Tensor]:
    return loader.dataset.tensors  # type: ignore[attr-defined]


def fitted(kind: type[BaseLaplace], model: nn.Module, likelihood: str, **options: Any) -> Any:
    given = {"prior_precision": 0.7, **options}
    if likelihood == "regression":
        given.setdefault("sigma_noise", 0.3)
    la: Any = kind(model, likelihood, **given)
    la.fit(loader_of(likelihood))
    return la


def jacobians(model: nn.Module, parameters: list[Tensor], x: Tensor) -> Tensor:
    """By autograd, row by row."""
    outputs = model(x)
    rows = [torch.autograd.grad(f, parameters, retain_graph=True) for f in outputs.reshape(-1)]
    flat = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
    return flat.view(*outputs.shape, -1)


def dense_precision(la: Any) -> Tensor:
    """Its own ``posterior_precision``, as a matrix."""
    precision = la.posterior_precision
    if la.held == "lowrank":
        (vectors, eigenvalues), prior = precision
        return vectors @ torch.diag(eigenvalues) @ vectors.T + prior.diag()
    if la.held == "kron":
        return precision.to_matrix()
    return precision.diag() if la.held == "diag" else precision


# constructing: test_laplace_{init, invalid_likelihood, init_noise, init_precision, init_prior_mean_and_scatter}


@kinds
def test_what_makes_no_sense_is_a_value_error(kind: Any, model: nn.Module) -> None:
    for bad in (torch.tensor([[1.2]]), "1.2"):
        for name in ("sigma_noise", "prior_precision", "prior_mean"):
            with pytest.raises(ValueError, match="Try"):
                kind(model, "regression", **{name: bad})
    with pytest.raises(ValueError, match="likelihood"):
        kind(model, "otherlh")
    with pytest.raises(ValueError, match="sigma_noise=1 for classes"):
        kind(model, "classification", sigma_noise=1.2)
    named = {} if kind in ALL else {"last_layer_name": "1"}
    for name, count in (("prior_precision", 17), ("prior_mean", 5)):
        with pytest.raises(ValueError, match=r"(5|17) of them"):
            kind(model, "regression", **named, **{name: torch.ones(count)})


@kinds
def test_precisions_are_one_one_a_parameter_or_one_a_weight(kind: Any, model: nn.Module) -> None:
    named = {} if kind in ALL else {"last_layer_name": "1"}
    sizes = [value.numel() for value in kind(model, "regression", **named).params]

    def diagonal(precision: Any) -> Tensor:
        return kind(model, "regression", prior_precision=precision, **named).prior_precision_diag

    for precision in (10.5, torch.tensor(10.5), torch.tensor([10.5])):
        assert torch.equal(diagonal(precision), torch.full((sum(sizes),), 10.5).double())
    layers = torch.arange(1.0, 1.0 + len(sizes))
    expected = torch.cat([torch.full((size,), float(value)) for size, value in zip(sizes, layers, strict=True)])
    assert torch.equal(diagonal(layers), expected.double())
    weights = torch.rand(sum(sizes)) + 1
    if kind.held == "kron":
        with pytest.raises(ValueError, match="prior precisions"):
            diagonal(weights)
    else:
        assert torch.equal(diagonal(weights), weights.double())


@kinds
def test_the_mean_of_the_prior_has_its_part_in_the_scatter(kind: Any, model: nn.Module) -> None:
    for mean in (1.0, torch.ones(1), torch.ones(())):
        la = fitted(kind, model, "classification", prior_precision=1e-2, prior_mean=mean)
        assert torch.allclose(la.prior_mean, torch.ones(()).double())
        expected = 1e-2 * (la.mean - 1).square().sum()
        assert la.scatter.shape == () and torch.allclose(la.scatter, expected)
        evidence = la.log_likelihood - 0.5 * (la.log_det_ratio + expected)
        assert torch.allclose(la.log_marginal_likelihood(), evidence)


@kinds
def test_before_a_fit_it_is_the_prior(kind: Any, model: nn.Module) -> None:
    """test_log_prob_full and _kron, the part before the fit; test_laplace_init_nollname."""
    if kind in LAST:
        assert kind(model, "classification").mean is None
        la = kind(model, "classification", last_layer_name="1", prior_precision=0.7)
    else:
        la = kind(model, "classification", prior_precision=0.7)
    assert torch.equal(la.mean, la.prior_mean)
    theta = torch.randn(la.n_params).double()
    prior = Normal(torch.zeros_like(theta), math.sqrt(1 / 0.7))
    assert torch.allclose(la.log_prob(theta), prior.log_prob(theta).sum())
    with pytest.raises(AttributeError, match="fit"):
        _ = la.posterior_precision


# fitting: test_laplace_functionality, test_overriding_fit, test_online_fit, test_log_prob_*


@kinds
@everywhere
def test_likelihood_evidence_draws_and_variances(kind: Any, likelihood: str, model: nn.Module) -> None:
    before = [value.clone() for value in model.parameters()]
    la = fitted(kind, model, likelihood)
    x, y = tensors_of(loader_of(likelihood))
    f = model(x)
    assert la.n_data == 10 and la.n_outputs == 2 and model.training
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    for noise in (0.3, 0.72):
        if likelihood == "regression":
            la.sigma_noise = noise
            expected = Normal(f, noise).log_prob(y).sum()
        else:
            expected = Categorical(logits=f).log_prob(y).sum()
        assert torch.allclose(la.log_likelihood, expected)
    assert torch.equal(la.mean, parameters_to_vector(la.params).detach())
    precision = dense_precision(la)
    prior = la.prior_precision_diag.diag()
    evidence = expected - 0.5 * la.mean @ prior @ la.mean + 0.5 * (prior.logdet() - precision.logdet())
    assert torch.allclose(evidence, la.log_marginal_likelihood())
    assert torch.allclose(la.log_det_posterior_precision, precision.logdet())
    theta = torch.randn_like(la.mean)
    density = MultivariateNormal(la.mean, precision_matrix=precision)
    assert torch.allclose(la.log_prob(theta), density.log_prob(theta))
    drawn = la.sample(5_000)
    assert drawn.shape == (5_000, len(la.mean))
    spread = precision.inverse().diagonal().sqrt()
    assert torch.allclose((drawn.mean(0) - la.mean) / spread, torch.zeros_like(spread), atol=0.07)
    assert torch.allclose(drawn.std(0) / spread, torch.ones_like(spread), atol=0.07)
    rows = jacobians(model, la.params, x)
    covariance = precision.inverse()
    assert torch.allclose(la.functional_variance(rows), torch.einsum("nkp,pq,ncq->nkc", rows, covariance, rows))
    flat = rows.flatten(0, 1)
    assert torch.allclose(la.functional_covariance(rows), flat @ covariance @ flat.T)
    with pytest.raises(ValueError, match="Jacobians"):
        la.functional_variance(rows[..., :-1])


@pytest.mark.parametrize("kind", ADDITIVE)
def test_fits_replace_or_add(kind: Any, model: nn.Module) -> None:
    la = fitted(kind, model, "regression")
    whole = dense_precision(la)
    evidence = la.log_marginal_likelihood()
    la.fit(loader_of("regression"), override=True)
    assert torch.equal(dense_precision(la), whole) and la.n_data == 10
    assert torch.equal(la.log_marginal_likelihood(), evidence)
    prior = la.prior_precision_diag.diag()
    loss = la.loss
    la.fit(loader_of("regression"), override=False)
    la.fit(loader_of("regression"), override=False)
    assert la.n_data == 30 and torch.allclose(la.loss, 3 * loss)
    assert torch.allclose(dense_precision(la) - prior, 3 * (whole - prior))
    rows = jacobians(model, la.params, tensors_of(loader_of("regression"))[0])
    x = tensors_of(loader_of("regression"))[0]
    assert torch.allclose(la(x)[1], la.functional_variance(rows))


@pytest.mark.parametrize("kind", [LowRankLaplace, *LAST])
def test_what_cannot_be_added_is_refused(kind: Any, model: nn.Module) -> None:
    with pytest.raises(ValueError, match="override=True"):
        fitted(kind, model, "regression").fit(loader_of("regression"), override=False)


@pytest.mark.parametrize("kind", ADDITIVE)
def test_two_parts_of_the_data_add_up_to_the_whole(kind: Any, model: nn.Module) -> None:
    x, y = tensors_of(loader_of("classification"))
    whole = fitted(kind, model, "classification")
    parts = kind(model, "classification", prior_precision=0.7)
    for part in (slice(0, 4), slice(4, 10)):
        parts.fit(DataLoader(TensorDataset(x[part], y[part]), batch_size=2), override=False)
    assert torch.allclose(dense_precision(parts), dense_precision(whole))
    assert torch.allclose(parts.log_marginal_likelihood(), whole.log_marginal_likelihood())
    assert torch.allclose(parts(x), whole(x))


# predicting: test_{regression, classification}_predictive{_samples}, test_reg_glm_predictive_correct_behavior


@pytest.mark.parametrize("kind", [*ALL, *LAST, FullSubnetLaplace, DiagSubnetLaplace])
def test_predictive_of_real_targets(kind: Any, model: nn.Module) -> None:
    options = {"subnetwork_indices": SUBNET} if issubclass(kind, SubnetLaplace) else {}
    la = fitted(kind, model, "regression", **options)
    x, _ = tensors_of(loader_of("regression"))
    f = model(x)
    for bad in ({"pred_type": "linear"}, {"link_approx": "other"}, {"pred_type": "nn"}):
        with pytest.raises(ValueError, match="Try"):
            la(x, **bad)
    mean, covariance = la(x)
    assert torch.allclose(mean, f) and covariance.shape == (10, 2, 2)
    assert torch.allclose(la(x, diagonal_output=True)[1], covariance.diagonal(dim1=1, dim2=2))
    for diagonal in (False, True):
        flat, joint = la(x, joint=True, diagonal_output=diagonal)
        assert torch.allclose(flat, f.flatten()) and joint.shape == (20, 20)
        own = joint.view(10, 2, 10, 2).diagonal(dim1=0, dim2=2).movedim(-1, 0)
        assert torch.allclose(own, covariance)
    mean, variance = la(x, pred_type="nn", link_approx="mc", n_samples=2000 if kind in LAST else 5)
    assert mean.shape == variance.shape == (10, 2)
    if kind in LAST:  # which is linear in its weights
        assert torch.allclose(variance, covariance.diagonal(dim1=1, dim2=2), rtol=0.3)
    for pred_type, diagonal in product(("glm", "nn"), (False, True)):
        drawn = la.predictive_samples(x, pred_type=pred_type, n_samples=7, diagonal_output=diagonal)
        assert drawn.shape == (7, 10, 2)
        assert la.functional_samples(x, pred_type=pred_type, n_samples=7).shape == (7, 10, 2)


@pytest.mark.parametrize("kind", [*ALL, *LAST, FullSubnetLaplace, DiagSubnetLaplace])
def test_predictive_of_classes(kind: Any, model: nn.Module) -> None:
    options = {"subnetwork_indices": SUBNET} if issubclass(kind, SubnetLaplace) else {}
    la = fitted(kind, model, "classification", **options)
    x, _ = tensors_of(loader_of("classification"))
    ones = torch.ones(10).double()
    for link in ("mc", "probit", "bridge", "bridge_norm"):
        probs = la(x, link_approx=link)
        assert probs.shape == (10, 2) and torch.allclose(probs.sum(1), ones)
    assert torch.allclose(la.predictive(x, "glm", "probit", 10), la(x))
    moments = la.posterior.outputs(x)
    for diagonal in (False, True):
        covariance = torch.diag_embed(moments.variance) if diagonal else moments.covariance
        logits = MultivariateNormal(moments.mean, covariance + 1e-9 * torch.eye(2).double())
        probs = la(x, link_approx="mc", n_samples=10_000, diagonal_output=diagonal)
        assert torch.allclose(probs, logits.sample((10_000,)).softmax(-1).mean(0), atol=0.02)
    networks = la(x, pred_type="nn", link_approx="mc", n_samples=9)
    assert networks.shape == (10, 2) and torch.allclose(networks.sum(1), ones)
    for pred_type in ("glm", "nn"):
        drawn = la.predictive_samples(x, pred_type=pred_type, n_samples=9)
        assert drawn.shape == (9, 10, 2) and torch.allclose(drawn.sum(-1), torch.ones(9, 10).double())
    same = [la.predictive_samples(x, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*same)


@pytest.mark.parametrize("kind", [FullLaplace, KronLaplace, DiagLaplace, KronLLLaplace])
def test_predictions_keep_their_graph_to_the_inputs(kind: Any, model: nn.Module) -> None:
    """test_backprop_glm, _glm_joint, _glm_mc and _nn."""
    la = fitted(kind, model, "regression", enable_backprop=True)
    x = tensors_of(loader_of("regression"))[0][:3].clone().requires_grad_()
    drawn = {"pred_type": "nn", "link_approx": "mc", "n_samples": 10}
    for options in ({}, {"joint": True}, {"link_approx": "mc"}, drawn):
        for value in la(x, **options):
            (gradient,) = torch.autograd.grad(value.sum(), x, retain_graph=True)
            assert gradient.shape == x.shape and bool(gradient.any())
    plain = fitted(kind, model, "regression")
    assert not any(value.requires_grad for value in plain(x))


@pytest.mark.parametrize(("kind", "temperature"), in_turn([*ALL, *LAST], (0.5, 2.0)))
def test_a_temperature_divides_the_curvature(kind: Any, temperature: float, model: nn.Module) -> None:
    la = fitted(kind, model, "classification")
    curvature = dense_precision(la) - la.prior_precision_diag.diag()
    la.temperature = temperature
    assert torch.allclose(dense_precision(la), curvature / temperature + la.prior_precision_diag.diag(), atol=1e-8)
    fresh = fitted(kind, model, "classification", temperature=temperature)
    assert torch.allclose(fresh.log_marginal_likelihood(), la.log_marginal_likelihood())
    rows = jacobians(model, la.params, tensors_of(loader_of("classification"))[0])
    assert torch.allclose(la.functional_variance(rows), fresh.functional_variance(rows))


def test_reward_models_are_fitted_as_classes_and_predict_numbers() -> None:
    """test_reward_modeling: pairs of alternatives while it is fitted, one of them when it predicts."""

    class Reward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x: Tensor) -> Tensor:
            if x.ndim == 2:
                return self.net(x)
            return self.net(x.flatten(0, 1)).view(len(x), 2)

    model = Reward().double()
    pairs = torch.randn(10, 2, 3).double()
    loader = DataLoader(TensorDataset(pairs, torch.randint(2, (10,))), batch_size=3)
    for kind in (KronLaplace, DiagLaplace):
        la = kind(model, "reward_modeling")
        la.fit(loader)
        x = torch.randn(4, 3).double()
        mean, variance = la(x)
        assert torch.allclose(mean, model(x)) and variance.shape == (4, 1, 1)
        mean, variance = la(x, pred_type="nn", link_approx="mc")
        assert mean.shape == variance.shape == (4, 1)


@pytest.mark.parametrize(
    ("kind", "likelihood"),
    in_turn([FullLaplace, KronLaplace, DiagLaplace, KronLLLaplace], ("classification", "regression")),
)
def test_batches_that_are_mappings_go_into_the_network_whole(kind: Any, likelihood: str) -> None:
    """test_dict_data."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

        def forward(self, batch: Any) -> Tensor:
            return self.net(batch["inputs"])

    x, y = tensors_of(loader_of(likelihood))
    rows = [{"inputs": x[i], "targets": y[i]} for i in range(10)]
    model = Whole().double()
    with pytest.raises(KeyError, match="dict_key_x="):
        kind(model, likelihood).fit(DataLoader(rows, batch_size=3))
    la: Any = kind(model, likelihood, dict_key_x="inputs", dict_key_y="targets")
    la.fit(DataLoader(rows, batch_size=3))
    plain: Any = kind(model.net, likelihood)
    plain.fit(loader_of(likelihood))
    batch = {"inputs": x, "targets": y}
    expected = plain(x)
    for one, other in zip(la(batch), expected, strict=True):
        assert torch.allclose(one, other)
    assert torch.allclose(la.log_marginal_likelihood(), plain.log_marginal_likelihood())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.DataWarning)
        la.optimize_prior_precision(method="gridsearch", val_loader=DataLoader(rows, batch_size=5), grid_size=3)


# tuning: test_marglik_glm, test_marglik_nn, test_gridsearch, the loops of the examples


@kinds
@everywhere
def test_the_evidence_is_differentiable_in_prior_and_noise(kind: Any, likelihood: str, model: nn.Module) -> None:
    la = fitted(kind, model, likelihood)
    layers = torch.full((la.n_layers,), 0.3).double()
    for start in (torch.tensor([0.3]).double(), layers):
        log_prior = start.log().requires_grad_()
        log_noise = torch.tensor(0.1).double().requires_grad_()
        real = likelihood == "regression"
        given = [log_prior, log_noise] if real else [log_prior]

        def evidence(*logs: Tensor, real: bool = real) -> Tensor:
            return la.log_marginal_likelihood(logs[0].exp(), logs[1].exp() if real else None)

        assert torch.autograd.gradcheck(evidence, given)
    if likelihood == "classification":
        with pytest.raises(ValueError, match="no sigma_noise"):
            la.log_marginal_likelihood(sigma_noise=torch.ones(1))


@pytest.mark.parametrize("structure", ["scalar", "layerwise", "diag"])
def test_marglik_climbs_the_evidence(structure: str, model: nn.Module) -> None:
    la = fitted(DiagLaplace, model, "classification")
    before = la.log_marginal_likelihood()
    la.optimize_prior_precision(method="marglik", prior_structure=structure)
    assert la.log_marginal_likelihood() > before
    assert len(la.prior_precision) == {"scalar": 1, "layerwise": 4, "diag": la.n_params}[structure]
    assert not la.prior_precision.requires_grad
    lw.tune(la.posterior)  # what it left is a posterior like every other
    with pytest.raises(ValueError, match="method="):
        la.optimize_prior_precision(method="CV")


@pytest.mark.filterwarnings("ignore:gridsearch")
@everywhere
@pytest.mark.parametrize("kind", [DiagLaplace, KronLLLaplace])
def test_grid_search_takes_the_precision_of_least_loss(kind: Any, likelihood: str, model: nn.Module) -> None:
    la = fitted(kind, model, likelihood)
    held_out = loader_of(likelihood, batch=10)
    with pytest.raises(ValueError, match="val_loader="):
        la.optimize_prior_precision(method="gridsearch")
    for options in ({}, {"pred_type": "nn", "link_approx": "mc", "n_samples": 5}):
        la.optimize_prior_precision(method="gridsearch", val_loader=held_out, grid_size=5, **options)
        assert any(float(la.prior_precision) == pytest.approx(10.0**power) for power in (-4, -2, 0, 2, 4))
    la.optimize_prior_precision(method="gridsearch", val_loader=held_out, grid_size=9)
    best = float(la.prior_precision)
    scores = {}
    for exponent in range(-4, 5):
        la.prior_precision = 10.0**exponent
        posterior = la.posterior.with_link("probit")
        scores[exponent] = lw.evaluate(posterior, tensors_of(held_out))["nll"]
    assert best == pytest.approx(10.0 ** min(scores, key=scores.__getitem__))
    seen = []

    def loss(*given: Tensor) -> Tensor:
        seen.append(len(given))
        return -la.prior_precision.sum()  # the largest

    la.optimize_prior_precision(method="gridsearch", val_loader=held_out, grid_size=3, loss=loss)
    assert float(la.prior_precision) == pytest.approx(1e4)
    assert seen == [2 if likelihood == "classification" else 3] * 3


@pytest.mark.parametrize(("sign", "end"), [(-1.0, "larger log_prior_prec_max="), (1.0, "smaller log_prior_prec_min=")])
def test_the_end_of_a_grid_is_taken_with_a_warning(sign: float, end: str, model: nn.Module) -> None:
    la = fitted(DiagLaplace, model, "classification")
    options = {"method": "gridsearch", "val_loader": loader_of("classification"), "grid_size": 3}
    with pytest.warns(lw.DataWarning, match=end):
        la.optimize_prior_precision(**options, loss=lambda *given: sign * la.prior_precision.log().sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la.optimize_prior_precision(**options, loss=lambda *given: la.prior_precision.log().square().sum())
    assert float(la.prior_precision) == pytest.approx(1.0)
    with pytest.warns(lw.DataWarning, match="at every prior precision tried"):
        la.optimize_prior_precision(**options, loss=lambda *given: torch.ones(()))
    with pytest.raises(NumericalError, match="finite at some prior precision"):
        la.optimize_prior_precision(**options, loss=lambda *given: torch.tensor(math.nan))


def test_what_is_not_fitted_or_makes_no_sense_says_so(model: nn.Module) -> None:
    la: Any = KronLLLaplace(model, "classification")
    for call in (la.log_marginal_likelihood, la.optimize_prior_precision):
        with pytest.raises(AttributeError, match="Try fit"):
            call()
    with pytest.raises(ConfigError, match="a positive temperature"):
        KronLLLaplace(model, "classification", temperature=0.0)
    with pytest.raises(ConfigError, match="view='functions'"):
        Laplace(model, "classification", "all", "gp")
    with pytest.raises(ConfigError, match='subset_of_weights="last_layer"'):
        Laplace(model, "classification", "first", "kron")


def test_a_metric_of_torchmetrics_is_a_loss(model: nn.Module) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    la = fitted(DiagLaplace, model, "regression")
    metric = torchmetrics.MeanSquaredError(num_outputs=2)
    with pytest.warns(lw.DataWarning, match="at every prior precision tried"):
        la.optimize_prior_precision(method="gridsearch", val_loader=loader_of("regression"), grid_size=3, loss=metric)
    assert float(la.prior_precision) == pytest.approx(1e-4), "the squared error is the same for all"


# files: test_serialize, _override, _no_pickle, _subnetlaplace, _fail_*


@pytest.mark.parametrize("kind", [*ALL, *LAST, FullSubnetLaplace, DiagSubnetLaplace])
def test_state_dicts_are_plain_and_give_the_same(kind: Any, model: nn.Module) -> None:
    options = {"subnetwork_indices": SUBNET} if issubclass(kind, SubnetLaplace) else {}
    la = fitted(kind, model, "regression", **options)
    la.optimize_prior_precision()
    la.sigma_noise = 1231
    buffer = io.BytesIO()
    torch.save(la.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    plain = (list, tuple, int, float, str, bool, Tensor)
    assert all(value is None or isinstance(value, plain) for value in state.values())
    again = kind(model, "regression", **options)
    again.load_state_dict(state)
    assert again.sigma_noise == la.sigma_noise and again.n_data == 10
    x, _ = tensors_of(loader_of("regression"))
    assert all(torch.equal(one, other) for one, other in zip(la(x), again(x), strict=True))
    assert torch.equal(again.log_marginal_likelihood(), la.log_marginal_likelihood())
    if kind.additive:
        before = dense_precision(again) - again.prior_precision_diag.diag()
        again.fit(loader_of("regression"), override=False)
        assert torch.allclose(dense_precision(again) - again.prior_precision_diag.diag(), 2 * before)


def test_state_dicts_of_something_else_are_refused(model: nn.Module) -> None:
    state = fitted(DiagLLLaplace, model, "regression", last_layer_name="1").state_dict()
    other = nn.Sequential(nn.Linear(3, 25), nn.Linear(25, 2)).double()
    for la in (
        DiagLaplace(model, "regression"),
        KronLLLaplace(model, "regression", last_layer_name="1"),
        DiagLLLaplace(model, "classification", last_layer_name="1"),
        DiagLLLaplace(model, "regression"),
        DiagLLLaplace(other, "regression", last_layer_name="1"),
    ):
        with pytest.raises(ValueError, match="Expected the"):
            la.load_state_dict(state)
    moved = nn.Sequential(nn.Linear(3, 20), nn.Linear(20, 2)).double()
    with pytest.raises(MismatchError, match="other weights"):
        DiagLLLaplace(moved, "regression", last_layer_name="1").load_state_dict(state)
    warm = DiagLLLaplace(model, "regression", last_layer_name="1", temperature=2.0)
    with pytest.warns(UserWarning, match="temperature"):
        warm.load_state_dict(state)


# parts of the weights: test_subset_params, test_subnet_laplace_init, test_custom_subnetwork_indices


@pytest.mark.parametrize(
    ("kind", "backend", "likelihood"),
    pairwise(ADDITIVE, [None, "CurvlinopsEF", "AsdlGGN"], ["classification", "regression"]),
)
def test_frozen_parameters_are_certain(kind: Any, backend: str | None, likelihood: str, model: nn.Module) -> None:
    model.requires_grad_(False)
    model[0].weight.requires_grad_(True)
    la = fitted(kind, model, likelihood, backend=backend)
    assert la.mean.shape == (60,) and dense_precision(la).shape == (60, 60)
    la(torch.randn(5, 3).double(), pred_type="nn", link_approx="mc")
    la.optimize_prior_precision(method="marglik")


@pytest.mark.parametrize(("held", "kind"), [("full", FullSubnetLaplace), ("diag", DiagSubnetLaplace)])
@everywhere
def test_subnetworks(held: str, kind: Any, likelihood: str, model: nn.Module) -> None:
    def made(indices: Any, held: str = held) -> Any:
        return Laplace(model, likelihood, "subnetwork", held, subnetwork_indices=indices)

    bad = [None, [0, 5], torch.tensor([]).long(), torch.tensor(11), torch.tensor([[0, 5], [1, 2]])]
    bad += [torch.tensor([0, 5]).to(dtype) for dtype in (torch.double, torch.half, torch.int32, torch.bool)]
    bad += [torch.tensor([0, -1]), torch.tensor([123]), torch.tensor([0, 0, 5])]
    for indices in bad:
        with pytest.raises(ValueError, match="subnetwork_indices"):
            made(indices)
    with pytest.raises(TypeError):
        Laplace(model, likelihood, "subnetwork", held)
    for other in ("kron", "lowrank"):
        with pytest.raises(ValueError, match="subnetwork with"):
            made(SUBNET, other)
    la = made(SUBNET)
    la.fit(loader_of(likelihood))
    assert isinstance(la, kind) and isinstance(la, SubnetLaplace) and la.n_params_subnet == 4
    assert la.prior_precision_diag.shape == (4,) and la.H.shape[0] == 4
    whole = Laplace(model, likelihood, "all", held)
    whole.fit(loader_of(likelihood))
    expected = whole.H[SUBNET][:, SUBNET] if held == "full" else whole.H[SUBNET]
    assert torch.allclose(la.H, expected)
    drawn = la.sample(5)
    fixed = torch.ones(122, dtype=torch.bool).index_fill(0, SUBNET, False)
    assert drawn.shape == (5, 122) and torch.equal(drawn[:, fixed], la.mean[fixed].expand(5, -1))
    assert bool((drawn[:, SUBNET] != la.mean_subnet).all())


def test_the_factory_takes_their_words(model: nn.Module) -> None:
    """test_default_init and the table of subclasses of its documentation."""
    assert isinstance(Laplace(model, "classification"), KronLLLaplace)
    for part, held in product(("all", "last_layer"), ("full", "kron", "diag")):
        la = Laplace(model, "regression", subset_of_weights=part, hessian_structure=held, prior_precision=2.0)
        assert la.subset == part and la.held == held and isinstance(la, LLLaplace) == (part == "last_layer")
    for part, held in (("last_layer", "lowrank"), ("some", "full"), ("all", "gp")):
        with pytest.raises(ConfigError, match=f"{part} with {held}"):
            Laplace(model, "regression", part, held)
    assert lw.laplace_torch is laplace_torch


# the same numbers as the library itself


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("part", "held"), [*product(("all", "last_layer"), ("full", "kron", "diag"))])
@everywhere
def test_the_numbers_are_those_of_laplace_torch(part: str, held: str, likelihood: str, model: nn.Module) -> None:
    peer = pytest.importorskip("laplace")
    options: dict[str, Any] = {"prior_precision": 0.7, "temperature": 1.3, "prior_mean": 0.2}
    if likelihood == "regression":
        options["sigma_noise"] = 0.4
    loader = loader_of(likelihood)
    x = torch.randn(6, 3).double()
    found = []
    for library in (peer, laplace_torch):
        la = library.Laplace(model, likelihood, part, held, **options)
        la.fit(loader)
        values = [la.log_likelihood, la.scatter, la.log_det_ratio, la.log_det_posterior_precision, la.mean]
        values += [la.log_marginal_likelihood(), la.log_prob(la.mean + 0.1)]
        for asked in ({}, {"joint": True}, {"link_approx": "bridge"}, {"link_approx": "bridge_norm"}):
            out = la(x, **asked)
            values += out if isinstance(out, tuple) else [out]
        structure = "layerwise" if part == "all" else "scalar"  # it refuses others for the last layer, at the end
        la.optimize_prior_precision(n_steps=7, lr=0.2, prior_structure=structure, pred_type="glm")
        values += [la.prior_precision, la.log_marginal_likelihood(torch.tensor([0.1]).double())]
        found.append(values)
    tolerance = 1e-5 if held == "full" else 1e-9  # it multiplies with a float32 identity there
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=tolerance, atol=tolerance)


# its examples, and the libraries that wrap it


def test_its_example_of_regression() -> None:
    """A sine, all weights and a dense precision; noise and prior by Adam on the evidence, as there, in fewer steps."""
    x = torch.rand(150, 1) * 8
    y = x.sin() + 0.3 * torch.randn_like(x)
    loader = DataLoader(TensorDataset(x, y), batch_size=150)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(1000):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    la = Laplace(model, "regression", subset_of_weights="all", hessian_structure="full")
    la.fit(loader)
    log_prior, log_sigma = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    climber = torch.optim.Adam([log_prior, log_sigma], lr=1e-1)
    for _ in range(100):
        climber.zero_grad()
        (-la.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())).backward()
        climber.step()
    assert 0.25 < float(log_sigma.detach().exp()) < 0.36, "the noise there is"
    mean, variance = la(torch.linspace(-5, 13, 50)[:, None])
    std = (variance.squeeze() + la.sigma_noise.item() ** 2).sqrt()
    assert mean.shape == (50, 1) and float(std[[0, -1]].min()) > 2 * float(std[20:30].max())


def test_its_example_of_calibration() -> None:
    """The last layer of a classifier with Kronecker products, its prior by the evidence: more likely test labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator)
    y = (x[:, 0] + 0.8 * torch.randn(400, generator=generator) > 0).long() + (x[:, 1] > 0.7).long()
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 3))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:80]), y[:80]).backward()
        optimiser.step()
    la = Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    la.fit(DataLoader(TensorDataset(x[:80], y[:80]), batch_size=16, shuffle=True))
    la.optimize_prior_precision(method="marglik", pred_type="glm", link_approx="probit")
    tests = DataLoader(TensorDataset(x[80:], y[80:]), batch_size=64)
    with torch.no_grad():
        probs = torch.cat([la(batch, pred_type="glm", link_approx="probit") for batch, _ in tests])
        plain = model(x[80:]).softmax(-1)
    assert (
        torch.equal(probs.argmax(-1), plain.argmax(-1)) or (probs.argmax(-1) == plain.argmax(-1)).float().mean() > 0.95
    )
    assert nn.functional.nll_loss(probs.log(), y[80:]) < nn.functional.nll_loss(plain.log(), y[80:])


@pytest.fixture
def in_its_place() -> Generator[None]:
    """This module under the names of laplace-torch."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "laplace"}
    laplace_torch.stand_in()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "laplace"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.usefixtures("in_its_place")
def test_what_it_has_not_is_refused_with_what_there_is_instead() -> None:
    for module, name, hint in (
        ("laplace", "marglik_training", "lw.train_marginal"),
        ("laplace.utils", "ModuleNameSubnetMask", "lw.Subnetwork()"),
        ("laplace.curvature", "AsdlGGN", "backend="),
        ("laplace.utils.enums", "Likelihood", 'strings, such as "classification"'),
    ):
        with pytest.raises(ImportError, match=re.escape(f"Got {module}.{name}. Try {hint}")):
            getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = laplace_torch.other


@pytest.mark.usefixtures("in_its_place")
def test_the_wrapper_of_torch_uncertainty_runs_on_it(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own file, loaded apart from the rest of the library, which imports torchvision and takes a minute."""
    found = importlib.util.find_spec("torch_uncertainty")
    if found is None or not found.submodule_search_locations:
        pytest.skip("torch_uncertainty is not installed")
    place = Path(found.submodule_search_locations[0])
    for name, folder in (
        ("torch_uncertainty", place),
        ("torch_uncertainty.post_processing", place / "post_processing"),
    ):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        monkeypatch.setitem(sys.modules, name, package)
    wrapper: Any = importlib.import_module("torch_uncertainty.post_processing.laplace")
    x, _ = tensors_of(loader_of("classification"))
    approx = wrapper.LaplaceApprox("classification", model=model)
    approx.fit(loader_of("classification"))
    assert isinstance(approx.la, KronLLLaplace) and float(approx.la.prior_precision) != 1.0
    assert torch.allclose(approx(x), approx.la.posterior.predict(x, "probit").probs)
    real = wrapper.LaplaceApprox("regression", model=model, weight_subset="all", hessian_struct="full")
    real.fit(loader_of("regression"))
    assert torch.allclose(real(x), model(x))


@pytest.mark.usefixtures("in_its_place")
def test_what_probly_asks_of_it(model: nn.Module) -> None:
    """Its representer is registered for ``BaseLaplace`` and asks ``predictive_samples`` for classes in one call.

    The release on PyPI has none yet, and what is developed needs Python 3.12: these are the calls that it makes.
    """
    base = importlib.import_module("laplace.baselaplace").BaseLaplace
    la = fitted(KronLLLaplace, model, "classification")
    x, _ = tensors_of(loader_of("classification"))
    assert isinstance(la, base) and la.likelihood == "classification"
    for pred_type in ("glm", "nn"):
        drawn = la.predictive_samples(x, pred_type=pred_type, n_samples=50)
        sample = torch.moveaxis(drawn, 0, -2)
        assert sample.shape == (10, 50, 2) and torch.allclose(sample.sum(-1), torch.ones(10, 50).double())
        assert torch.allclose(drawn.mean(0), la(x, pred_type=pred_type, link_approx="mc", n_samples=2000), atol=0.15)


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    names = run_page("laplace-torch", tmp_path)
    assert names["probs"].shape == (5, 3)
