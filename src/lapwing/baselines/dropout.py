"""Monte Carlo dropout: the network's own dropout layers, left on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from lapwing.baselines.averaged import AveragedNetworks, called, placed
from lapwing.baselines.global_state import seeded, without_fast_path
from lapwing.evaluation.task import Task
from lapwing.ground import probes
from lapwing.ground.data.inputs import InputsLike
from lapwing.ground.errors import UnsupportedError, check_count
from lapwing.ground.progress import track
from lapwing.jacobian.network.serving import serving
from lapwing.jacobian.network.unwrapping import unwrapped

LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Layers that do nothing else."""


@final
@dataclass(frozen=True)
class MonteCarloDropout:
    """The average over passes in which the network's dropout layers drop, as in training.

        p(y | x) = 1/S Σ_s p(y | f(x; θ ∘ m_s)),   m_s a drawn mask

    All else, batch normalisation too, is in eval mode. A network is as unsure as its rates of dropout make it: nothing
    is chosen by data.

    Args:
        samples: Passes S.

    Raises:
        ConfigError: If there are none.

    Cost:
        Nothing to fit; S forward passes to predict.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
        >>> x, y = torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> MonteCarloDropout(samples=16).fit(Task(model, (x, y))).predict(x).probs.shape
        torch.Size([20, 2])

    Source: Y. Gal and Z. Ghahramani, Dropout as a Bayesian Approximation, 2016, equation 6.
    """

    samples: int = 32

    def __post_init__(self) -> None:
        check_count("samples", self.samples, usual=32)

    def fit(self, task: Task) -> DropoutNetwork:
        """The network of a task with its dropout left on.

        Args:
            task: The network; its data are not looked at.

        Raises:
            UnsupportedError: If the network has no layer that drops.
        """
        seed = probes.seed_from(task.generator)
        return DropoutNetwork(task.model, self.samples, seed, likelihood=task.likelihood, output=task.output)


@final
@dataclass(frozen=True, eq=False, repr=False)
class DropoutNetwork(AveragedNetworks):
    """A network whose dropout is left on; see ``MonteCarloDropout``.

    Args:
        model: The network; left as it was found.
        samples: Passes.
        seed: Of the masks, which are the same at every call for as many inputs.

    Raises:
        ConfigError: If there are no passes.
        UnsupportedError: If no layer of the network drops.
    """

    model: nn.Module
    samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("samples", self.samples, usual=32)
        if not dropping(unwrapped(self.model)):
            raise UnsupportedError(
                "a network with layers of dropout whose rate is above 0",
                "one without; calls of torch.nn.functional.dropout in a forward pass are not seen",
                "nn.Dropout layers where the network calls functions, or SWAG(), which takes any network",
            )

    def passes(self, x: InputsLike) -> list[Tensor]:
        """See ``AveragedNetworks.passes``."""
        module = unwrapped(self.model)
        inputs = placed(x, module)
        with serving(module), seeded(self.seed, module), without_fast_path():
            for part in dropping(module):
                part.training = True
            return [
                called(module, {}, inputs, self.output) for _ in track(range(self.samples), "dropout", unit="passes")
            ]

    def __repr__(self) -> str:
        """How many passes through what."""
        return f"DropoutNetwork({type(self.model).__name__}, {self.samples} passes)"


def dropping(module: nn.Module) -> list[nn.Module]:
    """The layers that drop in training mode and do nothing else there: dropout, and attention or recurrence with it."""
    found: list[nn.Module] = []
    for part in module.modules():
        alone = isinstance(part, LAYERS) and part.p > 0
        attention = isinstance(part, nn.MultiheadAttention) and part.dropout > 0
        recurrent = isinstance(part, nn.RNNBase) and part.dropout > 0 and part.num_layers > 1  # between its layers
        if alone or attention or recurrent:
            found.append(part)
    return found
