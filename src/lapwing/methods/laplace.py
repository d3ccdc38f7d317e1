"""The recipe: a trained network and its loader in, a posterior out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, final, get_args

import torch
from torch import nn

from lapwing.curvature.fold import check_repeatable
from lapwing.curvature.kinds import GGN, Curvature
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.distributed import check_alike
from lapwing.ground.errors import ConfigError, check_kind, check_option, describe
from lapwing.ground.files.records import checksum
from lapwing.ground.precision import Words
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.snapshot import digest_of
from lapwing.jacobian.network.unwrapping import opened
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Likelihood
from lapwing.posteriors import Posterior
from lapwing.priors import Isotropic, Prior
from lapwing.structures import Auto, FitTask, Structure
from lapwing.structures.selection import All, Selection

R = TypeVar("R")

F = TypeVar("F", bound=Callable[..., Any])

ALIKE = "the same choices in each; torch.distributed.broadcast of what was computed in one"
"""What to try where recipes differ."""

LOADED = "model.load_state_dict of one file in each: DistributedDataParallel leaves to each buffers of its own"
"""What to try where networks differ."""


def by_name(cls: type[R]) -> type[R]:
    """A recipe that answers laplace-torch's call, the network first and strings for choices, in a sentence."""
    init = cls.__init__
    names = inspect.signature(cls).parameters

    @functools.wraps(init)
    def checked(self: R, *args: Any, **choices: Any) -> None:
        unknown = sorted(choices.keys() - names.keys())
        if unknown or len(args) > 1 or isinstance(next(iter(args), None), nn.Module):
            came = [f"a {type(each).__name__}" for each in args] + [f"{name}=" for name in unknown]
            raise ConfigError(
                f"a likelihood, then choices by name ({', '.join([*names][1:])}); fit takes the network",
                ", ".join(came),
                "Laplace(Categorical(), structure=KFAC()).fit(model, data); docs/migration.md turns calls of "
                "laplace-torch into these",
            )
        init(self, *args, **choices)

    cls.__init__ = checked
    return cls


def one_source(fit: F) -> F:
    """A fit that answers inputs and targets given apart, as scikit-learn takes them, in a sentence."""

    @functools.wraps(fit)
    def checked(self: object, model: nn.Module, data: Source, *others: object, **options: Any) -> Any:
        if others:
            raise ConfigError(
                "the network and then the training data as one argument, a loader or a pair (x, y)",
                f"{1 + len(others)} of them, {', '.join(describe(each) for each in (data, *others))}",
                "fit(model, (x, y))",
            )
        return fit(self, model, data, **options)

    return cast("F", checked)


@final
@by_name
@dataclass(frozen=True)
class Laplace:
    """The Laplace approximation: p(θ | y) ≈ N(θ*, Λ⁻¹) with Λ = G + A (MacKay 1992; Daxberger et al. 2021).

    A likelihood and four choices, each an object with its own options. A recipe is frozen, comparable, holds no data.

    Args:
        likelihood: p(y | f): ``Categorical()``, ``Gaussian()``, ``Bernoulli()``, ``Poisson()``, ...
        prior: p(θ), with diagonal precision A: ``Isotropic``, ``Layerwise``, ``DiagonalPrior``, ``GPrior``.
        structure: How Λ is held: ``Auto``, ``Full``, ``Diagonal``, ``KFAC``, ``EKFAC``, ``LowRank``, ``Nystrom``,
            ``MatrixFree``, ``Sampled``.
        weights: Which weights are uncertain: ``All``, ``LastLayer``, ``Names``, ``Subnetwork``, ``Mask``.
        curvature: Which matrix G: ``GGN``, ``MCFisher``, ``EmpiricalFisher``, ``Hessian``.
        precision: In what the large products over the data are made: ``"double"``, or ``"single"``, float32, which are
            added up in float64 all the same. ``None`` for double on CPUs and on GPUs of data centres, else single.

    Example:
        >>> import lapwing as lw
        >>> x, y = torch.randn(50, 4), torch.randint(0, 3, (50,))
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        >>> posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, (x, y))
        >>> posterior.predict(x[:5]).probs.shape
        torch.Size([5, 3])
    """

    likelihood: Likelihood
    prior: Prior = field(default_factory=Isotropic, kw_only=True)
    structure: Structure = field(default_factory=Auto, kw_only=True)
    weights: Selection = field(default_factory=All, kw_only=True)
    curvature: Curvature = field(default_factory=GGN, kw_only=True)
    precision: Words | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_kind("the likelihood", self.likelihood, (Likelihood,), "Categorical() or Gaussian()")
        check_kind("prior=", self.prior, (Prior,), "Isotropic(1.0)")
        check_kind("structure=", self.structure, (Structure,), "KFAC() or Full()")
        check_kind("weights=", self.weights, (Selection,), "All() or LastLayer()")
        check_kind("curvature=", self.curvature, (Curvature,), "GGN()")
        if self.precision is not None:
            check_option("precision", self.precision, get_args(Words))

    @one_source
    def fit(
        self,
        model: nn.Module,
        data: Source,
        *,
        output: Output = None,
        unpack: Unpack | None = None,
        progress: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> Posterior:
        """The posterior of a trained network.

        Args:
            model: The trained network; used in eval mode and left exactly as it is.
            data: The training data: a loader of ``(x, y)`` or of mappings with ``labels``, or a pair ``(x, y)`` of
                tensors, arrays, data frames or lists.
            output: Which part of what the network returns is the output that the likelihood speaks of: a key, an index
                or a function of it. ``None`` where it returns one tensor, or something with ``logits``.
            unpack: Splits one element of the loader into ``(inputs, targets)``.
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
            generator: Source of randomness, for ``MCFisher`` and a ``GPrior`` with samples.

        Returns:
            A ``WeightPosterior``; from ``Full`` in the function view a ``FunctionPosterior``, from ``MatrixFree`` a
            ``MatrixFreePosterior``, from ``Sampled`` a ``SampledPosterior``, from ``Nystrom`` a ``NystromPosterior``.

        Raises:
            ConfigError: If no weight is left to be uncertain; if inputs and targets are given apart.
            DataError: If the data are empty, not finite, change between two passes, or do not fit the network or the
                likelihood; if another process has another recipe or network.
            ShapeError: If outputs or targets have the wrong shape, or the prior has too few or many precisions.
            TooLargeError: If the structure would not fit in memory.
            UnsupportedError: If the network is random in eval mode, or its outputs depend on other examples.

        Cost:
            One pass over the data: a forward pass, and a backward pass through the activations for each output.
        """
        with undisturbed(), working("fit", progress):
            self.structure.check_prior(self.prior)
            module, read = opened(model, data, "fit(model, data)", unpack=unpack)
            check_same_fit(read, self, module)
            task = self.task(module, read, generator, output=output)
            posterior = self.structure.fit(task)
            reads_again = posterior.system is not None  # to solve
            if not posterior.partial:
                check_repeatable(task.model, posterior.totals, strict=reads_again)
            posterior.warn_of_precision()
        return posterior

    def task(
        self, module: nn.Module, data: Data, generator: torch.Generator | None = None, *, output: Output = None
    ) -> FitTask:
        """What a structure is fitted to: the network surveyed, its uncertain weights chosen, the prior's scale found.

        Args:
            module: The network, out of its wrappers.
            data: The training data.
            generator: As in ``fit``.
            output: As in ``fit``.
        """
        self.prior.check_names([name for name, _ in module.named_parameters()])
        network = self.weights.choose(module, data, self.likelihood, self.prior, output)
        self.prior.check_layout(network.uncertain)
        model = surveyed(network, self.likelihood, data, self.precision)
        return FitTask(model, self.prior, self.curvature, generator, self.structure).with_prior_scale()


def check_same_fit(data: Data, recipe: object, module: nn.Module) -> None:
    """Refuses processes that share data but neither a recipe nor a network: what they add up would mean nothing.

    Args:
        data: The training data.
        recipe: What is fitted.
        module: The network.

    Raises:
        DataError: If another has another.
    """
    if data.shared:
        check_alike(True, checksum(recipe), f"{type(recipe).__name__}(...), its prior and noise included", ALIKE)
        check_alike(True, digest_of(module), "weights and buffers", LOADED)
