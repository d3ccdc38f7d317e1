"""The sweep over the data that adds up outer products of what is pulled back through the network."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import length_hint
from typing import TypeAlias

from torch import Generator, Tensor

from lapwing.curvature.chain import ChainSum
from lapwing.curvature.dense import DenseSum
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.ekfac import EigenvalueSum
from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.kinds import GGN, Curvature, Outputs
from lapwing.curvature.second_moments import Share
from lapwing.ground.progress import Bar
from lapwing.jacobian.model import Model
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import COLUMNS

ROWS = 2**31
"""Bytes that explicit rows of one example may take, of parameters without layer factors (2 GiB)."""

Accumulator: TypeAlias = DenseSum | DiagonalSum | KroneckerSum | EigenvalueSum | ChainSum
"""A structure being added up."""


def sweep(model: Model, curvature: Curvature, total: Accumulator, *, generator: Generator | None = None) -> Totals:
    """One pass over the data that feeds ``total``.

    Args:
        model: The network, its likelihood, and the data.
        curvature: Which matrix.
        total: What adds up the factors.
        generator: Source of randomness of the curvature.

    Returns:
        Sums over the data.

    Cost:
        One forward pass, and a backward pass through the activations for each cotangent; memory ``Limits.training``.
        Where the outputs are those of the one uncertain layer the forward pass alone, and products of its inputs.
    """
    likelihood = model.likelihood
    closed = model.survey.head and isinstance(curvature, GGN)
    size = rows_at_once(model) if model.survey.without_factors else total.at_once
    unwritten = model.survey.written if total.by_factors else 0
    data = Fold(model, chunk_size(model, curvature, total.floats - unwritten, size))
    each = curvature.number(model.width)
    with Bar("curvature", unit="backward passes of examples") as bar:
        for forward, f, y in data:
            if closed and likelihood.hessian_entries(f[:0], y[:0]) is not None:
                total.add_outputs(forward.head, partial(entries, likelihood, f, y))
                continue
            bar.total = total_of(model, data, each)
            done = 0
            for block in curvature.cotangents(likelihood, f, y, generator=generator):
                for cotangents in block.split(size):
                    share = share_of(len(f), len(cotangents), each, bar.total)
                    total.add(forward.factors(cotangents), again=done > 0, share=share)
                    done += len(cotangents)
                    bar.update(len(f) * len(cotangents))
            each = done
    total.share(model.data)
    return data.totals()


def total_of(model: Model, data: Fold, each: int) -> int | None:
    """Cotangents of all examples, so many of each; ``None`` where nobody says how many examples there are.

    Args:
        model: The network and its data.
        data: The pass over them, with its first chunk read.
        each: Cotangents of an example.
    """
    if not length_hint(model.data.source):
        return None
    return each * max(model.data.about(data.batch), sum(part.examples for part in data.parts))


def share_of(examples: int, cotangents: int, each: int, total: int | None) -> Share | None:
    """What a block of cotangents is of all of them; ``None`` where nobody says how many there are.

    Args:
        examples: Of the chunk.
        cotangents: Of the block.
        each: Cotangents of an example.
        total: Those of all examples.

    Example:
        >>> share_of(8, 1, 16, 1024)
        Share(examples=0.125, cotangents=0.0078125)
    """
    return None if total is None else Share(examples * each / total, examples * cotangents / total)


def entries(likelihood: Likelihood, f: Outputs, y: Tensor) -> Iterator[tuple[Outputs, Outputs | None]]:
    """The output Hessians of consecutive positions, piece by piece; see ``Likelihood.hessian_entries``."""
    return filter(None, (likelihood.hessian_entries(*piece) for piece in likelihood.pieces(f, y)))


def rows_at_once(model: Model, max_bytes: int = ROWS) -> int:
    """Cotangents pulled back together where parameters have no layer factors: each takes an explicit row of them.

    Args:
        model: The network, with such parameters.
        max_bytes: Bytes that the rows of one example may take.
    """
    params = model.network.params
    row = sum(params[name].nbytes for name in model.survey.without_factors)
    return max(1, min(COLUMNS, max_bytes // max(row, 1)))


def chunk_size(model: Model, curvature: Curvature, floats: int = 0, at_once: int = COLUMNS) -> int:
    """Examples to a chunk so that their factors stay within ``Limits.training``.

    Args:
        model: The network and its likelihood.
        curvature: Which matrix.
        floats: Numbers that a cotangent takes beside its factors.
        at_once: Cotangents whose factors are there at a time, at most.
    """
    outputs = model.event[-1]
    if model.survey.head and isinstance(curvature, GGN):
        return model.chunk(1, floats, 2 * model.width)
    roots = 3 * model.width * outputs if isinstance(curvature, GGN) else 0
    return model.chunk(min(at_once, curvature.width(outputs)), floats, roots)
