"""What predicts by the average over several forward passes, through one network or through several."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Inputs, InputsLike, checked
from lapwing.ground.layout import Layout, Params
from lapwing.ground.progress import track, working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import like_of
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.serving import call, serving
from lapwing.likelihoods import Categorical, Likelihood
from lapwing.predictive import Draws, Predictive


@dataclass(frozen=True, eq=False, repr=False)
class AveragedNetworks(abc.ABC):
    """The mixture of what several forward passes predict, all with the same weight.

        p(y | x) = 1/S Σ_s p(y | f_s(x))

    Of classes the probabilities are averaged, of real targets the mixture is matched by its mean and variance.

    Args:
        likelihood: What the outputs mean.
        output: Which part of what a network returns is its output: a key, an index or a function of it.
    """

    likelihood: Likelihood = field(default_factory=Categorical, kw_only=True)
    output: Output = field(default=None, kw_only=True)

    @final
    def predict(self, x: InputsLike) -> Predictive:
        """The predictive distribution of a batch, the same at every call.

        Args:
            x: Inputs of the network: a tensor, a mapping of keyword arguments, or a tuple of positional ones.

        Returns:
            ``Classification``, ``MultiLabel``, ``Regression`` or ``Counts``, as the likelihood has it; ``epistemic`` is
            by the disagreement of the passes.

        Raises:
            ShapeError: If the outputs have another rank than the likelihood expects.
            DataError: If there are no inputs, or an input or output is not finite.
        """
        return self.likelihood.predictive(self.outputs(x))

    @final
    @undisturbed()
    @working("predict")
    @torch.no_grad()
    def outputs(self, x: InputsLike) -> Draws:
        """Outputs of every pass ``[s, n, *event, c]``, class axis last; see ``predict``."""
        raw = torch.stack(self.passes(x))
        check_finite(raw, "outputs", "checking the inputs and the weights of the network")
        return Draws(torch.stack([self.likelihood.canonical(each) for each in raw]), complete=self.complete)

    @property
    def complete(self) -> bool:
        """Whether the passes are all there are, and no draws of more."""
        return False

    @abc.abstractmethod
    def passes(self, x: InputsLike) -> list[Tensor]:
        """What the network returns in every pass."""


@dataclass(frozen=True, eq=False, repr=False)
class DrawnWeights(AveragedNetworks, abc.ABC):
    """A network with drawn weights, the draws kept.

    Args:
        module: A copy of the network, whose other tensors it has.
        layout: The parameters that are drawn.
        draws: Their values, a draw a row.
        buffers: Those buffers that each draw has for itself, such as statistics of batches, a draw along the first
            axis.
    """

    module: nn.Module
    layout: Layout
    draws: Tensor
    buffers: Params

    @final
    def passes(self, x: InputsLike) -> list[Tensor]:
        """See ``AveragedNetworks.passes``."""
        inputs = placed(x, self.module)
        with serving(self.module):
            return [
                called(self.module, self.tensors(draw), inputs, self.output)
                for draw in track(range(len(self.draws)), "draws", unit="passes")
            ]

    @final
    def tensors(self, draw: int) -> Params:
        """The parameters and buffers of a draw."""
        own = {name: values[draw] for name, values in self.buffers.items()}
        return self.layout.unflatten(self.draws[draw]) | own

    def __repr__(self) -> str:
        """How many networks of how many weights."""
        return f"{type(self).__name__}({len(self.draws)} draws of {self.layout.size:,} weights)"


def placed(x: InputsLike, module: nn.Module) -> Inputs:
    """Inputs as tensors where the network is, checked to be some and finite."""
    like = like_of(module)
    return checked(x, torch.zeros(()) if like is None else like)


def called(module: nn.Module, tensors: Params, inputs: Inputs, output: Output) -> Tensor:
    """The output of a module that is being served, with these tensors in place of its own; no buffer is written to."""
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    return call(module, buffers | tensors, inputs, output=output)
