"""The network made linear in its weights over a data set, chunk by chunk, in the form that suits the columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch

from lapwing.curvature.sums import BUDGET
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.costs import Form, Work
from lapwing.jacobian.products.executors import Differentiated, Layered
from lapwing.jacobian.products.linear import Linear
from lapwing.jacobian.products.products import WORKING, Executor, Store, gathered, shuffled
from lapwing.jacobian.products.recorded import Recorded


@final
@dataclass(frozen=True, eq=False)
class Linearisation:
    """The Jacobian of every chunk of the data at the trained weights, and what is kept of it from pass to pass.

    Args:
        model: The network, its likelihood, and the data; these are read once a product, or once in all.
        memory: Bytes it may occupy, what is kept included.
        form: Form to use whatever the rule says; ``None`` leaves it to the rule.
    """

    model: Model
    memory: int
    form: Form | None = None
    store: Store[Linear] = field(default_factory=Store[Linear], init=False, repr=False)

    def choose(self, columns: int) -> Form:
        """The form of a product with a block of so many columns."""
        if self.form is not None:
            return self.form
        return self.work.choose(columns, self._room, self.model.data.examples)

    def visit(self, columns: int = 1) -> Iterator[Linear]:
        """Every chunk of the data, in their order; by so many columns the form is chosen."""
        form, store = self.choose(columns), self.store
        if form == "layers" and self.work.kept[0] * self.model.data.examples > self._room:
            store.too_large.add(form)
        return store.visit(self.executors[form], self.model.data, self.memory)

    def batches(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Linear]]:
        """The chunks in mini-batches of at least so many examples, but for the last: the same ones in every pass.

        Args:
            columns: Columns of the blocks to come, by which the form is chosen.
            batch: Examples to a mini-batch.
            generator: Shuffles them, where all chunks are kept; else, or without one, they come as the data do.
        """
        kept = self.store.chunks(self.choose(columns))
        if generator is None or kept is None:
            return gathered(self.visit(columns), batch)
        return shuffled(kept, batch, generator=generator)

    @property
    def _room(self) -> int:
        """Numbers there is room to keep."""
        return (self.memory - self.memory // WORKING) // self.model.network.like.element_size()

    @cached_property
    def work(self) -> Work:
        """What one example takes."""
        f = self.model.likelihood.canonical(torch.zeros(1, *self.model.survey.output))
        columns = self.model.likelihood.thin_root(f)[..., 0, :].numel()
        return Work.of(self.model, self.model.data.first(), columns)

    @cached_property
    def executors(self) -> dict[Form, Executor[Linear]]:
        """What prepares a chunk in each form."""
        work, itemsize = self.work, self.model.network.like.element_size()
        working = self.memory // WORKING
        plain = Differentiated(self.model, work.chunk(itemsize, min(BUDGET, working)))
        extra = -(-work.kept[0] // work.cotangents)
        examples = self.model.chunk(work.cotangents, min(BUDGET, working), extra)
        return {
            "layers": Layered(self.model, examples),
            "split": Recorded(self.model, work.chunk(itemsize, working), plain),
            "plain": plain,
        }
