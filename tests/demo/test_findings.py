from __future__ import annotations

import pytest

from lapwing.comparison import Comparison, Row
from lapwing.demo.findings import findings, paired


def runs(nll: tuple[float, ...], **more: float) -> tuple[dict[str, float], ...]:
    return tuple({"nll": value, "ece": 0.1, "ood_auroc": 0.8} | more for value in nll)


def comparison(scaled: tuple[float, ...]) -> Comparison:
    return Comparison(
        (
            Row("plain network", "", runs((0.5, 0.7))),
            Row("temperature scaling", "validation", runs(scaled)),
            Row("KFAC", "default", runs((0.9, 0.8), ood_auroc=0.9, fit_seconds=1.0)),
            Row("KFAC", "evidence at the weights", runs((1.9, 0.2), fit_seconds=1.0)),
            Row("KFAC", "validation", runs((0.4, 0.5), ece=0.05, ood_auroc=0.7, fit_seconds=1.0)),
        )
    )


def test_differences_are_paired_by_seed() -> None:
    rows = comparison((0.4, 0.5)).rows
    difference = paired(rows[-1], rows[0], "nll")  # −0.1 and −0.2
    assert difference.value == pytest.approx(-0.15)
    assert difference.stderr == pytest.approx(0.05)
    assert paired(rows[-1], rows[1], "nll").stderr == pytest.approx(0.0, abs=1e-12)


def test_the_posterior_of_least_nll_is_judged_and_evidence_is_told_as_it_is() -> None:
    found = findings(comparison((0.4, 0.5)))
    assert [(finding.claim, finding.holds) for finding in found] == [
        ("NLL: KFAC tuned by validation beats the plain network", True),
        ("ECE: KFAC tuned by validation beats the plain network", True),
        ("OOD AUROC: KFAC tuned by validation beats the plain network", False),
        ("NLL: KFAC tuned by validation is no worse than temperature scaling by more than one standard error", True),
        ("OOD AUROC: KFAC tuned by default beats the plain network", True),
        ("NLL: KFAC tuned by default beats the plain network", False),
        ("NLL: KFAC tuned by default is no worse than temperature scaling by more than one standard error", False),
        ("NLL: KFAC tuned by evidence at the weights beats the plain network", False),
    ]
    assert str(found[0]).startswith("yes  NLL")
    assert "-0.1500 ± 0.0500" in str(found[0])


@pytest.mark.parametrize(("scaled", "holds"), [((0.38, 0.5), True), ((0.38, 0.48), False)])
def test_worse_by_a_standard_error_is_still_no_worse(scaled: tuple[float, ...], holds: bool) -> None:
    assert findings(comparison(scaled))[3].holds is holds  # 0.01 ± 0.01, and 0.02 ± 0.00


def test_a_temperature_that_failed_in_a_seed_is_not_compared() -> None:
    assert not any("temperature" in finding.claim for finding in findings(comparison((0.4,))))


def test_one_seed_has_no_standard_error_and_no_claim_is_told_twice() -> None:
    rows = (
        Row("plain network", "", runs((0.5,))),
        Row("temperature scaling", "validation", runs((0.4,))),
        Row("KFAC", "default", runs((0.3,), fit_seconds=1.0)),
    )
    found = [str(finding) for finding in findings(Comparison(rows))]
    assert "yes  NLL: KFAC tuned by default beats the plain network (difference -0.2000, one seed)" in found
    assert len(found) == len(set(found))
