"""Where trained weights are kept, so that they are trained once for the same recipe, network and data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

from lapwing.ground.archive import write_whole


def kept_network(train: Callable[[], object], model: nn.Module, folder: Path | None, name: str, *key: object) -> None:
    """Train a network, or give it the weights it had after the same training; it ends in evaluation mode.

    Args:
        train: Trains it in place.
        model: The network.
        folder: Where weights are kept; ``None`` trains anew.
        name: How the file begins.
        *key: What the weights depend on beside the architecture: recipe, epochs, data.
    """

    def weights() -> Mapping[str, Tensor]:
        train()
        return model.state_dict()

    model.load_state_dict(kept_tensors(weights, folder, name, model, *key))
    model.eval()


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
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, {k: v.contiguous() for k, v in made.items()}, {})
    return made


def _told(part: object) -> str:
    if not isinstance(part, Tensor):
        return str(part)
    return hashlib.sha256(part.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
