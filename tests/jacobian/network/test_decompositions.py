"""Embedding bags spelled out, against PyTorch's own, and posteriors of networks that begin with one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapwing as lw
from lapwing.jacobian.network.decompositions import (
    DECOMPOSITIONS,
    FOR_ANY_NUMBER,
    attend,
    bag,
    twice_differentiable,
)
from tests.posterior_cases import labels, normal, seeded

TABLE, TOKENS = normal(7, 3), torch.tensor([[0, 6, 6, 2], [5, 1, 3, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sum"},
        {"mode": "mean"},
        {"mode": "max"},
        {"mode": "sum", "per_sample_weights": normal(3, 4, seed=2)},
        *({"mode": mode, "padding_idx": index} for mode in ("sum", "mean", "max") for index in (1, -6)),
        *({"mode": mode, "offsets": torch.tensor([0, 3, 3])} for mode in ("sum", "mean", "max")),
        {"mode": "mean", "offsets": torch.tensor([0, 2, 9, 12]), "include_last_offset": True},
        {"mode": "sum", "offsets": torch.tensor([0, 5]), "per_sample_weights": normal(12, seed=2)},
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_the_kernel(options: dict[str, Any]) -> None:
    tokens = TOKENS.flatten() if "offsets" in options else TOKENS
    found = []
    for function in (bag, F.embedding_bag):
        table = TABLE.clone().requires_grad_()
        values = function(tokens, table, **options)
        found.append((values, *torch.autograd.grad(values, table, normal(*values.shape, seed=3))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


class Averaged(nn.Module):
    """An embedding bag of ordinary operations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1).tanh())


class Bagged(Averaged):
    """The same by the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).tanh())


def test_posteriors_are_those_of_the_lookups_and_their_mean() -> None:
    tokens, y = labels(6, 4, classes=5), labels(6, classes=2)
    models = [seeded(Averaged), seeded(Bagged)]
    models[1].load_state_dict(models[0].state_dict())
    found = []
    for model in models:
        recipes: list[Any] = [lw.LowRank(5), lw.MatrixFree(), lw.Sampled(4, seed=1), lw.KFAC()]
        fits = [lw.Laplace(lw.Categorical(), structure=structure).fit(model, (tokens, y)) for structure in recipes]
        hessian = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights"), curvature=lw.Hessian(damping=9.0))
        fits.append(hessian.fit(model, (tokens, y)))
        found.append([fit.predict(tokens, "probit").probs for fit in fits])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


N, T, S, E, HEADS = 2, 3, 4, 6, 2


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def arguments(**changes: Any) -> dict[str, Any]:
    """Self-attention with biases in eval mode."""
    x = drawn(T, N, E)
    plain = {
        "query": x,
        "key": x,
        "value": x,
        "embed_dim_to_check": E,
        "num_heads": HEADS,
        "in_proj_weight": drawn(3 * E, E),
        "in_proj_bias": drawn(3 * E),
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.5,
        "out_proj_weight": drawn(E, E),
        "out_proj_bias": drawn(E),
        "training": False,
    }
    return {**plain, **changes}


def cross(**changes: Any) -> dict[str, Any]:
    return arguments(query=drawn(T, N, E), key=drawn(S, N, E), value=drawn(S, N, E), **changes)


def hidden() -> Tensor:
    mask = torch.zeros(N, S, dtype=torch.bool)
    mask[1, 2:] = True
    return mask


CALLS: dict[str, Any] = {
    "self": lambda: arguments(),
    "no-biases": lambda: arguments(in_proj_bias=None, out_proj_bias=None),
    "without-weights": lambda: arguments(need_weights=False),
    "weights-of-each-head": lambda: cross(average_attn_weights=False),
    "keys-are-values": lambda: (lambda kv: arguments(key=kv, value=kv))(drawn(S, N, E)),
    "cross": lambda: cross(),
    "cross-without-biases": lambda: cross(in_proj_bias=None),
    "separate-projections": lambda: arguments(
        key=drawn(S, N, 5),
        value=drawn(S, N, 2),
        in_proj_weight=None,
        use_separate_proj_weight=True,
        q_proj_weight=drawn(E, E),
        k_proj_weight=drawn(E, 5),
        v_proj_weight=drawn(E, 2),
    ),
    "separate-without-biases": lambda: arguments(
        in_proj_weight=None,
        in_proj_bias=None,
        use_separate_proj_weight=True,
        q_proj_weight=drawn(E, E),
        k_proj_weight=drawn(E, E),
        v_proj_weight=drawn(E, E),
    ),
    "extra-positions": lambda: cross(bias_k=drawn(1, 1, E), bias_v=drawn(1, 1, E), add_zero_attn=True),
    "boolean-mask": lambda: cross(attn_mask=torch.ones(T, S, dtype=torch.bool).triu(1)),
    "additive-mask": lambda: cross(attn_mask=drawn(T, S)),
    "mask-of-each-head": lambda: cross(attn_mask=drawn(N * HEADS, T, S), add_zero_attn=True),
    "causal": lambda: arguments(
        attn_mask=torch.ones(T, T, dtype=torch.bool).triu(1), is_causal=True, need_weights=False
    ),
    "padding": lambda: cross(key_padding_mask=hidden()),
    "additive-padding": lambda: cross(key_padding_mask=drawn(N, S)),
    "both-masks-and-extra-positions": lambda: cross(
        key_padding_mask=hidden(),
        attn_mask=torch.ones(T, S, dtype=torch.bool).triu(2),
        bias_k=drawn(1, 1, E),
        bias_v=drawn(1, 1, E),
        add_zero_attn=True,
    ),
    "unbatched": lambda: arguments(query=drawn(T, E), key=drawn(S, E), value=drawn(S, E)),
    "unbatched-masks": lambda: arguments(
        query=drawn(T, E),
        key=drawn(S, E),
        value=drawn(S, E),
        attn_mask=drawn(HEADS, T, S),
        key_padding_mask=drawn(S),
        average_attn_weights=False,
    ),
    "static-keys-and-values": lambda: arguments(
        static_k=drawn(N * HEADS, S, E // HEADS), static_v=drawn(N * HEADS, S, E // HEADS)
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


def test_encoder_layers_leave_their_fused_path_where_it_has_no_derivative() -> None:
    layer, x = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True).eval(), torch.randn(3, 2, 4)
    before = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        with twice_differentiable():
            assert not torch.backends.mha.get_fastpath_enabled()
            moved = torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1]
        assert moved.shape == x.shape
    assert torch.backends.mha.get_fastpath_enabled() == before


IMAGES = normal(3, 4, 5, 2, seed=4)
SCALES, SHIFTS = normal(4, seed=5), normal(4, seed=6)
FOR_ANY: list[tuple[Any, tuple[Tensor, ...], dict[str, Any]]] = [
    (F.layer_norm, (IMAGES,), {"normalized_shape": (5, 2), "weight": normal(5, 2, seed=7)}),
    (F.layer_norm, (IMAGES,), {"normalized_shape": (2,), "bias": normal(2, seed=7), "eps": 0.3}),
    (F.group_norm, (IMAGES,), {"num_groups": 2, "weight": SCALES, "bias": SHIFTS}),
    (F.batch_norm, (IMAGES, SHIFTS, SCALES.abs()), {"weight": SCALES, "bias": SHIFTS, "eps": 0.1}),
    (F.batch_norm, (IMAGES.flatten(2)[..., 0], SHIFTS, SCALES.abs()), {}),
    (F.instance_norm, (IMAGES,), {"weight": SCALES, "bias": SHIFTS}),
    (F.instance_norm, (IMAGES, SHIFTS, SCALES.abs()), {"use_input_stats": False, "weight": SCALES, "eps": 0.1}),
    (F.embedding, (TOKENS, TABLE), {}),
    (F.embedding, (TOKENS, TABLE), {"padding_idx": -6}),
]


@pytest.mark.parametrize(("function", "args", "options"), FOR_ANY)
def test_norms_and_embeddings_have_the_values_and_gradients_of_theirs(
    function: Any, args: tuple[Tensor, ...], options: dict[str, Any]
) -> None:
    found = []
    for own in ((DECOMPOSITIONS | FOR_ANY_NUMBER)[function], function):
        learnt = args if function is F.embedding else args[:1]  # the statistics of norms have no gradient
        live = [value.clone().requires_grad_(value.is_floating_point()) for value in learnt]
        values = own(*live, *args[len(live) :], **options)
        asked = [value for value in live if value.requires_grad]
        cotangent = normal(*values.shape, seed=3)
        found.append((values, *torch.autograd.grad(values, asked, cotangent, materialize_grads=True)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
