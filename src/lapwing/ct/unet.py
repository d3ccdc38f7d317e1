"""A small U-net, in two or three dimensions, whose structure is the prior of a deep image prior."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import skip_init

from lapwing.ground.errors import ConfigError, ShapeError, check_count, check_fraction, check_option

SLOPE = 0.2
"""Of leaky rectifiers below 0."""

DROPPERS = (nn.Dropout, nn.Dropout2d, nn.Dropout3d)
"""Layers that drop channels or numbers."""


@final
class UNet(nn.Module):
    """A U-net of one channel in and out: the image prior of a reconstruction (Antorán 2024, section E7.1).

    At each scale two convolutions, each after group normalisation and before a leaky rectifier; a convolution of
    stride 2 down, interpolation up, and narrow skip connections between. The output is a linear 1 x 1 convolution.

    Args:
        dimensions: 2 for images, 3 for volumes.
        scales: Scales, each half as fine as the last; the sides of an image divide by ``2^(scales - 1)``.
        channels: Channels at each scale.
        skip: Channels of a skip connection.
        groups: Groups of the normalisation.
        dropout: Probability that a channel is dropped after a rectifier, in training mode and by ``dropped``.
        generator: Source of the initial weights.

    Raises:
        ConfigError: If a number makes no sense.

    Example:
        >>> UNet(scales=2, channels=8)(torch.zeros(1, 1, 6, 10)).shape
        torch.Size([1, 1, 6, 10])
    """

    def __init__(
        self,
        dimensions: int = 2,
        *,
        scales: int = 3,
        channels: int = 32,
        skip: int = 4,
        groups: int = 4,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_option("dimensions", dimensions, (2, 3))
        for name, value in {"scales": scales, "groups": groups, "skip": skip}.items():
            check_count(name, value)
        check_count("channels", channels, groups, usual=8 * groups)
        if channels % groups:
            raise ConfigError(f"channels that divide by groups={groups}", f"{channels}", f"channels={8 * groups}")
        check_fraction("dropout", dropout, "dropout=0.05", zero=True)
        self.divisor = 2 ** (scales - 1)
        self.group = channels // groups
        drop = [(nn.Dropout2d, nn.Dropout3d)[dimensions - 2](dropout)] if dropout else []

        def conv(inputs: int, outputs: int, *options: int) -> nn.Module:
            made = skip_init((nn.Conv2d, nn.Conv3d)[dimensions - 2], inputs, outputs, *options)
            weight, bias = made.parameters()
            nn.init.kaiming_uniform_(weight, nonlinearity="linear", generator=generator)
            nn.init.zeros_(bias)
            return made

        def block(inputs: int, stride: int = 1) -> nn.Sequential:
            norm = [nn.GroupNorm(groups, inputs)] if inputs >= groups and inputs % groups == 0 else []
            return nn.Sequential(
                *norm,
                conv(inputs, channels, 3, stride, 1),
                nn.LeakyReLU(SLOPE),
                nn.GroupNorm(groups, channels),
                conv(channels, channels, 3, 1, 1),
                nn.LeakyReLU(SLOPE),
                *drop,
            )

        self.down = nn.ModuleList([block(1), *(block(channels, 2) for _ in range(scales - 1))])
        self.skips = nn.ModuleList([conv(channels, skip, 1) for _ in range(scales - 1)])
        self.up = nn.ModuleList([block(channels + skip) for _ in range(scales - 1)])
        self.enlarge = nn.Upsample(scale_factor=2, mode=("bilinear", "trilinear")[dimensions - 2], align_corners=False)
        self.head = conv(channels, 1, 1)

    def forward(self, z: Float[Tensor, "n 1 *space"]) -> Float[Tensor, "n 1 *space"]:
        """Images from inputs of their size."""
        if any(side % self.divisor for side in z.shape[2:]):
            expected = f"sides that divide by {self.divisor}"
            raise ShapeError(expected, f"{list(z.shape[2:])}", "another size, or fewer scales=")
        if z[0, 0].numel() * self.group == self.divisor ** (z.ndim - 2):
            expected = "more than one number to normalise together at the coarsest scale"
            raise ShapeError(expected, f"one pixel of one channel of {list(z.shape[2:])}", "fewer scales= or groups=")
        seen = list[Tensor]()
        for block in self.down:
            z = block(z)
            seen.append(z)
        for block, skip, fine in zip(self.up, self.skips, reversed(seen[:-1]), strict=True):
            z = block(torch.cat([self.enlarge(z), skip(fine)], 1))
        return cast("Tensor", self.head(z))


@contextmanager
def dropping(network: nn.Module, seed: int) -> Generator[None]:
    """Let the layers of a network that drop do so, by a seed of their own; all else stays as it is.

    Args:
        network: The network.
        seed: Of what is dropped; the global generator goes on where it was.
    """
    layers = [(part, part.training) for part in network.modules() if isinstance(part, DROPPERS)]
    with torch.random.fork_rng(enabled=bool(layers)):
        if layers:
            torch.manual_seed(seed)
        for part, _ in layers:
            part.train()
        try:
            yield
        finally:
            for part, before in layers:
                part.train(before)


def dropped(
    network: nn.Module, z: Float[Tensor, "1 c *space"], samples: int, seed: int = 0
) -> Float[Tensor, "s *space"]:
    """Images with channels dropped at random: Monte Carlo dropout, the naive error bars (Gal and Ghahramani 2016).

    Args:
        network: A ``UNet`` with dropout, fitted with it.
        z: Its input.
        samples: Images.
        seed: Of what is dropped.

    Raises:
        ConfigError: If there are no images to draw, or the network drops nothing.

    Cost:
        A forward pass for each image.

    Example:
        >>> dropped(UNet(scales=1, channels=4, dropout=0.5), torch.ones(1, 1, 4, 4), 3).shape
        torch.Size([3, 4, 4])
    """
    check_count("samples", samples, usual=100)
    if not any(isinstance(part, DROPPERS) and part.p > 0 for part in network.modules()):
        raise ConfigError("a network with dropout", "none, so that all images are the same", "UNet(dropout=0.05)")
    with torch.no_grad(), dropping(network, seed):
        return torch.cat([network(z)[:, 0] for _ in range(samples)])
