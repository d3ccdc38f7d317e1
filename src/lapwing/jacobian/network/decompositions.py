"""Decompositions into ordinary operations: fused kernels lack derivatives, have wrong ones, or hide layers.

Embedding bags have neither a forward mode nor a second gradient; the second gradient of weight normalisation is wrong,
and where it is vectorised those of layer and instance norms; bilinear maps cannot be vectorised; attention hides the
linear maps inside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from lapwing.jacobian.network.serving import ALONE


class Decomposed(TorchFunctionMode):
    """Embedding bags, instance and weight norms and bilinear maps go through ``DECOMPOSITIONS`` while it is active.

    Args:
        live: Whether norms go through ``FOR_LIVE_ROWS`` too.
        any_number: Whether norms and embeddings go through ``FOR_ANY_NUMBER`` too.
    """

    def __init__(self, *, live: bool = False, any_number: bool = False) -> None:
        super().__init__()
        self._own = dict(DECOMPOSITIONS)
        if live:
            self._own |= FOR_LIVE_ROWS
        if any_number:
            self._own |= FOR_ANY_NUMBER

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        own = self._own.get(func, func)
        return own(*args, **(kwargs or {}))


def arguments_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SimpleNamespace:
    """The arguments of a call by the names that PyTorch gives them, its defaults among them."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


def bag(*args: Any, **kwargs: Any) -> Tensor:
    """``torch.nn.functional.embedding_bag`` as lookups, and their sum, mean or maximum over each bag.

    The arguments and the result are those of the PyTorch function; options that change a gradient or the weight have
    no effect.

    Example:
        >>> table, tokens = torch.arange(8.0).view(4, 2), torch.tensor([[0, 1], [3, 3]])
        >>> bag(tokens, table, mode="sum").tolist()
        [[2.0, 4.0], [12.0, 14.0]]
    """
    given = arguments_of(F.embedding_bag, args, kwargs)
    weight = given.weight
    if given.offsets is None:  # a bag is a row of the input
        tokens = given.input
        member = torch.ones_like(tokens, dtype=torch.bool)
    else:  # bags stand one after the other: each is offered all tokens, and has some of them
        tokens = given.input[None]
        starts = given.offsets[:-1] if given.include_last_offset else given.offsets
        place = torch.arange(len(given.input), device=weight.device)
        owner = (place[:, None] >= starts).sum(1) - 1
        member = owner == torch.arange(len(starts), device=weight.device)[:, None]
    rows = F.embedding(tokens, weight)
    if given.padding_idx is not None:
        member = member & (tokens != given.padding_idx % len(weight))
    if given.mode == "max":
        filled = rows.masked_fill(~member[..., None], -torch.inf).amax(1)
        return filled.masked_fill(~member.any(1, keepdim=True), 0.0)
    share = member.to(weight)
    if given.per_sample_weights is not None:
        share = share * given.per_sample_weights.view(tokens.shape)
    total = (share[:, None] @ rows).squeeze(1)
    if given.mode == "mean":
        return total / member.sum(1, keepdim=True).clamp_min(1)
    return total


def scaled_direction(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """``g v / |v|``, a norm for each entry of an axis, or one for all where that is -1: ``torch._weight_norm``.

    Example:
        >>> scaled_direction(torch.tensor([[3.0, 4.0]]), torch.tensor([[10.0]])).tolist()
        [[6.0, 8.0]]
    """
    others = [axis for axis in range(v.ndim) if axis != dim]
    return v * (g / torch.linalg.vector_norm(v, dim=others, keepdim=True))


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.bilinear``: ``x1ᵀ W_o x2 + b_o`` for each output o.

    Example:
        >>> bilinear(torch.tensor([1.0, 2.0]), torch.tensor([3.0]), torch.tensor([[[5.0], [7.0]]])).tolist()
        [57.0]
    """
    products = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return products if bias is None else products + bias


def layer_norm(*args: Any, **kwargs: Any) -> Tensor:
    """``torch.nn.functional.layer_norm`` by its formula.

    Example:
        >>> layer_norm(torch.tensor([[1.0, 3.0]]), [2], eps=0.0).tolist()
        [[-1.0, 1.0]]
    """
    given = arguments_of(F.layer_norm, args, kwargs)
    axes = tuple(range(-len(given.normalized_shape), 0))
    return _affine(_standardised(given.input, axes, given.eps), given.weight, given.bias)


def group_norm(*args: Any, **kwargs: Any) -> Tensor:
    """``torch.nn.functional.group_norm`` by its formula.

    Example:
        >>> group_norm(torch.tensor([[1.0, 3.0]]), 1, eps=0.0).tolist()
        [[-1.0, 1.0]]
    """
    given = arguments_of(F.group_norm, args, kwargs)
    groups = given.input.unflatten(1, (given.num_groups, -1)).flatten(2)
    found = _standardised(groups, (2,), given.eps).flatten(1).unflatten(1, given.input.shape[1:])
    return _affine(found, *_by_channel(given, given.input.ndim))


def batch_norm(*args: Any, **kwargs: Any) -> Tensor:
    """``torch.nn.functional.batch_norm`` in eval mode by its formula.

    Example:
        >>> batch_norm(torch.tensor([[3.0]]), torch.ones(1), 4 * torch.ones(1), eps=0.0).tolist()
        [[1.0]]
    """
    given = arguments_of(F.batch_norm, args, kwargs)
    if given.training or given.running_mean is None:
        return F.batch_norm(*args, **kwargs)
    return _affine(_by_statistics(given), *_by_channel(given, given.input.ndim))


def instance_norm(*args: Any, **kwargs: Any) -> Tensor:
    """``torch.nn.functional.instance_norm`` by its formula; running statistics stay as they are.

    Example:
        >>> instance_norm(torch.tensor([[[1.0, 3.0]]]), eps=0.0).tolist()
        [[[-1.0, 1.0]]]
    """
    given = arguments_of(F.instance_norm, args, kwargs)
    if given.use_input_stats:
        found = _standardised(given.input, tuple(range(2, given.input.ndim)), given.eps)
    else:
        found = _by_statistics(given)
    return _affine(found, *_by_channel(given, given.input.ndim))


def embedding(*args: Any, **kwargs: Any) -> Tensor:
    """``torch.nn.functional.embedding`` of a table with a gradient as a product, which that of the padding has not.

    Example:
        >>> embedding(torch.tensor([[1]]), torch.tensor([[3.0], [5.0]])).tolist()
        [[[5.0]]]
    """
    given = arguments_of(F.embedding, args, kwargs)
    if not given.weight.requires_grad:
        return F.embedding(*args, **kwargs)
    places = torch.arange(given.weight.shape[0], device=given.weight.device)
    rows = (given.input[..., None] == places).to(given.weight) @ given.weight
    if given.padding_idx is None:
        return rows
    padding = given.input == given.padding_idx % given.weight.shape[0]
    return torch.where(padding[..., None], rows.detach(), rows)


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """Less its mean over some axes, over its standard deviation there; in float32 at least, as the kernels do."""
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = exact - exact.mean(axes, keepdim=True)
    return (centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()).to(x.dtype)


def _by_statistics(given: SimpleNamespace) -> Tensor:
    """Less the running mean of its channel, over the running standard deviation."""
    axes = [1] * (given.input.ndim - 2)
    mean = given.running_mean.view(-1, *axes)
    scale = (given.running_var + given.eps).rsqrt().view(-1, *axes)
    return (given.input - mean) * scale


def _by_channel(given: SimpleNamespace, axes: int) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias of channels, which stand on the second axis."""
    shape = (-1, *[1] * (axes - 2))
    found = (None if each is None else each.view(shape) for each in (given.weight, given.bias))
    weight, bias = found
    return weight, bias


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Multiplied and shifted, where there is a weight and a bias."""
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


DECOMPOSITIONS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.bilinear: bilinear,
    F.embedding_bag: bag,
    F.instance_norm: instance_norm,
    torch._weight_norm: scaled_direction,  # pyright: ignore[reportPrivateUsage]
}
"""What replaces which function of PyTorch."""

FOR_LIVE_ROWS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.layer_norm: layer_norm,
}
"""The same of functions whose vectorised gradient, differentiated again, takes mean and variance as constants."""

FOR_ANY_NUMBER: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.layer_norm: layer_norm,
    F.group_norm: group_norm,
    F.batch_norm: batch_norm,
    F.embedding: embedding,
}
"""The same of functions whose rules of vectorisation record the number of examples they see."""


@contextmanager
def without_advice() -> Generator[None]:
    """Operations that PyTorch cannot vectorise, such as its fused LSTM, go one by one and ask nobody to tell it so."""
    with ALONE:
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # pyright: ignore
        try:
            yield
        finally:
            torch._C._functorch._set_vmap_fallback_warning_enabled(True)  # pyright: ignore


@contextmanager
def twice_differentiable(*, live: bool = False, any_number: bool = False) -> Generator[None]:
    """Attention by its formula, and ``DECOMPOSITIONS``: fused kernels lack forward modes and second derivatives.

    Args:
        live: Whether vectorised rows shall keep their graph, to be differentiated again.
        any_number: Whether what is recorded shall hold for any number of examples.
    """
    with ALONE, sdpa_kernel(SDPBackend.MATH), Decomposed(live=live, any_number=any_number), without_advice():
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def attend(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """``torch.nn.functional.multi_head_attention_forward`` in eval mode, through ``linear`` and a softmax.

    The arguments and results are those of the PyTorch function; ``dropout_p`` and ``training`` have no effect.
    """
    given = arguments_of(F.multi_head_attention_forward, args, kwargs)
    batched = given.query.ndim == 3
    q, k, v = _projected(given, batched)
    k = _extended(k, given.bias_k, given.add_zero_attn)
    v = _extended(v, given.bias_v, given.add_zero_attn)
    extra = len(k) - len(given.key)
    q = _heads(q, given.num_heads)
    k = _heads(k, given.num_heads) if given.static_k is None else given.static_k.unflatten(0, (-1, given.num_heads))
    v = _heads(v, given.num_heads) if given.static_v is None else given.static_v.unflatten(0, (-1, given.num_heads))
    hidden = given.key_padding_mask
    if hidden is not None and not batched:
        hidden = hidden.unsqueeze(0)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + _mask(given.attn_mask, hidden, given.num_heads, extra, q)
    attention = torch.softmax(scores, dim=-1)
    mixed = (attention @ v).transpose(1, 2).flatten(2).transpose(0, 1)
    output = F.linear(mixed, given.out_proj_weight, given.out_proj_bias)
    weights = None
    if given.need_weights:
        weights = attention.mean(dim=1) if given.average_attn_weights else attention
    if batched:
        return output, weights
    return output.squeeze(1), None if weights is None else weights.squeeze(0)


def _projected(given: SimpleNamespace, batched: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, ``[t, n, e]`` each, by one linear map where they come of the same input."""
    inputs = (given.query, given.key, given.value)
    of_one = given.query is given.key is given.value
    if not batched:
        inputs = tuple(part.unsqueeze(1) for part in inputs)
    weight = given.in_proj_weight
    bias = given.in_proj_bias
    if of_one and not given.use_separate_proj_weight and weight is not None:
        q, k, v = F.linear(inputs[0], weight, bias).chunk(3, dim=-1)
        return q, k, v
    apart = (given.q_proj_weight, given.k_proj_weight, given.v_proj_weight)
    weights = apart if weight is None else weight.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))
    return q, k, v


def _heads(x: Tensor, heads: int) -> Tensor:
    """[t, n, e] as [n, heads, t, e / heads]."""
    return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _extended(x: Tensor, bias: Tensor | None, zero: bool) -> Tensor:
    """Keys or values with the learned and the zero position appended."""
    if bias is not None:
        x = torch.cat([x, bias.expand(1, x.shape[1], -1)])
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])]) if zero else x


def _mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: int, extra: int, like: Tensor) -> Tensor:
    """The sum of both masks as additive scores that broadcast over [n, heads, t, t']."""
    total = like.new_zeros(())
    if attn_mask is not None:
        mask = F.pad(_additive(attn_mask, like), (0, extra))
        total = total + (mask if mask.ndim == 2 else mask.unflatten(0, (-1, heads)))
    if key_padding_mask is not None:
        total = total + F.pad(_additive(key_padding_mask, like), (0, extra))[:, None, None, :]
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A boolean mask (true: hidden) as additive scores."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
    return mask.to(like.dtype)
