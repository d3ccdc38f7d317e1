"""A measurement operator after a network: what is observed is T J, what is predicted is J."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, cast, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lapwing.ct.filters import Filtered, MaternFilters
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.errors import ShapeError
from lapwing.ground.layout import Layout
from lapwing.ground.shared import Shared
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Gaussian, Likelihood
from lapwing.linalg.operators.base import unit_vectors
from lapwing.linear.model import Chunk, Directions, LinearModel, Matrix

MEMORY = 2**30
"""Bytes that explicit rows of T J may take, to be kept (1 GiB)."""

BLOCK = 64
"""Rays, or draws, that go through the network together."""


@runtime_checkable
class Measurement(Protocol):
    """A linear operator T from images to what a detector sees; ``shape`` is its rows and pixels."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and pixels."""
        ...

    def push(self, v: Float[Tensor, "pixels k"]) -> Float[Tensor, "rows k"]:
        """``T V``."""
        ...

    def pull(self, u: Float[Tensor, "rows k"]) -> Float[Tensor, "pixels k"]:
        """``Tᵀ U``."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Observed:
    """``T h(w)`` for a linear model h of one image: a ``LinearModel`` whose examples are the rays, the rows of T.

    The rows of T J are made once, a pass each or one a weight, and kept, where they fit ``memory``: they make the
    g-prior's scale exact, and products ten times cheaper. Where they do not fit, a product goes through the network.

    Args:
        image: The linear model of the image; its data is one example, its outputs are the pixels.
        operator: T.
        targets: What was measured, ``[rows]``.
        likelihood: Its noise, Gaussian.
        examples: Rays to a chunk, for mini-batches; ``None`` for all. Each chunk is a product with all of J.
        memory: Bytes that explicit rows may take.
        shared_rows: The rows of T J, once they were asked for: those of every model of this image and operator.

    Raises:
        ShapeError: If T does not fit the image or the targets.

    Example:
        >>> from lapwing.linalg import FunctionOperator
        >>> from lapwing.linear.model import Matrix
        >>> class Sums:
        ...     shape = (1, 3)
        ...     def push(self, v): return v.sum(0, keepdim=True)
        ...     def pull(self, u): return u.expand(3, -1)
        >>> model = Observed(Matrix(torch.eye(3)[None]), Sums(), torch.ones(1))
        >>> model.diagonal()
        tensor([1., 1., 1.])
    """

    image: LinearModel
    operator: Measurement
    targets: Float[Tensor, " rows"]
    likelihood: Likelihood = field(default_factory=Gaussian)
    examples: int | None = None
    memory: int = MEMORY
    shared_rows: Shared[Tensor] = field(default_factory=Shared[Tensor], repr=False)
    data: Data = field(init=False, repr=False)
    """The numbers of the rays, and what was measured on them."""

    def __post_init__(self) -> None:
        rows, pixels = self.operator.shape
        if self.image.data.examples != 1 or pixels != self.image.event.numel():
            there = f"{self.image.data.examples} images of {self.image.event.numel()} pixels"
            raise ShapeError(f"one image of {pixels} pixels", there, "an operator for this image")
        if self.targets.shape != (rows,):
            raise ShapeError(f"{rows} measurements", f"{list(self.targets.shape)}", "sinogram.flatten()")
        index = torch.arange(rows, device=self.targets.device)
        size = self.examples or rows
        targets = self.targets.detach().to(self.weights)[:, None]
        object.__setattr__(self, "data", Data(list(zip(index.split(size), targets.split(size), strict=True))))

    @property
    def weights(self) -> Float[Tensor, " d"]:
        """w̃."""
        return self.image.weights

    @property
    def layout(self) -> Layout:
        """That of the image's model."""
        return self.image.layout

    @property
    def event(self) -> torch.Size:
        """A ray has one number."""
        return torch.Size([1])

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        """See ``LinearModel.visit``."""
        self.check()
        return (self._chunk(batch, columns) for batch in self.data)

    def is_cached(self, columns: int = 1) -> bool:
        """The rays may be read in any order."""
        return True

    def on(self, inputs: Inputs) -> Chunk:
        """Other rays, by their numbers."""
        return self._chunk(Batch(inputs, self.weights.new_empty(0)), 1)

    def rows(self, inputs: Inputs, directions: Directions) -> Iterator[Float[Tensor, "n k d"]]:
        """Explicit rows of some rays, a few at a time; see ``LinearModel.rows``."""
        index = cast("Tensor", inputs)
        for start in range(0, len(index), BLOCK):
            place = slice(start, start + BLOCK)
            f = self._outputs[index[place], None]
            rows = self._rows(index[place])
            for cotangents in directions(f, place):
                yield cotangents[..., 0].mT[..., None] * rows[:, None]

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Jᵀ Tᵀ B T J)``, exact; a backward pass a ray where the rows are not kept."""
        total = torch.zeros_like(self.weights)
        for index in torch.arange(len(self.targets), device=self.weights.device).split(BLOCK):
            b = self.likelihood.hessian(self._outputs[index, None])[..., 0]
            total += (b * self._rows(index).square()).sum(0)
        return total

    def check(self) -> None:
        """See ``LinearModel.check``."""
        self.image.check()

    @property
    def explicit(self) -> bool:
        """Whether the rows of T J fit the memory given."""
        return len(self.targets) * self.weights.nbytes <= self.memory

    @property
    def features(self) -> Float[Tensor, "rows d"]:
        """The rows of T J, a backward pass each; by J, where that has fewer rows or columns."""
        return self.shared_rows.of(self.image, self.operator, make=self._rows_of_all)

    def _rows_of_all(self) -> Float[Tensor, "rows d"]:
        rows = len(self.targets)
        d = len(self.weights)
        pixels = self.image.event.numel()
        if rows > min(d, pixels) and self._image_features is not None:
            return self.operator.push(self._image_features.features.view(pixels, d))
        index = torch.arange(rows, device=self.weights.device)
        found = self.weights.new_empty(rows, d)
        for part in index.split(BLOCK):
            found[part] = self._pulled_rows(part)
        return found

    def image_chunk(self, columns: int) -> Chunk:
        """The image's J, for blocks of so many columns: its rows made once and kept, where they fit ``memory``.

        Args:
            columns: Columns of the blocks it will be multiplied with.
        """
        matrix = self._image_features
        return single_chunk(self.image if matrix is None else matrix, columns)

    def filtered(self, filters: MaternFilters) -> Observed:
        """The rays in coordinates in which a prior over filters is white; rows of T J that are kept serve these too.

        Args:
            filters: The prior.
        """
        image = Filtered(self.image, filters)
        rows = Shared[Tensor]()
        if self.explicit:
            rows = Shared(filters.adjoint(self.features.mT).mT.contiguous(), image, self.operator)
        return replace(self, image=image, shared_rows=rows)

    @cached_property
    def _image_features(self) -> Matrix | None:
        """J, a pass a weight or a pixel, whichever are fewer; ``None`` where it does not fit."""
        chunk = single_chunk(self.image, BLOCK)
        weights = self.weights
        pixels = self.image.event.numel()
        if pixels * weights.nbytes > self.memory:
            return None
        units = torch.eye(min(len(weights), pixels)).to(weights).split(min(BLOCK, chunk.width), dim=1)
        with torch.no_grad():
            if len(weights) <= pixels:
                features = torch.cat([pushed(chunk, block) for block in units], 1)
            else:
                features = torch.cat([pulled(chunk, block).mT for block in units])
        return Matrix(features.view(*chunk.outputs.shape, -1), at_weights=weights)

    @cached_property
    def _outputs(self) -> Float[Tensor, " rows"]:
        return self.operator.push(single_chunk(self.image, 1).outputs.reshape(-1, 1))[:, 0]

    def _rows(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """Some rows of T J, as they are kept or made anew."""
        return self.features[index] if self.explicit else self._pulled_rows(index)

    def _pulled_rows(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        units = unit_vectors(index, len(self.targets), self.weights)
        return pulled(single_chunk(self.image, len(index)), self.operator.pull(units)).mT

    def _chunk(self, batch: Batch, columns: int) -> Chunk:
        index = cast("Tensor", batch.inputs)
        f = self._outputs[index, None]
        y = batch.targets
        rows = len(self.targets)
        if self.explicit:
            matrix = self.features if len(index) == rows else self.features[index]

            def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n 1"]:
                return (block.mT.contiguous() @ matrix.mT)[..., None]  # few columns are far faster in front

            return Chunk(index, f, y, product, lambda u: (u[..., 0] @ matrix).mT, 2**20)
        image = single_chunk(self.image, columns)

        def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n 1"]:
            return self.operator.push(pushed(image, block))[index].mT[..., None]

        def pull(block: Float[Tensor, "k n 1"]) -> Float[Tensor, "d k"]:
            whole = block.new_zeros(rows, len(block)).index_copy(0, index, block[..., 0].mT)
            return pulled(image, self.operator.pull(whole))

        return Chunk(index, f, y, push, pull, image.width)


def like_of_measurement(operator: Measurement) -> Tensor | None:
    """A tensor with the device and dtype that a measurement takes; ``None`` where it does not say."""
    return getattr(operator, "like", None)


def linear_image(network: nn.Module, z: Float[Tensor, "1 c *space"]) -> Linearisation:
    """A network that makes one image from a fixed input, made linear in the weights of its filters.

    Gains of normalisation, near 1, and biases are no draws of a prior about 0: were they uncertain, the evidence would
    ask for a weak prior for their sake, and every error bar would be too long. They stay as they are.

    Args:
        network: The network, trained.
        z: Its input.
    """
    likelihood = Gaussian(event_dim=z.ndim - 2, class_dim=1)
    made = Network.of(network)
    filters = tuple(name for name in made.names if made.params[name].ndim > 1)
    made = made.with_uncertain(filters or made.names)
    with torch.no_grad():
        blank = torch.zeros_like(made(z))
    model = surveyed(made, likelihood, Data([(z, blank)], like=made.like))
    return Linearisation(model, strategy="autodiff")  # as fast as tracing here, which takes seconds


def single_chunk(image: LinearModel, columns: int) -> Chunk:
    """The one chunk of a linear model that makes a single image.

    Args:
        image: The model.
        columns: Columns of the blocks it will be multiplied with.
    """
    return next(iter(image.visit(columns)))


def pushed(image: Chunk, block: Float[Tensor, "d k"]) -> Float[Tensor, "pixels k"]:
    """``J V``, an image a column."""
    return image.push(block).flatten(1).mT


def pulled(image: Chunk, block: Float[Tensor, "pixels k"]) -> Float[Tensor, "d k"]:
    """``Jᵀ U`` of images, one a column."""
    return image.pull(block.mT.reshape(-1, *image.outputs.shape))
