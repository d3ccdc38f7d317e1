"""What turns uncertain logits into probabilities, as a posterior carries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from lapwing.likelihoods import Likelihood
from lapwing.predictive import Link, check_link

L = TypeVar("L", bound="Linked")


@dataclass(frozen=True, eq=False, repr=False)
class Linked:
    """What predicts through a link.

    Args:
        link: For classes, how ``predict`` averages over the uncertainty of the logits unless it is told.
        temperature: Divides the logits, mean and standard deviation, before any link.

    Raises:
        ConfigError: If there is no such link, or the temperature is not positive.
    """

    link: Link = field(default="qmc", kw_only=True)
    temperature: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        check_link(self.link, self.temperature)

    def with_link(self: L, link: Link, temperature: float = 1.0) -> L:
        """The same posterior, which predicts by another link; all that was computed is shared.

        Args:
            link: The new link.
            temperature: The new temperature.

        Raises:
            ConfigError: If there is no such link, or the temperature is not positive.

        Example:
            >>> import torch, lapwing as lw
            >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
            >>> lw.Laplace(lw.Categorical()).fit(model, (x, y)).with_link("pairwise").link
            'pairwise'
        """
        check_link(link, temperature)
        changed: L = object.__new__(type(self))
        vars(changed).update(vars(self) | {"link": link, "temperature": temperature})
        return changed

    def _shown_link(self, likelihood: Likelihood) -> str:
        """The link as a ``repr`` shows it, where it plays a part."""
        if not likelihood.labels:
            return ""
        return f"link {self.link}, " + (f"temperature {self.temperature:.4g}, " if self.temperature != 1 else "")
