"""Watching a forward pass: which layer function used which weights, on what input, and where its gradient flows.

Layers are recognised by the function that runs (``linear``, ``conv2d``, ``layer_norm``, ...) and by the identity of the
weight it is given, not by module classes or hooks: nothing is attached to the network, a weight used twice is seen
twice, and a functional call counts like a module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.layout import Params
from lapwing.jacobian.layers.autodiff import Way
from lapwing.jacobian.layers.base import Call, Layer, LayerKind
from lapwing.jacobian.layers.broadcast import Broadcast
from lapwing.jacobian.layers.convolution import Convolution
from lapwing.jacobian.layers.embedding import Embedding
from lapwing.jacobian.layers.linear import Linear
from lapwing.jacobian.layers.matrix_product import MatrixProduct
from lapwing.jacobian.layers.norm import Norm
from lapwing.jacobian.layers.tied_embedding import TiedEmbedding
from lapwing.jacobian.layers.transposed_convolution import TransposedConvolution
from lapwing.jacobian.network.decompositions import DECOMPOSITIONS, attend
from lapwing.jacobian.network.network import Network

MOVES = (
    *("View", "UnsafeView", "ReshapeAlias", "Permute", "Transpose", "T", "Squeeze", "Unsqueeze", "Slice", "Select"),
    *("Clone", "Alias", "Add", "ToCopy"),
)
"""What autograd records where a tensor is moved about, or added to what has no gradient: no number decides it."""


LAYERS: dict[Callable[..., Any], type[LayerKind]] = {
    F.linear: Linear,
    **dict.fromkeys((torch.addmm, torch.mm, Tensor.addmm, Tensor.mm), MatrixProduct),
    F.embedding: Embedding,
    **dict.fromkeys((torch.add, Tensor.add, Tensor.add_, Tensor.expand), Broadcast),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), Convolution),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), TransposedConvolution),
    **dict.fromkeys((F.layer_norm, F.batch_norm, F.group_norm), Norm),
}
"""Layer functions that are known, and the kind of each: a new kind has its own file and a line here."""

TIED: dict[frozenset[type[LayerKind]], type[LayerKind]] = {frozenset({Embedding, Linear}): TiedEmbedding}
"""Kinds of the uses of one weight, where these are of several, and the kind of all of them."""

ADDITIONS = (torch.add, Tensor.add, Tensor.add_)
"""Functions that add what an embedding looked up, such as positions, to what differs from example to example."""

KINDS = {kind.__name__: kind for kind in (*LAYERS.values(), *TIED.values())}
"""Kinds of layers by their names."""

HEADS = [kind for kind in KINDS.values() if kind.by_output]
"""Kinds whose layer, where it makes the outputs, needs no gradients."""

SIGNATURES = {func: kind.signature(func) for func, kind in LAYERS.items()}
"""The arguments of layer functions."""


class Capture(TorchFunctionMode):
    """Records every ``Call`` on the watched parameters while it is active.

    Args:
        params: Parameters to watch, by name; recognised by identity.
        live: Whether the inputs of layers keep their graph.
    """

    def __init__(self, params: dict[str, Tensor], *, live: bool = False) -> None:
        super().__init__()
        self._live = live
        self.calls: list[Call] = []
        self._names = {id(value): name for name, value in params.items()}
        self._lookups: dict[int, tuple[Call, Tensor]] = {}
        """Uses of embeddings and their outputs, by the identity of these, which are held for it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        decomposed = attend if func is F.multi_head_attention_forward else DECOMPOSITIONS.get(func)
        if decomposed is not None:
            with self:
                return decomposed(*args, **kwargs)
        output = func(*args, **kwargs)
        if func in ADDITIONS:
            self._record_sum(args, output)
        if func in LAYERS and any(id(given) in self._names for given in (*args, *kwargs.values())):
            bound = SIGNATURES[func].bind(*args, **kwargs)
            bound.apply_defaults()
            self._record(func, bound.arguments, output)
        return output

    def _record(self, func: Callable[..., Any], given: dict[str, Any], output: Tensor) -> None:
        kind = LAYERS[func]
        weight, bias = (self._names.get(id(each)) for each in kind.parameters(given))
        if (weight is None and bias is None) or not output.requires_grad:
            return
        input, options = kind.input_and_options(func, given)
        if not self._live:
            input = input.detach()
        edge = get_gradient_edge(output)
        call = Call(kind, weight, bias, input, options, edge, output.shape, output.dtype)
        self.calls.append(call)
        if kind is Embedding:
            self._lookups[id(output)] = call, output

    def _record_sum(self, terms: tuple[Any, ...], total: Tensor) -> None:
        """What was looked up has the gradient of the sum that it is a term of, wherever it is added."""
        for term in terms:
            if id(term) not in self._lookups:
                continue
            call, looked_up = self._lookups[id(term)]
            if total.shape[-1] != looked_up.shape[-1]:
                continue  # each number it looked up was added to several
            index = call.input.expand(total.shape[:-1]).contiguous()
            edge = get_gradient_edge(total)
            self.calls.append(replace(call, input=index, edge=edge, shape=total.shape, dtype=total.dtype, added=True))


def kind_of(layer: Layer) -> type[LayerKind]:
    """The kind of a layer."""
    return KINDS[layer.kind]


def kind_of_uses(kinds: set[type[LayerKind]]) -> type[LayerKind] | None:
    """The kind of a layer whose weight is used in these ways; ``None`` where there is none of several."""
    if len(kinds) == 1:
        return next(iter(kinds))
    return TIED.get(frozenset(kinds))


BY_NUMBER = (
    *("Index", "Gather", "Scatter", "Take", "MaskedSelect", "MaskedScatter"),
    *("Flip", "Roll", "Sort", "PackPadded"),
)
"""How the names of nodes begin that put rows elsewhere."""

FEW = 16
"""Examples of a chunk fewer than which waste the threads."""

STRETCH = 8
"""Times that the budget may be stretched to hold so many."""


@final
@dataclass(frozen=True)
class Survey:
    """What is known of a network's layers.

    Args:
        layers: Layers with factors, in order of first use.
        without_factors: The other parameters; their Jacobian comes from automatic differentiation.
        output: Shape of the outputs of one example.
        floats: Numbers one example occupies: for each cotangent, and beside them.
        way: How the Jacobian of those is made.
        head: Whether the outputs are those of the one layer there is, position by position.
        reorders: Whether the network moves rows to places that its numbers say, such as examples by their length: then
            each batch is checked.
        matrix: Numbers of the largest Jacobian that is written down of a weight, for each cotangent.
    """

    layers: tuple[Layer, ...]
    without_factors: tuple[str, ...]
    output: torch.Size
    floats: tuple[int, int]
    way: Way = "at once"
    head: bool = False
    reorders: bool = False
    matrix: int = 0

    @property
    def written(self) -> int:
        """Numbers a cotangent takes where the Jacobian of a layer is written down, beside what it is made from."""
        return 2 * self.matrix

    def bytes(self, cotangents: int, itemsize: int, extra: int = 0, roots: int = 0) -> int:
        """What the factors of one example take, with ``extra`` numbers a cotangent and ``roots`` beside them.

        With ``extra=-written`` the same where no Jacobian of a layer is written down.
        """
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


def captured(network: Network, inputs: Inputs, params: Params, *, live: bool = False) -> tuple[Tensor, list[Call]]:
    """Outputs of a forward pass and the layer calls it made, whose inputs keep their graph where they are live."""
    with torch.inference_mode(False), torch.enable_grad(), Capture(params, live=live) as capture:
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


def reorders(values: Tensor) -> bool:
    """Whether an operation that made some values takes rows by number, and so may put examples in another order."""
    return any(node.name().lstrip("_").startswith(BY_NUMBER) for node in history(values))


def history(values: Tensor) -> set[Any]:
    """The nodes of the graph that made some values: those of operations without a Python name are no ``Node``."""
    left = [values.grad_fn]
    seen = set[Any]()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [further for further, _ in node.next_functions]
    return seen
