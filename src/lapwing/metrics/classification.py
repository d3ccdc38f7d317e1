"""Scores of class probabilities: of the label, of what is foreign or given up, against a reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import DataError, ShapeError, check_fraction
from lapwing.ground.precision import wide, wide_like
from lapwing.metrics.elements import by_confidence, check_probabilities, check_tensors, elements, top


def accuracy(probs: Float[Tensor, "*n c"], targets: Tensor) -> float:
    """Share of elements whose most probable class is the label.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        A number in [0, 1].

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        0.5
    """
    return float(top(*elements(probs, targets))[1].mean())


def nll(probs: Float[Tensor, "*n c"], targets: Tensor) -> float:
    """Mean negative log-likelihood, -(1/n) Σ_i log p_i[y_i], in nats.

    A probability of the label that underflowed to 0 counts as the smallest normal number of its dtype, which
    is the most the dtype can say (87 nats in float32).

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        Nats an element.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> round(nll(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([0, 1])), 4)
        0.3993
    """
    return float(losses(probs, targets).mean())


def losses(probs: Float[Tensor, "*n c"], targets: Tensor) -> Float[Tensor, " m"]:
    """Negative log-likelihood of each label, -log p_i[y_i], in nats; ``nll`` is their mean.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        One number an element with a label, in order, float64.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> losses(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, -100]))
        tensor([0.6931], dtype=torch.float64)
    """
    p, y = elements(probs, targets)
    return -p.gather(1, y[:, None]).clamp(min=torch.finfo(probs.dtype).tiny).log().squeeze(1)


def brier(probs: Float[Tensor, "*n c"], targets: Tensor) -> float:
    """Brier score (1/n) Σ_i Σ_c (p_i[c] - [y_i = c])², between 0 and 2 (Brier 1950).

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        A number in [0, 2]; with two classes it is twice the form that scores one of them.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> round(brier(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([0, 1])), 4)
        0.26
    """
    p, y = elements(probs, targets)
    return float((p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(1).mean())


def auroc(in_scores: Float[Tensor, "*n"], out_scores: Float[Tensor, "*m"]) -> float:
    """Probability that an out-of-distribution score exceeds an in-distribution one; a tie counts half.

    The area under the ROC curve as the Mann-Whitney statistic: exact, and unchanged by any increasing
    function of the scores.

    Args:
        in_scores: Scores of in-distribution examples, higher = more foreign (entropy, variance, -confidence).
        out_scores: Scores of out-of-distribution examples.

    Returns:
        A number in [0, 1]; 0.5 where the scores say nothing.

    Raises:
        DataError: A side is empty or has a NaN.

    Example:
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 3.0]))
        0.875
    """
    return float(auroc_placements(in_scores, out_scores)[1].mean())


def auroc_placements(
    in_scores: Float[Tensor, "*n"], out_scores: Float[Tensor, "*m"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " m"]]:
    """The share of the other side that each score is rightly placed to; the mean of either is the ``auroc``.

    Differences of two methods' placements, on the same examples, have the variance of the difference of their AUROC
    (DeLong et al. 1988): var(of the in-distribution ones) / n + var(of the others) / m.

    Args:
        in_scores: Scores of in-distribution examples, higher = more foreign.
        out_scores: Scores of out-of-distribution examples.

    Returns:
        For each in-distribution score the share of the others above it; for each of the others the share of
        in-distribution scores below it; a tie counts half. Float64.

    Raises:
        DataError: A side is empty or has a NaN.

    Example:
        >>> familiar, foreign = auroc_placements(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 3.0]))
        >>> familiar.tolist(), foreign.tolist()
        ([1.0, 0.75], [0.75, 1.0])
    """
    low, high = _two_sides(in_scores, out_scores)
    above = len(high) - _ranks(high, low)
    below = _ranks(low, high)
    return above / len(high), below / len(low)


def _ranks(among: Float[Tensor, " n"], scores: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """How many there are below each score, equal ones counted half."""
    ordered = among.sort().values
    twice = torch.searchsorted(ordered, scores) + torch.searchsorted(ordered, scores, right=True)
    return wide(twice) / 2


def aupr(in_scores: Float[Tensor, "*n"], out_scores: Float[Tensor, "*m"]) -> float:
    """Area under precision against recall of out-of-distribution examples, by steps: the average precision.

    Precision of each threshold weighted by the recall it adds, Σ_k (R_k - R_{k-1}) P_k; equal scores are one threshold.
    Unlike the ``auroc`` it depends on how many there are of each: where the scores say nothing it is m / (n + m).

    Args:
        in_scores: Scores of in-distribution examples, higher = more foreign.
        out_scores: Scores of out-of-distribution examples.

    Returns:
        A number in [0, 1], higher is better.

    Raises:
        DataError: A side is empty or has a NaN.

    Example:
        >>> round(aupr(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 3.0])), 4)
        0.8333
    """
    low, high = _two_sides(in_scores, out_scores)
    thresholds, place = torch.unique(torch.cat([low, high]), return_inverse=True)
    counts = torch.zeros(2, len(thresholds), **wide_like(low))
    counts[0].index_add_(0, place[: len(low)], torch.ones_like(low))
    counts[1].index_add_(0, place[len(low) :], torch.ones_like(high))
    false, true = counts.flip(1).cumsum(1)
    recalled = counts[1].flip(0) / len(high)
    return float((recalled * true / (true + false)).sum())


def fpr95(in_scores: Float[Tensor, "*n"], out_scores: Float[Tensor, "*m"], recall: float = 0.95) -> float:
    """Share of in-distribution examples taken for foreign where 95 % of the foreign ones are found.

    At the largest threshold t for which a share ``recall`` of the out-of-distribution scores is at least t.

    Args:
        in_scores: Scores of in-distribution examples, higher = more foreign.
        out_scores: Scores of out-of-distribution examples.
        recall: The share that is found.

    Returns:
        A number in [0, 1], lower is better.

    Raises:
        ConfigError: The recall is not between 0 and 1.
        DataError: A side is empty or has a NaN.

    Example:
        >>> fpr95(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.35, 3.0]))
        0.25
    """
    check_fraction("recall", recall, "recall=0.95")
    low, high = _two_sides(in_scores, out_scores)
    found = math.ceil(recall * len(high) - 1e-9)
    threshold = high.sort(descending=True).values[found - 1]
    return float(wide(low >= threshold).mean())


def _two_sides(in_scores: Tensor, out_scores: Tensor) -> tuple[Float[Tensor, " n"], Float[Tensor, " m"]]:
    """Scores of both sides in float64, none empty."""
    for name, scores in (("in_scores", in_scores), ("out_scores", out_scores)):
        if scores.numel() == 0 or scores.isnan().any():
            got = "none" if scores.numel() == 0 else f"{int(scores.isnan().sum())} NaN"
            raise DataError(f"{name} of at least one example, without NaN", got, "checking the predictions")
    low = wide(in_scores.detach().flatten()).contiguous()
    return low, out_scores.detach().flatten().to(low).contiguous()


@final
@dataclass(frozen=True, eq=False)
class RejectionCurve:
    """Accuracy of what is kept when the least confident examples are rejected.

    Args:
        fraction: Fraction of the examples rejected, 0 to 1 - 1/n, shape ``[n]``.
        accuracy: Accuracy of the others, shape ``[n]``.
    """

    fraction: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]

    @classmethod
    def of(cls, confidence: Float[Tensor, " n"], correct: Float[Tensor, " n"]) -> RejectionCurve:
        """The curve of confidences and whether they were right, as ``rejection_curve`` has it.

        Args:
            confidence: Largest probability of each example.
            correct: 1 where its class was the label, else 0, float64.
        """
        _, right = by_confidence(confidence, correct)
        n = right.numel()
        rejected = torch.arange(n, **wide_like(right))
        kept_and_right = right.flip(0).cumsum(0).flip(0)
        return cls(rejected / n, kept_and_right / (n - rejected))

    @property
    def area(self) -> float:
        """Area under the curve, the mean accuracy over fractions: 1 - ``aurc``."""
        return float(self.accuracy.mean())

    @property
    def risk(self) -> Float[Tensor, " n"]:
        """Share of errors among what is kept."""
        return 1.0 - self.accuracy

    @property
    def aurc(self) -> float:
        """Area under risk against coverage, the mean risk over how many are kept (Geifman et al. 2019)."""
        return float(self.risk.mean())

    @property
    def augrc(self) -> float:
        """Area under generalised risk, errors that are kept over all examples (Traub et al. 2024).

        The mean over coverages of the chance that an example is kept and wrong: unlike ``aurc`` it does not weigh the
        few surest examples most.
        """
        coverage = 1.0 - self.fraction
        return float((self.risk * coverage).mean())

    def coverage_at(self, risk: float) -> float:
        """The largest share that can be kept, the surest first, with at most this share of errors among them.

        Args:
            risk: Share of errors allowed.

        Raises:
            ConfigError: It is not between 0 and 1.
        """
        check_fraction("risk", risk, "risk=0.05")
        allowed = self.risk <= risk
        return float((1.0 - self.fraction[allowed]).max()) if bool(allowed.any()) else 0.0


def rejection_curve(probs: Float[Tensor, "*n c"], targets: Tensor) -> RejectionCurve:
    """Accuracy of the examples kept as the least confident ones are rejected, one by one.

    Examples of equal confidence share their mean accuracy, so the order of the data does not matter.

    Args:
        probs: Class probabilities.
        targets: Labels ``[*n]``; -100 is ignored.

    Returns:
        One point for each number of rejected examples, 0 to n - 1.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Nothing to score, or not probabilities, or labels outside the classes.

    Example:
        >>> curve = rejection_curve(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> curve.fraction.tolist(), curve.accuracy.tolist(), curve.area
        ([0.0, 0.5], [0.5, 1.0], 0.75)
    """
    return RejectionCurve.of(*top(*elements(probs, targets)))


def symmetric_kl(probs: Float[Tensor, "*n c"], reference: Tensor) -> Float[Tensor, "*n"]:
    """Symmetric Kullback-Leibler divergence of class probabilities, ½ KL(p ‖ q) + ½ KL(q ‖ p), in nats.

    That is ½ Σ_c (p_c - q_c)(log p_c - log q_c), half of Jeffreys' divergence. A probability that underflowed counts
    as the smallest normal number of its dtype, as in ``nll``.

    Args:
        probs: Class probabilities, class axis last.
        reference: Others of the same shape; the two may be exchanged.

    Returns:
        One number >= 0 an element, float64; ``.mean()`` for one in all.

    Raises:
        ShapeError: The shapes differ.
        DataError: Empty, or not probabilities.

    Example:
        >>> symmetric_kl(torch.tensor([[0.75, 0.25]]), torch.tensor([[0.25, 0.75]]))
        tensor([0.5493], dtype=torch.float64)
    """
    check_tensors(probs=probs, reference=reference)
    if not probs.ndim or probs.shape != reference.shape:
        expected = f"class probabilities [*n, c] of the shape of the reference, {list(reference.shape)}"
        raise ShapeError(expected, f"{list(probs.shape)}", "outputs.softmax(-1), both at the same inputs, classes last")
    if not probs.numel():
        raise DataError("at least one element", f"shape {list(probs.shape)}", "more data")
    p, q = (_positive(each.detach().to(probs.device)) for each in (probs, reference))
    return 0.5 * ((p - q) * (p.log() - q.log())).sum(-1)


def _positive(probs: Float[Tensor, "*n c"]) -> Float[Tensor, "*n c"]:
    """Probabilities in float64, those that underflowed the smallest normal number of their dtype."""
    values = wide(probs)
    check_probabilities(values, probs.dtype)
    return values.clamp(min=torch.finfo(probs.dtype).tiny)
