"""Hyper-parameters from parts of the data: a random one, or neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.gp.tuning.evidence import climbed
from lapwing.gp.tuning.tunable import P, step_of
from lapwing.ground import probes
from lapwing.ground.errors import check_count
from lapwing.ground.progress import track

GAIN = 0.3
"""A climb ends where its last three steps together gained fewer nats: a part of the data does not know it better."""

STEPS = 200
"""Most steps in a neighbourhood."""


@final
@dataclass(frozen=True)
class Subset:
    """The optimum of the evidence of random observations.

    A random part spans the data as they are; it sees less of what varies over short distances, and is sure of fewer
    length-scales, than all observations. Too small a part is overfitted where dimensions are many: its noise ends at
    the limit, which is what the dtype resolves.

    Observations are drawn until they have ``size`` distinct inputs, which is what is solved for. Of rows with the same
    inputs and targets one is drawn: tables hold rows twice, and a few copies say that there is no noise.

    Args:
        size: Distinct inputs; of a classifier observations, copies among them.
        steps: Most steps.
        noise: Whether the noise is chosen too.
        seed: Of the part.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        A few dozen steps of ``Evidence`` on the part.
    """

    size: int = 4000
    steps: int = 100
    noise: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("size", self.size, 2)
        check_count("steps", self.steps)
        check_count("seed", self.seed, 0)

    def tune(self, posterior: P, progress: bool | None = None) -> P:
        """See ``Evidence.tune``; without its warning of few steps."""
        order = probes.permutation(len(posterior.data), generator=torch.Generator().manual_seed(self.seed))
        shuffled = posterior.select(torch.tensor(order, device=posterior.data.inputs.device))
        part = shuffled.first(self.size)
        best, _ = climbed(part, self.steps, self.noise, progress, floor=posterior.least_noise(), gain=GAIN)
        result = posterior.with_log_hyperparameters(best.log_hyperparameters())
        return result.with_trace((*best.trace, step_of(result)))


@final
@dataclass(frozen=True)
class Centroids:
    """The average of the optima on a few neighbourhoods (Antorán 2024, section 4.5.1).

    The inputs nearest to a random one keep the local detail that a random subset would alias. They must be many:
    over a small neighbourhood nothing varies that tells the long length-scales.

    Args:
        count: Neighbourhoods.
        size: Inputs in each.
        noise: Whether the noise is chosen too.
        seed: Of their centres.

    Raises:
        ConfigError: If a number is not positive.

    Cost:
        ``Evidence`` on each neighbourhood.
    """

    count: int = 5
    size: int = 2000
    noise: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("count", self.count)
        check_count("size", self.size, 2)
        check_count("seed", self.seed, 0)

    def tune(self, posterior: P, progress: bool | None = None) -> P:
        """See ``Evidence.tune``; without its warning of few steps, and interrupted with the neighbourhoods so far."""
        inputs = posterior.data.distinct.inputs
        centres = probes.permutation(len(inputs), generator=torch.Generator().manual_seed(self.seed))
        count = self.count if self.size < len(inputs) else 1  # else all are the same
        optima = list[Tensor]()
        trace = posterior.trace
        for centre in track(centres[:count], "neighbourhoods", unit="neighbourhoods", progress=progress):
            squares = (inputs - inputs[centre]).square().sum(1)
            nearest = squares.topk(min(self.size, len(inputs)), largest=False).indices
            near = posterior.select(posterior.data.places(nearest)).with_trace(trace)
            best, stopped = climbed(near, STEPS, self.noise, progress, floor=posterior.least_noise())
            optima.append(best.log_hyperparameters())
            trace = best.trace
            if stopped == "interrupted":
                break
        result = posterior.with_log_hyperparameters(torch.stack(optima).mean(0))
        return result.with_trace((*trace, step_of(result)))
