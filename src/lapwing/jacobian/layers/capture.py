"""Watching a forward pass: which layer function used which weights, on what input, and where its gradient flows.

Layers are recognised by the function that runs (``linear``, ``conv2d``, ``layer_norm``, ...) and by the identity of the
weight it is given, not by module classes or hooks: nothing is attached to the network, a weight used twice is seen
twice, and a functional call counts like a module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.layout import Params
from lapwing.jacobian.layers.factors import ConvOptions
from lapwing.jacobian.layers.loose import Way
from lapwing.jacobian.network.decompositions import DECOMPOSITIONS, attend
from lapwing.jacobian.network.network import Network

Kind = Literal["linear", "conv", "channel_norm", "layer_norm", "embedding"]

MOVES = (
    *("View", "UnsafeView", "ReshapeAlias", "Permute", "Transpose", "T", "Squeeze", "Unsqueeze", "Slice", "Select"),
    *("Clone", "Alias", "Add", "ToCopy"),
)
"""What autograd records where a tensor is moved about, or added to what has no gradient: no number decides it."""


@final
@dataclass(frozen=True)
class Call:
    """One use of a layer function on watched weights.

    Args:
        kind: The family of the function; decides how (a, g) make the Jacobian.
        weight: Name of the weight, ``None`` where only the bias is watched.
        bias: Name of the bias, ``None`` where there is none or it is not watched.
        input: What the weight multiplies: the layer's input; for norms normalised, for embeddings the indices.
        edge: Where the gradient of the layer's output arrives.
        shape: Shape of the layer's output.
        dtype: Its type.
        options: Geometry of a convolution.
        padding: Row of an embedding that has no gradient.
    """

    kind: Kind
    weight: str | None
    bias: str | None
    input: Tensor
    edge: GradientEdge
    shape: torch.Size
    dtype: torch.dtype
    options: ConvOptions | None = None
    padding: int | None = None


class Capture(TorchFunctionMode):
    """Records every ``Call`` on the watched parameters while it is active.

    Args:
        params: Parameters to watch, by name; recognised by identity.
    """

    def __init__(self, params: dict[str, Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._names = {id(value): name for name, value in params.items()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        decomposed = attend if func is F.multi_head_attention_forward else DECOMPOSITIONS.get(func)
        if decomposed is not None:
            with self:
                return decomposed(*args, **kwargs)
        output = func(*args, **kwargs)
        if func in LAYERS and any(id(given) in self._names for given in (*args, *kwargs.values())):
            kind, signature = LAYERS[func]
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self._record(func, kind, bound.arguments, output)
        return output

    def _record(self, func: Callable[..., Any], kind: Kind, given: dict[str, Any], output: Tensor) -> None:
        weight, bias = (self._names.get(id(given.get(key))) for key in ("weight", "bias"))
        if (weight is None and bias is None) or not output.requires_grad:
            return
        input = normalised(func, given) if kind in NORMS else given["input"].detach()
        options, padding = geometry(given) if kind == "conv" else None, given.get("padding_idx")
        if padding is not None:
            padding %= len(given["weight"])
        made = get_gradient_edge(output), output.shape, output.dtype
        self.calls.append(Call(kind, weight, bias, input, *made, options, padding))


def geometry(given: dict[str, Any]) -> ConvOptions:
    """That of a convolution, from its arguments."""
    kernel = tuple(given["weight"].shape[2:])
    stride, dilation = (spread(given[key], len(kernel)) for key in ("stride", "dilation"))
    padding = given["padding"]
    if padding == "valid":
        sides = ((0, 0),) * len(kernel)
    elif padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = tuple((total // 2, total - total // 2) for total in totals)
    else:
        sides = tuple((p, p) for p in spread(padding, len(kernel)))
    return ConvOptions(kernel, stride, sides, dilation, given["groups"])


def spread(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """An option of a convolution for each spatial axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value) * (axes // len(value))


def normalised(func: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    """What a norm makes of its input before weight and bias.

    Raises:
        UnsupportedError: If that depends on the other examples.
    """
    if given.get("training"):
        raise UnsupportedError(
            "outputs that depend on one example each",
            "a batch norm that uses the statistics of the batch even in eval mode",
            "BatchNorm with track_running_stats=True",
        )
    with torch.no_grad():
        return func(**{**given, "weight": None, "bias": None}).detach()


LINEAR = inspect.signature(lambda input, weight, bias=None: None)
CONV = inspect.signature(lambda input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1: None)


LAYERS: dict[Callable[..., Any], tuple[Kind, inspect.Signature]] = {
    F.linear: ("linear", LINEAR),
    F.embedding: ("embedding", inspect.signature(F.embedding)),
    **{conv: ("conv", CONV) for conv in (F.conv1d, F.conv2d, F.conv3d)},
    F.layer_norm: ("layer_norm", inspect.signature(F.layer_norm)),
    **{norm: ("channel_norm", inspect.signature(norm)) for norm in (F.batch_norm, F.group_norm)},
}
"""Layer functions that are known, and their arguments; those that C++ hides are decomposed."""


NORMS = ("channel_norm", "layer_norm")
"""Layers whose uncertain parameters are element-wise: their Jacobian is as small as they are."""


FEW, STRETCH = 16, 8
"""A chunk of fewer examples wastes the threads: the budget may stretch this many times to hold so many."""


@final
@dataclass(frozen=True)
class Layer:
    """One weight (and bias) whose layer factors are known.

    Args:
        kind: Family of the layer function.
        weight: Name of the weight, ``None`` where only the bias is uncertain.
        bias: Name of the bias, ``None`` where there is none or it is not uncertain.
        axis: Axis of the examples in the layer's input and output.
    """

    kind: Kind
    weight: str | None
    bias: str | None
    axis: int

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, weight first."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    def owns(self, call: Call) -> bool:
        """Whether the call used this layer's parameters."""
        return (call.weight, call.bias) == (self.weight, self.bias)


@final
@dataclass(frozen=True)
class Survey:
    """What is known of a network's layers.

    Args:
        layers: Layers with factors, in order of first use.
        loose: Parameters without; their Jacobian comes from automatic differentiation.
        output: Shape of the outputs of one example.
        floats: Numbers one example occupies: for each cotangent, and beside them.
        way: How the Jacobian of loose parameters is made.
        head: Whether the outputs are those of the one layer there is, position by position.
    """

    layers: tuple[Layer, ...]
    loose: tuple[str, ...]
    output: torch.Size
    floats: tuple[int, int]
    way: Way = "at once"
    head: bool = False

    def bytes(self, cotangents: int, itemsize: int, extra: int = 0, roots: int = 0) -> int:
        """What the factors of one example take, with ``extra`` numbers a cotangent and ``roots`` beside them."""
        each, beside = self.floats
        return max(itemsize * (cotangents * (each + extra) + beside + roots), 1)

    def chunk(self, cotangents: int, itemsize: int, budget: int, extra: int = 0, roots: int = 0) -> int:
        """Examples that fit the byte budget; see ``bytes``."""
        per_example = self.bytes(cotangents, itemsize, extra, roots)
        room = max(budget, min(FEW * per_example, STRETCH * budget))
        return max(1, min(room // per_example, 4096))


def leaves(network: Network) -> Params:
    """The network's parameters as fresh leaves that autograd tracks."""
    return {name: value.detach().requires_grad_() for name, value in network.params.items()}


def captured(network: Network, inputs: Inputs, params: Params) -> tuple[Tensor, list[Call]]:
    """Outputs of a forward pass and the layer calls it made."""
    with torch.inference_mode(False), torch.enable_grad(), Capture(params) as capture:
        outputs = network(inputs, params)
    return outputs, capture.calls


def origin(values: Tensor, ends: Collection[Node], moves: Collection[str] = MOVES) -> Node | None:
    """Whence some values were moved about, at most: one of some nodes, or the last before which they were not moved."""
    node = values.grad_fn
    while node is not None and node not in ends:
        before = [each for each, _ in node.next_functions if each is not None]
        if node.name().split("Backward")[0] not in moves or len(before) != 1:
            break
        node = before[0]
    return node


def history(values: Tensor) -> set[Any]:
    """The nodes of the graph that made some values: those of operations without a Python name are no ``Node``."""
    left, seen = [values.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [further for further, _ in node.next_functions]
    return seen


def examples_first(x: Tensor, axis: int, n: int, features: int) -> Tensor:
    """``x`` as ``[n, t, *features]``: examples first, everything that shares the weight in one axis."""
    x = x.movedim(axis, 0)
    return x.reshape(n, -1, *x.shape[x.ndim - features :])


def by_example(x: Tensor, axis: int, n: int) -> Float[Tensor, "n k t f"]:
    """Gradients with the cotangents on axis 1, as examples, cotangents, all that shares the weight, features."""
    return examples_first(x.movedim(1, -2), axis, n, 2).transpose(1, 2)


def affine_sum(x: Tensor, axis: int, n: int, width: int) -> Float[Tensor, "n d"]:
    """Sum over all that shares an affine parameter: the last ``width`` axes are its own, or the channels if 0."""
    if width == 0:
        return x.flatten(2).sum(-1) if x.ndim > 2 else x
    return examples_first(x, axis, n, width).sum(1).flatten(1)
