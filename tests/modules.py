"""Networks the laws are checked on that are no sequence of layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Encoder(nn.Module):
    """Token embeddings, positions, a class token, one layer of attention."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.positions = nn.Parameter(torch.randn(4, 4))
        self.token = nn.Parameter(torch.randn(4)) if batch_first else None
        self.layer = nn.TransformerEncoderLayer(
            4, 2, 5, dropout=0.2, batch_first=batch_first, norm_first=not batch_first
        )
        self.head = nn.Linear(4, 3)
        self.batch_first = batch_first

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.positions[: tokens.shape[1]]
        if self.token is not None:
            return self.head(self.layer(torch.cat([self.token.expand(len(h), 1, -1), h], dim=1))[:, 0])
        return self.head(self.layer(h.transpose(0, 1)).mean(0))


class CrossAttention(nn.Module):
    """Queries that look at another sequence, with a padding mask and learned extra positions."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(
            4, 2, kdim=3, vdim=2, add_bias_kv=True, add_zero_attn=True, batch_first=True
        )
        self.head = nn.Linear(4, 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Tensor:
        mixed, weights = self.attention(query, key, value, key_padding_mask=hidden)
        return self.head(mixed.mean(1)) + weights.sum(1)[:, :2]


class RowsOfInputs(nn.Module):
    """GPT-2's linear map: examples and positions are rows of one matrix, the weight has a row an input.

    Args:
        inputs: Features that come in.
        outputs: Features that go out.
        bias: Whether there is one.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        product = torch.mm(rows, self.weight) if self.bias is None else torch.addmm(self.bias, rows, self.weight)
        return product.view(*x.shape[:-1], -1)


class MergedRows(nn.Module):
    """Such maps of features at positions, one of which is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = RowsOfInputs(3, 4)
        self.inner = RowsOfInputs(4, 4, bias=False)
        self.last = RowsOfInputs(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = torch.tanh(self.inner(torch.tanh(self.inner(h))))
        return self.last(h.mean(1))


class Twice(nn.Module):
    """One layer called twice, and one convolution at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 2)
        self.inner = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        wide, narrow = self.conv(x), self.conv(x[..., ::2])
        h = torch.cat([wide.mean(-1), narrow.amax(-1)[:, :1]], dim=1)
        for _ in range(2):
            h = torch.tanh(self.norm(self.inner(h)))
        return self.head(h)


class Tied(nn.Module):
    """A decoder that shares the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.mix = nn.Linear(3, 3)
        self.decode = nn.Linear(3, 5, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        return self.decode(torch.tanh(self.mix(h) + h.mean(1, keepdim=True)))


class Positions(nn.Module):
    """Tokens, positions and one number for each, looked up, a class token before them and an offset for all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions, self.levels = nn.Embedding(5, 3), nn.Embedding(4, 3), nn.Embedding(4, 1)
        self.token = nn.Parameter(torch.randn(1, 1, 3))
        self.offset = nn.Parameter(torch.randn(1, 4, 3))
        self.mix, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        h = self.embed(tokens) + self.positions(places) + self.levels(places)
        h = torch.cat([self.token.expand(len(tokens), -1, -1), h], 1) + self.offset
        return self.head(torch.tanh(self.mix(h) * h.mean(1, keepdim=True)).sum(1))


class Bare(nn.Module):
    """Parameters without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.layer = nn.Linear(3, 2)
        self.matrix = nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x * self.scale)) @ self.matrix


class Branching(nn.Module):
    """A bare parameter behind a decision that cannot be vectorised."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2))
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h * self.scale if float(h.detach().square().sum()) >= 0 else h


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(2, 3, batch_first=True)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class UNet(nn.Module):
    """Down, up again by a transposed convolution, and a skip connection: one class a pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, 2, 3, padding=1)
        self.down = nn.Conv2d(2, 2, 2, stride=2)
        self.up = nn.ConvTranspose2d(2, 2, 2, stride=2)
        self.leave = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.tanh(self.enter(x))
        return self.leave(torch.cat([skip, self.up(torch.tanh(self.down(skip)))], dim=1))


class UpsampledTwice(nn.Module):
    """One transposed convolution used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 2, 2, stride=2)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(torch.tanh(self.up(x))).mean(-1))


class Tagger(nn.Module):
    """Called by keywords, answers with an object that has ``logits``, one answer a token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 3, padding_idx=0)
        self.layer = nn.Linear(3, 3)
        self.classifier = nn.Linear(3, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, scale: float = 1.0) -> SimpleNamespace:
        h = self.embed(input_ids)
        mask = attention_mask.unsqueeze(-1).to(h)
        pooled = (h * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        return SimpleNamespace(logits=scale * self.classifier(F.gelu(self.layer(h + pooled))))


class Folded(nn.Module):
    """Examples and positions in one axis: rows of a linear layer, frames of a convolution, heads in a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv2d(1, 2, 2)
        self.rows = nn.Linear(2, 4)
        self.heads = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        n, t = x.shape[:2]
        h = self.frames(x.flatten(0, 1).unsqueeze(1)).mean((2, 3))
        h = self.norm(self.rows(h)).unflatten(0, (n, t)).transpose(0, 1)
        h = torch.tanh(self.heads(h.reshape(t, 2 * n, 2)))
        return self.head(h.reshape(t, n, 4).mean(0))


class Reparametrised(nn.Module):
    """A weight that is computed from parameters, and one whose weight is also used directly."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        nn.utils.parametrize.register_parametrization(self.inner, "weight", nn.Softplus())
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        return self.layer(h) + h @ self.layer.weight.mT.square()


class Upcast(nn.Module):
    """Weights in half precision and outputs that are not."""

    def __init__(self, head: torch.dtype) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4, dtype=torch.bfloat16), nn.Linear(4, 2, dtype=head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.bfloat16())).to(self.head.weight)).float()


class Counting(nn.Module):
    """Counts its calls in place, and replaces a running mean, in eval mode too."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs).double()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("centre", torch.zeros(inputs, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.centre = 0.9 * self.centre + 0.1 * x.mean(0)
        return self.linear(x)


class Square(torch.autograd.Function):
    """Written the old way: reverse mode alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return 2 * ctx.saved_tensors[0] * g


class Squared(nn.Module):
    """Outputs squared, by PyTorch's own operation or the old-fashioned one."""

    def __init__(self, custom: bool) -> None:
        super().__init__()
        self.layers, self.custom = nn.Linear(3, 5), custom

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.layers(x)
        return Square.apply(outputs) if self.custom else outputs.square()
