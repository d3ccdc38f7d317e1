"""Joint outputs: coherent draws of a whole batch, and draws as they are."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError, ShapeError
from lapwing.predictive import Draws, JointMoments
from tests.posterior_cases import refused


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


def test_a_thin_factor_is_the_root() -> None:
    factor = torch.randn(2, 2, 3)
    flat = factor.reshape(4, 3)
    joint = JointMoments(torch.zeros(2, 2), (flat @ flat.mT).reshape(2, 2, 2, 2), factor)
    assert joint.root() is factor
    assert joint.sample(5).shape == (5, 2, 2)


def test_select_keeps_some_outputs_everywhere() -> None:
    joint = random_joint(3, 4)
    part = joint.select(slice(1, 3))
    assert torch.equal(part.covariance, joint.covariance[:, 1:3, :, 1:3])
    events = random_joint(2, 2, 3).select(slice(2, None))
    assert events.covariance.shape == (2, 2, 1, 2, 2, 1)


def test_shapes_that_do_not_belong_together_are_refused() -> None:
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
