"""The three networks with their data, trained once and read by both sides from one file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.data import CHECKPOINTS, Split, cifar10, generated_images, generated_tokens, mnist, train
from benchmarks.networks import ResNet, Transformer, lenet

TRAIN, TEST, BATCH = 2000, 256, 128


@dataclass(frozen=True)
class Problem:
    """A network and how to come by its data.

    Args:
        network: Builds the network, untrained.
        generated: Makes data without a data folder.
        real: Reads data from the data folder; ``None`` where there is none to read.
        checkpoint: The trained network in the data folder, if it has one.
        epochs: Passes over the data where the network is trained here.
        structures: What is fitted to it.
    """

    network: Callable[[], nn.Module]
    generated: Callable[[], Split]
    real: Callable[[Path], Split] | None
    checkpoint: str | None
    epochs: int
    structures: tuple[str, ...]


ALL = ("kfac", "diagonal", "last_layer", "last_layer_kfac", "full")

PROBLEMS: dict[str, Problem] = {
    "lenet": Problem(
        lenet,
        lambda: generated_images(1, 28, train=TRAIN, test=TEST),
        mnist,
        None,
        epochs=8,
        structures=ALL,
    ),
    "resnet20": Problem(
        lambda: ResNet(3),
        lambda: generated_images(3, 32, train=TRAIN, test=TEST),
        lambda folder: cifar10(folder, CHECKPOINTS["resnet20"]),
        "resnet20",
        epochs=2,
        structures=ALL[:-1],
    ),
    "transformer": Problem(
        Transformer,
        lambda: generated_tokens(64, 32, train=TRAIN, test=TEST),
        None,
        None,
        epochs=8,
        structures=ALL[:-1],
    ),
}


def prepare(name: str, folder: Path | None, path: Path, *, fitted: int = TRAIN) -> None:
    """Write one problem to ``path``: its data and its trained network.

    Args:
        name: Key of ``PROBLEMS``.
        folder: Data folder, or ``None`` to generate the data.
        path: The safetensors file to write.
        fitted: How many of the training inputs both sides fit their posteriors to.
    """
    problem = PROBLEMS[name]
    torch.manual_seed(0)
    if folder is not None and problem.real is not None:
        data = problem.real(folder).head(TRAIN, TEST)
    else:
        data = problem.generated()
    if folder is not None and problem.checkpoint is not None:
        model = CHECKPOINTS[problem.checkpoint].load(folder)
    else:
        model = train(problem.network(), data, epochs=problem.epochs)
    state = {f"state.{key}": value.contiguous() for key, value in model.state_dict().items()}
    arrays = vars(data.head(fitted, TEST))
    save_file(state | {key: value.contiguous() for key, value in arrays.items()}, path)


def load(name: str, path: str, *, device: str = "cpu") -> tuple[nn.Module, Split]:
    """Read what ``prepare`` wrote, and run one small gradient so that every library is loaded.

    Args:
        name: Key of ``PROBLEMS``.
        path: The file.
        device: Where the network and the data go.

    Returns:
        The network in evaluation mode, and its data.
    """
    tensors = load_file(path, device=device)
    model = PROBLEMS[name].network().to(device).eval()
    state = {key.removeprefix("state."): value for key, value in tensors.items() if key.startswith("state.")}
    model.load_state_dict(state)
    data = Split(*(tensors[key] for key in ("x_train", "y_train", "x_test", "y_test")))
    F.cross_entropy(model(data.x_train[:16]), data.y_train[:16]).backward()
    model.zero_grad(set_to_none=True)
    return model, data
