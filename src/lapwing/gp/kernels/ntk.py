"""The neural tangent kernel of a network: Gaussian processes whose prior functions are its linearisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.curvature.tangent_kernel import TangentKernel
from lapwing.curvature.training_rows import InputRows
from lapwing.gp.kernels.base import FeatureMap, Kernel
from lapwing.gp.kernels.matrix import check_room
from lapwing.ground import probes
from lapwing.ground.data.inputs import chunks
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ShapeError
from lapwing.ground.precision import wide_like
from lapwing.jacobian.layers.base import jacobian_rows
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import like_of
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Gaussian
from lapwing.priors import Isotropic
from lapwing.structures.selection import All, Selection


@final
class FirstLook:
    """The tangent kernel of a network, surveyed on the first inputs it sees, once.

    Args:
        kernel: The kernel; ``None`` before that.
    """

    def __init__(self, kernel: TangentKernel | None = None) -> None:
        self.kernel = kernel


@final
@dataclass(frozen=True, eq=False)
class NTK(Kernel):
    """``k(x, x') = J(x) J(x')ᵀ`` of a network with one output, at its weights as they are (Antorán 2024, section 3.3).

    A process with this kernel has the variances that ``Laplace`` gives the network's outputs under a unit prior;
    ``(1/a) * NTK(model)`` those under the prior precision a. The mean is of the targets given, not of the network:
    fit ``y - model(x)`` and add ``model(x)`` for that of ``Laplace``. A network of several outputs has a kernel between
    these too, which no process here takes: take ``Laplace`` with ``Full(view="functions")``.

    Args:
        model: The network, from inputs ``[n, p]`` to ``[n, 1]``; used in eval mode and left exactly as it is.
        weights: Which weights it is linearised in.
        output: Which part of what it returns is its output: a key, an index or a function of it.

    Raises:
        ConfigError: If the model is no network, or no weight is left.
        ShapeError: If it has several outputs.

    Cost:
        A tile: a forward and a backward pass over its rows and its columns; J is never held where layers are known.
        Random features hold J of the rows they are asked for. Entries have no gradient in the inputs.

    Example:
        >>> x, model = torch.randn(5, 2), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> NTK(model)(x, x[:3]).shape
        torch.Size([5, 3])
    """

    model: nn.Module
    weights: Selection = field(default_factory=All)
    output: Output = None
    look: FirstLook = field(init=False, default_factory=FirstLook)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", unwrapped(self.model, "NTK(model)"))

    def __repr__(self) -> str:
        output = "" if self.output is None else f", output={self.output!r}"
        return f"NTK({type(self.model).__name__}, weights={self.weights}{output})"

    def __call__(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Float[Tensor, "n m"]:
        """See ``Kernel``; a constant in hyper-parameters and inputs."""
        with torch.enable_grad(), undisturbed():
            kernel = self._kernel(a)
            left = a.detach().to(kernel.model.network.like)
            right = b.detach().to(kernel.model.network.like)
            ones = torch.ones(kernel.model.network.size, **wide_like(right))
            found = kernel.cross(left, InputRows(right.new_ones(1, len(right), 1), right), ones)
        return found.detach().to(a)

    def without_derivative(self, drawn: bool) -> str:
        """See ``Kernel``."""
        return "NTK, whose entries have none"

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """See ``Kernel``."""
        with torch.enable_grad(), undisturbed():
            return torch.cat([rows.square().sum(1) for rows in self._rows(x)]).to(x)

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """The gradients themselves where they are no more than asked for, else projections on random directions."""
        size = self._kernel(x).model.network.size
        directions: Tensor | None = None
        if size > count:
            check_room("random directions in the weights", (size, count), x, "fewer features=")
            directions = probes.gaussian([size, count], like=x, generator=generator) / count**0.5

        def draw(inputs: Tensor) -> Tensor:
            with torch.enable_grad(), undisturbed():
                parts = [rows.detach().to(x) for rows in self._rows(inputs)]
            return torch.cat([part if directions is None else part @ directions for part in parts])

        return draw

    def _kernel(self, x: Tensor) -> TangentKernel:
        """The network, surveyed on the first inputs it sees; refused where it was written to since."""
        if self.look.kernel is None:
            likelihood = Gaussian()
            like = like_of(self.model)
            data = Data((x.detach(), x.new_zeros(len(x), 1)), like=torch.zeros(()) if like is None else like)
            with undisturbed():
                network = self.weights.choose(self.model, data, likelihood, Isotropic(), self.output)
                model = surveyed(network, likelihood, data)
            if model.width != 1:
                hint = "Laplace with Full(view='functions'), which has the kernel between outputs too"
                raise ShapeError("a network with one output", f"{model.width} outputs", hint)
            self.look.kernel = TangentKernel(model)
        self.look.kernel.model.network.check_unchanged()
        return self.look.kernel

    def _rows(self, x: Tensor) -> list[Float[Tensor, "m d"]]:
        """Gradients of the output in the weights, a chunk of inputs at a time."""
        kernel = self._kernel(x)
        network = kernel.model.network
        parts = chunks(x.detach().to(network.like), max(1, min(kernel.model.chunk(1), len(x))))
        return [jacobian_rows(network, kernel.rows(part)).flatten(0, 1).detach() for _, part in parts]
