"""What the benchmark of architectures does in each of its processes: a network, its data, the steps, what is said."""

from __future__ import annotations

import io
import logging
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.meter import Meter
from benchmarks.networks import WideResNet18, perceptron, weight_count

Inputs = Tensor | dict[str, Tensor]

FITTED, PREDICTED = 64, 64
"""Examples of a fit, and of the larger prediction."""

BATCH = 16

LONGEST = 1800.0
"""Seconds after which a step is interrupted, as by Ctrl-C."""


@dataclass(frozen=True)
class Case:
    """A network with data of its own.

    Args:
        model: At its initial weights.
        x: Inputs, a row an example.
        y: Targets.
        likelihood: Makes the likelihood of the targets.
        output: Which of several outputs is the one to predict, where there are several.
        last: Names of the last layer's weights, where the outputs are not those of a linear layer.
    """

    model: nn.Module
    x: Inputs
    y: Tensor
    likelihood: Callable[[], Any]
    output: int | None = None
    last: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What ``fit`` and ``load`` are told of the outputs."""
        return {} if self.output is None else {"output": self.output}

    def to(self, device: str) -> Case:
        """The same on another device; the network itself goes there.

        Args:
            device: Where to.
        """
        x = self.x
        moved = {name: part.to(device) for name, part in x.items()} if isinstance(x, dict) else x.to(device)
        return replace(self, model=self.model.to(device), x=moved, y=self.y.to(device))


def rows_of(x: Inputs, start: int, stop: int) -> Inputs:
    """Some of the examples."""
    return {name: part[start:stop] for name, part in x.items()} if isinstance(x, dict) else x[start:stop]


def categorical(**options: Any) -> Callable[[], Any]:
    """A categorical likelihood that is made after lapwing is imported."""

    def make() -> Any:
        import lapwing as lw

        return lw.Categorical(**options)

    return make


def gaussian() -> Any:
    """A Gaussian likelihood of one output."""
    import lapwing as lw

    return lw.Gaussian()


def resnet18(count: int) -> Case:
    """ResNet-18 of ImageNet's size with ten classes, images of 64 x 64 pixels."""
    return Case(WideResNet18(), torch.randn(count, 3, 64, 64), torch.randint(10, (count,)), categorical())


def vit_tiny(count: int) -> Case:
    """ViT-tiny with 1000 classes, images of 224 x 224 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
    config.num_labels = 1000
    images = torch.randn(count, 3, 224, 224)
    model = ViTForImageClassification(config)
    return Case(model, {"pixel_values": images}, torch.randint(1000, (count,)), categorical())


def convnext_tiny(count: int) -> Case:
    """ConvNeXt-tiny with ten classes, images of 64 x 64 pixels."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig()
    config.num_labels = 10
    images = torch.randn(count, 3, 64, 64)
    model = ConvNextForImageClassification(config)
    return Case(model, {"pixel_values": images}, torch.randint(10, (count,)), categorical())


def bert(count: int) -> Case:
    """BERT-base with three classes, texts of 16 to 32 tokens, padded."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_labels=3))
    return Case(model, texts(30_522, count), torch.randint(3, (count,)), categorical())


def texts(vocabulary: int, count: int) -> dict[str, Tensor]:
    """Tokens and the mask of those that are there."""
    tokens = torch.randint(vocabulary, (count, 32))
    lengths = torch.randint(16, 33, (count, 1))
    return {"input_ids": tokens, "attention_mask": (torch.arange(32) < lengths).long()}


def gpt2(count: int) -> Case:
    """GPT-2 with its 50,257 tokens, texts of 32: the labels are the tokens that follow."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(50_257, (count, 32))
    following = torch.cat([tokens[:, 1:], torch.full((count, 1), -100)], 1)
    return Case(GPT2LMHeadModel(GPT2Config()), {"input_ids": tokens}, following, categorical(event_dim=1))


class UNet(nn.Module):
    """Two halvings of the image, the features of each size kept for the way back (Ronneberger et al. 2015).

    Args:
        classes: Of a pixel.
        width: Channels at full size.
    """

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = convolutions(3, width), convolutions(width, 2 * width)
        self.bottom = convolutions(2 * width, 4 * width)
        self.third, self.fourth = convolutions(6 * width, 2 * width), convolutions(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images in, logits of every pixel out, the classes where the channels were."""
        whole = self.first(x)
        half = self.second(F.max_pool2d(whole, 2))
        quarter = self.bottom(F.max_pool2d(half, 2))
        half = self.third(torch.cat([half, F.interpolate(quarter, scale_factor=2.0)], 1))
        whole = self.fourth(torch.cat([whole, F.interpolate(half, scale_factor=2.0)], 1))
        return self.head(whole)


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with batch norm and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def unet(count: int) -> Case:
    """A U-Net with 21 classes a pixel, images of 64 x 64."""
    images = torch.randn(count, 3, 64, 64)
    return Case(UNet(21), images, torch.randint(21, (count, 64, 64)), categorical(event_dim=2, class_dim=1))


def lora(count: int) -> Case:
    """A BERT of four layers, frozen, with adapters of rank 8 and a new head."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    frozen = BertForSequenceClassification(BertConfig(num_labels=3, **sizes))
    model = get_peft_model(frozen, LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"]))
    return Case(model, texts(30_522, count), torch.randint(3, (count,)), categorical())


class Detector(nn.Module):
    """Boxes and logits from the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(convolutions(3, 32), nn.MaxPool2d(4), convolutions(32, 64), nn.AdaptiveAvgPool2d(2))
        self.boxes, self.classes = nn.Linear(256, 4), nn.Linear(256, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images in, a box and the logits of three classes out."""
        features = self.body(x).flatten(1)
        return self.boxes(features), self.classes(features)


def detector(count: int) -> Case:
    """Two heads, of which the logits are the one to predict."""
    return Case(Detector(), torch.randn(count, 3, 64, 64), torch.randint(3, (count,)), categorical(), output=1)


class GraphNetwork(nn.Module):
    """Three graph convolutions (Kipf and Welling 2017) and the mean of the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, 64) for i in (8, 64, 64))
        self.head = nn.Linear(64, 4)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Features of the nodes and who is joined to whom in, logits of each graph out."""
        joined = adjacency + torch.eye(adjacency.shape[-1], device=adjacency.device)
        joined = joined / joined.sum(-1, keepdim=True)
        for layer in self.layers:
            nodes = layer(joined @ nodes).relu()
        return self.head(nodes.mean(1))


def graph(count: int) -> Case:
    """Graphs of 20 nodes, of four classes."""
    edges = (torch.rand(count, 20, 20) < 0.2).float().triu(1)
    x = {"nodes": torch.randn(count, 20, 8), "adjacency": edges + edges.mT}
    return Case(GraphNetwork(), x, torch.randint(4, (count,)), categorical())


class Derivatives(nn.Module):
    """The residual u_xx + u_yy + u of a perceptron u at points in the plane, with derivatives inside."""

    def __init__(self) -> None:
        super().__init__()
        self.u = perceptron(2, 50, 50, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Points in, residuals out."""

        def value(point: Tensor) -> Tensor:
            return self.u(point)[0]

        def residual(point: Tensor) -> Tensor:
            return torch.func.hessian(value)(point).trace() + value(point)

        return torch.func.vmap(residual)(x)[:, None]


def derivatives(count: int) -> Case:
    """A network that differentiates another one."""
    return Case(Derivatives(), torch.randn(count, 2), torch.randn(count, 1), gaussian, last="u.4.*")


NETWORKS: dict[str, Callable[[int], Case]] = {
    "resnet18": resnet18,
    "vit_tiny": vit_tiny,
    "convnext_tiny": convnext_tiny,
    "bert": bert,
    "gpt2": gpt2,
    "unet": unet,
    "lora": lora,
    "detector": detector,
    "graph": graph,
    "derivatives": derivatives,
}


LEFT = re.compile(r"(?P<bar>[^|]*?): .*\[(?P<taken>[\d:]+)<(?P<left>[\d:]+)")
"""A bar that says what it took so far and what is left."""

WORTH = 5.0
"""Seconds left from which a forecast is held against what came."""


@dataclass
class Forecast:
    """What a bar first said was left, and when it last moved.

    Args:
        left: Seconds.
        told: When that was.
        moved: When the bar last moved.
        taken: Seconds that it said it took until then.
    """

    left: float
    told: float
    moved: float
    taken: float

    @property
    def came(self) -> float:
        """Seconds that came of those that were told."""
        return self.moved - self.told


class Terminal(io.StringIO):
    """Notes when something was written to it and what bars say is left, and says that it is a terminal.

    Of several bars of one name, one after the other, the one of which most was told counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.forecasts: dict[str, Forecast] = {}
        self._moving: dict[str, Forecast] = {}
        """The last bar of each name."""

    def isatty(self) -> bool:
        """A terminal, so that bars are shown."""
        return True

    def write(self, text: str) -> int:
        """Keep the text and when it came."""
        now = time.perf_counter()
        self.times.append(now)
        if (bar := LEFT.search(text)) is not None:
            self._note(bar["bar"].strip(), seconds_of(bar["taken"]), seconds_of(bar["left"]), now)
        return super().write(text)

    def _note(self, name: str, taken: float, left: float, now: float) -> None:
        """Note what a bar says; one that took less than before is another one."""
        last = self._moving.get(name)
        if last is not None and last.left >= WORTH and taken >= last.taken:
            last.moved = now
            last.taken = taken
            return
        told = Forecast(left, now, now, taken)
        self._moving[name] = told
        most = self.forecasts.get(name)
        if left >= WORTH and (most is None or left > most.left):
            self.forecasts[name] = told


def seconds_of(clock: str) -> float:
    """The seconds of hours, minutes and seconds.

    Example:
        >>> seconds_of("01:30"), seconds_of("1:00:00")
        (90.0, 3600.0)
    """
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def listened(meter: Meter, name: str, work: Callable[[], Any]) -> Any:
    """Do a step, and tell the longest time in which nothing was said, and what the log said.

    Args:
        meter: Measures the step.
        name: Of the step.
        work: To be done.
    """
    terminal, logged = Terminal(), Terminal()
    handler = logging.StreamHandler(logged)
    logger = logging.getLogger("lapwing")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    ends: list[float] = []
    interrupted: list[float] = []

    def interrupt(*_: Any) -> None:
        interrupted.append(time.perf_counter())
        raise KeyboardInterrupt

    def timed() -> Any:
        ends.append(time.perf_counter())
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        try:
            return work()
        except KeyboardInterrupt:
            raise TimeoutError(f"not done after {LONGEST:g} s") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            ends.append(time.perf_counter())

    signal.signal(signal.SIGALRM, interrupt)

    before, sys.stderr = sys.stderr, terminal
    try:
        found = meter.step(name, timed).value
    finally:
        sys.stderr = before
        logger.removeHandler(handler)
    moments = sorted([*ends, *terminal.times, *logged.times])
    silence = max(after - moment for moment, after in pairwise(moments))
    told = {bar: (each.left, each.came) for bar, each in terminal.forecasts.items()}
    longest = max(told.values(), default=None)
    facts = {} if longest is None else {"forecast": longest[0], "came": longest[1]}
    if interrupted:
        facts["interrupted"] = True
    meter.tell(name, silence=silence, said=logged.getvalue(), forecasts=told, **facts)
    return found


def ours(meter: Meter, *, network: str, posterior: str, quick: bool, device: str = "cpu") -> None:
    """Fit, tune, predict, save and load.

    Args:
        meter: Measures the steps.
        network: Name of the network.
        posterior: ``"last layer"`` or ``"kfac"``.
        quick: Whether a few examples must do.
        device: Where to compute.
    """
    import lapwing as lw

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    case = NETWORKS[network](8 if quick else FITTED).to(device)
    model = case.model.eval()
    count = len(case.y)
    batches = [(rows_of(case.x, i, i + BATCH), case.y[i : i + BATCH]) for i in range(0, count, BATCH)]
    new = rows_of(case.x, 0, PREDICTED)
    one_pass(case, batches)
    meter.ready()
    meter.step("pass", lambda: one_pass(case, batches), label=f"{weight_count(model)} weights")
    last = lw.LastLayer() if case.last is None else lw.Names(case.last)
    weights = last if posterior == "last layer" else lw.All()
    recipe = lw.Laplace(case.likelihood(), weights=weights, structure=lw.KFAC())
    fitted = listened(meter, "fit", lambda: recipe.fit(model, batches, **case.given))
    if fitted is None:
        return
    listened(meter, "predict 1", lambda: fitted.predict(rows_of(new, 0, 1)))
    listened(meter, f"predict {PREDICTED}", lambda: fitted.predict(new))
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "posterior.safetensors"
        listened(meter, "save", lambda: lw.save(fitted, file))
        listened(meter, "load", lambda: lw.load(file, model))
    listened(meter, "tune", lambda: lw.tune(fitted))


def one_pass(case: Case, batches: list[tuple[Inputs, Tensor]]) -> None:
    """A forward and a backward pass over the data, outputs squared and added up."""
    for x, _ in batches:
        found = case.model(**x) if isinstance(x, dict) else case.model(x)
        found = getattr(found, "logits", found)
        output = found if case.output is None else found[case.output]
        output.square().mean().backward()
        case.model.zero_grad(set_to_none=True)
