"""Bayesian optimisation by Thompson sampling: each function drawn from the posterior proposes where it is largest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.gp.regression.functions import FunctionSamples
from lapwing.gp.regression.posterior import GPPosterior
from lapwing.ground import probes
from lapwing.ground.errors import (
    ConfigError,
    ConvergenceWarning,
    DataError,
    ShapeError,
    check_count,
    check_kind,
    warn,
)
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar, working

RATE = 0.02
"""First step of the refinement, in sides of the box."""

ROOM = 2**28
"""Bytes the refinement may hold."""

GRAPH = 8
"""Numbers of its graph for each entry of the kernel and each feature."""

LOCAL = 0.5
"""Part of the candidates that is drawn around the best observations."""


@final
@dataclass(frozen=True)
class Search:
    """How the largest value of a sampled function is looked for.

    Args:
        candidates: Inputs tried: half of them uniform in the box, the others near good observations.
        starts: The best of them that are refined.
        steps: Gradient steps of the refinement.
        seed: Of the candidates.

    Raises:
        ConfigError: If a number is not positive.
    """

    candidates: int = 5000
    starts: int = 4
    steps: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates, 2)
        check_count("starts", self.starts)
        check_count("steps", self.steps, 0)
        check_count("seed", self.seed, 0)


@working("Thompson sampling")
def thompson(
    posterior: GPPosterior,
    bounds: Float[Tensor, "2 p"],
    batch: int = 1,
    *,
    search: Search | None = None,
    generator: torch.Generator | int | None = None,
) -> Float[Tensor, "b p"]:
    """Where to look next: the largest values of functions drawn from the posterior (Antorán 2024, section 2.3.3).

    Args:
        posterior: The posterior of one output.
        bounds: Lowest and highest value of each dimension.
        batch: Places b, one a drawn function.
        search: How the largest value is looked for; ``None`` for ``Search()``.
        generator: Source of randomness of the functions, or the seed of one; ``None`` draws from PyTorch's global one.

    Raises:
        ConfigError: If an argument is of another kind, or lowest values are not below highest ones.
        ShapeError: If the bounds do not fit the inputs, or there are several outputs.

    Cost:
        A solve for each function, all at once; ``candidates`` rows of the kernel, and ``starts · steps`` more for each.
        The refinement holds the kernel between the starts of some functions and the data at a time, in 256 MiB.

    Example:
        >>> from lapwing.gp import GP
        >>> x = torch.rand(20, 2, dtype=torch.float64)
        >>> thompson(GP().fit((x, -x.square().sum(1))), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), batch=3).shape
        torch.Size([3, 2])
    """
    search = Search() if search is None else search
    check_kind("search", search, (Search,), "Search(candidates=5000)")
    bounds = _box(posterior, bounds, batch)
    functions = posterior.draw_functions(batch, generator=generator)
    candidates = proposals(posterior, bounds, search)
    with torch.no_grad():
        best = functions(candidates)[..., 0].topk(min(search.starts, len(candidates)), dim=1).indices
    starts = candidates[best]
    return refined(functions, starts, bounds, search.steps)


def choose(
    posterior: GPPosterior,
    candidates: Float[Tensor, "m p"],
    batch: int = 1,
    *,
    generator: torch.Generator | int | None = None,
) -> Int[Tensor, " b"]:
    """Which of some candidates, such as molecules, to look at next: none twice.

    Args:
        posterior: The posterior of one output.
        candidates: Inputs.
        batch: How many.
        generator: As for ``thompson``.

    Raises:
        ConfigError: If an argument is of another kind.
        DataError: If candidates are not finite.
        ShapeError: If there are fewer candidates, with other columns, or several outputs.
    """
    _check(posterior, batch)
    inputs = posterior.data.check(candidates)
    if len(inputs) < batch:
        raise ShapeError(f"at least {batch} candidates", f"{len(candidates)}", "a smaller batch, or more candidates")
    with torch.no_grad():
        values = posterior.sample_functions(inputs, batch, generator=generator)[..., 0]
    taken: list[int] = []
    for row in values:
        row[taken] = -torch.inf
        taken.append(int(row.argmax()))
    return torch.tensor(taken, device=candidates.device)


def maximise(
    function: Callable[[Float[Tensor, "b p"]], Float[Tensor, " b"]],
    posterior: GPPosterior,
    bounds: Float[Tensor, "2 p"],
    *,
    rounds: int = 10,
    batch: int = 1,
    search: Search | None = None,
    generator: torch.Generator | int | None = None,
    progress: bool | None = None,
) -> GPPosterior:
    """Look for the largest value of a function, a batch of evaluations at a time.

    The result holds all that was seen, also after Ctrl-C: give it again to go on, with another generator.

    Args:
        function: From inputs ``[b, p]`` to values ``[b]``.
        posterior: The posterior of the evaluations so far.
        bounds: Lowest and highest value of each dimension.
        rounds: Batches.
        batch: Evaluations in each.
        search: As for ``thompson``, but for its seed, which is drawn in each round.
        generator: As for ``thompson``.
        progress: Whether to show a progress bar with the best value; ``None`` for after two seconds, in a terminal or
            notebook.

    Returns:
        The posterior with the evaluations added; its ``data`` are all there is.

    Raises:
        DataError: If a value is not finite.
        ShapeError: If the function returns other than b values; further those of ``thompson``.

    Warns:
        ConvergenceWarning: If it was interrupted.

    Example:
        >>> from lapwing.gp import GP
        >>> x = torch.rand(5, 1, dtype=torch.float64)
        >>> def peak(x):
        ...     return -(x[:, 0] - 0.3).square()
        >>> found = maximise(peak, GP().fit((x, peak(x))), torch.tensor([[0.0], [1.0]]), rounds=3)
        >>> len(found.data)
        8
    """
    check_count("rounds", rounds)
    search = Search() if search is None else search
    check_kind("search", search, (Search,), "Search(candidates=5000)")
    source = probes.generator_of(generator)
    done = 0
    with Bar("evaluations", rounds, unit="batches", progress=progress) as bar:
        try:
            for _ in range(rounds):
                fresh = replace(search, seed=probes.seed_from(source))
                x = thompson(posterior, bounds, batch, search=fresh, generator=source)
                posterior = posterior.updated((x, _values(function, x)))
                done += 1
                bar.update(said=f"best {float(posterior.data.targets.max()):.4g}")
        except KeyboardInterrupt:
            warn(f"interrupted after {done} of {rounds} batches, which the posterior holds", ConvergenceWarning)
    return posterior


def _values(function: Callable[[Tensor], Any], x: Float[Tensor, "b p"]) -> Float[Tensor, "b 1"]:
    """What a function of the user's is at some inputs."""
    found = function(x)
    values = torch.as_tensor(found, dtype=None if isinstance(found, Tensor) else torch.float64, device=x.device)
    if values.numel() != len(x):
        expected = f"{len(x)} values of the function, one an input [{len(x)}, {x.shape[1]}]"
        raise ShapeError(expected, f"shape {list(values.shape)}", "a function from [b, p] to [b]")
    if not bool(values.isfinite().all()):
        got = f"{values.flatten().tolist()!r:.40} at {x.tolist()!r:.60}"
        raise DataError("finite values of the function", got, "a low value where it fails, and rounds=1 to keep others")
    return values.reshape(-1, 1)


def _check(posterior: GPPosterior, batch: int) -> None:
    check_kind("posterior", posterior, (GPPosterior,), "lw.GP().fit((x, y))")
    check_count("batch", batch)
    if posterior.data.outputs != 1:
        raise ShapeError("a process of one output", f"{posterior.data.outputs}", "a fit to the one to be largest")


def _box(posterior: GPPosterior, bounds: Tensor, batch: int) -> Tensor:
    _check(posterior, batch)
    p = posterior.data.inputs.shape[1]
    hint = f"torch.tensor([[0.0] * {p}, [1.0] * {p}])"
    check_kind("bounds", bounds, (Tensor,), hint)
    if bounds.shape != (2, p):
        raise ShapeError(f"bounds [2, {p}] of lowest and highest values", f"shape {list(bounds.shape)}", hint)
    if not bool((bounds[0] < bounds[1]).all()):
        raise ConfigError("bounds whose lowest values are below the highest", f"{bounds.tolist()!r:.60}", hint)
    return bounds.to(posterior.data.inputs)


def proposals(posterior: GPPosterior, bounds: Tensor, search: Search) -> Float[Tensor, "m p"]:
    """Inputs to look at: uniform ones, and some around observations, the better ones more often.

    Args:
        posterior: Has the observations.
        bounds: Of its dtype.
        search: How many, and their seed.
    """
    generator = torch.Generator().manual_seed(search.seed)
    inputs = posterior.data.inputs
    low, high = bounds
    local = int(LOCAL * search.candidates)
    uniform = torch.rand(search.candidates - local, len(low), generator=generator, dtype=torch.float64).to(inputs)
    score = wide(posterior.data.targets[:, 0])
    weight = torch.softmax((score - score.max()) / score.std(correction=0).clamp_min(1e-12), 0)
    around = inputs[torch.multinomial(weight.cpu(), local, replacement=True, generator=generator).to(inputs.device)]
    spread = 0.05 * (high - low) * probes.gaussian(list(around.shape), like=inputs, generator=generator)
    return torch.cat([low + (high - low) * uniform, (around + spread).clamp(low, high)])


def refined(
    functions: FunctionSamples,
    starts: Float[Tensor, "s a p"],
    bounds: Float[Tensor, "2 p"],
    steps: int,
    max_bytes: int = ROOM,
) -> Float[Tensor, "s p"]:
    """The best of each function's starts, after gradient ascent within the box, some functions at a time.

    Args:
        functions: Drawn functions.
        starts: Of each some inputs.
        bounds: The box.
        steps: Of the ascent.
        max_bytes: What some functions may hold.
    """
    needed = GRAPH * starts.element_size() * starts.shape[1] * (len(functions.inputs) + functions.prior.count)
    width = max(1, max_bytes // needed)
    found = list[Tensor]()
    for first in range(0, len(starts), width):
        part = slice(first, first + width)
        found.append(_refined(functions.select(part), starts[part], bounds, steps))
    return torch.cat(found)


def _refined(
    functions: FunctionSamples, starts: Float[Tensor, "s a p"], bounds: Tensor, steps: int
) -> Float[Tensor, "s p"]:
    """The best of each function's starts, after gradient ascent within the box."""
    low, high = bounds
    unit = ((starts - low) / (high - low)).detach().clone().requires_grad_()
    adam = torch.optim.Adam([unit], lr=RATE)
    for _ in range(steps):
        adam.zero_grad()
        (-functions.each_at(low + (high - low) * unit).sum()).backward()
        adam.step()
        with torch.no_grad():
            unit.clamp_(0.0, 1.0)
    with torch.no_grad():
        found = low + (high - low) * unit
        return found[torch.arange(len(found), device=found.device), functions.each_at(found).argmax(1)]
