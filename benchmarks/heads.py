"""Last layers of very many outputs, and pixels that share one: what is done in the processes of ``benchmarks.wide``."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from benchmarks.data import generator
from benchmarks.meter import Meter
from benchmarks.problems import Batches

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


@torch.no_grad()
def forward(model: nn.Module, batches: Batches) -> None:
    """A plain forward pass over all batches, the logits let go of."""
    for x, _ in batches:
        model(x)


def ours(meter: Meter, *, head: str, classes: int, examples: int) -> None:
    """Lapwing: a plain forward pass, fit, both ways to tune, one batch predicted."""
    import lapwing as lw

    model, batches = made(head, classes, examples)
    meter.ready()

    logits = batches[0][1].numel() * classes * 4 / 2**20
    meter.step("forward", lambda: forward(model, batches), label=f"logits of a batch {logits:.0f} MiB")
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


def laplace_torch(meter: Meter, *, classes: int, examples: int, structure: str) -> None:
    """laplace-torch on the head of ``Images``: fit, tuning by its evidence, one batch predicted."""
    import laplace

    warnings.simplefilter("ignore")
    model, batches = made("images", classes, examples)
    meter.ready()
    pairs = torch.utils.data.TensorDataset(*(torch.cat(part) for part in zip(*batches, strict=True)))
    loader = torch.utils.data.DataLoader(pairs, batch_size=500)
    found = laplace.Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure=structure)
    if meter.step("fit", lambda: found.fit(loader)).failure:
        return
    meter.step("tune by evidence", lambda: found.optimize_prior_precision(method="marglik"))
    meter.step("predict", lambda: found(batches[0][0], link_approx="probit"), label=f"{len(batches[0][0])} examples")


def curvlinops(meter: Meter, *, classes: int, examples: int) -> None:
    """Curvlinops on the head of ``Images``: the factors of KFAC with exact output Hessians, and one solve."""
    from curvlinops import KFACInverseLinearOperator, KFACLinearOperator

    warnings.simplefilter("ignore")
    model, batches = made("images", classes, examples)
    meter.ready()

    def solved() -> Tensor:
        params = list(model.get_submodule("head").parameters())
        loss = nn.CrossEntropyLoss(reduction="sum")
        factors = KFACLinearOperator(model, loss, params, batches, fisher_type="type-2", check_deterministic=False)
        return KFACInverseLinearOperator(factors, damping=1.0) @ torch.ones(factors.shape[1])

    meter.step("fit", solved)


def shapes(images: int, source: torch.Generator) -> tuple[Float[Tensor, "n 1 32 32"], Int[Tensor, "n 32 32"]]:
    """Noisy images of a bright disc and a dark square, and which of the two, or neither, each pixel is of."""
    side = torch.arange(32.0)
    places = torch.rand(images, 4, 1, 1, generator=source) * 20 + 6
    far = (side[:, None] - places[:, 0]).square() + (side - places[:, 1]).square()
    away = torch.maximum((side[:, None] - places[:, 2]).abs(), (side - places[:, 3]).abs())
    labels = torch.where(far < 36, 1, torch.where(away < 5, 2, 0))
    level = torch.tensor([0.0, 1.0, -1.0])[labels]
    return (level + 0.8 * torch.randn(level.shape, generator=source))[:, None], labels


def segmentation(meter: Meter, *, structure: str, images: int) -> None:
    """Thirty images of 32 x 32 pixels of three classes: fit, tune, and the loss on others beside the network's own."""
    import lapwing as lw

    source = generator()
    (x, y), (new, truth) = shapes(images, source), shapes(10, source)
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    model.zero_grad(set_to_none=True)
    meter.ready()
    warnings.simplefilter("ignore")
    with torch.no_grad():
        plain = F.cross_entropy(model(new), truth).item()
    weights, held = {
        "last layer": (lw.LastLayer(), lw.KFAC()),
        "kfac": (lw.All(), lw.KFAC()),
        "diagonal": (lw.All(), lw.Diagonal()),
    }[structure]
    recipe = lw.Laplace(lw.Categorical(event_dim=2, class_dim=1), weights=weights, structure=held)
    posterior = meter.step("fit", lambda: recipe.fit(model, (x, y))).value
    tuned = None if posterior is None else meter.step("tune", lambda: lw.tune(posterior)).value
    if tuned is None:
        return
    found = meter.step("predict", lambda: tuned.predict(new).probs, label=f"{len(new)} images").value
    if found is not None:
        loss = F.nll_loss(found.log().flatten(0, 2), truth.flatten()).item()
        meter.step("nll", lambda: None, label=f"{loss:.4f}, {plain:.4f} by the network alone")
