"""The small networks of Antorán (2024), table 5.1, rebuilt from the weights it counts: convolutions, and a transformer.

Strided convolutions take the place of pooling, and an average over positions leads to the one dense layer; inputs are
grey images of any size. The transformer reads digits as clouds of points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from benchmarks.networks import CLASSES, Attention

HEADS, LAYERS = 2, 2
LIMIT = 14
"""Images of more pixels a side are averaged over pairs first: attention is quadratic in the points."""

Filters = tuple[int, int, int]


class Averaged(nn.Module):
    """A body, the mean of what it makes over the positions, and a dense head.

    Args:
        body: From images to images of ``width`` channels.
        width: Channels before the head.
    """

    def __init__(self, body: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*body), nn.Linear(width, CLASSES)

    def forward(self, x: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n c"]:
        """Images in, logits out."""
        return self.head(self.body(x).mean((2, 3)))


def cnn(*filters: int) -> Averaged:
    """Three convolutions of stride 2, each with a ReLU and then a batch norm without weights of its own.

    Every convolution is normalised and the head is dense. In eval mode the running statistics do not follow the
    weights: h(w, x) = J(x) w is then an approximation.

    Args:
        *filters: Channels after each convolution.

    Example:
        >>> [sum(p.numel() for p in cnn(*f).parameters()) for f in ((16, 32, 32), (32, 32, 64), (42, 48, 60))]
        [14634, 29226, 45874]
    """
    layers: list[nn.Module] = []
    for inputs, outputs, kernel in zip((1, *filters), filters, (5, 3, 3), strict=False):
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2)
        layers += [convolution, nn.ReLU(), nn.BatchNorm2d(outputs, affine=False)]
    return Averaged(layers, filters[-1])


class Residual(nn.Module):
    """Two 3 × 3 convolutions and batch norms around a shortcut.

    Args:
        width: Channels in and out.
        first: Whether norm and ReLU come before each convolution, and none after the sum.
    """

    def __init__(self, width: int, *, first: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = (nn.BatchNorm2d(width) for _ in range(2))
        self.first = first

    def forward(self, x: Float[Tensor, "n w h v"]) -> Float[Tensor, "n w h v"]:
        """Images in, images of the same shape out."""
        if self.first:
            return x + self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def resnet(one: int, two: int, three: int, *, first: bool = False) -> Averaged:
    """A 5 × 5 convolution, then twice a residual block and a 1 × 1 convolution of stride 2.

    Args:
        one: Channels of the first block.
        two: Of the second.
        three: Before the head.
        first: Whether normalisation comes before the convolutions. One then stands before the head too, so that all
            weights but the head's have one scale in common that has no effect.

    Example:
        >>> [sum(p.numel() for p in resnet(*f).parameters()) for f in ((12, 24, 32), (16, 32, 64), (22, 42, 64))]
        [14814, 26874, 45576]
        >>> sum(p.numel() for p in resnet(16, 32, 64, first=True).parameters())
        26970
    """
    blocks = (Residual(one, first=first), Residual(two, first=first))
    start = () if first else (nn.BatchNorm2d(one), nn.ReLU())
    return _between(one, two, three, blocks, start, (nn.BatchNorm2d(three), nn.ReLU()) if first else ())


def _between(
    one: int, two: int, three: int, blocks: Sequence[nn.Module], start: Sequence[nn.Module], end: Sequence[nn.Module]
) -> Averaged:
    """The convolutions that residual networks have in common, and what they differ in."""
    first = nn.Conv2d(1, one, 5, padding=2, bias=False)
    second, third = (nn.Conv2d(i, o, 1, stride=2, bias=False) for i, o in ((one, two), (two, three)))
    return Averaged([first, *start, blocks[0], second, blocks[1], third, *end], three)


class FixUpBlock(nn.Module):
    """A residual block without normalisation: offsets before each operation, one multiplier (Zhang et al. 2019).

    Args:
        width: Channels in and out.
        blocks: Residual blocks of the network, which scale the first convolution's initial weights.
    """

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.offset1, self.offset2, self.offset3, self.offset4 = (Offset() for _ in range(4))
        self.multiplier = nn.Parameter(torch.ones(1))
        nn.init.normal_(self.conv1.weight, std=math.sqrt(2 / (9 * width)) / math.sqrt(blocks))
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Float[Tensor, "n w h v"]) -> Float[Tensor, "n w h v"]:
        """Images in, images of the same shape out."""
        inner = F.relu(self.offset2(self.conv1(self.offset1(x))))
        return F.relu(x + self.offset4(self.multiplier * self.conv2(self.offset3(inner))))


class Offset(nn.Module):
    """One number, added everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The input, moved."""
        return x + self.bias


def fixup(one: int, two: int, three: int) -> Averaged:
    """The ``resnet`` without normalisation, initialised so that it trains (Zhang et al. 2019).

    Args:
        one: As of ``resnet``.
        two: As of ``resnet``.
        three: As of ``resnet``.

    Example:
        >>> [sum(p.numel() for p in fixup(*f).parameters()) for f in ((12, 24, 32), (16, 32, 64), (22, 42, 64))]
        [14658, 26662, 45288]
    """
    blocks = (FixUpBlock(one, 2), FixUpBlock(two, 2))
    model = _between(one, two, three, blocks, (Offset(), nn.ReLU()), (Offset(),))
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


def cloud(images: Float[Tensor, "n 1 h w"], points: int | None = None) -> Float[Tensor, "n t 3"]:
    """The ink of an image as points (x, y, intensity), x and y in [-1, 1]; clouds of fewer points end in zeros.

    Args:
        images: Intensities in [0, 1].
        points: Longest cloud t, its brightest points; ``None`` for as many as any image has.

    Example:
        >>> cloud(torch.tensor([[[[0.0, 0.5], [0.0, 0.0]]]]), 2)
        tensor([[[ 1.0000, -1.0000,  0.5000],
                 [ 0.0000,  0.0000,  0.0000]]])
    """
    if images.shape[-1] > LIMIT:
        images = F.avg_pool2d(images, 2)
    side = images.shape[-1]
    ink = images.flatten(1)
    place = torch.linspace(-1, 1, side, dtype=images.dtype, device=images.device)
    y, x = (axis.flatten() for axis in torch.meshgrid(place, place, indexing="ij"))
    longest = int((ink > 0).sum(1).max()) if points is None else points
    order = ink.argsort(dim=1, descending=True, stable=True)[:, :longest]
    found = torch.stack([x[order], y[order], ink.gather(1, order)], dim=2)
    return found.masked_fill(found[..., 2:] <= 0, 0.0)


class Encoder(nn.Module):
    """Attention and a perceptron, each followed by a layer norm of the sum with its input.

    Args:
        hidden: Hidden units of the perceptron.
        width: Size of a token.
    """

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.attention = Attention(width, HEADS)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "n t w"], absent: Bool[Tensor, "n t"]) -> Float[Tensor, "n t w"]:
        """Tokens in, tokens out."""
        x = self.norm1(x + self.attention(x, absent))
        return self.norm2(x + self.down(F.relu(self.up(x))))


class Transformer(nn.Module):
    """Two encoder layers with two heads; a class token is read out, order plays no part.

    Args:
        hidden: Hidden units of the perceptrons.
        width: Size of a token.

    Example:
        >>> [sum(p.numel() for p in Transformer(*s).parameters()) for s in ((60, 30), (80, 40), (120, 50))]
        [15520, 27090, 45900]
        >>> Transformer(60, 30)(torch.rand(4, 7, 3)).shape
        torch.Size([4, 10])
    """

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.token = nn.Embedding(1, width)
        self.layers = nn.ModuleList(Encoder(hidden, width) for _ in range(LAYERS))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, points: Float[Tensor, "n t 3"]) -> Float[Tensor, "n c"]:
        """Clouds in, logits out."""
        first = self.token(torch.zeros(len(points), 1, dtype=torch.long, device=points.device))
        x = torch.cat([first, self.embed(points)], dim=1)
        absent = F.pad(points[..., 2] == 0, (1, 0))
        for layer in self.layers:
            x = layer(x, absent)
        return self.head(x[:, 0])
