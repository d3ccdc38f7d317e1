"""Small networks for images of 8 x 8 pixels, in the kinds that the source has for MNIST (Antorán 2024, appendix A.1).

Each kind has a stem, two residual blocks with a 1 x 1 convolution of stride 2 behind either, the mean over the image
and a linear head; the plain CNN three convolutions in their place. The transformer reads the brightest pixels as a
cloud of points. Scale and shift of norms over a batch keep their trained values in the tangent models, as in the
source's code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.data import Pair
from benchmarks.networks import Attention, seeded
from benchmarks.training import Schedule, train
from lapwing.structures.selection import Selection

CLASSES = 10
POINTS = 24
"""Pixels of an image that the transformer reads."""

Widths = tuple[int, int, int]
WIDTHS: Widths = (4, 6, 8)


def cnn(widths: Widths = WIDTHS) -> nn.Module:
    """Convolutions, each with a ReLU and a norm behind, two of them of stride 2."""
    layers: list[nn.Module] = []
    inputs = 1
    for number, width in enumerate(widths):
        layers += [nn.Conv2d(inputs, width, 3, stride=1 + (number > 0), padding=1), nn.ReLU(), nn.BatchNorm2d(width)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


class Block(nn.Module):
    """Two convolutions with norms around a shortcut, and a ReLU behind the sum.

    Args:
        width: Channels.
        before: Whether the norms and ReLUs stand before the convolutions, and none behind the sum.
        bias: Whether the convolutions have biases.
    """

    def __init__(self, width: int, *, before: bool, bias: bool = False) -> None:
        super().__init__()
        self.conv1 = convolution(width, width, bias=bias)
        self.conv2 = convolution(width, width, bias=bias)
        self.norm1 = nn.BatchNorm2d(width)
        self.norm2 = nn.BatchNorm2d(width)
        self.before = before

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Images in, images out."""
        if self.before:
            inner = self.conv1(torch.relu(self.norm1(x)))
            return x + self.conv2(torch.relu(self.norm2(inner)))
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(inner)))


class FixUpBlock(nn.Module):
    """The same without norms: a shift before each layer, a scale behind the second (Zhang et al. 2019, figure 1).

    Args:
        width: Channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = convolution(width, width)
        self.conv2 = convolution(width, width)
        nn.init.normal_(self.conv1.weight, std=(2 / (9 * width)) ** 0.5 / 2**0.5)  # over √ of the number of blocks
        nn.init.zeros_(self.conv2.weight)
        self.shifts = nn.Parameter(torch.zeros(4))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Images in, images out."""
        first, second, third, fourth = self.shifts.unbind()
        inner = torch.relu(self.conv1(x + first) + second)
        return torch.relu(x + self.conv2(inner + third) * self.scale + fourth)


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, bias: bool = False) -> nn.Conv2d:
    """A convolution that keeps the size of an image where its stride is 1."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)


def residual(block: Callable[[int], nn.Module], *, norm: bool, zeros: bool = False, bias: bool = False) -> nn.Module:
    """A residual network.

    Args:
        block: Makes a block of so many channels.
        norm: Whether a norm and a ReLU stand behind the stem.
        zeros: Whether the head starts from zeros.
        bias: Whether the stem has a bias.
    """
    first, second, third = WIDTHS
    stem = [nn.BatchNorm2d(first), nn.ReLU()] if norm else []
    body = [block(first), convolution(first, second, 1, 2), block(second), convolution(second, third, 1, 2)]
    head = nn.Linear(third, CLASSES)
    if zeros:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    return nn.Sequential(convolution(1, first, bias=bias), *stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


class Encoder(nn.Module):
    """Self-attention with two heads and a perceptron, each with a layer norm behind its sum.

    Args:
        width: Size of a token.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width, 2)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Tokens in, tokens out."""
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(torch.relu(self.up(x))))


class PointTransformer(nn.Module):
    """Two encoders over the points of a cloud and a class token, without positions.

    Args:
        width: Size of a token.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.first = nn.Parameter(torch.randn(width))
        self.encoders = nn.Sequential(Encoder(width), Encoder(width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Float[Tensor, "n t 3"]) -> Float[Tensor, "n c"]:
        """Points in, logits out."""
        token = self.first.expand(len(x), 1, -1)
        tokens = self.encoders(torch.cat([token, self.embed(x)], dim=1))
        return self.head(tokens[:, 0])


def points(images: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n t 3"]:
    """The brightest pixels of each image: row and column from -1 to 1, and how bright.

    Example:
        >>> points(torch.eye(8).expand(1, 1, 8, 8)).shape
        torch.Size([1, 24, 3])
    """
    side = images.shape[-1]
    bright, place = images.flatten(1).topk(POINTS)
    row = place // side
    column = place % side
    return torch.stack([2 * row / (side - 1) - 1, 2 * column / (side - 1) - 1, bright], dim=-1)


@dataclass(frozen=True)
class Kind:
    """A kind of network.

    Args:
        build: Makes one.
        rate: Learning rate of Adam.
        epochs: Passes over the training images.
        cloud: Whether it reads points.
    """

    build: Callable[[], nn.Module]
    rate: float = 0.01
    epochs: int = 60
    cloud: bool = False

    def trained(self, data: Pair, seed: int, epochs: int | None = None, schedule: Schedule = "cosine") -> nn.Module:
        """A network of a seed in float64, trained by Adam with the source's weight decay, 1e-4.

        Args:
            data: Training images and labels.
            seed: Of the weights and of the order of the images.
            epochs: Passes over the images; ``None`` for those of the kind.
            schedule: How the rate falls.
        """
        model = seeded(self.build, seed).double()
        epochs = epochs or self.epochs
        return train(model, *data, epochs=epochs, rate=self.rate, batch=100, decay=1e-4, schedule=schedule, seed=seed)

    def images(self, pair: Pair) -> Pair:
        """Inputs as it reads them, in float64, and labels."""
        x, y = pair
        return (points(x) if self.cloud else x).double(), y


KINDS = {
    "transformer": Kind(PointTransformer, rate=3e-3, epochs=120, cloud=True),
    "CNN": Kind(cnn),
    "ResNet": Kind(lambda: residual(lambda width: Block(width, before=False), norm=True)),
    "Pre-ResNet": Kind(lambda: residual(lambda width: Block(width, before=True), norm=False)),
    "FixUp": Kind(lambda: residual(FixUpBlock, norm=False, zeros=True)),
}
"""In the order of the source's table."""

BIASED = Kind(lambda: residual(lambda width: Block(width, before=False, bias=True), norm=True, bias=True))
"""The ResNet with biases in its convolutions of three by three."""


def features(model: nn.Module, *, biases: bool = True) -> Selection:
    """The weights that are uncertain: all but those of norms over a batch.

    Args:
        model: The network.
        biases: Whether biases are.
    """
    norms = [name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)]
    names = [name for name, _ in model.named_parameters() if name.rpartition(".")[0] not in norms]
    return lw.Names(tuple(name for name in names if biases or not name.endswith("bias")))
