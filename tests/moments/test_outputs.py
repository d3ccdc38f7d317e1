"""What is known of outputs: variances, roots of singular covariances, draws, alone and of a whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.moments.rounding import clamp_rounding
from lapwing.predictive import Classification, Draws, JointMoments, Moments
from tests.posterior_cases import refused


def random_moments(*batch: int, c: int = 3, rank: int = 3, dtype: torch.dtype = torch.float64) -> Moments:
    factor = torch.randn(*batch, c, rank, dtype=dtype)
    return Moments(torch.randn(*batch, c, dtype=dtype), factor @ factor.mT)


def assert_draws_follow(draws: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Mean and covariance of draws ``[k, n, c]`` within five standard errors of the exact ones."""
    k = draws.shape[0]
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    assert bool(((draws.mean(0) - mean).abs() <= 5 * (variance / k).sqrt() + 1e-12).all())
    centred = draws - mean
    found = torch.einsum("k...i,k...j->...ij", centred, centred) / k
    scale = variance.unsqueeze(-1) * variance.unsqueeze(-2)
    stderr = ((scale + covariance.square()) / k).sqrt()
    assert bool(((found - covariance).abs() <= 5 * stderr + 1e-12).all())


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("batch", [(4,), (2, 5), (2, 2, 3)])
def test_root_of_any_rank_gives_the_covariance(rank: int, batch: tuple[int, ...]) -> None:
    moments = random_moments(*batch, rank=rank)
    root = moments.root()
    assert root.shape[:-1] == moments.mean.shape
    torch.testing.assert_close(root @ root.mT, moments.covariance)


def test_a_thin_factor_is_the_root_and_a_wide_one_is_not() -> None:
    thin = Moments.from_factor(torch.zeros(2, 3), torch.randn(2, 3, 2))
    assert thin.root() is thin.factor
    wide = Moments.from_factor(torch.zeros(2, 3), torch.randn(2, 3, 20))
    assert wide.root().shape == (2, 3, 3)
    torch.testing.assert_close(wide.root() @ wide.root().mT, wide.covariance, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 3])
def test_draws_have_the_moments(rank: int, generator: torch.Generator) -> None:
    moments = random_moments(2, 2, rank=rank)
    draws = moments.sample(4000, generator=generator)
    assert draws.shape == (4000, 2, 2, 3)
    assert_draws_follow(draws, moments.mean, moments.covariance)


def test_draws_of_a_singular_covariance_stay_in_its_range(generator: torch.Generator) -> None:
    factor = torch.tensor([[[1.0], [2.0], [-1.0]]], dtype=torch.float64)
    draws = Moments(torch.zeros(1, 3, dtype=torch.float64), factor @ factor.mT).sample(9, generator=generator)
    torch.testing.assert_close(draws[..., 1], 2 * draws[..., 0])
    torch.testing.assert_close(draws[..., 2], -draws[..., 0])


def test_same_generator_same_draws() -> None:
    moments = random_moments(3)
    first, again = (moments.sample(4, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, again)
    assert moments.sample(4).shape == (4, 3, 3)


def test_variance_and_std_are_the_diagonal() -> None:
    moments = random_moments(3)
    torch.testing.assert_close(moments.variance, moments.covariance.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(moments.std.square(), moments.variance)
    assert moments.marginal() is moments


def test_certain_outputs_have_no_variance_and_draw_themselves() -> None:
    mean = torch.randn(2, 4, 3)
    moments = Moments.certain(mean)
    assert float(moments.variance.sum()) == 0.0
    assert torch.equal(moments.sample(2), mean.expand(2, 2, 4, 3))
    assert moments.covariance.shape == (2, 4, 3, 3)


def test_select_keeps_some_outputs() -> None:
    factor = torch.randn(2, 4, 3)
    part = Moments.from_factor(torch.randn(2, 4), factor).select(slice(1, 3))
    assert part.mean.shape == (2, 2)
    torch.testing.assert_close(part.covariance, factor[:, 1:3] @ factor[:, 1:3].mT)
    assert part.factor is not None and torch.equal(part.factor, factor[:, 1:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_negative_rounding_is_forgiven_and_indefiniteness_is_not(dtype: torch.dtype) -> None:
    rounding = -10 * torch.finfo(dtype).eps
    covariance = torch.diag(torch.tensor([1.0, rounding], dtype=dtype)).expand(1, 2, 2)
    moments = Moments(torch.zeros(1, 2, dtype=dtype), covariance)
    assert moments.variance.tolist() == [[1.0, 0.0]]
    assert bool(torch.isfinite(moments.sample(3)).all()) and moments.root().dtype == dtype
    swapped = torch.tensor([[[1.0, 2.0], [2.0, 1.0]]], dtype=dtype)
    indefinite = Moments(torch.zeros(1, 2, dtype=dtype), swapped)
    with pytest.raises(NumericalError, match=r"eigenvalue of -1 where the largest magnitude is 3"):
        indefinite.root()
    with pytest.raises(NumericalError, match=r"variance of -0\.1 where"):
        _ = Moments(torch.zeros(1, 2), torch.diag(torch.tensor([1.0, -0.1])).expand(1, 2, 2)).std


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_covariance_that_is_not_finite_is_refused(bad: float) -> None:
    covariance = torch.eye(2).repeat(2, 1, 1)
    covariance[1, 0, 0] = bad
    moments = Moments(torch.zeros(2, 2), covariance)
    with pytest.raises(NumericalError, match="finite, positive semi-definite"):
        _ = moments.variance
    with pytest.raises(NumericalError, match="finite, positive semi-definite"):
        moments.sample(1)


def test_an_empty_batch_is_fine() -> None:
    assert clamp_rounding(torch.zeros(0, 3), "variance").shape == (0, 3)
    assert Moments(torch.zeros(0, 3), torch.zeros(0, 3, 3)).sample(2).shape == (2, 0, 3)


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"Got shapes \[2, 3\] and \[2, 3\]"):
        Moments(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ShapeError, match=r"Got shapes \[2, 3\] and \[2, 3, 2, 3\]\. Try JointMoments"):
        Moments(torch.zeros(2, 3), torch.zeros(2, 3, 2, 3))
    with pytest.raises(ShapeError, match=r"factor of shape \[2, 3, 'r'\]\. Got shape \[2, 4, 1\]"):
        Moments(torch.zeros(2, 3), torch.zeros(2, 3, 3), torch.zeros(2, 4, 1))


def random_joint(*shape: int, rank: int = 12) -> JointMoments:
    size = torch.Size(shape).numel()
    factor = torch.randn(size, rank, dtype=torch.float64)
    covariance = (factor @ factor.mT).reshape(*shape, *shape)
    return JointMoments(torch.randn(*shape, dtype=torch.float64), covariance)


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 3)])
def test_marginal_takes_the_block_of_each_position(shape: tuple[int, ...]) -> None:
    joint = random_joint(*shape)
    marginal = joint.marginal()
    for index in torch.cartesian_prod(*[torch.arange(n) for n in shape[:-1]]).reshape(-1, len(shape) - 1):
        position = tuple(index.tolist())
        block = joint.covariance[position][(slice(None), *position)]
        assert torch.equal(marginal.covariance[position], block)
    torch.testing.assert_close(marginal.variance, joint.variance)
    torch.testing.assert_close(joint.std.square(), joint.variance)
    assert torch.equal(marginal.mean, joint.mean)


@pytest.mark.parametrize("rank", [1, 4, 12])
def test_root_and_draws_have_the_joint_covariance(rank: int, generator: torch.Generator) -> None:
    joint = random_joint(3, 2, rank=rank)
    root = joint.root().reshape(6, -1)
    matrix = joint.covariance.reshape(6, 6)
    torch.testing.assert_close(root @ root.mT, matrix)
    draws = joint.sample(4000, generator=generator)
    assert draws.shape == (4000, 3, 2)
    centred = (draws - joint.mean).reshape(4000, 6)
    variance = matrix.diagonal()
    stderr = ((variance[:, None] * variance + matrix.square()) / 4000).sqrt()
    assert bool(((centred.mT @ centred / 4000 - matrix).abs() <= 5 * stderr).all())


def test_a_thin_joint_factor_is_the_root() -> None:
    factor = torch.randn(2, 2, 3)
    flat = factor.reshape(4, 3)
    joint = JointMoments(torch.zeros(2, 2), (flat @ flat.mT).reshape(2, 2, 2, 2), factor)
    assert joint.root() is factor
    assert joint.sample(5).shape == (5, 2, 2)


def test_select_keeps_some_joint_outputs_everywhere() -> None:
    joint = random_joint(3, 4)
    part = joint.select(slice(1, 3))
    assert torch.equal(part.covariance, joint.covariance[:, 1:3, :, 1:3])
    events = random_joint(2, 2, 3).select(slice(2, None))
    assert events.covariance.shape == (2, 2, 1, 2, 2, 1)


def test_joint_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"Got shapes \[2, 3\] and \[2, 3, 3\]\. Try Moments"):
        JointMoments(torch.zeros(2, 3), torch.zeros(2, 3, 3))
    with pytest.raises(ShapeError, match="a factor of shape"):
        JointMoments(torch.zeros(2, 3), torch.zeros(2, 3, 2, 3), torch.zeros(6, 2))
    with pytest.raises(ShapeError, match=r"at least one draw.*Got shape \[0, 2, 3\]"):
        Draws(torch.zeros(0, 2, 3))
    with pytest.raises(ShapeError, match=r"Got shape \[2, 3\]"):
        Draws(torch.zeros(2, 3))


def test_draws_give_their_sample_moments() -> None:
    values = torch.randn(50, 4, 3, dtype=torch.float64)
    draws = Draws(values)
    torch.testing.assert_close(draws.mean, values.mean(0))
    torch.testing.assert_close(draws.variance, values.var(0))
    torch.testing.assert_close(draws.std, values.std(0))
    for i in range(4):
        torch.testing.assert_close(draws.covariance[i], values[:, i].mT.cov())
    torch.testing.assert_close(draws.marginal().covariance, draws.covariance)
    assert torch.equal(draws.select(slice(2)).values, values[..., :2])


def test_complete_draws_stand_for_themselves_alone() -> None:
    values = torch.randn(5, 4, 3, dtype=torch.float64)
    draws = Draws(values, complete=True)
    torch.testing.assert_close(draws.variance, values.var(0, correction=0))
    torch.testing.assert_close(draws.scaled(2.0).select(slice(2)).std, 2 * values.std(0, correction=0)[:, :2])
    exponential = draws.exponential("rates")
    torch.testing.assert_close(exponential.variance, values.exp().var(0, correction=0))
    assert Classification.of(draws).stderr is None


def test_a_single_draw_has_no_variance() -> None:
    assert Draws(torch.ones(1, 2, 3)).std.tolist() == [[0.0] * 3] * 2


def test_sampling_draws_takes_each_once_before_any_twice(generator: torch.Generator) -> None:
    draws = Draws(torch.arange(10.0).reshape(10, 1, 1).expand(10, 2, 3))
    taken = draws.sample(25, generator=generator)
    assert taken.shape == (25, 2, 3)
    assert bool((taken == taken[:, :1, :1]).all())
    for start, stop in ((0, 10), (10, 20)):
        assert sorted(taken[start:stop, 0, 0].tolist()) == list(range(10))
    assert len(set(taken[20:, 0, 0].tolist())) == 5


@pytest.mark.parametrize("bad", [0, -1])
def test_draws_are_at_least_one(bad: int) -> None:
    moments = JointMoments(torch.zeros(2, 1), torch.ones(2, 1, 2, 1))
    for outputs in (moments, moments.marginal(), Draws(torch.zeros(3, 2, 1))):
        with refused(ConfigError, "k of at least 1"):
            outputs.sample(bad)


def test_printed_are_shapes_and_ranges_and_no_covariance() -> None:
    moments = Moments(torch.tensor([[-1.0, 3.0]]), 4 * torch.eye(2).expand(1, 2, 2))
    prediction = Classification(moments, torch.tensor([[0.25, 0.75]]))
    logits = "logits=Moments(mean [1, 2] from -1 to 3, covariance [1, 2, 2] from 0 to 4)"
    assert repr(prediction) == f"Classification({logits}, probs [1, 2] from 0.25 to 0.75)"
    assert repr(Draws(torch.zeros(2, 0, 3))) == "Draws(values [2, 0, 3])"
