"""Scores against formulas written out on the predictions of the whole data set at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, Poisson
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.evaluation.evaluate import Predictor, evaluated, metrics
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.errors import ConfigError, DataError
from lapwing.posteriors.knowledge import KnowledgeScale
from tests.meter import Meter
from tests.posterior_cases import Problem, labels, normal, problem, refused


def fit(name: str, **options: Any) -> tuple[Problem, lw.Posterior]:
    case = problem(name)
    return case, case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC(), **options))


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Share of pairs in the right order, ties by half."""
    difference = outside[:, None] - inside[None, :]
    return float(((difference > 0).double() + 0.5 * (difference == 0)).mean())


class TestClasses:
    def test_scores_are_those_of_all_predictions_together(self) -> None:
        """Also where labels are ignored, and whatever the batches."""
        case, posterior = fit("categorical")
        scores = lw.evaluate(posterior, case.batches(4))
        kept = case.y != -100
        p, y = posterior.predict(case.x).probs[kept], case.y[kept]
        assert len(y) == 9
        right = p.gather(1, y[:, None]).squeeze(1)
        assert scores["accuracy"] == pytest.approx(float((p.argmax(1) == y).double().mean()))
        assert scores["nll"] == pytest.approx(float(-right.log().mean()), rel=1e-9)
        brier = (p - torch.eye(3).double()[y]).square().sum(1).mean()
        assert scores["brier"] == pytest.approx(float(brier), rel=1e-9)
        order = p.amax(1).argsort()
        correct = (p.argmax(1) == y).double()[order]
        kept_risks = torch.stack([1 - correct[i:].mean() for i in range(9)])
        shares = torch.arange(9, 0, -1).double() / 9
        assert scores["aurc"] == pytest.approx(float(kept_risks.mean()))
        assert scores["augrc"] == pytest.approx(float((kept_risks * shares).mean()))
        allowed = shares[kept_risks <= 0.05]
        assert scores["coverage_5"] == pytest.approx(float(allowed.max()) if len(allowed) else 0.0)
        confidence = p.amax(1)
        gaps = []
        for low in range(15):
            inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
            gaps.append(((p.argmax(1) == y).double() - confidence)[inside].sum().abs() / 9)
        assert scores["ece"] == pytest.approx(float(torch.stack(gaps).sum()), rel=1e-9)
        assert scores["adaptive_ece"] == pytest.approx(metrics.adaptive_ece(p, y))
        of_rejection = {"aurc", "augrc", "coverage_5"}
        assert set(scores) == {"accuracy", "nll", "ece", "ece_floor", "adaptive_ece", "brier"} | of_rejection

    def test_other_data_are_told_by_their_confidence(self) -> None:
        case, posterior = fit("categorical")
        foreign = 5 * case.new
        scores = lw.evaluate(
            posterior, case.batches(4), ood=[(foreign[:1], torch.tensor([77])), (foreign[1:], torch.zeros(3))]
        )
        sure = [1 - posterior.predict(x).confidence for x in (case.x, foreign)]
        assert scores["ood_auroc"] == pytest.approx(auroc(*sure), rel=1e-9)
        for alone in (foreign, foreign.numpy(), [foreign[:1], foreign[1:]], DataLoader(TensorDataset(foreign))):
            again = lw.evaluate(posterior, case.batches(4), ood=alone)
            assert again["ood_auroc"] == pytest.approx(scores["ood_auroc"], rel=1e-12)
        assert scores["ood_aupr"] == metrics.aupr(*sure) and scores["ood_fpr95"] == metrics.fpr95(*sure)
        plain = {name: value for name, value in scores.items() if not name.startswith("ood_")}
        assert plain == lw.evaluate(posterior, case.batches())

    def test_how_unfamiliar_other_data_are_is_told_of_a_posterior_that_looked_at_familiar_inputs(self) -> None:
        """The median share of these that are better known; batches change nothing."""
        case, posterior = fit("categorical")
        foreign = 5 * case.new
        between = posterior.predict(foreign).epistemic.sort().values[[0, 2]] - 1e-3
        tuned = replace(posterior, knowledge=KnowledgeScale(1.0, between.float(), held_out=False))
        scores = lw.evaluate(tuned, case.batches(4), ood=foreign.split(2))
        assert scores["ood_unfamiliar"] == float(tuned.predict(foreign).unfamiliar.median()) == 0.5
        assert "better" in str(scores).splitlines()[-1] and "ood_unfamiliar" in str(scores)
        assert "ood_unfamiliar" not in lw.evaluate(posterior, case.batches(4), ood=foreign)

    def test_the_loader_is_split_as_that_of_the_fit_was(self) -> None:
        """By name or by place; tensors need no splitting, and what is asked for comes first."""
        x, y = normal(9, 3), labels(9, classes=2)
        train = [{"these": x, "those": y}]
        model = nn.Linear(3, 2).double()
        posterior = lw.Laplace(lw.Categorical()).fit(model, train, unpack=lambda it: (it["these"], it["those"]))
        plain = lw.evaluate(posterior, (x, y), ood=2 * x)
        assert lw.evaluate(posterior, train, ood=[{"these": 2 * x, "those": y}]) == plain
        swapped = lw.evaluate(posterior, [(y, x)], ood=[(y, 2 * x)], unpack=lambda it: (it[1], it[0]))
        assert swapped == plain

    @pytest.mark.parametrize("name", ["tokens", "pixels"])
    def test_positions_count_as_examples(self, name: str) -> None:
        case, posterior = fit(name)
        scores = lw.evaluate(posterior, case.batches(3), ood=(case.new, case.new))
        p, y = posterior.predict(case.x).probs, case.y
        kept = y != -100
        assert scores["nll"] == pytest.approx(float(-p[kept].gather(1, y[kept][:, None]).log().mean()), rel=1e-9)
        assert scores["accuracy"] == pytest.approx(float((p.argmax(-1) == y)[kept].double().mean()))
        sure = [1 - posterior.predict(x).confidence.flatten() for x in (case.x, case.new)]
        assert scores["ood_auroc"] == pytest.approx(auroc(*sure), rel=1e-9)

    def test_mappings_and_unpack_give_what_pairs_give(self) -> None:
        """Inputs of another precision take that of the network."""
        x, y = normal(9, 3), labels(9, classes=2)

        class Named(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.out = nn.Linear(3, 2).double()

            def forward(self, features: Tensor) -> dict[str, Tensor]:
                return {"logits": self.out(features)}

        model = Named()
        posterior = lw.Laplace(lw.Categorical()).fit(model, [{"features": x, "labels": y}])
        plain = lw.evaluate(posterior, [(x, y)])
        mappings = [{"features": x[:4], "labels": y[:4]}, {"features": x[4:], "labels": y[4:]}]
        with_foreign = dict(lw.evaluate(posterior, mappings, ood=mappings))
        assert with_foreign.pop("ood_auroc") == pytest.approx(0.5)
        assert with_foreign.pop("ood_aupr") == pytest.approx(0.5, abs=0.1)
        assert with_foreign.pop("ood_fpr95") >= 0.95
        assert with_foreign == pytest.approx(dict(plain))
        odd = [(y, x.float().double())]
        assert dict(lw.evaluate(posterior, odd, unpack=lambda e: (e[1], e[0]))) == pytest.approx(dict(plain))

    def test_options_are_passed_on_to_predict(self) -> None:
        case, posterior = fit("categorical", prior=lw.Isotropic(0.1))

        def score(seed: int, **options: Any) -> float:
            return lw.evaluate(posterior, case.batches(), generator=torch.Generator().manual_seed(seed), **options)[
                "nll"
            ]

        assert score(0, link="mc", samples=5) == score(0, link="mc", samples=5)
        assert score(0, link="mc", samples=5) != score(1, link="mc", samples=5)
        assert score(0, link="mc", samples=5) != score(0, link="mc", samples=6)
        assert score(0) == score(1) == lw.evaluate(posterior, case.batches())["nll"]
        assert score(0, linearised=False, samples=3) != score(0)
        assert score(0, joint=True) == pytest.approx(score(0), rel=1e-6)

    def test_baselines_have_scores_too(self) -> None:
        case, posterior = fit("categorical")
        plain = PlainNetwork(case.model)
        assert isinstance(plain, Predictor) and isinstance(posterior, Predictor)
        scores = lw.evaluate(plain, case.batches())
        case.model.eval()
        loss = nn.functional.cross_entropy(case.model(case.x), case.y)
        assert scores["nll"] == pytest.approx(float(loss), rel=1e-9)

    def test_options_that_predict_does_not_take_are_refused(self) -> None:
        case, posterior = fit("categorical")
        plain = PlainNetwork(case.model)
        with refused(ConfigError, "PlainNetwork.predict takes (none)"):
            lw.evaluate(plain, case.batches(), link="mc", samples=5)
        with refused(ConfigError, "takes (link, joint,"):
            lw.evaluate(posterior, case.batches(), lynk="mc")

    def test_the_covariances_of_a_batch_go_with_it(self) -> None:
        """Of 24 further batches what stays is less than the covariances of two."""
        classes, batch = 40, 3
        x, y = normal(30 * batch, 2), labels(30 * batch, classes=classes)
        posterior = lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(nn.Linear(2, classes).double(), (x, y))
        most: list[int] = []
        for batches in (6, 30):
            loader = list(zip(x.split(batch)[:batches], y.split(batch), strict=False))
            with Meter() as meter:
                lw.evaluate(posterior, loader, ood=loader)
            most.append(meter.most)
        assert most[1] - most[0] < 2 * batch * classes**2 * 8

    def test_data_without_labels_are_refused(self) -> None:
        case, posterior = fit("categorical")
        with pytest.raises(DataError, match="a label other than -100"):
            lw.evaluate(posterior, (case.x, torch.full((10,), -100)))
        with pytest.raises(DataError, match="at least one example"):
            lw.evaluate(posterior, [])
        with pytest.raises(DataError, match="at least one example"):
            lw.evaluate(posterior, case.batches(), ood=[])


class TestRealTargets:
    @pytest.mark.parametrize("name", ["gaussian", "gaussian-per-output", "heteroscedastic"])
    def test_scores_are_those_of_all_predictions_together(self, name: str) -> None:
        case, posterior = fit(name)
        scores = lw.evaluate(posterior, case.batches(4), ood=(4 * case.new, case.y[:4]))
        p = posterior.predict(case.x)
        mean, std = p.mean, p.std
        assert scores["nll"] == pytest.approx(float(-Normal(mean, std).log_prob(case.y).sum(1).mean()), rel=1e-9)
        assert scores["rmse"] == pytest.approx(float((mean - case.y).square().mean().sqrt()), rel=1e-9)
        w = (case.y - mean) / std
        unit = Normal(torch.zeros(()).double(), 1.0)
        crps = std * (w * (2 * unit.cdf(w) - 1) + 2 * unit.log_prob(w).exp() - math.pi**-0.5)
        assert scores["crps"] == pytest.approx(float(crps.mean()), rel=1e-9)
        assert scores["picp"] == pytest.approx(float((w.abs() <= 1.959963984540054).double().mean()))
        spread = [posterior.predict(x).std.sum(1) for x in (case.x, 4 * case.new)]
        assert scores["ood_auroc"] == pytest.approx(auroc(*spread), rel=1e-9)
        assert set(scores) == {
            *("nll", "rmse", "crps", "picp", "interval_score", "width"),
            *("ood_auroc", "ood_aupr", "ood_fpr95"),
        }

    def test_targets_without_an_axis_of_outputs(self) -> None:
        x, y = normal(9, 3), normal(9, seed=1)
        posterior = lw.Laplace(lw.Gaussian()).fit(nn.Linear(3, 1).double(), (x, y))
        assert dict(lw.evaluate(posterior, (x, y))) == dict(lw.evaluate(posterior, (x, y[:, None])))

    def test_joint_predictions_have_the_same_scores(self) -> None:
        case, posterior = fit("gaussian")
        joint = lw.evaluate(posterior, case.batches(), joint=True)
        assert dict(joint) == pytest.approx(dict(lw.evaluate(posterior, case.batches())), rel=1e-6)


class TestLabelsAndCounts:
    def test_many_labels(self) -> None:
        case, posterior = fit("bernoulli")
        scores = lw.evaluate(posterior, case.batches(4), ood=(9 * case.new, case.y[:4]))
        p = posterior.predict(case.x).probs
        loss = nn.functional.binary_cross_entropy(p, case.y, reduction="none").sum(1).mean()
        assert scores["nll"] == pytest.approx(float(loss), rel=1e-9)
        unsure = [posterior.predict(x).entropy.mean(1) for x in (case.x, 9 * case.new)]
        assert scores["ood_auroc"] == pytest.approx(auroc(*unsure), rel=1e-9)

    def test_counts(self) -> None:
        case, posterior = fit("poisson")
        scores = lw.evaluate(posterior, (case.x, case.y), ood=(case.new, case.y[:4]))
        p = posterior.predict(case.x)
        draws = p.log_rates.sample(20_000, generator=torch.Generator().manual_seed(0)).exp()
        exact = Poisson(draws).log_prob(case.y).sum(-1).logsumexp(0) - math.log(20_000)
        assert scores["nll"] == pytest.approx(float(-exact.mean()), abs=0.1)
        spread = [posterior.predict(x).std.sum(1) for x in (case.x, case.new)]
        assert scores["ood_auroc"] == pytest.approx(auroc(*spread), rel=1e-9)

    def test_the_nll_of_counts_depends_on_no_draw_and_no_batch(self) -> None:
        case, posterior = fit("poisson")
        nlls = [
            lw.evaluate(posterior, case.batches(), generator=torch.Generator().manual_seed(seed))["nll"]
            for seed in (0, 1)
        ]
        assert nlls[0] == nlls[1]
        assert nlls[0] == pytest.approx(lw.evaluate(posterior, (case.x, case.y))["nll"], rel=1e-12)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "gaussian", "poisson"])
def test_the_losses_of_single_targets_have_the_nll_for_their_mean(name: str) -> None:
    case, posterior = fit(name)
    found = evaluated(posterior, case.batches())
    assert float(found.losses.mean()) == pytest.approx(found.scores["nll"], rel=1e-12)
    assert found.losses.dtype == torch.float64 and found.losses.numel() > 1


class TestScores:
    def test_read_as_a_table_and_as_a_mapping(self) -> None:
        scores = lw.Scores({"accuracy": 0.9, "nll": 0.25})
        first, second = str(scores).splitlines()
        assert first.startswith("accuracy  0.9000  ") and first.endswith("higher is better")
        assert second.startswith("nll       0.2500  nats") and second.endswith("lower is better")
        assert dict(scores) == {"accuracy": 0.9, "nll": 0.25}
        assert (len(scores), list(scores), "nll" in scores, scores.get("ece")) == (2, ["accuracy", "nll"], True, None)
        assert str(lw.Scores({})) == ""
        with pytest.raises(KeyError, match="ece"):
            scores["ece"]

    def test_progress_is_quiet_unless_asked(self, capfd: pytest.CaptureFixture[str]) -> None:
        case, posterior = fit("categorical")
        lw.evaluate(posterior, case.batches())
        assert capfd.readouterr() == ("", "")
        lw.evaluate(posterior, case.batches(), progress=True)
        assert "batch" in capfd.readouterr().err
