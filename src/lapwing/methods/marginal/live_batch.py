"""A batch whose Jacobian can itself be differentiated: what training on the marginal likelihood asks of a network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.errors import UnsupportedError, reason_of
from lapwing.jacobian.layers.autodiff import Way, vectorised_rows
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.output import Output
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import by_position


def live(module: nn.Module, pull: float = 1.0, output: Output = None) -> Network:
    """A network that holds the module's own parameters, so that what is computed from it can be differentiated in them.

    Args:
        module: The module, as it is now: make the network again after every step.
        pull: Factor on the gradients that reach the parameters; values are unchanged.
        output: Which part of what the module returns is its output.

    Raises:
        ConfigError: If no parameter requires a gradient.
        DataError: If a weight is not finite.
        UnsupportedError: If one was made in inference mode.
    """
    check_trainable(module)
    names = Network.of(module, output).names
    own = dict(module.named_parameters())
    params = {name: own[name] for name in names}
    if pull != 1.0:
        params = {name: value.detach().lerp(value, pull) for name, value in params.items()}
    return Network(module, names, output=output, params=params)


def check_trainable(module: nn.Module) -> None:
    """Refuses a module whose weights autograd does not track, whatever is asked of them.

    Raises:
        UnsupportedError: If a weight was made in inference mode.
    """
    made = [name for name, value in module.named_parameters() if value.is_inference()]
    if made:
        raise UnsupportedError(
            "weights that can be trained",
            f"{', '.join(made[:3])}, made in torch.inference_mode()",
            "copy.deepcopy(model) outside of it",
        )


@final
@dataclass(frozen=True, eq=False)
class LiveBatch:
    """The factor ``Sᵀ J`` of the curvature of a batch, ``G = (Sᵀ J)ᵀ Sᵀ J``, differentiable in the weights.

    Both its parts move with the weights: the Jacobian J, and through the outputs the root S of the output Hessian.

    Args:
        network: A network made by ``live``.
        likelihood: The likelihood.
        inputs: The n examples of the batch.
        labels: Their targets, as the loader gives them.
        way: How the Jacobian's rows are made.

    Example:
        >>> from lapwing.likelihoods import Gaussian
        >>> model = nn.Linear(2, 1)
        >>> batch = LiveBatch(live(model), Gaussian(4.0), torch.ones(3, 2), torch.zeros(3, 1))
        >>> batch.rows().shape, batch.rows()[0].tolist()
        (torch.Size([3, 1, 3]), [[2.0, 2.0, 2.0]])
    """

    network: Network
    likelihood: Likelihood
    inputs: Inputs
    labels: Tensor
    way: Way = "at once"

    @cached_property
    def outputs(self) -> Float[Tensor, "n *event c"]:
        """Canonical outputs, checked together with the targets.

        Raises:
            DataError: If outputs or targets are not finite, or targets do not fit the likelihood.
            ShapeError: If outputs or targets do not fit the likelihood.
        """
        with torch.inference_mode(False), torch.enable_grad(), twice_differentiable():
            outputs = self.likelihood.canonical(self.network(self.inputs))
        targets = self.likelihood.canonical_targets(outputs.detach(), self.labels)
        self.likelihood.check(outputs.detach(), targets)
        return outputs

    @cached_property
    def targets(self) -> Tensor:
        """Canonical targets."""
        return self.likelihood.canonical_targets(self.outputs.detach(), self.labels)

    @cached_property
    def cotangents(self) -> Float[Tensor, "k n *event c"]:
        """The columns of S, one for each output of each event position of an example."""
        with torch.enable_grad():
            root = self.likelihood.root(self.outputs, self.targets)
            return torch.cat(list(by_position(root.movedim(-1, 0))))

    def rows(self, mixing: Float[Tensor, "s k n"] | None = None) -> Float[Tensor, "n s d"]:
        """``Sᵀ J`` example by example: all its k rows, or s random combinations of those of each example.

        Args:
            mixing: The combinations; ``None`` takes every row.

        Raises:
            UnsupportedError: If the network cannot be vectorised over examples.

        Cost:
            One vectorised pass with k or s cotangents an example; its graph is kept, ``n s d`` numbers and more.
        """
        cotangents = self.cotangents
        if mixing is not None:
            cotangents = torch.einsum("skn,kn...->sn...", mixing.to(cotangents), cotangents)
        directions = self.likelihood.returned(cotangents)
        with torch.inference_mode(False), torch.enable_grad(), twice_differentiable(live=True):
            try:
                blocks = vectorised_rows(self.network, self.network.params, self.inputs, directions, self.way)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError) as reason:
                raise UnsupportedError(
                    "a network that can be vectorised over examples, to differentiate its Jacobian",
                    reason_of(reason),
                    "log_det=StochasticLanczos(), which needs no rows, or log_det=None with updates=ByEvidence()",
                ) from reason
        return torch.cat(list(blocks.values()), dim=-1)

    def pull(self, mixing: Float[Tensor, "k n s"]) -> list[Float[Tensor, " d"]]:
        """``Jᵀ S z`` of the whole batch for each of s vectors z.

        Args:
            mixing: The vectors, ``[k, n]`` each.

        Cost:
            A backward pass a vector, whose graph is kept.
        """
        params = [self.network.params[name] for name in self.network.names]
        pulled: list[Tensor] = []
        for vector in mixing.to(self.cotangents).unbind(-1):
            cotangent = torch.einsum("kn,kn...->n...", vector, self.cotangents)
            grads = torch.autograd.grad(
                self.outputs, params, cotangent, create_graph=True, allow_unused=True, materialize_grads=True
            )
            pulled.append(self.network.layout.flatten(dict(zip(self.network.names, grads, strict=True))))
        return pulled
