"""KFAC by explicit loops over examples, event positions, root columns and the positions of each layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lapwing.ground.data.inputs import take
from lapwing.jacobian.layers.convolution import ConvolutionGeometry
from tests.cases import Case
from tests.curvature.naive import call, patches
from tests.modules import RowsOfInputs


@dataclass
class Factors:
    """Both second moments of one module, in p groups, and over how many inputs the second runs."""

    gradients: Tensor
    inputs: Tensor
    count: int = 0
    seen: list[tuple[Tensor, GradientEdge]] = field(default_factory=list)

    def block(self, bias: Literal["joint", "weight", "bias"]) -> Tensor:
        """``G ⊗ A`` of all groups, row-major in [p, o, i]."""
        inputs = self.inputs / self.count
        last = {"joint": slice(None), "weight": slice(None, -1), "bias": slice(-1, None)}[bias]
        return torch.block_diag(*(torch.kron(g, a[last, last]) for g, a in zip(self.gradients, inputs, strict=True)))


def inputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """``[p, i + 1, t]``: what the weight multiplies at each position of one example, and a one for the bias."""
    if isinstance(module, nn.Embedding):
        a = torch.nn.functional.one_hot(x.flatten(), module.num_embeddings).double().mT.unsqueeze(0)
    elif isinstance(module, nn.Linear | RowsOfInputs):
        a = x.reshape(-1, x.shape[-1]).mT.unsqueeze(0)
    elif isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        a = transposed_patches(x, module)
    else:
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if module.padding == "same":
            totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
            sides = tuple((total // 2, total - total // 2) for total in totals)
        elif isinstance(module.padding, str):
            sides = ((0, 0),) * len(module.kernel_size)
        else:
            sides = tuple((pad, pad) for pad in module.padding)
        a = patches(x, ConvolutionGeometry(module.kernel_size, module.stride, sides, module.dilation, module.groups))[0]
    return torch.cat([a, torch.ones_like(a[:, :1])], dim=1)


Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def transposed_patches(x: Tensor, module: Transposed) -> Tensor:
    """``[p, i, t]``: at output τ the pixels x[t] with s t + d k - q = τ, for the taps k from the last to the first."""
    with torch.no_grad():
        sizes = module.forward(x).shape[2:]  # past the hooks
    groups = x[0].unflatten(0, (module.groups, -1))
    taps = list(product(*(reversed(range(k)) for k in module.kernel_size)))
    places = list(product(*(range(size) for size in sizes)))
    found = torch.zeros(*groups.shape[:2], len(taps), len(places), dtype=x.dtype)
    for i, tap in enumerate(taps):
        for j, place in enumerate(places):
            options = zip(place, tap, module.dilation, module.padding, module.stride, strict=True)
            steps = [(tau + q - d * k, s) for tau, k, d, q, s in options]
            pixel = [step // s for step, s in steps]
            inside = all(0 <= t < size for t, size in zip(pixel, x.shape[2:], strict=True))
            if inside and all(step % s == 0 for step, s in steps):
                found[:, :, i, j] = groups[(slice(None), slice(None), *pixel)]
    return found.flatten(1, 2)


def gradients_of(module: nn.Module, g: Tensor) -> Tensor:
    """``[p, o, t]``: gradients at each position of one example."""
    if isinstance(module, nn.Linear | RowsOfInputs | nn.Embedding):
        return g.reshape(-1, g.shape[-1]).mT.unsqueeze(0)
    return g[0].flatten(1).unflatten(0, (module.groups, -1))


def kfac(case: Case, batches: list[tuple[object, Tensor]], sharing: Literal["expand", "reduce"]) -> dict[str, Factors]:
    """The factors of every linear, convolution and embedding module, by its name."""
    modules = {
        name: module
        for name, module in case.model.named_modules()
        if isinstance(module, nn.Linear | RowsOfInputs | nn.Conv1d | nn.Conv2d | nn.Conv3d | Transposed | nn.Embedding)
    }
    found = {name: Factors(torch.zeros(()), torch.zeros(())) for name in modules}
    handles = [
        module.register_forward_hook(
            lambda _, given, output, name=name: found[name].seen.append((given[0].detach(), get_gradient_edge(output)))
        )
        for name, module in modules.items()
    ]
    for inputs, targets in batches:
        for example in range(len(targets)):
            for factors in found.values():
                factors.seen.clear()
            one = slice(example, example + 1)
            add_example(case, modules, found, take(inputs, one), targets[one], sharing)  # type: ignore[arg-type]
    for handle in handles:
        handle.remove()
    return {name: factors for name, factors in found.items() if factors.count}


def add_example(
    case: Case,
    modules: dict[str, nn.Module],
    found: dict[str, Factors],
    inputs: object,
    targets: Tensor,
    sharing: Literal["expand", "reduce"],
) -> None:
    outputs = case.likelihood.canonical(call(case.model, inputs))  # type: ignore[arg-type]
    c = outputs.shape[-1]
    roots = case.likelihood.root(outputs.detach(), targets).reshape(-1, c, c)
    for name, module in modules.items():
        factors = found[name]
        if not factors.seen:
            continue
        columns = [inputs_of(module, x) for x, _ in factors.seen]
        kept = [position_mask(module, x) for x, _ in factors.seen]
        a = torch.cat([part[..., keep] for part, keep in zip(columns, kept, strict=True)], dim=-1)
        factors.count += 1 if sharing == "reduce" and not isinstance(module, nn.Embedding) else a.shape[-1]
        for event, f in enumerate(outputs.reshape(-1, c)):
            for column in roots[event].mT:
                grads = torch.autograd.grad(f @ column, [edge for _, edge in factors.seen], retain_graph=True)
                parts = [gradients_of(module, g)[..., keep] for g, keep in zip(grads, kept, strict=True)]
                g = torch.cat(parts, dim=-1)
                if sharing == "reduce" and not isinstance(module, nn.Embedding):
                    g = g.sum(-1, keepdim=True)
                for position in range(g.shape[-1]):
                    step = g[..., position]
                    factors.gradients = factors.gradients + step[:, :, None] * step[:, None, :]
        if sharing == "reduce" and not isinstance(module, nn.Embedding):
            a = a.mean(-1, keepdim=True)
        for position in range(a.shape[-1]):
            step = a[..., position]
            factors.inputs = factors.inputs + step[:, :, None] * step[:, None, :]


def position_mask(module: nn.Module, x: Tensor) -> Tensor:
    """Which positions count: for embeddings those that do not look up padding."""
    if isinstance(module, nn.Embedding):
        return x.flatten() != (-1 if module.padding_idx is None else module.padding_idx)
    return torch.ones(inputs_of(module, x).shape[-1], dtype=torch.bool)
