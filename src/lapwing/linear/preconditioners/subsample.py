"""The exact curvature of a few examples."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.dense import jacobian_rows
from lapwing.curvature.ggn import GGN
from lapwing.curvature.sums import chunk_size, raw
from lapwing.ground.data import chunks, concatenated, take
from lapwing.ground.errors import check_count
from lapwing.ground.types import Inputs
from lapwing.jacobian.model import Model
from lapwing.likelihoods import IGNORED
from lapwing.linalg import LowRank
from lapwing.linear.preconditioners.base import CurvatureRecipe, check_rows, training_of
from lapwing.linear.problem import Problem


@final
@dataclass(frozen=True)
class Subsample(CurvatureRecipe):
    """``P = s Σ_B w_n J_nᵀ B_n J_n + A``: the exact curvature of a few examples, inverted by Woodbury's identity.

    With labels, every class has as many of them. Where it is scaled, ``w_n`` is how many examples each stands for:
    those of its label, else ``N / B``; where not, 1.

    Args:
        examples: Examples B.
        scaled: Whether they stand for all N.
        max_bytes: Largest factor ``[d, B c]`` it will make.

    Raises:
        ConfigError: If there are no examples.
        TooLargeError: If the factor would be larger; nothing is computed.

    Cost:
        A forward and c backward passes for B examples, ``d (B c)²`` once; memory ``d B c`` numbers.
    """

    examples: int
    scaled: bool = True
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_count("examples", self.examples)

    def curvature(self, problem: Problem) -> LowRank:
        """``Σ_B w_n J_nᵀ B_n J_n``."""
        training = training_of(problem, self)
        rows = self.examples * training.width
        check_rows(training, rows, self.max_bytes, "Subsample with fewer examples, TopRows(500), or a larger max_bytes")
        inputs, targets, weights = balanced(training, self.examples)
        weights = weights if self.scaled else torch.ones_like(weights)
        return LowRank(root_rows(training, inputs, targets, weights).mT)


def root_rows(training: Model, inputs: Inputs, targets: Tensor, weights: Float[Tensor, " n"]) -> Float[Tensor, "m d"]:
    """``√w_n S_nᵀ J_n`` of some examples, explicit."""
    network, likelihood = training.network, training.likelihood
    size = chunk_size(training, GGN(), network.layout.size)
    rows: list[Tensor] = []
    for place, part in chunks(inputs, size):
        forward = training.forward(part)
        f = likelihood.canonical(forward.outputs)
        y = likelihood.canonical_targets(f, targets[place])
        for cotangents in GGN().cotangents(likelihood, f, y):
            found = jacobian_rows(network, forward.factors(raw(likelihood, cotangents)))
            rows.append((weights[place].sqrt().to(found)[:, None, None] * found).flatten(0, 1))
    return torch.cat(rows)


def balanced(training: Model, examples: int) -> tuple[Inputs, Tensor, Float[Tensor, " n"]]:
    """Examples from one pass over the training data, as many of every label where targets are labels.

    Otherwise they are spread evenly. Ignored labels are left out.

    Returns:
        Inputs, targets, and for how many examples each stands, float64 on the CPU: those of its label, where there are
        labels; all together, for all that are not ignored.
    """
    there = training.data.examples
    even = set(torch.linspace(0, there - 1, min(examples, there)).round().long().tolist())
    inputs: list[Inputs] = []
    targets: list[Tensor] = []
    turns: list[Tensor] = []
    seen, position = Counter[int](), 0
    for batch in training.data:
        if batch.targets.ndim == 1 and not batch.targets.is_floating_point():
            turn = torch.tensor([_turn(seen, label) for label in batch.targets.tolist()])
        else:
            turn = torch.tensor([0 if position + i in even else examples for i in range(len(batch))])
        position += len(batch)
        kept = (turn < examples).nonzero()[:, 0]
        if len(kept):
            inputs.append(take(batch.inputs, kept.to(batch.targets.device)))
            targets.append(batch.targets[kept.to(batch.targets.device)])
            turns.append(turn[kept])
    first = torch.cat(turns).argsort(stable=True)[:examples].to(targets[0].device)
    chosen = torch.cat(targets)[first]
    labels = chosen.tolist() if seen else [0] * len(chosen)
    total, taken = seen or Counter({0: position}), Counter(labels)
    weights = torch.tensor([total[label] / taken[label] for label in labels], dtype=torch.float64)
    return take(concatenated(inputs), first), chosen, weights * (total.total() / weights.sum())


def _turn(seen: Counter[int], label: int) -> int:
    """How many examples of a label came before this one; more than there are for an ignored one."""
    if label == IGNORED:
        return sys.maxsize
    seen[label] += 1
    return seen[label] - 1
