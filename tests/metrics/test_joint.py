from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import Tensor

from lapwing.ground.errors import ConfigError, DataError, LapwingError, ShapeError
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.metrics.classification import nll
from lapwing.metrics.joint import DyadicValues, _standard_error, dyadic_values, joint_log_likelihood
from tests.checker import unchecked
from tests.posterior_cases import refused

DRAWS, N, C = 5, 12, 3


@pytest.fixture
def classes(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    outputs = 1.5 * torch.randn(DRAWS, N, C, generator=generator, dtype=torch.float64)
    return outputs, torch.randint(0, C, (N,), generator=generator)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_one_anchor_and_one_label_is_the_marginal_log_likelihood(classes: tuple[Tensor, Tensor]) -> None:
    outputs, targets = classes
    found = joint_log_likelihood(Categorical(), outputs, targets, anchors=1)
    assert found.value == pytest.approx(-nll(outputs.softmax(-1).mean(0), targets), rel=1e-13)
    values = outputs.softmax(-1).mean(0).gather(1, targets[:, None]).log().numpy()
    assert found.stderr == pytest.approx(values.std(ddof=1) / math.sqrt(N), rel=0.01)
    assert found.samples == 10 * N


def test_the_expectation_is_that_over_every_pair_and_every_sequence_of_labels() -> None:
    g = seeded(3)
    outputs, targets = 2 * torch.randn(4, 3, C, generator=g, dtype=torch.float64), torch.tensor([0, 2, 1])
    logs = outputs.log_softmax(-1).gather(-1, targets.expand(4, 3)[..., None])[..., 0].numpy()
    values = [
        logsumexp(logs[:, list(sequence)].sum(1)) - math.log(4)
        for pair in itertools.combinations(range(3), 2)
        for sequence in itertools.product(pair, repeat=4)
    ]
    found = joint_log_likelihood(Categorical(), outputs, targets, anchors=2, labels=4, shuffles=6000, generator=g)
    assert found.value == pytest.approx(np.mean(values), abs=5 * np.std(values) / math.sqrt(6000))
    assert np.std(values) / math.sqrt(6000) < 0.01 * abs(np.mean(values))


@pytest.mark.parametrize(("anchors", "labels"), [(1, 1), (2, 10), (3, 20), (5, 40)])
def test_for_a_point_mass_it_is_the_sum_over_the_labels(
    anchors: int, labels: int, classes: tuple[Tensor, Tensor]
) -> None:
    one, targets = classes[0][0], classes[1]
    found = joint_log_likelihood(Categorical(), one, targets, anchors=anchors, shuffles=2000, generator=seeded())
    expected = -labels * nll(one.softmax(-1), targets)
    assert found.value == pytest.approx(expected, rel=0.02)
    flat = torch.zeros(N, C)
    exact = joint_log_likelihood(Categorical(), flat, targets, anchors=anchors)
    assert exact.value == pytest.approx(-labels * math.log(C), rel=1e-6)
    assert exact.stderr == pytest.approx(0.0, abs=1e-12)
    each = joint_log_likelihood(Categorical(), flat, targets, anchors=anchors, per_label=True)
    assert each.value == pytest.approx(-math.log(C), rel=1e-6)


def test_draws_are_kept_together_across_the_labels() -> None:
    sure = torch.tensor([4.0, -4.0], dtype=torch.float64)[:, None, None].expand(2, 6, 1)
    found = joint_log_likelihood(Bernoulli(), sure, torch.ones(6, 1), anchors=2, labels=7)
    assert found.value == pytest.approx(math.log(0.5) - 7 * math.log1p(math.exp(-4)), abs=1e-9)


def test_gaussian_joint_density_of_repeated_labels(generator: torch.Generator) -> None:
    outputs = torch.randn(400, 1, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([[0.3, -0.4]], dtype=torch.float64)
    found = joint_log_likelihood(Gaussian(precision=2.0), outputs, y, anchors=1, labels=3, shuffles=2)
    logs = -(outputs[:, 0] - y).square().sum(-1) + math.log(2 / (2 * math.pi))
    assert found.value == pytest.approx(float(logsumexp(3 * logs.numpy()) - math.log(400)), rel=1e-12)


def test_the_batches_do_not_depend_on_the_number_of_draws(classes: tuple[Tensor, Tensor]) -> None:
    one, targets = classes[0][:1], classes[1]
    few = joint_log_likelihood(Categorical(), one, targets, generator=seeded())
    many = joint_log_likelihood(Categorical(), one.expand(9, N, C), targets, generator=seeded())
    assert few.value == pytest.approx(many.value, rel=1e-13)
    pieces = joint_log_likelihood(Categorical(), one.expand(9, N, C), targets, generator=seeded(), together=30)
    assert pieces.value == pytest.approx(many.value, rel=1e-13)


def test_it_is_deterministic_given_a_generator_and_in_single_precision(classes: tuple[Tensor, Tensor]) -> None:
    outputs, targets = classes
    first, again, other = (
        joint_log_likelihood(Categorical(), outputs, targets, generator=seeded(seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.value != other.value
    single = joint_log_likelihood(Categorical(), outputs.float(), targets, generator=seeded())
    assert single.value == pytest.approx(first.value, rel=1e-5)
    assert single.samples == first.samples == 60


def test_examples_without_a_label_are_left_out_and_positions_added(generator: torch.Generator) -> None:
    likelihood = Categorical(event_dim=1)
    outputs = torch.randn(DRAWS, 6, 4, C, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, C, (6, 4), generator=generator)
    targets[2], targets[0, 1:] = -100, -100
    found = joint_log_likelihood(likelihood, outputs, targets, anchors=1)
    logs = -torch.stack([likelihood.nll(f, targets).sum(1) for f in outputs])
    each = torch.logsumexp(logs, 0) - math.log(DRAWS)
    assert found.value == pytest.approx(float(each[[0, 1, 3, 4, 5]].mean()), rel=1e-12)
    assert found.samples == 50


@pytest.mark.parametrize(("anchors", "shuffles"), [(2, 1), (2, 8), (3, 8)])
def test_the_standard_error_covers_test_data_drawn_anew(anchors: int, shuffles: int) -> None:
    g = seeded(5)
    shift = torch.randn(4, generator=g, dtype=torch.float64)
    found = []
    for _ in range(150):
        x = torch.randn(60, generator=g, dtype=torch.float64)
        y = (torch.randn(60, generator=g, dtype=torch.float64) < x).double()
        outputs = (x + shift[:, None])[..., None]
        options = {"anchors": anchors, "labels": 6, "shuffles": shuffles, "generator": g}
        found.append(joint_log_likelihood(Bernoulli(), outputs, y[:, None], **options))
    true = np.std([each.value for each in found], ddof=1)
    stated = np.sqrt(np.mean([each.stderr**2 for each in found]))
    assert stated == pytest.approx(true, rel=0.2)  # the spread of 150 values is known to 6 %


def test_a_single_batch_has_no_standard_error() -> None:
    assert joint_log_likelihood(Categorical(), torch.zeros(2, 3), torch.tensor([0, 1]), shuffles=1).stderr == math.inf


ZEROS, LABELS = torch.zeros(4, C), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("outputs", "targets", "options", "error", "message"),
    [
        (ZEROS, LABELS, {"anchors": 0}, ConfigError, "anchors of at least 1. Got 0"),
        (ZEROS, LABELS, {"labels": 0}, ConfigError, "labels of at least 1. Got 0"),
        (ZEROS, LABELS, {"shuffles": 0}, ConfigError, "shuffles of at least 1. Got 0"),
        (ZEROS, LABELS, {"anchors": 2.5}, ConfigError, "anchors to be a whole number.*Got 2.5. Try anchors=2"),
        (ZEROS.numpy(), LABELS, {}, ConfigError, "outputs to be of type Tensor. Got (a )?ndarray"),
        (ZEROS, LABELS.numpy(), {}, ConfigError, "targets to be of type Tensor. Got (a )?ndarray"),
        (ZEROS, LABELS, {"anchors": 5}, DataError, "at least 5 examples with a label. Got 4"),
        (ZEROS, LABELS - 100, {}, DataError, "at least 2 examples with a label. Got 0"),
        (ZEROS, LABELS + C, {}, DataError, "labels from 0 to 2"),
        (torch.stack([ZEROS, ZEROS * torch.nan]), LABELS, {}, DataError, "finite outputs"),
        (ZEROS[None, None], LABELS, {}, ShapeError, "0 event axes. Got shape \\[1, 1, 4, 3\\]"),
        (ZEROS[None][:0], LABELS, {}, ShapeError, "Got shape \\[0, 4, 3\\]"),
        (ZEROS, LABELS[:3], {}, ShapeError, "targets of shape \\[4\\]"),
    ],
)
def test_bad_input_costs_a_sentence(
    outputs: Any, targets: Any, options: dict[str, Any], error: type[LapwingError], message: str
) -> None:
    with unchecked(), pytest.raises(error, match=message):
        joint_log_likelihood(Categorical(), outputs, targets, **options)


@pytest.mark.parametrize(("likelihood", "got"), [("categorical", "str 'categorical'"), (Categorical, "the class")])
def test_a_likelihood_is_one(likelihood: Any, got: str) -> None:
    with unchecked(), refused(ConfigError, got):
        joint_log_likelihood(likelihood, ZEROS, LABELS)


def test_the_standard_error_is_that_of_means_over_the_batches_of_each_example() -> None:
    """Between examples that batches share, less what chance between batches adds; one example alone shares none."""
    values = torch.tensor([9.0, 8.5, 1.0, 0.0]).double()
    members, n, shuffles = torch.tensor([[0, 1], [1, 0], [2, 3], [3, 0]]), 5, 3
    off = values - values.mean()
    means = torch.stack([off[(members == example).any(1)].mean() for example in range(4)])
    spread = float(values.var())
    expected = (4 * float(means.var()) - 2 * spread / shuffles) / n
    assert expected > 2 * spread / (shuffles * n)
    assert _standard_error(values, members, n, shuffles) == pytest.approx(math.sqrt(expected), rel=1e-12)
    alone = _standard_error(values[:2], torch.zeros(2, 1, dtype=torch.long), 1, 2)
    assert alone == pytest.approx(math.sqrt(float(values[:2].var()) / 2), rel=1e-12)


def test_differences_on_the_same_batches_lose_what_both_have_in_common(classes: tuple[Tensor, Tensor]) -> None:
    outputs, targets = classes
    ours = dyadic_values(Categorical(), outputs, targets, anchors=3, generator=seeded())
    theirs = dyadic_values(Categorical(), outputs * 0.9, targets, anchors=3, generator=seeded())
    difference = ours.less(theirs).estimate()
    assert difference.value == pytest.approx(ours.estimate().value - theirs.estimate().value)
    assert difference.stderr < ours.estimate().stderr
    assert ours.less(ours).estimate().value == 0
    other = dyadic_values(Categorical(), outputs, targets, anchors=3, generator=seeded(2))
    with refused(ShapeError, "the same batches"):
        ours.less(other)


def test_groups_together_have_all_examples(classes: tuple[Tensor, Tensor]) -> None:
    outputs, targets = classes
    parts = [
        dyadic_values(Categorical(), outputs[:, place], targets[place], generator=seeded())
        for place in (slice(0, 7), slice(7, N))
    ]
    found = DyadicValues.together(parts)
    assert found.examples == N and found.group_sizes == (7, 5)
    assert set(found.members.flatten().tolist()) == set(range(N))
    means = [part.estimate().value * part.values.numel() for part in parts]
    assert found.estimate().value == pytest.approx(sum(means) / found.values.numel())
