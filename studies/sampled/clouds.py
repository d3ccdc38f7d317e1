"""Digits as clouds of points, and the transformer of Antorán (2024), table 5.1, that reads them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

HEADS, LAYERS, CLASSES = 2, 2, 10
LIMIT = 14
"""Images of more pixels a side are averaged over pairs first: attention is quadratic in the points."""


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


class Attention(nn.Module):
    """Self-attention over the tokens that are there.

    Args:
        width: Size of a token.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "n t w"], absent: Bool[Tensor, "n t"]) -> Float[Tensor, "n t w"]:
        """Tokens in, tokens out."""
        n, t, w = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / (w // HEADS) ** 0.5).masked_fill(absent[:, None, None, :], -torch.inf)
        return self.mix((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, w))


class Encoder(nn.Module):
    """Attention and a perceptron, each followed by a layer norm of the sum with its input.

    Args:
        hidden: Hidden units of the perceptron.
        width: Size of a token.
    """

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
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
