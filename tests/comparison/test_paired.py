"""Differences on the same examples have the errors of paired tests."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import ttest_rel

from lapwing import metrics
from lapwing.comparison.examples import Examples
from lapwing.comparison.joint import joint_values
from lapwing.comparison.paired import Difference, paired
from lapwing.evaluation.plain_network import PlainNetwork, Temperature


def kept(seed: int, run: str = "0", targets: int = 7, n: int = 40, shift: float = 0.0) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    values = {"nll": torch.rand(n, generator=generator) + shift, "nll:fog": torch.rand(n, generator=generator)}
    return Examples.of(run, targets, values)


@pytest.mark.parametrize("score", ["nll", "nll:fog"])
def test_the_standard_error_is_that_of_the_paired_t_test(score: str) -> None:
    ours, theirs = kept(0), kept(1)
    found = paired([ours], [theirs], score)
    assert found is not None
    test = ttest_rel(ours.values[score].double().numpy(), theirs.values[score].double().numpy())
    assert found.value / found.stderr == pytest.approx(test.statistic, rel=1e-12)
    low, high = test.confidence_interval(0.95)
    assert found.value == pytest.approx((low + high) / 2, rel=1e-12)


def test_runs_on_the_same_examples_are_averaged_there_and_on_others_put_together() -> None:
    ours = [kept(0, "0"), kept(1, "1")]
    theirs = [kept(2, "1"), kept(3, "0")]
    found = paired(ours, theirs, "nll")
    assert found is not None
    gaps = [ours[0].values["nll"] - theirs[1].values["nll"], ours[1].values["nll"] - theirs[0].values["nll"]]
    together = torch.stack(gaps).double().mean(0)
    assert found.stderr == pytest.approx(float(together.std()) / math.sqrt(40), rel=1e-6)
    means = torch.stack([gap.double().mean() for gap in gaps])
    assert found.over_runs == pytest.approx(float(means.std()) / math.sqrt(2), rel=1e-6)
    assert found.error == pytest.approx(math.hypot(found.stderr, found.over_runs))
    others = [Examples(each.run, 8 + int(each.run), each.values) for each in ours]
    references = [Examples(each.run, 8 + int(each.run), each.values) for each in theirs]
    apart = paired(others, references, "nll")
    assert apart is not None and apart.runs == 2
    assert apart.stderr == pytest.approx(float(torch.cat(gaps).double().std()) / math.sqrt(80), rel=1e-6)


def test_runs_of_one_alone_and_other_orders_are_no_pairs() -> None:
    both = paired([kept(0), kept(1, "1")], [kept(2)], "nll")
    assert both is not None and both.runs == 1 and math.isnan(both.over_runs)
    assert paired([kept(0)], [kept(1, targets=8)], "nll") is None
    assert paired([kept(0)], [kept(1)], "ece") is None
    assert paired([kept(0)], [kept(1)], "joint") is None
    assert paired([kept(0)], [kept(1)], "ood_auroc") is None


def test_a_difference_of_nothing_is_noise_and_one_of_everywhere_the_same_is_not() -> None:
    same = paired([kept(0)], [kept(0)], "nll")
    assert same is not None and same.value == 0 and same.noise and same.sign == 0
    assert Difference(0.5, 0.0).sign == 1 and Difference(-0.5, 0.2).sign == -1


def test_auroc_differences_have_the_error_of_delong() -> None:
    generator = torch.Generator().manual_seed(0)
    familiar, foreign = torch.randn(60, generator=generator), torch.randn(50, generator=generator) + 1
    values = [{"familiar": familiar, "foreign": foreign}]
    values.append({name: value + torch.randn(len(value), generator=generator) for name, value in values[0].items()})
    one, other = (Examples.of("0", 7, each) for each in values)
    found = paired([one], [other], "ood_auroc")
    assert found is not None
    areas = [metrics.auroc(each.values["familiar"], each.values["foreign"]) for each in (one, other)]
    assert found.value == pytest.approx(areas[0] - areas[1])
    again = list[float]()
    for _ in range(400):
        rows, columns = (torch.randint(n, (n,), generator=generator) for n in (60, 50))
        parts = [metrics.auroc(each["familiar"][rows], each["foreign"][columns]) for each in values]
        again.append(parts[0] - parts[1])
    assert found.stderr == pytest.approx(float(torch.tensor(again).std()), rel=0.15)


def test_joint_differences_are_of_the_same_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 3, generator=generator), torch.arange(50) % 3
    rows = list[Examples]()
    means = list[float]()
    for temperature in (1.0, 2.0):
        plain = PlainNetwork(torch.nn.Identity(), temperature=Temperature(temperature))
        found = joint_values(plain, (x, y), draws=4)
        assert found is not None
        means.append(found.estimate(per_label=True).value)
        values = {"joint": found.values / found.labels, "groups": torch.tensor(found.group_sizes)}
        rows.append(Examples.of("0", 7, values))
    difference = paired(rows[:1], rows[1:], "joint")
    assert difference is not None
    assert difference.value == pytest.approx(means[0] - means[1], rel=1e-5)
    alone = joint_values(PlainNetwork(torch.nn.Identity()), (x, y), draws=4)
    assert alone is not None
    assert 0 < difference.stderr < alone.estimate(per_label=True).stderr  # what both have in common cancels
