"""The forward pass of a chunk of examples, pulled back to the factors of every layer: one backward pass a cotangent.

The Jacobian itself is never built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, count, ordinary
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.layout import Params
from lapwing.ground.progress import track
from lapwing.ground.tracing import traced
from lapwing.jacobian.layers.autodiff import autodiff_rows
from lapwing.jacobian.layers.base import Call, Explicit, Factor, Layer
from lapwing.jacobian.layers.capture import Survey, captured, kind_of, leaves
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood

Workspace: TypeAlias = dict[int, Tensor]
"""Where the gradients of each use of a layer are written, in place of those of an earlier chunk."""


@final
@dataclass(frozen=True, eq=False)
class Pass:
    """The forward pass of a chunk of examples, ready to be pulled back; made by ``Pass.of``.

    Args:
        network: The network.
        survey: What is known of its layers.
        inputs: A chunk of n examples.
        likelihood: Says where the outputs' axes are; ``None`` takes them as the network returns them.
        params: The parameters it went through, which autograd tracks.
        returned: What the network returned, with its graph.
        calls: The uses of uncertain layers, in order.
    """

    network: Network
    survey: Survey
    inputs: Inputs
    likelihood: Likelihood | None
    params: Params
    returned: Tensor
    calls: list[Call]

    @classmethod
    def of(
        cls,
        network: Network,
        survey: Survey,
        inputs: Inputs,
        likelihood: Likelihood | None = None,
        *,
        live: bool = False,
    ) -> Pass:
        """The pass itself, layers watched.

        Args:
            network: The network.
            survey: What is known of its layers.
            inputs: A chunk of n examples.
            likelihood: Says where the outputs' axes are.
            live: Whether the inputs of layers keep their graph to those of the network.
        """
        params = leaves(network)
        returned, calls = captured(network, inputs, params, live=live)
        return cls(network, survey, inputs, likelihood, params, returned, calls)

    def with_survey(self, survey: Survey, likelihood: Likelihood | None = None) -> Pass:
        """The same pass of a network of which more is known; nothing is computed again."""
        return replace(self, survey=survey, likelihood=likelihood)

    @property
    def outputs(self) -> Tensor:
        """Canonical outputs, ``[n, *event, c]``."""
        outputs = self.returned.detach()
        return outputs if self.likelihood is None else self.likelihood.canonical(outputs)

    @cached_property
    def head(self) -> OuterProducts:
        """The layer that makes the outputs, by its inputs alone: ``J = I ⊗ aᵀ`` at each position. Its g is not one."""
        (layer,) = self.survey.layers
        (call,) = [call for call in self.calls if layer.owns(call)]
        nothing = self.returned.new_zeros(()).expand(call.shape[0], 1, *call.shape[1:])
        return cast(OuterProducts, kind_of(layer).of(layer, [call], [nothing], count(self.inputs)))

    def factors(self, cotangents: Float[Tensor, "k n ..."], workspace: Workspace | None = None) -> Iterator[Factor]:
        """The factors of every uncertain parameter, layer by layer.

        Args:
            cotangents: Directions to pull back, each of the shape of the canonical outputs.
            workspace: Memory of earlier factors that are not needed any more: what went back to the system costs as
                much to get again as to fill.

        Yields:
            One factor a layer, then one for each parameter without layer factors.

        Raises:
            UnsupportedError: If a layer has no part in the outputs of this chunk; if examples go through it unevenly or
                in another order.

        Cost:
            k backward passes through the activations; one more where the network takes rows by number.
        """
        yield from self.layer_factors(cotangents, workspace)
        survey = self.survey
        if survey.without_factors:
            directions = self._of_returned(cotangents)
            found = autodiff_rows(self.network, survey.without_factors, self.inputs, directions, survey.way)
            for name, rows in found.items():
                yield Explicit(name, None, rows)

    def layer_factors(
        self, cotangents: Float[Tensor, "k n ..."], workspace: Workspace | None = None
    ) -> Iterator[Factor]:
        """The factors of the layers alone; without workspace, what one is made from is not held until the next."""
        uses = [(layer, call) for layer in self.survey.layers for call in self.calls if layer.owns(call)]
        n = count(self.inputs)
        for layer, call in uses:
            if call.shape[layer.axis] % n:
                raise _apart(layer, f"one of {n} that sends {call.shape[layer.axis]} rows through it")
        gradients = self._gradients(uses, cotangents, workspace)
        scales = 1 + torch.arange(n).to(cotangents) / n
        checked = self.survey.reorders and n > 1
        mixture = 1 + torch.arange(len(cotangents)).to(cotangents) / len(cotangents)
        scaled = scales.view(-1, *[1] * (cotangents.ndim - 2)) * torch.tensordot(mixture, cotangents, 1)
        scaled_gradients = self._gradients(uses, scaled[None], None) if checked else []
        for layer in self.survey.layers:
            own = [call for owner, call in uses if owner is layer]
            if not own:
                raise UnsupportedError(
                    f"a network that uses {', '.join(layer.names)} in every batch",
                    "a batch that went another way",
                    "weights=Names(...) or requires_grad_(False) to leave that layer out",
                )
            factor = kind_of(layer).of(layer, own, [gradients.pop(0) for _ in own], n)
            if checked:
                scaled_factor = kind_of(layer).of(layer, own, [scaled_gradients.pop(0) for _ in own], n)
                check_order(layer, factor, scaled_factor, mixture, scales)
            yield factor

    def gradient(self, cotangent: Float[Tensor, "n ..."]) -> Float[Tensor, " d"]:
        """``sum_n J_nᵀ u_n`` in the uncertain weights: one backward pass."""
        (direction,) = self._of_returned(cotangent[None])
        grads = torch.autograd.grad(
            along(self.returned, direction),
            list(self.params.values()),
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return self.network.joined(((name,), grad.flatten()) for name, grad in zip(self.params, grads, strict=True))

    def _of_returned(self, cotangents: Tensor) -> Tensor:
        """Cotangents of the canonical outputs, as those of what the network returned."""
        return cotangents if self.likelihood is None else self.likelihood.returned(cotangents)

    def _gradients(
        self, uses: list[tuple[Layer, Call]], cotangents: Float[Tensor, "k n ..."], workspace: Workspace | None
    ) -> list[Tensor]:
        """What is kept of the gradients at the output of each use of a layer, the k cotangents on the second axis."""
        if not uses:
            return []
        n = count(self.inputs)
        edges = [call.edge for _, call in uses]
        stacked: list[Tensor] = []
        for k, cotangent in enumerate(track(self._of_returned(cotangents), "backward passes", unit="outputs")):
            pulled = torch.autograd.grad(along(self.returned, cotangent), edges, retain_graph=True, allow_unused=True)
            for number, ((layer, call), g) in enumerate(zip(uses, pulled, strict=True)):
                gradient = self.returned.new_zeros(call.shape) if g is None else g
                part = kind_of(layer).kept(layer, call, gradient, n)
                if len(cotangents) == 1:
                    stacked.append(part.unsqueeze(1))
                    continue
                if traced():
                    before = stacked.pop(number) if k else part.unsqueeze(1)[:, :0]
                    stacked.insert(number, torch.cat([before, part.unsqueeze(1)], 1))
                    continue
                if k == 0:
                    memory = part.new_empty(0)
                    if workspace is not None:
                        memory = workspace.setdefault(number, memory)
                    stacked.append(memory.resize_(part.shape[0], len(cotangents), *part.shape[1:]))
                stacked[number][:, k] = part
        return stacked


def check_order(
    layer: Layer, factor: Factor, scaled: Factor, mixture: Float[Tensor, " k"], scales: Float[Tensor, " n"]
) -> None:
    """The gradient of an example grows as its cotangent does: it stands in the place of that example, and no other.

    Args:
        layer: The layer.
        factor: Its factor.
        scaled: The same for a mixture of the cotangents, that of each example multiplied by its scale.
        mixture: The share of each cotangent: one alone may not reach the layer.
        scales: They differ from example to example.

    Raises:
        UnsupportedError: If examples are in another order where the layer is used.
    """
    plain = torch.tensordot(mixture, factor.g.transpose(0, 1), 1)
    expected = scales.view(-1, *[1] * (plain.ndim - 1)) * plain
    if not bool((scaled.g[:, 0] - expected).norm() <= 1e-3 * expected.norm()):
        raise _apart(layer, "one that puts them in another order there")


def _apart(layer: Layer, came: str) -> UnsupportedError:
    """What is said of a batch whose examples are not one after the other in a layer."""
    return UnsupportedError(
        f"a batch whose examples are one after the other in {', '.join(layer.names)}",
        came,
        "batches of one example, which have no order, or weights=Names(...) to leave that layer out",
    )


def along(outputs: Tensor, cotangent: Tensor) -> Float[Tensor, ""]:
    """``⟨u, f⟩``, whose gradient is ``Jᵀ u``: autograd given u itself first imports sympy, which takes a second."""
    with torch.inference_mode(False), torch.enable_grad():
        return (outputs * ordinary(cotangent).to(outputs)).sum()
