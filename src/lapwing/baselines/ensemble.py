"""Deep ensembles: several networks, trained from different starts, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from lapwing.baselines.averaged import AveragedNetworks, called, placed
from lapwing.evaluation.task import Task
from lapwing.ground import probes
from lapwing.ground.data.inputs import InputsLike
from lapwing.ground.errors import ConfigError, check_count
from lapwing.ground.progress import track, working
from lapwing.jacobian.network.serving import serving
from lapwing.jacobian.network.unwrapping import unwrapped

MEMBERS = 5
"""Networks that are trained, where nobody says how many."""


@final
@dataclass(frozen=True)
class DeepEnsemble:
    """The average over several networks that were trained from different starts.

        p(y | x) = 1/M Σ_m p(y | f_m(x))

    Args:
        models: The trained networks; or a function that trains one, given a seed for its weights and its order of the
            data, and returns it.
        members: How many it trains; ``None`` for 5. Of networks that are given, how many of them are taken.

    Raises:
        ConfigError: If there are no networks, or fewer than members, or something else than networks.

    Cost:
        To fit, M trainings of a network from nothing, or none where they are given; to predict, M forward passes. All
        members are kept.

    Example:
        >>> import torch
        >>> def trained(seed: int) -> nn.Module:
        ...     return nn.Linear(3, 2)  # and its training
        >>> x, y = torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> ensemble = DeepEnsemble(trained, members=3).fit(Task(nn.Linear(3, 2), (x, y)))
        >>> ensemble.predict(x).logits.values.shape
        torch.Size([3, 20, 2])

    Source: B. Lakshminarayanan, A. Pritzel and C. Blundell, Simple and Scalable Predictive Uncertainty Estimation Using
        Deep Ensembles, 2017, section 2.4, without adversarial training.
    """

    models: Sequence[nn.Module] | Callable[[int], nn.Module]
    members: int | None = None

    def __post_init__(self) -> None:
        if self.members is not None:
            check_count("members", self.members, usual=MEMBERS)
        if isinstance(self.models, nn.Module):
            raise ConfigError("several networks, or a function that trains one", "one nn.Module", "a list of them")
        if not callable(self.models):
            check_members(self.models)
            if self.members is not None and self.members > len(self.models):
                raise ConfigError(f"{self.members} networks", f"{len(self.models)}", f"members={len(self.models)}")

    def fit(self, task: Task) -> Ensemble:
        """The ensemble for a task; networks that are not given are trained now.

        Args:
            task: Says what the outputs mean; its own network is no member unless it is one of those that are given.

        Raises:
            ConfigError: If the function returned something else than networks, or one of them twice.
        """
        return Ensemble(tuple(self._networks(task)), likelihood=task.likelihood, output=task.output)

    @working("ensemble")
    def _networks(self, task: Task) -> list[nn.Module]:
        """The networks, given or trained one after the other."""
        if not callable(self.models):
            return list(self.models)[: self.members]
        first = probes.seed_from(task.generator)
        members = MEMBERS if self.members is None else self.members
        made = [self.models(first + member) for member in track(range(members), "ensemble", unit="networks")]
        check_members(made)
        different = len(set(map(id, made)))
        if different < members:
            hint = "a function that makes a network at every call, or returns copy.deepcopy(network)"
            raise ConfigError(f"{members} different networks", f"{different}", hint)
        return made


@final
@dataclass(frozen=True, eq=False, repr=False)
class Ensemble(AveragedNetworks):
    """Several networks side by side; see ``DeepEnsemble``.

    Args:
        models: The trained networks; left as they were found.

    Raises:
        ConfigError: If there is none, or something else than networks.

    Example:
        >>> import torch
        >>> Ensemble((nn.Linear(3, 2), nn.Linear(3, 2))).predict(torch.zeros(4, 3)).probs.shape
        torch.Size([4, 2])
    """

    models: Sequence[nn.Module]

    def __post_init__(self) -> None:
        check_members(self.models)

    @property
    def complete(self) -> bool:
        """See ``AveragedNetworks.complete``."""
        return True

    def passes(self, x: InputsLike) -> list[Tensor]:
        """See ``AveragedNetworks.passes``."""
        found: list[Tensor] = []
        for model in track(self.models, "ensemble", unit="networks"):
            module = unwrapped(model)
            inputs = placed(x, module)
            with serving(module):
                returned = called(module, {}, inputs, self.output)
            found.append(returned if not found else returned.to(found[0]))
        return found

    def __repr__(self) -> str:
        """How many networks of which kinds."""
        kinds = sorted({type(model).__name__ for model in self.models})
        return f"Ensemble({len(self.models)} networks: {', '.join(kinds)})"


def check_members(models: Sequence[nn.Module]) -> None:
    """Refuses an ensemble without members, and what is none.

    Raises:
        ConfigError: Naming it.
    """
    if not models:
        raise ConfigError("at least one network", "none", "a list of trained networks, or a function that trains one")
    for model in models:
        unwrapped(model, "trained networks, or a function of a seed that trains one")
