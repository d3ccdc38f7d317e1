"""Networks with their data: of the data folder where there is one, else generated and trained here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.data import CHECKPOINTS, Pair, Split, cifar10, generated_images, generated_tokens, mnist
from benchmarks.networks import ResNet, Transformer, lenet, perceptron
from benchmarks.training import train

TRAIN, TEST = 2000, 256

Batches = list[Pair]


@dataclass(frozen=True)
class Problem:
    """A network and how to come by its data.

    Args:
        network: Builds the network, untrained.
        generated: Makes data without a data folder.
        real: Reads data from the data folder; ``None`` where there is none to read.
        checkpoint: The trained network in the data folder, if it has one.
        epochs: Passes over the data where the network is trained here.
    """

    network: Callable[[], nn.Module]
    generated: Callable[..., Split]
    real: Callable[[Path], Split] | None = None
    checkpoint: str | None = None
    epochs: int = 8

    def data(self, folder: Path | None, train: int = TRAIN, test: int = TEST) -> Split:
        """So many examples, of the data folder if it has any."""
        if folder is None or self.real is None:
            return self.generated(train=train, test=test)
        return self.real(folder).head(train, test)

    def model(self, folder: Path | None, data: Split | None = None, epochs: int | None = None) -> nn.Module:
        """The network of the data folder, or one trained on the data, or as it is initialised; in evaluation mode."""
        if folder is not None and self.checkpoint is not None:
            return CHECKPOINTS[self.checkpoint].load(folder)
        torch.manual_seed(0)
        model = self.network().eval()
        epochs = self.epochs if epochs is None else epochs
        return model if data is None else train(model, *data.train, epochs=epochs, rate=1e-3, schedule="constant")


PROBLEMS: dict[str, Problem] = {
    "mlp": Problem(
        lambda: nn.Sequential(nn.Flatten(), *perceptron(784, 37, 37, 10, activation=nn.ReLU)),
        partial(generated_images, 1, 28),
        mnist,
    ),
    "lenet": Problem(lenet, partial(generated_images, 1, 28), mnist),
    "resnet20": Problem(
        lambda: ResNet(3),
        partial(generated_images, 3, 32),
        lambda folder: cifar10(folder, CHECKPOINTS["resnet20"]),
        "resnet20",
        epochs=2,
    ),
    "transformer": Problem(Transformer, partial(generated_tokens, 64, 32)),
}


def prepare(
    name: str,
    folder: Path | None,
    path: Path,
    *,
    train: int = TRAIN,
    fitted: int | None = None,
    epochs: int | None = None,
) -> None:
    """Write one problem to ``path``: its data and its trained network.

    Args:
        name: Key of ``PROBLEMS``.
        folder: Data folder, or ``None`` to generate the data.
        path: The safetensors file to write.
        train: How many inputs the network is trained on.
        fitted: How many of them are written, to fit posteriors to; all by default.
        epochs: Other passes over the data.
    """
    data = PROBLEMS[name].data(folder, train)
    model = PROBLEMS[name].model(folder, data, epochs)
    state = {f"state.{key}": value.contiguous() for key, value in model.state_dict().items()}
    save_file(state | {key: value.contiguous() for key, value in vars(data.head(fitted)).items()}, path)


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
    model.load_state_dict({key[6:]: value for key, value in tensors.items() if key.startswith("state.")})
    data = Split(*(tensors[key] for key in ("x_train", "y_train", "x_test", "y_test")))
    gradient(model, [(data.x_train[:16], data.y_train[:16])])
    return model, data


def batches(x: Tensor, y: Tensor, size: int) -> Batches:
    """The data in batches."""
    return list(zip(x.split(size), y.split(size), strict=True))


def gradient(model: nn.Module, data: Batches) -> None:
    """A plain forward and backward pass over the data, by which other costs are told."""
    for x, y in data:
        F.cross_entropy(model(x), y, reduction="sum").backward()
    model.zero_grad(set_to_none=True)
