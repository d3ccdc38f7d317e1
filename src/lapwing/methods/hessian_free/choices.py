"""Which fits: one a point, a few for all points, or random ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

from lapwing.ground.errors import check_count, check_option

Objective: TypeAlias = Literal["mean", "absolute", "in_sample", "augmented"]
"""What a pre-trained fit is rewarded for."""


@final
@dataclass(frozen=True)
class PerPoint:
    """A fit for each output of each evaluation point (McInerney and Kallus 2024, algorithm 1).

    The refit rewarded for ``f_k(x)`` answers at x with column k of ``J P⁻¹ Jᵀ`` (theorem 3.1): the exact covariance of
    the outputs there, and the dearest way to it.

    Args:
        group: Evaluation points whose fits go through the data together.

    Raises:
        ConfigError: If the group is not positive.

    Example:
        >>> PerPoint()
        PerPoint(group=64)
    """

    group: int = 64

    def __post_init__(self) -> None:
        check_count("group", self.group)


@final
@dataclass(frozen=True)
class PreTrained:
    """One fit for each output, used at any input (McInerney and Kallus 2024, algorithm 2).

    With ``ḡ`` the mean gradient of the output over the evaluation points the answer is ``|∇f(x)ᵀ P⁻¹ ḡ|``. Mind that
    this is the size of the covariance of ``f(x)`` with the mean output, *not* the variance of ``f(x)``: it is close
    only where the gradients at the evaluation points resemble the one at x, and can vanish by cancellation. For several
    outputs it is the absolute value ``(M²)^½`` of the symmetric part M of ``J(x) P⁻¹ Ḡᵀ``.

    Args:
        objective: What is rewarded: ``"mean"`` the mean output over the evaluation points (equation 25), ``"absolute"``
            its absolute value with the signs of the trained outputs (27), ``"in_sample"`` that over the training data,
            mini-batch by mini-batch (28), ``"augmented"`` the mean over the training data by shifted targets (29),
            for Gaussian noise.

    Raises:
        ConfigError: If the objective is none of these.

    Example:
        >>> PreTrained("augmented")
        PreTrained(objective='augmented')
    """

    objective: Objective = "mean"

    def __post_init__(self) -> None:
        check_option("objective", self.objective, get_args(Objective))


@final
@dataclass(frozen=True)
class Probed:
    """Fits rewarded for random sums of the outputs, which together answer for all evaluation points.

    A fit rewarded for ``ωᵀ f`` answers with the whole vector ``C ω``, ``C = J P⁻¹ Jᵀ`` over all outputs of all points.
    From some random signs Ω the Nyström approximation ``Y (Ωᵀ Y)⁻¹ Yᵀ``, ``Y = C Ω`` (Tropp et al. 2017), which falls
    short of C by a positive semi-definite rest, and is as good as exact where there are more probes than C has
    rank; from others, an unbiased estimate ``mean ω ∘ R ω`` of the diagonal of that rest R (Bekas et al. 2007), with
    its standard error. Where R has more than a twentieth of all variance the log says so: with several outputs the
    few probes of each c × c block of R then make too much of it.

    Args:
        probes: Fits for the Nyström approximation.
        residual: Fits for the diagonal of what it leaves out.

    Raises:
        ConfigError: If there are no probes, or fewer than two for the rest.

    Example:
        >>> Probed(probes=40)
        Probed(probes=40, residual=8)
    """

    probes: int = 24
    residual: int = 8

    def __post_init__(self) -> None:
        check_count("probes", self.probes)
        check_count("residual", self.residual, 2)


@final
@dataclass(frozen=True)
class Signs:
    """One fit rewarded for ``‖θ‖₁``, with the signs of the trained weights: for ``weight_uncertainty`` alone.

    Example:
        >>> Signs()
        Signs()
    """
