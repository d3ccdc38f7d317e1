"""Log-likelihood of many labels at once, which rewards knowing what errors have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.checks import check_finite
from lapwing.ground.errors import DataError, ShapeError, check_count, check_kind
from lapwing.ground.labels import IGNORED, is_integral
from lapwing.ground.precision import wide
from lapwing.ground.results import Estimate
from lapwing.metrics.elements import check_tensors

CHUNK = 1 << 22
"""Numbers, draws times batches, that are summed at once."""


@runtime_checkable
class ConditionalDensity(Protocol):
    """p(y | f) of outputs f, as every likelihood has it."""

    @property
    def event_dim(self) -> int:
        """Number of event axes."""
        ...

    @property
    def unweighted(self) -> ConditionalDensity:
        """The density of a single target."""
        ...

    def canonical_targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets shaped and typed to match outputs."""
        ...

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuses outputs and targets that it cannot have produced."""
        ...

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log likelihood at each position, nats."""
        ...


def joint_log_likelihood(
    likelihood: ConditionalDensity,
    outputs: Float[Tensor, "*batch c"],
    targets: Tensor,
    *,
    anchors: int = 2,
    labels: int | None = None,
    shuffles: int = 10,
    per_label: bool = False,
    generator: torch.Generator | None = None,
    together: int = CHUNK,
) -> Estimate:
    """Joint log-likelihood by dyadic sampling: the mean over batches b of log (1/s) Σ_j Π_{t ≤ τ} p(y_bt | f_j(x_bt)).

    Independent inputs in high dimension hardly share any uncertainty, so a batch's τ labels are drawn with
    replacement from only κ distinct examples (Osband et al. 2022, with κ = 2; larger κ as in Antorán 2024). Each
    shuffle splits the examples into ⌊n/κ⌋ disjoint sets of κ. With κ = τ = 1 this is the marginal log-likelihood;
    for one draw (a plain network) it is τ times that, in expectation. Few draws bias it low, the more the larger τ:
    compare methods at one s.

    The standard error is that of test data drawn anew, for these draws of the outputs. Shuffles use the same examples
    again: with v_b the value of a batch and ζ the variance over examples of their mean v_b, less what the R batches
    an example is in leave of noise, Var = κ²ζ/n + κ(var v - κζ)/(R n) (Hoeffding 1948).

    Args:
        likelihood: p(y | f).
        outputs: Canonical outputs ``[s, n, *event, c]`` of s functions, each at all n examples, as
            ``posterior.sample_functions`` gives; ``[n, *event, c]`` for a plain network.
        targets: Targets of the n examples, as a loader gives them; examples with all labels -100 are left out. An
            example with event axes counts as one label: the sum over its positions.
        anchors: Distinct examples κ of a batch.
        labels: Labels τ of a batch; ``None`` takes 10 (κ - 1), and 1 for κ = 1.
        shuffles: Times R that the examples are split into sets.
        per_label: Whether to divide by τ.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.
        together: Numbers, draws times batches, that are summed at once.

    Returns:
        Nats a batch of τ labels, higher better (a label, with ``per_label``); ``samples`` counts the batches.

    Raises:
        ShapeError: The shapes do not match.
        DataError: Outputs that are not finite, impossible targets, or fewer than κ examples with a label.
        ConfigError: A count below 1.

    Cost: s n likelihoods once, then R s τ n/κ sums; memory s n + R τ n/κ numbers. The batches depend on the generator
    and n alone, so that methods can be compared on the same ones.

    Example:
        >>> from lapwing.likelihoods import Bernoulli
        >>> sure = torch.tensor([4.0, -4.0])[:, None, None].expand(2, 6, 1)  # all up, or all down
        >>> joint = joint_log_likelihood(Bernoulli(), sure, torch.ones(6, 1), anchors=2, per_label=True)
        >>> marginal = joint_log_likelihood(Bernoulli(), sure, torch.ones(6, 1), anchors=1)
        >>> f"{joint.value:.3f}", f"{marginal.value:.3f}"
        ('-0.087', '-0.693')
    """
    values = dyadic_values(
        likelihood,
        outputs,
        targets,
        anchors=anchors,
        labels=labels,
        shuffles=shuffles,
        generator=generator,
        together=together,
    )
    return values.estimate(per_label=per_label)


@final
@dataclass(frozen=True, eq=False)
class DyadicValues:
    """Joint log-likelihoods of the batches of dyadic sampling, for differences of methods on the same ones.

    Args:
        values: Nats a batch, float64.
        members: The examples of each batch.
        examples: Examples n.
        shuffles: Times R that they were split into sets.
        labels: Labels τ of a batch.
        group_sizes: Examples of each of several groups that they are in; empty for one group.
    """

    values: Float[Tensor, " b"]
    members: Int[Tensor, "b k"]
    examples: int
    shuffles: int
    labels: int
    group_sizes: tuple[int, ...] = ()

    def estimate(self, *, per_label: bool = False) -> Estimate:
        """Their mean, nats a batch or a label, with the standard error of test data drawn anew."""
        values = self.values / (self.labels if per_label else 1)
        stderr = _standard_error(values, self.members, self.examples, self.shuffles)
        return Estimate(float(values.mean()), stderr, values.numel())

    def less(self, other: DyadicValues) -> DyadicValues:
        """What another method has less on the same batches; ``estimate`` is then of the difference, paired.

        Raises:
            ShapeError: If the batches are others.
        """
        if self.members.shape != other.members.shape or not torch.equal(self.members, other.members):
            expected = "joint log-likelihoods of the same batches"
            raise ShapeError(expected, "others", "generators of one seed, and the same examples in the same order")
        return replace(self, values=self.values - other.values)

    @classmethod
    def together(cls, groups: Sequence[DyadicValues]) -> DyadicValues:
        """Those of several groups of examples as one; their places are counted through."""
        sizes = tuple(group.examples for group in groups)
        starts = [sum(sizes[:place]) for place in range(len(groups))]
        members = torch.cat([group.members + start for group, start in zip(groups, starts, strict=True)])
        values = torch.cat([group.values for group in groups])
        return replace(groups[0], values=values, members=members, examples=sum(sizes), group_sizes=sizes)


def dyadic_values(
    likelihood: ConditionalDensity,
    outputs: Float[Tensor, "*batch c"],
    targets: Tensor,
    *,
    anchors: int = 2,
    labels: int | None = None,
    shuffles: int = 10,
    generator: torch.Generator | None = None,
    together: int = CHUNK,
) -> DyadicValues:
    """The batches behind ``joint_log_likelihood``, one value each; arguments and errors as there.

    Example:
        >>> from lapwing.likelihoods import Bernoulli
        >>> outputs = [scale * torch.ones(6, 1) for scale in (1.0, 2.0)]
        >>> seeds = [torch.Generator().manual_seed(0) for _ in outputs]
        >>> one, two = (dyadic_values(Bernoulli(), f, torch.ones(6, 1), generator=g) for f, g in zip(outputs, seeds))
        >>> f"{two.less(one).estimate(per_label=True).value:.3f}"
        '0.186'
    """
    check_kind("likelihood", likelihood, (ConditionalDensity,), "posterior.likelihood, or Categorical()")
    check_tensors(outputs=outputs, targets=targets)
    check_count("anchors", anchors, usual=2)
    check_count("shuffles", shuffles, usual=10)
    labels = max(1, 10 * (anchors - 1)) if labels is None else labels
    check_count("labels", labels, usual=10)
    logs = _log_likelihoods(likelihood, outputs, targets)
    n = logs.shape[1]
    if n < anchors:
        raise DataError(f"at least {anchors} examples with a label", f"{n}", f"anchors={max(n, 1)}, or more data")
    members = dyadic_members(n, anchors, shuffles, like=logs, generator=generator)
    uniform = probes.uniform([len(members), labels], like=logs, generator=generator)
    batches = members.gather(1, (uniform * anchors).long().clamp(max=anchors - 1))  # with replacement
    parts = [_joint(logs, part) for part in batches.split(max(1, together // logs.shape[0]))]
    return DyadicValues(torch.cat(parts), members, n, shuffles, labels)


def dyadic_members(
    n: int, anchors: int, shuffles: int, *, like: Tensor, generator: torch.Generator | None
) -> Int[Tensor, "b k"]:
    """The examples of each batch of dyadic sampling: a generator of the same seed gives the same ones.

    Args:
        n: Examples.
        anchors: Distinct examples κ of a batch.
        shuffles: Times that the examples are split into sets.
        like: Whose type and device the numbers have that they are shuffled by.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Example:
        >>> like = torch.zeros((), dtype=torch.float64)
        >>> dyadic_members(7, 2, 3, like=like, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([9, 2])
    """
    orders = [probes.gaussian([n], like=like, generator=generator).argsort() for _ in range(shuffles)]
    return torch.cat([order[: n // anchors * anchors].reshape(-1, anchors) for order in orders])


def _log_likelihoods(likelihood: ConditionalDensity, outputs: Tensor, targets: Tensor) -> Float[Tensor, "s m"]:
    """Log p(y | f) of each draw and each example that has a label, float64."""
    rank = likelihood.event_dim + 2
    draws = outputs.detach() if outputs.ndim != rank else outputs.detach()[None]
    if draws.ndim != rank + 1 or not draws.shape[0]:
        raise ShapeError(
            f"outputs [s, n, *event, c] or [n, *event, c] with {likelihood.event_dim} event axes",
            f"shape {list(outputs.shape)}",
            "posterior.sample_functions(x, 64), or the canonical outputs of a network",
        )
    y = likelihood.canonical_targets(draws[0], targets.to(draws.device))
    likelihood.check(draws[0], y)
    check_finite(draws, "outputs", "checking the inputs and the weights of the draws")
    if is_integral(y):
        kept = (y != IGNORED).unsqueeze(-1).flatten(1).any(1)
        draws = draws[:, kept]
        y = y[kept]
    exact = wide(y) if y.is_floating_point() else y
    return torch.stack([-likelihood.unweighted.nll(wide(f), exact).unsqueeze(-1).flatten(1).sum(1) for f in draws])


def _joint(logs: Float[Tensor, "s n"], batches: Int[Tensor, "b t"]) -> Float[Tensor, " b"]:
    """The joint log-likelihood of each batch."""
    total = torch.zeros(logs.shape[0], batches.shape[0], dtype=logs.dtype, device=logs.device)
    for examples in batches.unbind(1):
        total += logs[:, examples]
    return torch.logsumexp(total, 0) - math.log(logs.shape[0])


def _standard_error(values: Float[Tensor, " b"], members: Int[Tensor, "b k"], n: int, shuffles: int) -> float:
    """Standard error of the mean over batches that share examples; infinite for a single batch."""
    if values.numel() < 2:
        return math.inf
    size = members.shape[1]
    spread = float(values.var())
    ones = torch.ones_like(values)[:, None].expand(members.shape).flatten()
    count = torch.zeros(n, dtype=values.dtype, device=values.device).index_add_(0, members.flatten(), ones)
    sums = torch.zeros_like(count).index_add_(0, members.flatten(), (values - values.mean()).repeat_interleave(size))
    seen = count > 0
    shared = float((sums[seen] / count[seen]).var()) if int(seen.sum()) > 1 else 0.0
    variance = (size**2 * shared - size * (size - 1) * spread / shuffles) / n
    return math.sqrt(max(variance, size * spread / (shuffles * n)))
