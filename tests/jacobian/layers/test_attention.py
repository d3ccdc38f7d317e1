"""Attention spelled out gives what PyTorch's own gives, for everything its caller can ask for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lapwing.jacobian.layers.attention import attend

N, T, S, E, HEADS = 2, 3, 4, 6, 2


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def arguments(**changes: Any) -> dict[str, Any]:
    """Self-attention with biases in eval mode."""
    x = normal(T, N, E)
    plain = {
        "query": x,
        "key": x,
        "value": x,
        "embed_dim_to_check": E,
        "num_heads": HEADS,
        "in_proj_weight": normal(3 * E, E),
        "in_proj_bias": normal(3 * E),
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.5,
        "out_proj_weight": normal(E, E),
        "out_proj_bias": normal(E),
        "training": False,
    }
    return {**plain, **changes}


def cross(**changes: Any) -> dict[str, Any]:
    return arguments(query=normal(T, N, E), key=normal(S, N, E), value=normal(S, N, E), **changes)


def hidden() -> Tensor:
    mask = torch.zeros(N, S, dtype=torch.bool)
    mask[1, 2:] = True
    return mask


CALLS: dict[str, Any] = {
    "self": lambda: arguments(),
    "no-biases": lambda: arguments(in_proj_bias=None, out_proj_bias=None),
    "without-weights": lambda: arguments(need_weights=False),
    "weights-of-each-head": lambda: cross(average_attn_weights=False),
    "keys-are-values": lambda: (lambda kv: arguments(key=kv, value=kv))(normal(S, N, E)),
    "cross": lambda: cross(),
    "cross-without-biases": lambda: cross(in_proj_bias=None),
    "separate-projections": lambda: arguments(
        key=normal(S, N, 5),
        value=normal(S, N, 2),
        in_proj_weight=None,
        use_separate_proj_weight=True,
        q_proj_weight=normal(E, E),
        k_proj_weight=normal(E, 5),
        v_proj_weight=normal(E, 2),
    ),
    "separate-without-biases": lambda: arguments(
        in_proj_weight=None,
        in_proj_bias=None,
        use_separate_proj_weight=True,
        q_proj_weight=normal(E, E),
        k_proj_weight=normal(E, E),
        v_proj_weight=normal(E, E),
    ),
    "extra-positions": lambda: cross(bias_k=normal(1, 1, E), bias_v=normal(1, 1, E), add_zero_attn=True),
    "boolean-mask": lambda: cross(attn_mask=torch.ones(T, S, dtype=torch.bool).triu(1)),
    "additive-mask": lambda: cross(attn_mask=normal(T, S)),
    "mask-of-each-head": lambda: cross(attn_mask=normal(N * HEADS, T, S), add_zero_attn=True),
    "causal": lambda: arguments(
        attn_mask=torch.ones(T, T, dtype=torch.bool).triu(1), is_causal=True, need_weights=False
    ),
    "padding": lambda: cross(key_padding_mask=hidden()),
    "additive-padding": lambda: cross(key_padding_mask=normal(N, S)),
    "both-masks-and-extra-positions": lambda: cross(
        key_padding_mask=hidden(),
        attn_mask=torch.ones(T, S, dtype=torch.bool).triu(2),
        bias_k=normal(1, 1, E),
        bias_v=normal(1, 1, E),
        add_zero_attn=True,
    ),
    "unbatched": lambda: arguments(query=normal(T, E), key=normal(S, E), value=normal(S, E)),
    "unbatched-masks": lambda: arguments(
        query=normal(T, E),
        key=normal(S, E),
        value=normal(S, E),
        attn_mask=normal(HEADS, T, S),
        key_padding_mask=normal(S),
        average_attn_weights=False,
    ),
    "static-keys-and-values": lambda: arguments(
        static_k=normal(N * HEADS, S, E // HEADS), static_v=normal(N * HEADS, S, E // HEADS)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_as_multi_head_attention_forward(name: str) -> None:
    given = CALLS[name]()
    output, weights = attend(**given)
    expected_output, expected_weights = F.multi_head_attention_forward(**given)
    torch.testing.assert_close(output, expected_output, rtol=1e-12, atol=1e-12)
    if expected_weights is None:
        assert weights is None
    else:
        assert weights is not None
        torch.testing.assert_close(weights, expected_weights, rtol=1e-12, atol=1e-12)


def test_dropout_and_training_have_no_effect() -> None:
    given = arguments()
    torch.testing.assert_close(attend(**{**given, "training": True})[0], attend(**given)[0])
