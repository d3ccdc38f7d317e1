"""The plain network: the mode of the posterior, without its spread."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.evaluation.baselines.temperature import Temperature
from lapwing.ground.data import Data, Source, check_finite, place
from lapwing.ground.errors import UnsupportedError
from lapwing.ground.types import Inputs, Unpack
from lapwing.jacobian.network.network import call, serving, unwrapped
from lapwing.likelihoods import Categorical, Likelihood
from lapwing.predictive import Moments, Predictive, predictive


@final
@dataclass(frozen=True, eq=False)
class Map:
    """A trained network taken at its word, with the predictive types of a posterior and no variance.

    The module is evaluated in eval mode and left as it was found, its buffers too.

    Args:
        model: The network; it returns a tensor, a tuple that starts with one, or an object with ``.logits``.
        likelihood: What its outputs mean.
        temperature: Divides the outputs; see ``calibrated``.

    Raises:
        UnsupportedError: If there is a temperature and the likelihood is not Categorical.

    Example:
        >>> p = Map(nn.Linear(3, 2)).predict(torch.zeros(5, 3))
        >>> p.probs.shape, float(p.logits.variance.max())
        (torch.Size([5, 2]), 0.0)
    """

    model: nn.Module
    likelihood: Likelihood = field(default_factory=Categorical)
    temperature: Temperature | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None:
            self._check_classes()

    def predict(self, x: Inputs) -> Predictive:
        """The predictive distribution of a batch.

        Args:
            x: Inputs of the network: a tensor, a mapping of keyword arguments, or a tuple of positional ones.

        Returns:
            ``Classification``, ``MultiLabel``, ``Regression`` or ``Counts``, as the likelihood has it.

        Raises:
            ShapeError: If the outputs have another rank than the likelihood expects.
            DataError: If an output is not finite.
        """
        return predictive(self.likelihood, Moments.certain(self.outputs(x)), "probit")

    def outputs(self, x: Inputs) -> Float[Tensor, "n *event c"]:
        """Outputs of the network, divided by the temperature, class axis last.

        Args:
            x: As in ``predict``.

        Raises:
            ShapeError: If they have another rank than the likelihood expects.
            DataError: If one is not finite.
        """
        like = next(self.model.parameters(), None)
        inputs = x if like is None else place(x, like)
        module = unwrapped(self.model)
        with torch.no_grad(), serving(module):
            buffers = {name: value.clone() for name, value in module.named_buffers()}
            raw = call(module, buffers, inputs)
        check_finite(raw, "outputs", "checking the inputs and the weights of the network")
        outputs = self.likelihood.canonical(raw)
        return outputs if self.temperature is None else outputs / self.temperature.temperature

    def calibrated(self, held_out: Source, *, unpack: Unpack | None = None, progress: bool = False) -> Map:
        """This network with the temperature that suits data best that it was not trained on.

        Args:
            held_out: Loader of ``(x, y)`` or mappings with ``labels``, or a pair of tensors.
            unpack: Splits what the loader yields into inputs and targets.
            progress: Whether to show a progress bar.

        Raises:
            UnsupportedError: If the likelihood is not Categorical.
            DataError: If there is no data, or no temperature is best; see ``Temperature.fit``.

        Warns:
            ConvergenceWarning: If all held-out examples are classified rightly.

        Cost:
            One pass over the data; their logits are kept.

        Example:
            >>> x, y = torch.tensor([[9.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
            >>> Map(nn.Identity()).calibrated((x, y)).predict(x[:1]).probs
            tensor([[0.7500, 0.2500]])
        """
        self._check_classes()
        plain = replace(self, temperature=None)
        like = next(self.model.parameters(), torch.zeros(()))
        data = Data(held_out, like, unpack, progress)
        pairs = [(plain.outputs(batch.inputs), batch.targets) for batch in data]
        logits, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return replace(self, temperature=Temperature.fit(logits, targets))

    def _check_classes(self) -> None:
        if not isinstance(self.likelihood, Categorical):
            raise UnsupportedError(
                "the Categorical likelihood for a temperature",
                f"{type(self.likelihood).__name__}",
                "Map without a temperature",
            )
