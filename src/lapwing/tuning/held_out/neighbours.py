"""The nearest other example to each of some: between the two lie inputs as the network may meet them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, concatenated, count, over_tensors, take, tensors
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.precision import wide
from lapwing.posteriors import Posterior
from lapwing.tuning.held_out.examples import entries, selected

ALIKE = 0.5
"""Part of the disagreement by chance up to which neighbours by their inputs agree on labels well enough."""

PRODUCTS = 2**36
"""Most multiplications for distances; of more examples some are drawn."""

SAME = 2**-40
"""Squared distance, over the squared lengths, below which two examples are one."""

View: TypeAlias = Callable[[Inputs], Float[Tensor, "n q"]]
"""What examples are told apart by: a row of numbers for each."""


def neighbours(posterior: Posterior, data: Data, examples: Batch, generator: torch.Generator) -> Batch:
    """The nearest other example to each of some, with its target.

    Rows of a table are near by their columns, each over its deviation. Images are near by their pixels where such
    neighbours agree on labels twice as well as any two examples; else, as photographs, by the outputs of the network.
    So are tokens.

    Args:
        posterior: Has the network.
        data: Where neighbours are sought.
        examples: Some of these data.
        generator: For chance.

    Cost:
        A pass over the data that only reads them, and where outputs decide a forward pass too.
    """
    inputs = examples.inputs

    def by_outputs(some: Inputs) -> Float[Tensor, "n q"]:
        return wide(posterior.model.outputs(some)).flatten(1)

    if numeric(inputs) and is_table(inputs):
        return nearest(data, examples, by_columns(inputs), generator)
    for view in (by_inputs, by_outputs) if numeric(inputs) else (by_outputs,):
        found = nearest(data, examples, view, generator)
        if agree(examples.targets, found.targets, generator):
            return found
    return examples


def nearest(data: Data, examples: Batch, view: View, generator: torch.Generator) -> Batch:
    """The nearest to each of some examples among all that differ from it, which all processes find together.

    Args:
        data: Where they are sought.
        examples: To which; each is its own neighbour where no other is found.
        view: What is compared.
        generator: Chooses among more examples than can be compared with all.
    """
    keys = view(examples.inputs)
    distances = keys.new_full((len(keys),), math.inf)
    found = examples
    for batch in drawn(data, PRODUCTS // keys.numel(), generator):
        apart = squared_distances(keys, view(batch.inputs))
        least, place = apart.min(1)
        nearer = least < distances
        index = torch.where(nearer, len(keys) + place, torch.arange(len(keys), device=place.device))
        found = picked(found, batch, index)
        distances = torch.where(nearer, least, distances)
    everywhere = data.joined(distances).view(-1, len(keys))
    best = everywhere.argmin(0) * len(keys) + torch.arange(len(keys), device=keys.device)
    index = best.to(found.targets.device)
    inputs = over_tensors(data.joined, found.inputs)
    return Batch(take(inputs, index), data.joined(found.targets)[index])


def picked(one: Batch, other: Batch, index: Int[Tensor, " m"]) -> Batch:
    """Examples of two batches, counted through both."""
    index = index.to(one.targets.device)
    inputs = concatenated([one.inputs, other.inputs])
    targets = torch.cat([one.targets, other.targets])
    return Batch(take(inputs, index), targets[index])


def drawn(data: Data, most: int, generator: torch.Generator) -> Iterator[Batch]:
    """The examples of this process; of more than ``most`` in all processes so many at random."""
    before, total = data.span
    if total <= most:
        yield from data
        return
    some = torch.randperm(total, generator=generator)[: max(1, most)].sort().values
    yield from selected(data, some - before)


def squared_distances(one: Float[Tensor, "m q"], other: Float[Tensor, "n q"]) -> Float[Tensor, "m n"]:
    """``|a|² + |b|² - 2 a·b``, infinite for what is the same."""
    lengths = one.square().sum(1)[:, None] + other.square().sum(1)[None, :]
    squares = lengths - 2 * one @ other.mT
    return torch.where(squares > SAME * lengths, squares, math.inf)


def agree(targets: Tensor, near: Tensor, generator: torch.Generator) -> bool:
    """Whether neighbours have other labels at most ``ALIKE`` as often as two examples drawn at random."""
    order = torch.randperm(len(targets), generator=generator).to(targets.device)
    by_chance = float(wide(targets != targets[order]).mean())
    return float(wide(targets != near).mean()) <= ALIKE * by_chance


def numeric(inputs: Inputs) -> bool:
    """Whether every entry is a floating-point tensor with an axis of examples."""
    examples = count(inputs)
    for value in entries(inputs).values():
        if not (isinstance(value, Tensor) and value.is_floating_point() and value.ndim and len(value) == examples):
            return False
    return True


def is_table(inputs: Inputs) -> bool:
    """Whether no entry has more than one axis beside that of examples."""
    return all(value.ndim <= 2 for value in tensors(inputs))


def by_inputs(inputs: Inputs) -> Float[Tensor, "n q"]:
    """All numbers of each example in a row."""
    return torch.cat([wide(value).reshape(len(value), -1) for value in tensors(inputs)], 1)


def by_columns(inputs: Inputs) -> View:
    """The same from the mean of each number among some examples, over its deviation; constant ones as they are."""
    numbers = by_inputs(inputs)
    means = numbers.mean(0)
    deviations = numbers.std(0, correction=0)
    scales = torch.where(deviations > 0, deviations, 1.0)
    return lambda some: (by_inputs(some) - means) / scales


def either(targets: Tensor, near: Tensor, ignored: int) -> Tensor:
    """Two targets of each example, ``[m, 2, ...]``; both are ignored where one is.

    Args:
        targets: The first of each.
        near: The second.
        ignored: The label that is none.
    """
    none: Bool[Tensor, "*m"] = (targets == ignored) | (near == ignored)
    both = torch.stack([targets, near], 1)
    return torch.where(none.unsqueeze(1), torch.full_like(both, ignored), both)
