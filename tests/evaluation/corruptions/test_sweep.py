from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lapwing.evaluation.corruptions import CORRUPTIONS, SEVERITIES, Sweep, corrupt, corruption_sweep
from lapwing.evaluation.evaluate import Scores, evaluate
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.errors import ConfigError, DataError
from lapwing.likelihoods import Categorical
from lapwing.predictive import Predictive
from tests.checker import unchecked
from tests.posterior_cases import refused


class Spread(nn.Module):
    """Class 1 where the darkest and brightest pixels are far apart; sure of it."""

    def forward(self, x: Tensor) -> Tensor:
        spread = x.flatten(1).amax(1) - x.flatten(1).amin(1)
        return torch.stack([0.5 - spread, spread - 0.5], 1) * 20


class Linked:
    """A predictor with an option."""

    def __init__(self) -> None:
        self.network, self.likelihood = PlainNetwork(Spread()), Categorical()
        self.links: list[str] = []

    def predict(self, x: Inputs, link: str = "probit") -> Predictive:
        self.links.append(link)
        return self.network.predict(x)


@pytest.fixture
def data(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.rand(24, 1, 12, 12, generator=generator)
    return torch.cat([0.4 + 0.1 * x[:12], x[12:]]), torch.arange(24) // 12


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_scores_are_those_of_evaluate_on_corrupted_images(data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    predictor = PlainNetwork(Spread())
    sweep = corruption_sweep(predictor, x, y, names=["contrast", "brightness"], severities=(2, 5))
    assert sweep.clean == evaluate(predictor, (x, y))
    for name, row in sweep.corrupted.items():
        for severity, scores in zip((2, 5), row, strict=True):
            assert scores == evaluate(predictor, (corrupt(x, name, severity), y))
    values = sweep.values("accuracy")
    assert values.shape == (2, 2)
    assert values[0].tolist() == [sweep.corrupted["contrast"][k]["accuracy"] for k in (0, 1)]
    assert values[0, 1] < sweep.clean["accuracy"] == 1
    assert sweep.by_severity("accuracy") == {0: 1.0, 2: float(values[:, 0].mean()), 5: float(values[:, 1].mean())}


def test_all_corruptions_and_severities_are_the_default(data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    sweep = corruption_sweep(PlainNetwork(Spread()), x[::8], y[::8])
    assert tuple(sweep.corrupted) == CORRUPTIONS
    assert sweep.severities == SEVERITIES
    assert sweep.values().shape == (len(CORRUPTIONS), 5)
    assert len(str(sweep).splitlines()) == len(CORRUPTIONS) + 2


def test_one_seed_gives_the_same_images_whatever_else_is_asked(data: tuple[Tensor, Tensor]) -> None:
    predictor = PlainNetwork(Spread())
    some, more, other = (
        corruption_sweep(predictor, *data, names=names, severities=severities, generator=generator)
        for names, severities, generator in (
            (["fog"], [3], seeded()),
            (["shot_noise", "fog"], [1, 3], seeded()),
            (["fog"], [3], torch.Generator().manual_seed(6)),
        )
    )
    assert some.corrupted["fog"][0] == more.corrupted["fog"][1]
    assert some.corrupted["fog"][0]["nll"] != other.corrupted["fog"][0]["nll"]


def test_the_transform_comes_after_the_corruption(data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    seen: list[Tensor] = []

    def standardised(images: Tensor) -> Tensor:
        seen.append(images)
        return 3 * images - 1

    sweep = corruption_sweep(PlainNetwork(Spread()), x, y, names=["jpeg"], severities=[4], transform=standardised)
    assert sweep.corrupted["jpeg"][0] == evaluate(PlainNetwork(Spread()), (3 * corrupt(x, "jpeg", 4) - 1, y))
    assert all(0 <= float(images.min()) <= float(images.max()) <= 1 for images in seen)
    with pytest.raises(DataError, match=r"intensities in \[0, 1\]"):
        corruption_sweep(PlainNetwork(Spread()), 3 * x - 1, y)


def test_options_reach_predict(data: tuple[Tensor, Tensor]) -> None:
    predictor = Linked()
    corruption_sweep(predictor, *data, names=["fog"], severities=[1], options={"link": "mc"})
    assert predictor.links == ["mc", "mc"]
    with refused(ConfigError, "options that Linked.predict takes (link)"):
        corruption_sweep(predictor, *data, options={"links": "mc"})
    with refused(ConfigError, "options that PlainNetwork.predict takes (none)"):
        corruption_sweep(PlainNetwork(Spread()), *data, options={"link": "mc"})
    assert predictor.links == ["mc", "mc"]


def test_bad_requests_are_refused(data: tuple[Tensor, Tensor]) -> None:
    predictor: Any = PlainNetwork(Spread())
    for options, expected in (
        ({"names": []}, "at least one of names="),
        ({"severities": []}, "at least one of severities="),
        ({"names": "fog"}, "names= to be a list"),
        ({"severities": 3}, "severities= to be a list"),
        ({"severities": [2.0]}, "severity to be a whole number"),
        ({"transform": "x"}, "transform= to be a function"),
        ({"options": "mc"}, "options= to be of type Mapping"),
    ):
        with unchecked(), refused(ConfigError, expected):
            corruption_sweep(predictor, *data, **options)
    network: Any = Spread()
    with unchecked(), refused(ConfigError, "the predictor"):
        corruption_sweep(network, *data)
    with pytest.raises(ConfigError, match="name= to be one of"):
        corruption_sweep(PlainNetwork(Spread()), *data, names=["fog", "snow"])
    sweep = Sweep(Scores({"nll": 1.0}), {"fog": (Scores({"nll": 2.0}),)}, (1,))
    with pytest.raises(ConfigError, match="score= to be one of 'nll'"):
        sweep.by_severity("accuracy")
