"""Which networks are refused before any curvature is computed, by their outputs for two and three examples."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs, count
from lapwing.ground.errors import ConfigError, DataError, LapwingError, ShapeError, UnsupportedError, reason_of
from lapwing.jacobian.layers.base import Call
from lapwing.jacobian.layers.capture import history
from lapwing.jacobian.network.network import Network

ROUNDED = 0.05
"""Share of the largest output by which rounding to 8 bits in several layers may move one."""

WHOLE = (
    "a module that holds x and the edges as buffers and takes the numbers of nodes: forward(self, nodes) returns "
    "self.network(self.x, self.edges)[nodes]"
)
"""What a network whose examples are the nodes of one graph can be wrapped in."""


@contextmanager
def examples_apart(network: Network, inputs: Inputs) -> Generator[None]:
    """A call of the network with a few of the examples; what fails there, and not with all of them, is explained.

    Args:
        network: The network.
        inputs: The examples there are, such as the nodes of a graph and its edges.

    Raises:
        DataError: If it takes neither.
        UnsupportedError: If the network takes all examples and not a few of them.
    """
    try:
        yield
    except Exception as error:
        failure = error.__cause__ if isinstance(error, LapwingError) else error
        if failure is None:  # refused by this library, not by the network
            raise
        try:
            with torch.no_grad():
                network(inputs)
        except Exception:
            raise error from error.__cause__
        failed = f"{type(failure).__name__}, {reason_of(failure):.120}"
        raise UnsupportedError(
            "a network that takes any of the examples without the others",
            f"one that takes all {count(inputs)} and fails on the first few: {failed}",
            f"{WHOLE}, if they are nodes of a graph, or an axis of graphs in front of all inputs",
        ) from error


def check_depends(network: Network, outputs: Tensor) -> None:
    """Outputs that have no graph depend on no uncertain weight.

    Raises:
        ConfigError: If they have none.
    """
    if not outputs.requires_grad:
        raise ConfigError(
            "uncertain weights that the outputs depend on",
            f"{', '.join(network.names[:5])}, in which they have no derivative",
            "weights=Names(...) or LastLayer() with others, or requires_grad_(True) on these",
        )


def check_types(network: Network, outputs: Tensor, calls: list[Call]) -> None:
    """Products go from the weights through the layers to the outputs and back: all have one type, and a derivative."""
    found = {outputs.dtype, *(value.dtype for value in network.params.values()), *(call.dtype for call in calls)}
    if len(found) > 1:
        raise UnsupportedError(
            "uncertain weights, layers and outputs of one type",
            " and ".join(sorted(str(each).removeprefix("torch.") for each in found)),
            "model.float() before the fit, a forward pass without torch.autocast, or weights=LastLayer() where the "
            "head has the type of the outputs",
        )
    if any(node.name().endswith("NotImplemented") for node in history(outputs)):
        # Backward passes end at this mark: what lies before it would get no curvature, with a warning at most.
        raise UnsupportedError(
            "operations with a gradient between the uncertain weights and the outputs",
            "one without, such as a layer in 8 bits",
            "weights=LastLayer(), or the layers before they were quantised",
        )


def rounds_by_batch(module: nn.Module) -> bool:
    """Whether a layer rounds its inputs to 8 bits by the largest of the batch, as dynamic quantisation of PyTorch does.

    Its outputs depend on the other examples by that rounding.
    """
    return any("quantized.dynamic" in type(part).__module__ for part in module.modules())


def check_outputs(outputs: Tensor, again: Tensor, fewer: Tensor, rounded: bool) -> None:
    """Outputs of three examples, of the same again, and of the first two of them, which may be rounded by the batch."""
    if outputs.ndim < 2 or (len(outputs), len(fewer)) != (3, 2):
        raise ShapeError(
            "outputs of shape [n, ..., c] for n inputs",
            f"{list(outputs.shape)} for the first 3",
            "unsqueeze(-1) for a single output, or a leading axis of examples",
        )
    if not bool(torch.isfinite(outputs).all()):
        raise DataError(
            "finite outputs",
            f"{int((~torch.isfinite(outputs)).sum())} NaN or infinite values for the first 3 inputs",
            "checking the inputs and the weights of the network",
        )
    if not torch.allclose(again, outputs, rtol=1e-3, atol=1e-5 * float(outputs.abs().max())):
        raise UnsupportedError(
            "a network that gives the same outputs twice in eval mode",
            "different outputs for the same inputs",
            "nn.Dropout instead of functional dropout that ignores eval()",
        )
    share = ROUNDED if rounded else 1e-3
    if not torch.allclose(fewer, outputs[:2], rtol=1e-2, atol=share * float(outputs.abs().max() + 1e-6)):
        raise UnsupportedError(
            "outputs that depend on one example each",
            "an output that changes with the other examples of the batch",
            f"BatchNorm with running statistics, a batch of size one, or, for nodes of a graph, {WHOLE}",
        )
