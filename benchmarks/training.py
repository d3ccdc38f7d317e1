"""How networks of benchmarks and studies are trained, and where their weights are kept, to be trained once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

Schedule = Literal["cosine", "constant"]


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int = 20,
    rate: float = 5e-3,
    batch: int = 100,
    decay: float = 0.0,
    schedule: Schedule = "cosine",
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    seed: int = 0,
) -> nn.Module:
    """Adam on the loss plus ``γ/2 ‖θ‖²``, in place; the network comes back in evaluation mode.

    With the mean cross-entropy and ``γ = α / n`` the minimum is the MAP estimate under the prior precision ``α``.

    Args:
        model: Network to train.
        x: Inputs.
        y: Targets.
        epochs: Passes over them.
        rate: First learning rate.
        batch: Examples in a mini-batch; one example alone, which batch norm cannot take, is left out.
        decay: γ.
        schedule: How the rate falls, see ``factor``.
        loss: Of outputs and targets of a batch.
        seed: Of the order of the batches.
    """
    generator = torch.Generator().manual_seed(seed)
    steps = torch.optim.Adam(model.parameters(), rate, weight_decay=decay)
    model.train()
    for epoch in range(epochs):
        batches = torch.randperm(len(y), generator=generator).to(y.device).split(batch)
        for k, index in enumerate(batches):
            if len(index) == 1 < len(y):
                continue
            for group in steps.param_groups:
                group["lr"] = rate * factor(schedule, epoch + k / len(batches), epochs)
            steps.zero_grad()
            loss(model(x[index]), y[index]).backward()
            steps.step()
    return model.eval()


def factor(schedule: Schedule, done: float, epochs: int) -> float:
    """The learning rate as a part of the first.

    Args:
        schedule: ``"cosine"`` falls to zero along a cosine; ``"constant"``.
        done: Epochs that are done.
        epochs: Epochs in all.
    """
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done / epochs))
    return 1.0


def minimise(model: nn.Module, loss: Callable[[], Tensor], **options: object) -> float:
    """L-BFGS with a line search, in place; the length of the gradient that is left."""
    weights = list(model.parameters())
    steps = torch.optim.LBFGS(weights, line_search_fn="strong_wolfe", **options)  # type: ignore[arg-type]

    def evaluated() -> float:
        steps.zero_grad()
        value = loss()
        value.backward()
        return float(value.detach())

    steps.step(evaluated)
    return float(torch.cat([value.grad.flatten() for value in weights if value.grad is not None]).norm())


def kept_tensors(
    make: Callable[[], Mapping[str, Tensor]], folder: Path | None, name: str, *key: object
) -> Mapping[str, Tensor]:
    """Tensors from where they are kept, or else made and kept there; the file is written whole or not at all.

    Args:
        make: Makes them.
        folder: Where they are kept; ``None`` makes them anew.
        name: How the file begins.
        *key: What they depend on; of tensors every number counts, of others how they are printed.
    """
    if folder is None:
        return make()
    digest = hashlib.sha256(" ".join(map(_told, key)).encode()).hexdigest()[:8]
    path = folder / f"{name}-{digest}.safetensors"
    if path.exists():
        return load_file(path)
    from lapwing.ground.files.atomic import write_whole

    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, {k: v.contiguous() for k, v in made.items()}, {})
    return made


def _told(part: object) -> str:
    if not isinstance(part, Tensor):
        return str(part)
    return hashlib.sha256(part.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
