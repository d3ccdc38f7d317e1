"""The evidence against the prior precision, as several covariances have it (Antorán 2024, figure 6.7).

    M(a) = log p(y | h(w*)) - ½ a |w*|² - ½ log det(I + M / a)

with w* the mode of the tangent model for a, which is the same for all of them, and M exact, by Kronecker factors, its
diagonal, or the empirical Fisher. Draws know γ, minus the derivative of the log-determinant in log a, and not the
determinant: theirs is the integral of γ down from the largest precision, where it is exact. Three sizes of a CNN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair
from benchmarks.report import Row, by_panel
from lapwing.ground.canvas import colour
from lapwing.posteriors import Posterior, SampledPosterior
from lapwing.tuning.em.expectation import Expectation
from lapwing.tuning.evidence import at_mode
from lapwing.tuning.parabola import vertex
from studies.sampled.networks import Kind, Widths, cnn
from studies.sampled.setting import Images, exact, fitted, trained

SIZES: Mapping[str, Widths] = {"small": (3, 4, 5), "medium": (4, 6, 8), "large": (6, 8, 10)}
"""Channels of the three networks."""

LOGS = torch.arange(-1.0, 3.01, 0.5, dtype=torch.float64)
"""Decimal logarithms of the precisions."""

SAMPLES = 16
COVARIANCES: Mapping[str, Mapping[str, Any]] = {
    "KFAC": {"structure": lw.KFAC()},
    "KFAC, Fisher by labels drawn": {"structure": lw.KFAC(), "curvature": lw.MCFisher()},
    "diagonal": {"structure": lw.Diagonal()},
    "empirical Fisher": {"structure": lw.Full(view="weights"), "curvature": lw.EmpiricalFisher()},
}
COLUMNS = ("log_precision", "ratio", "at_end")
EXACT = "exact"
JOINT = "without the determinant"


def rows(setting: Setting) -> Iterator[Row]:
    """Every covariance of every size and seed."""
    logs = LOGS[::4] if setting.quick else LOGS
    for name in setting.among(SIZES, ("small",) if setting.quick else ()):
        kind = Kind(partial(cnn, SIZES[name]))
        for seed in setting.repeats:
            images = Images.drawn(kind, seed, setting)
            model = trained(kind, images, seed, setting)
            for found in curves(model, images.train, logs):
                yield {"part": name, "seed": seed} | found


def curves(model: nn.Module, data: Pair, logs: Tensor, samples: int = SAMPLES) -> Iterator[Row]:
    """Where each covariance has its largest evidence, and its curve.

    Args:
        model: The network.
        data: Its training data.
        logs: Decimal logarithms of the precisions, ascending.
        samples: Draws.
    """
    posterior = exact(model, data)
    others = {name: fitted(model, data, posterior.prior, **choices) for name, choices in COVARIANCES.items()}
    values = evidences({EXACT: posterior} | others, 10**logs)
    sampled = fitted(model, data, posterior.prior, structure=lw.Sampled(samples))
    assert isinstance(sampled, SampledPosterior)
    gammas = [dimension(sampled, float(a)) for a in 10**logs]
    joint = values.pop(JOINT)
    last = 2 * float(joint[-1] - values[EXACT][-1])
    values[f"{samples} draws"] = joint - 0.5 * log_dets(logs.new_tensor(gammas), logs, last)
    best = largest_at(logs, values[EXACT])
    for name, curve in values.items():
        log_precision = largest_at(logs, curve)
        yield {
            "method": name,
            "weights": posterior.network.size,
            "log_precision": log_precision,
            "ratio": 10 ** (log_precision - best),
            "at_end": float(log_precision in (float(logs[0]), float(logs[-1]))),
            "logs": logs.tolist(),
            "evidence": curve.tolist(),
        }


def evidences(posteriors: Mapping[str, Posterior], precisions: Tensor) -> dict[str, Tensor]:
    """The evidence at every precision by every posterior, and under ``JOINT`` without its determinant.

    Args:
        posteriors: By name; the first finds the modes.
        precisions: The precisions, ascending.
    """
    first = next(iter(posteriors.values()))
    expectation = Expectation(first, "affine", None, SAMPLES, "auto", 1e-4, 0)
    state = expectation.first()
    found: dict[str, list[Tensor]] = {name: [] for name in (JOINT, *posteriors)}
    for a in precisions.flip(0):
        expected = expectation.expect(replace(state, precisions=a.view(1)))
        state = expected.state
        for name, posterior in posteriors.items():
            assert posterior.evidence is not None
            there = at_mode(posterior.evidence, expected.norms, nll=expected.mode.nll, misfit=0.0)
            found[name].append(there.log_marginal(a.view(1), state.scale))
        assert expected.evidence is not None
        found[JOINT].append(expected.evidence.log_joint(a.view(1), state.scale))
    return {name: torch.stack(values).flip(0) for name, values in found.items()}


def dimension(posterior: SampledPosterior, a: float) -> float:
    """The effective dimension at a precision by the draws, which keep their noise."""
    there = posterior.with_hyperparameters(lw.Isotropic(a), posterior.likelihood)
    return there.effective_dimension("outputs").value


def log_dets(gammas: Tensor, logs: Tensor, last: float) -> Tensor:
    """``log det(I + M / a)`` as the integral of γ over the natural logarithm of a, by the rule of trapezoids.

    Args:
        gammas: Effective dimensions.
        logs: Decimal logarithms of the precisions, ascending.
        last: The log-determinant at the last of them.

    Example:
        >>> logs = torch.linspace(-1, 1, 101, dtype=torch.float64)
        >>> log_dets(1 / (1 + 10**logs), logs, 0.0953)[0].round(decimals=2)  # of M = 1
        tensor(2.4000, dtype=torch.float64)
    """
    widths = logs.diff() * torch.tensor(10.0).double().log()
    pieces = widths * (gammas[1:] + gammas[:-1]) / 2
    rest = pieces.flip(0).cumsum(0).flip(0)
    return last + torch.cat([rest, rest.new_zeros(1)])


def largest_at(logs: Tensor, evidence: Tensor) -> float:
    """Where a curve is highest, by a parabola through its highest point and the neighbours; else that point."""
    found = vertex(zip(logs.tolist(), (-evidence).tolist(), strict=True))
    return float(logs[evidence.argmax()]) if found is None else found[0]


def draw(found: Sequence[Row]) -> Any:
    """A panel a size: what the evidence of the first seed lacks of its largest."""
    first = [row for row in found if row.get("seed") == 0 and "evidence" in row]
    made, panels = by_panel(first, "part", 4.0, 3.6)
    for panel, name, own in panels:
        for number, row in enumerate(own):
            values = torch.tensor(row["evidence"])
            precisions = 10 ** torch.tensor(row["logs"])
            panel.plot(precisions.tolist(), (values - values.max()).tolist(), color=colour(number), label=row["method"])
        panel.set(title=f"{name}, {own[0]['weights']} weights", xscale="log", xlabel="prior precision")
        panel.set(ylim=(-300, 10), ylabel="log evidence less its largest, nats")
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return made
