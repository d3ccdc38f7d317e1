"""Last layers of very many outputs, and pixels that share one: what is done in the processes of ``benchmarks.wide``."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from benchmarks.data import generator
from benchmarks.meter import Meter

Batches = list[tuple[Tensor, Tensor]]

TOKENS = 100
"""Tokens of a sequence."""

CERTAIN = 2.0
"""Labels are drawn from the network's own logits over this: it is too certain, as trained networks are."""


class Decoder(nn.Module):
    """A language model of one layer that reads one token at a time, its head tied to its embedding as that of GPT-2.

    Args:
        classes: Tokens it knows.
        width: Size of a token.
    """

    def __init__(self, classes: int, width: int = 768) -> None:
        super().__init__()
        self.token = nn.Embedding(classes, width)
        nn.init.normal_(self.token.weight, std=3 / width**0.5)
        self.mix, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n t c"]:
        """Tokens in, the logits of the next ones out."""
        return self.head(self.norm(F.gelu(self.mix(self.token(tokens)))))


class Images(nn.Module):
    """A head as that of ResNet-50 behind features of one layer.

    Args:
        classes: Outputs.
        width: Features.
    """

    def __init__(self, classes: int, width: int = 2048) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(64, width), nn.Linear(width, classes)
        nn.init.normal_(self.head.weight, std=6 / width**0.5)

    def forward(self, x: Float[Tensor, "n 64"]) -> Float[Tensor, "n c"]:
        """Inputs in, logits out."""
        return self.head(self.trunk(x).relu())


def made(head: str, classes: int, examples: int) -> tuple[nn.Module, Batches]:
    """A network at random weights and its batches, labelled by draws from it."""
    torch.manual_seed(0)
    model: nn.Module = Decoder(classes) if head == "tokens" else Images(classes)
    if head == "tokens":
        inputs = torch.randint(classes, (examples // TOKENS, TOKENS), generator=generator())
    else:
        inputs = torch.randn(examples, 64, generator=generator())
    source = generator(1)

    def labelled(x: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(x) / CERTAIN
        return x, (logits - torch.empty_like(logits).exponential_(generator=source).log_()).argmax(-1)

    with torch.no_grad():
        batches = [labelled(x) for x in inputs.split(10 if head == "tokens" else 500)]
    return model.eval(), batches


def ours(meter: Meter, *, head: str, classes: int, examples: int) -> None:
    """Lapwing: a plain forward pass, fit, both ways to tune, one batch predicted."""
    import lapwing as lw

    model, batches = made(head, classes, examples)
    meter.ready()

    def forward() -> None:
        with torch.no_grad():
            for x, _ in batches:
                model(x)

    forward()
    meter.step("forward", forward)
    likelihood = lw.Categorical(event_dim=1 if head == "tokens" else 0)
    recipe = lw.Laplace(likelihood, weights=lw.LastLayer(), structure=lw.KFAC())
    warnings.simplefilter("ignore")
    posterior = meter.step("fit", lambda: recipe.fit(model, batches)).value
    if posterior is None:
        return
    meter.step("tune", lambda: lw.tune(posterior))
    meter.step("tune by evidence", lambda: lw.tune(posterior, lw.EvidenceGradient()))
    x = batches[0][0]
    meter.step("predict", lambda: posterior.predict(x).probs, label=f"{len(x)} examples")
