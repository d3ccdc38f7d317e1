"""The small convolutional networks of Antorán (2024), table 5.1, rebuilt from the weights it counts.

Strided convolutions take the place of pooling, and an average over positions leads to the one dense layer. Inputs are
grey images of any size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

CLASSES = 10


class CNN(nn.Module):
    """Three convolutions of stride 2, each with a ReLU and then a batch norm without weights of its own.

    Every convolution is normalised and the head is dense. In eval mode the running statistics do not follow the
    weights: h(w, x) = J(x) w is then an approximation.

    Args:
        filters: Channels after each convolution.

    Example:
        >>> [sum(p.numel() for p in CNN(f).parameters()) for f in ((16, 32, 32), (32, 32, 64), (42, 48, 60))]
        [14634, 29226, 45874]
    """

    def __init__(self, filters: tuple[int, int, int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, kernel in zip((1, *filters), filters, (5, 3, 3), strict=False):
            convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2)
            layers += [convolution, nn.ReLU(), nn.BatchNorm2d(outputs, affine=False)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(filters[-1], CLASSES)

    def forward(self, x: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n c"]:
        """Images in, logits out."""
        return self.head(self.body(x).mean((2, 3)))


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


class ResNet(nn.Module):
    """A 5 × 5 convolution, then twice a residual block and a 1 × 1 convolution of stride 2.

    Args:
        filters: Channels of the first block, of the second, and before the head.
        first: Whether normalisation comes before the convolutions. One then stands before the head too, so that all
            weights but the head's have one scale in common that has no effect.

    Example:
        >>> [sum(p.numel() for p in ResNet(f).parameters()) for f in ((12, 24, 32), (16, 32, 64), (22, 42, 64))]
        [14814, 26874, 45576]
        >>> sum(p.numel() for p in ResNet((16, 32, 64), first=True).parameters())
        26970
    """

    def __init__(self, filters: tuple[int, int, int], *, first: bool = False) -> None:
        super().__init__()
        one, two, three = filters
        start = [] if first else [nn.BatchNorm2d(one), nn.ReLU()]
        self.body = nn.Sequential(
            nn.Conv2d(1, one, 5, padding=2, bias=False),
            *start,
            Residual(one, first=first),
            nn.Conv2d(one, two, 1, stride=2, bias=False),
            Residual(two, first=first),
            nn.Conv2d(two, three, 1, stride=2, bias=False),
            *([nn.BatchNorm2d(three), nn.ReLU()] if first else []),
        )
        self.head = nn.Linear(three, CLASSES)

    def forward(self, x: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n c"]:
        """Images in, logits out."""
        return self.head(self.body(x).mean((2, 3)))


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
        self.multiplier = Multiplier()
        nn.init.normal_(self.conv1.weight, std=math.sqrt(2 / (9 * width)) / math.sqrt(blocks))
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Float[Tensor, "n w h v"]) -> Float[Tensor, "n w h v"]:
        """Images in, images of the same shape out."""
        inner = F.relu(self.offset2(self.conv1(self.offset1(x))))
        return F.relu(x + self.offset4(self.multiplier(self.conv2(self.offset3(inner)))))


class Offset(nn.Module):
    """One number, added everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The input, moved."""
        return x + self.bias


class Multiplier(nn.Module):
    """One number that multiplies everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The input, scaled."""
        return x * self.weight


class FixUp(nn.Module):
    """The ``ResNet`` without normalisation, initialised so that it trains (Zhang et al. 2019).

    Args:
        filters: As of ``ResNet``.

    Example:
        >>> [sum(p.numel() for p in FixUp(f).parameters()) for f in ((12, 24, 32), (16, 32, 64), (22, 42, 64))]
        [14658, 26662, 45288]
    """

    def __init__(self, filters: tuple[int, int, int]) -> None:
        super().__init__()
        one, two, three = filters
        self.body = nn.Sequential(
            nn.Conv2d(1, one, 5, padding=2, bias=False),
            Offset(),
            nn.ReLU(),
            FixUpBlock(one, 2),
            nn.Conv2d(one, two, 1, stride=2, bias=False),
            FixUpBlock(two, 2),
            nn.Conv2d(two, three, 1, stride=2, bias=False),
            Offset(),
        )
        self.head = nn.Linear(three, CLASSES)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n c"]:
        """Images in, logits out."""
        return self.head(self.body(x).mean((2, 3)))
