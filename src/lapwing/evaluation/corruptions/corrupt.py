"""Images under a corruption, and scores under all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.corruptions.kinds import CORRUPTIONS, KINDS, SEVERITIES
from lapwing.evaluation.evaluate import Predictor, Scores, evaluate
from lapwing.ground import probes
from lapwing.ground.data.checks import check_finite
from lapwing.ground.errors import ConfigError, DataError, ShapeError, check_count, check_kind, check_option
from lapwing.ground.progress import track
from lapwing.metrics.score_table import aligned


def corrupt(
    x: Tensor, name: str, severity: int, *, generator: torch.Generator | None = None
) -> Float[Tensor, "n ch h w"]:
    """Images with one corruption, in [0, 1] again.

    Types of less than 32 bits are computed in float32. Where a corruption is random each image has its own noise,
    direction or place.

    Args:
        x: Images ``[n, ch, h, w]``, intensities in [0, 1], before any standardisation.
        name: One of ``CORRUPTIONS``.
        severity: From 1 to 5.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Returns:
        Images of the same shape, type and device.

    Raises:
        ConfigError: Another name or severity.
        ShapeError: Not four axes, or an axis of length 0.
        DataError: Not real numbers, or some not finite or outside [0, 1].

    Example:
        >>> x = torch.rand(2, 3, 32, 32)
        >>> [float((corrupt(x, "contrast", severity) - x).abs().mean() > 0.1) for severity in (1, 5)]
        [0.0, 1.0]
    """
    check_known(name, severity)
    _check_images(x)
    kind = KINDS[name]
    level = kind.levels[severity - 1] * (min(x.shape[2:]) / 32 if kind.length else 1)
    exact = x.detach().to(x.dtype if torch.finfo(x.dtype).bits >= 32 else torch.float32)
    return kind.change(exact, level, generator).clamp(0, 1).to(x.dtype)


def check_known(name: str, severity: int) -> None:
    """Refuses a corruption or a severity that there is not.

    Raises:
        ConfigError: Naming those there are.
    """
    check_option("name", name, CORRUPTIONS)
    check_option("severity", severity, SEVERITIES)
    check_count("severity", severity)


def _check_images(x: Tensor) -> None:
    check_kind("x", x, (Tensor,), "a tensor of images, such as torch.from_numpy(x)")
    if x.ndim != 4:
        raise ShapeError("images [n, ch, h, w]", f"shape {list(x.shape)}", "x[:, None] for grey images [n, h, w]")
    if not x.numel():
        raise ShapeError("at least one image [n, ch, h, w]", f"nothing, of shape {list(x.shape)}", "a batch of images")
    if not x.is_floating_point():
        raise DataError("real intensities in [0, 1]", f"type {x.dtype}", "x / 255 for bytes")
    check_finite(x, "images", "cleaning the data")
    low = float(x.min())
    high = float(x.max())
    if low < 0 or high > 1:
        hint = "pixels before they are standardised, and transform= for what the network takes"
        raise DataError("intensities in [0, 1]", f"{low:.3g} to {high:.3g}", hint)


@final
@dataclass(frozen=True)
class Sweep:
    """Scores of a predictor under each corruption at each severity.

    Args:
        clean: Scores on the images as they are.
        corrupted: For each corruption its scores, one a severity.
        severities: The severities.

    Example:
        >>> print(Sweep(Scores({"nll": 0.2}), {"fog": (Scores({"nll": 0.3}), Scores({"nll": 0.7}))}, (1, 5)))
        nll        1       5
        fog   0.3000  0.7000
        mean  0.3000  0.7000  (clean 0.2000)
    """

    clean: Scores
    corrupted: Mapping[str, tuple[Scores, ...]]
    severities: tuple[int, ...]

    def values(self, score: str = "nll") -> Float[Tensor, "k q"]:
        """One score of every corruption (rows) at every severity (columns), float64.

        Raises:
            ConfigError: There is no such score.
        """
        check_option("score", score, tuple(self.clean))
        rows = [[scores[score] for scores in row] for row in self.corrupted.values()]
        return torch.tensor(rows, dtype=torch.float64)

    def by_severity(self, score: str = "nll") -> dict[int, float]:
        """One score averaged over the corruptions, for each severity; 0 is the clean images."""
        means = self.values(score).mean(0).tolist()
        return {0: self.clean[score], **dict(zip(self.severities, means, strict=True))}

    def text(self, score: str = "nll") -> str:
        """A table of one score, a corruption a row, and their mean."""
        values = self.values(score)
        rows = zip((*self.corrupted, "mean"), [*values.tolist(), values.mean(0).tolist()], strict=True)
        cells = [[name, *(f"{value:6.4f}" for value in row)] for name, row in rows]
        lines = aligned([[score, *map(str, self.severities)], *cells], 1)
        return "\n".join(lines) + f"  (clean {self.clean[score]:.4f})"

    def __str__(self) -> str:
        return self.text()


def corruption_sweep(
    predictor: Predictor,
    x: Tensor,
    y: Tensor,
    *,
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    transform: Callable[[Tensor], Tensor] | None = None,
    progress: bool | None = None,
    options: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
) -> Sweep:
    """Scores of a predictor on images under each corruption at each severity.

    Every corruption starts from one seed at every severity, whichever others are asked for. To compare methods, give
    each a generator of the same seed: they then see the same images.

    Args:
        predictor: A posterior, or a baseline such as ``PlainNetwork(model)``.
        x: Held-out images ``[n, ch, h, w]``, intensities in [0, 1], before any standardisation.
        y: Their targets.
        names: Some of ``CORRUPTIONS``.
        severities: Some of ``SEVERITIES``.
        transform: From intensities to what the network takes, such as ``lambda x: (x - mean) / std``.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        options: Passed on to ``predict``, such as ``{"link": "mc"}``.
        generator: Source of randomness of the corruptions; ``None`` draws from PyTorch's global one.

    Returns:
        The scores of ``evaluate``, and those on the clean images.

    Raises:
        ConfigError: No corruption or severity, or one that there is not, or an option that ``predict`` does not take.
        DataError: Images that are not in [0, 1].

    Cost: an ``evaluate`` for each corruption and severity, and one more.

    Example:
        >>> from lapwing.evaluation.plain_network import PlainNetwork
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
        >>> x, y = torch.rand(20, 1, 8, 8), torch.randint(0, 3, (20,))
        >>> sweep = corruption_sweep(PlainNetwork(model), x, y, names=["fog", "jpeg"], transform=lambda x: 2 * x - 1)
        >>> list(sweep.by_severity("accuracy"))
        [0, 1, 2, 3, 4, 5]
    """
    names = _listed("names", names, "CORRUPTIONS")
    severities = _listed("severities", severities, "SEVERITIES")
    for name, severity in itertools.product(names, severities):
        check_known(name, severity)
    options = {} if options is None else options
    check_kind("options=", options, (Mapping,), "options={'link': 'mc'}")
    if not (transform is None or callable(transform)):
        raise ConfigError("transform= to be a function of images", f"{transform!r:.40}", "lambda x: (x - mean) / std")
    prepared = transform or (lambda images: images)
    device = probes.device_of(generator)
    seed = int(torch.randint(2**31, [1], generator=generator, device=device))

    def scores(images: Tensor) -> Scores:
        return evaluate(predictor, (prepared(images), y), **options)

    corrupted: dict[str, list[Scores]] = {name: [] for name in names}
    pairs = [(name, severity) for name in corrupted for severity in severities]
    for name, severity in track(pairs, "corruptions", unit="corruptions", progress=progress):
        source = torch.Generator(device).manual_seed(seed)
        corrupted[name].append(scores(corrupt(x, name, severity, generator=source)))
    return Sweep(scores(x), {name: tuple(row) for name, row in corrupted.items()}, tuple(severities))


def _listed(name: str, values: Any, every: str) -> tuple[Any, ...]:
    """What was asked for, one after the other; a single one by itself, a name or a number, is refused."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{name}= to be a list", f"{values!r:.40}", f"{name}=[{values!r:.40}]")
    listed = tuple(values)
    if not listed:
        raise ConfigError(f"at least one of {name}=", f"{name}={values!r:.40}", f"{name}={every}")
    return listed
