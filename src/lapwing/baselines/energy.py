"""The free energy of the logits, which tells inputs from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.baselines.out_of_distribution import ScoredNetwork
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.evaluation.task import Task
from lapwing.ground.data.inputs import InputsLike
from lapwing.ground.errors import UnsupportedError, check_positive
from lapwing.ground.precision import wide


@final
@dataclass(frozen=True)
class Energy:
    """The free energy of the logits: low where one of them is large, as at inputs like those of training.

        E(x) = -T log Σ_k e^{f_k / T}

    Args:
        temperature: T.

    Raises:
        ConfigError: If it is not positive.

    Cost:
        Nothing to fit; a forward pass to predict.

    Example:
        >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> Energy().fit(Task(model, (x, y))).predict(x).strangeness.shape
        torch.Size([20])

    Source: W. Liu, X. Wang, J. D. Owens and Y. Li, Energy-based Out-of-distribution Detection, 2020, section 2.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature, "1.0")

    def fit(self, task: Task) -> ScoredNetwork:
        """The network of a task with this score.

        Args:
            task: The network; its data are not looked at.

        Raises:
            UnsupportedError: If targets are no classes.
        """
        if not task.likelihood.classes:
            hint = "MonteCarloDropout() or DeepEnsemble(...), which take all likelihoods"
            raise UnsupportedError(
                "the Categorical likelihood, whose logits have an energy", f"{task.likelihood}", hint
            )
        return ScoredNetwork(task.network, self)

    def of(self, network: PlainNetwork, x: InputsLike) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch"]]:
        """See ``Score.of``."""
        outputs = network.outputs(x)
        return outputs, -self.temperature * torch.logsumexp(wide(outputs) / self.temperature, -1)
