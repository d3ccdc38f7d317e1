"""The network of the ELLA paper, its directions, and what they say about images: computed once for all studies.

ELLA's predictions depend on an image through its outputs f and its features φ = J W alone, c × K numbers. All training
images, priors and ranks are sums and small matrices of these. ``--kept FOLDER`` keeps the features for other studies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.report import Row
from benchmarks.tasks import BATCH, Task, scored
from benchmarks.training import kept_tensors
from lapwing.curvature.tangent_features import OutputFeatures, TangentFeatures
from lapwing.ground.data.inputs import as_inputs
from lapwing.ground.data.sources import Data
from lapwing.ground.precision import wide
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import surveyed
from lapwing.linear.log_det_ratio import metric_root
from lapwing.posteriors.nystrom import Compression
from lapwing.predictive import Classification, Moments
from lapwing.structures.nystrom.landmarks import LandmarkRows, span
from lapwing.structures.nystrom.reservoir import Reservoir, fill

NETWORK = "ella_resnet20"
DECAY = 1e-4
"""Weight decay the network was trained with."""

RANK = 20
LANDMARKS = 500
SAMPLES = 512
"""Directions K, landmarks M, and draws of the logits behind a prediction; the source has M = 2000."""

EVERY = 100
PATIENCE = 3
"""Training images between two looks at the validation images, and looks without a gain before it stops."""

SOURCE = "Deng et al. 2022"


@dataclass(frozen=True)
class Amount:
    """How much is done.

    Args:
        images: Training images that can enter G.
        directions: K, the largest of all studies.
        landmarks: M.
        every: Training images between two looks.
        fitted: Training images behind the curvature of the other methods.
        corrupted: Test images that are corrupted, at each severity.
        far: Images from elsewhere.
    """

    images: int = 1000
    directions: int = 50
    landmarks: int = LANDMARKS
    every: int = EVERY
    fitted: int = 300
    corrupted: int = 140
    far: int = 229


QUICK = Amount(images=12, directions=5, landmarks=20, every=4, fitted=8, corrupted=8, far=4)


@dataclass(frozen=True, eq=False)
class Known:
    """What ELLA has to know of some images.

    Args:
        mean: Outputs f.
        values: Features φ of all directions, float64.
        labels: Their labels.
    """

    mean: Float[Tensor, "n c"]
    values: Float[Tensor, "n c k"]
    labels: Tensor

    def head(self, images: int) -> Known:
        """Of the first images."""
        return Known(self.mean[:images], self.values[:images], self.labels[:images])


@dataclass(frozen=True, eq=False)
class Ella:
    """ELLA on one network: its directions, and the features of any images.

    Args:
        task: Network and images.
        amount: How much is done.
        setting: Where features are kept.
    """

    task: Task
    amount: Amount
    setting: Setting

    @classmethod
    def read(cls, setting: Setting) -> Ella:
        """On the network of the paper; in a hurry on a small untrained one."""
        amount = QUICK if setting.quick else Amount()
        return cls(Task.read(NETWORK, setting, amount.images), amount, setting)

    @property
    def fitted(self) -> Pair:
        """The training images behind the curvature of the other methods."""
        x, y = self.task.train
        return x[: self.amount.fitted], y[: self.amount.fitted]

    @property
    def precision(self) -> float:
        """The prior precision of the paper's rule: N γ for N training images and a weight decay γ, ``1 / σ₀²``."""
        return self.task.examples * DECAY

    @cached_property
    def model(self) -> Model:
        """The network as a linear model, with the training images."""
        network = Network.of(self.task.model)
        return surveyed(network, lw.Categorical(), Data(self.task.train, like=network.like))

    @cached_property
    def changes(self) -> Float[Tensor, "d k"]:
        """The directions W that landmarks drawn from the training images span, in the units of the paper's prior."""

        def made() -> dict[str, Tensor]:
            source = generator()
            pool = Reservoir(self.amount.landmarks, self.model.width, source)
            fill(self.model.data, pool)
            deviations = torch.full_like(self.model.network.weights, self.precision**-0.5)
            rows = LandmarkRows(self.model, pool.pairs, deviations, 2**31)
            with torch.no_grad():
                found = span(rows, "uniform", self.amount.landmarks, self.amount.directions, 1e-6, source)
            return {"eigenvalues": found[0], "changes": found[1]}

        key = (self.task.name, self.amount, self.model.network.weights)
        return kept_tensors(made, self.setting.kept, "ella-span", *key)["changes"]

    def known(self, pair: Pair) -> Known:
        """Outputs and features of some images, kept a hundred at a time.

        Cost:
            A forward pass and c backward passes an image, where they are not kept.
        """
        parts: list[Mapping[str, Tensor]] = []
        for images in pair[0].split(BATCH):
            made = partial(self._features, images)
            parts.append(kept_tensors(made, self.setting.kept, "ella-features", self.changes, images))
        mean, values = (torch.cat([part[name] for part in parts]) for name in ("mean", "values"))
        return Known(mean, values, pair[1])

    def _features(self, images: Tensor) -> dict[str, Tensor]:
        found = TangentFeatures(self.model, self.changes).of(as_inputs(images))
        return {"mean": found.mean, "values": found.values}

    @cached_property
    def train(self) -> Known:
        """Of the training images."""
        return self.known(self.task.train)

    @cached_property
    def held_out(self) -> Known:
        """Of the validation images."""
        return self.known(self.task.held_out)

    @cached_property
    def test(self) -> Known:
        """Of the test images."""
        return self.known(self.task.test)

    def curvature(self, images: int) -> Float[Tensor, "k k"]:
        """``G = Σ φᵀ Λ φ`` over the first training images."""
        some = self.train.head(images)
        weighted = lw.Categorical().hessian(wide(some.mean), some.labels) @ some.values
        return some.values.flatten(0, -2).mT @ weighted.flatten(0, -2)

    def compression(self, images: int, *, precision: float | None = None, rank: int = RANK) -> Compression:
        """The posterior inside the span of the leading directions.

        Args:
            images: Training images in G.
            precision: Of the prior; ``None`` for the paper's.
            rank: K.
        """
        prior = torch.full((len(self.changes),), precision or self.precision, dtype=torch.float64)
        curvature = self.curvature(images)[:rank, :rank]
        return Compression(metric_root(self.changes[:, :rank], prior), curvature)

    def stopped_at(self, rank: int = RANK) -> int:
        """Training images after which the validation NLL has been above its smallest for long enough."""
        best = (float("inf"), 0)
        rises = 0
        for images in range(self.amount.every, len(self.train.labels) + 1, self.amount.every):
            probs = predicted(self.compression(images, rank=rank), self.held_out)
            nll = lw.metrics.nll(probs, self.held_out.labels)
            rises = 0 if nll < best[0] else rises + 1
            best = min(best, (nll, images))
            if rises >= PATIENCE:
                break
        return best[1]


def predicted(within: Compression, known: Known) -> Float[Tensor, "n c"]:
    """Probabilities by Monte Carlo over the logits, with the same draws every time."""
    return averaged(outputs(within, known)).probs


def outputs(within: Compression, known: Known) -> Moments:
    """Uncertain logits inside the span of the leading directions."""
    rank = len(within.upper)
    return within.moments(OutputFeatures(known.mean, known.values[..., :rank]), None)


def averaged(logits: Moments) -> Classification:
    """Classes by uncertain logits, averaged over draws of these, the same every time."""
    found = lw.Categorical().predictive(logits, "mc", samples=SAMPLES, generator=generator())
    assert isinstance(found, Classification)
    return found


@dataclass(frozen=True, eq=False)
class EarlyStopped:
    """ELLA with as many training images as the validation images allow, as an entry of a comparison.

    Args:
        ella: Its directions, and what they say of images.
    """

    ella: Ella

    def fit(self, task: lw.baselines.Task) -> StoppedPosterior:
        """The posterior, of the images of ``ella``."""
        return StoppedPosterior(self.ella, self.ella.compression(self.ella.stopped_at()))


@dataclass(frozen=True, eq=False)
class StoppedPosterior:
    """ELLA after some training images: it predicts by draws of the logits, as the source does.

    Args:
        ella: Its directions.
        within: The posterior inside their span.
    """

    ella: Ella
    within: Compression

    @property
    def likelihood(self) -> lw.Categorical:
        """p(y | f)."""
        return lw.Categorical()

    def predict(self, x: Tensor) -> Classification:
        """The classes of images."""
        unlabelled = x, torch.empty(0, dtype=torch.long)
        return averaged(outputs(self.within, self.ella.known(unlabelled)))


def scores(probs: Tensor, labels: Tensor, names: Sequence[str] = ("nll", "ece", "accuracy", "brier")) -> Row:
    """What a table shows."""
    return scored(probs, labels, *names)
