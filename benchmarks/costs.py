"""What one image costs on this machine, and the plan for ResNet-50 on ImageNet that follows from it by arithmetic.

    python -m benchmarks.costs --json benchmarks/results/costs.json --markdown docs/costs.md [--quick]

Measured: ResNet-18 with ten outputs on generated images of two sizes, one thread, by the steps of ``benchmarks.wide``;
products with the curvature; eigendecompositions in float64. Planned: seconds in proportion to counted operations, on
the measured core, and on a GPU whose operations a second are assumed, not measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import wide, wide_sides
from benchmarks.command import Setting, Study, main
from benchmarks.measure import run_isolated
from benchmarks.networks import WideResNet18
from benchmarks.report import GIB, ROOT, Row, grouped
from benchmarks.table import with_tables

PAGE = ROOT / "docs" / "costs.md"
SIZES, OUTPUTS = {32: 50, 96: 8}, 10
"""Images of each size, and outputs of the network that is measured."""

SIDES, LARGEST = (512, 1152, 2304), 4608
"""Factors whose eigendecomposition is timed, and the one whose seconds follow by 9 m³."""

EXAMPLES, CLASSES, DRAWS, ITERATIONS = 1_200_000, 1000, 16, 10
"""ImageNet; draws of an EM step, and conjugate gradient steps a solve."""

NAMES = {
    ("kfac", "forward"): "forward pass",
    ("kfac", "pass"): "forward and backward pass",
    ("last layer", "fit"): "last layer, exact",
    ("diagonal", "fit"): "diagonal, one sampled label",
    ("kfac", "fit without decompositions"): "KFAC, one sampled label",
    ("exact kfac", "fit without decompositions"): "KFAC, exact",
    ("products", "product"): "product with a column",
    ("kfac", "second prediction"): "prediction of one image, KFAC",
}
"""What the page shows of what is measured."""

SOURCE_PASSES = 10 + 6
"""Passes of one column in the source's EM step: ten epochs for the mode, one for each of six draws."""

H200, LINK, GPUS = 20e12, 450e9, 8
"""Assumed: float32 operations a second that one GPU sustains, bytes a second that it sends, and how many there are."""


def measured(setting: Setting) -> Iterator[Row]:
    """Every step at every size; what it takes an image, in plain passes, and of memory."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for size, images in {32: 2}.items() if setting.quick else SIZES.items():
        given: dict[str, Any] = {"folder": "", "images": images, "size": size}
        for structure in ("last layer", "diagonal", "kfac", "exact kfac", "products"):
            case = {"part": "measured", "size": size, "images": images, "structure": structure}
            if structure == "products":
                steps = run_isolated(wide_sides.products, columns=(1, DRAWS + 1), **given)
            else:
                steps = run_isolated(wide_sides.ours, structure=structure, **given)
            yield from (case | row | an_image(row, images) for row in wide.told(steps))
    sides = SIDES[:1] if setting.quick else SIDES
    for step in run_isolated(wide_sides.decompositions, sides=sides):
        yield {"part": "eigh", "side": int(step.label), "seconds": step.seconds, "peak_mib": step.peak_mib}


def an_image(row: Row, images: int) -> Row:
    """Seconds and passes of one image; of a product, also of one column; a prediction is of one image."""
    if row["seconds"] is None:
        return {}
    share = 1 / images if "prediction" not in row["step"] else 1.0
    share /= int(row["label"]) if "product" in row["step"] else 1
    return {"a_image": row["seconds"] * share, "passes": row.get("passes", 0.0) * images * share}


def counted(make: Callable[[], nn.Module], size: int) -> dict[str, Any]:
    """Operations of a forward pass over one image and of adding it to the factors, the weights, and the factors' sizes.

    Args:
        make: Makes the network, on a device that computes nothing.
        size: Height and width of the image.
    """
    maps: list[tuple[int, int, int]] = []

    def seen(layer: nn.Conv2d | nn.Linear, _: Any, found: Tensor) -> None:
        o = layer.weight.shape[0]
        maps.append((found.numel() // o, layer.weight[0].numel() + (layer.bias is not None), o))

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = make().eval()
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(seen)
        model(torch.empty(1, 3, size, size))
    return {
        "forward": counter.get_total_flops(),
        "inputs": sum(2 * places * i**2 for places, i, _ in maps),
        "outputs": sum(2 * places * o**2 for places, _, o in maps),
        "weights": sum(value.numel() for value in model.parameters()),
        "layers": len(maps),
        "sides": sorted(side for _, i, o in maps for side in (i, o)),
    }


def resnet50() -> nn.Module:
    """ResNet-50 with 1000 classes, from its configuration."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig()
    config.num_labels = CLASSES
    return ResNetForImageClassification(config)


def plan(rows: Sequence[Row], ours: dict[str, Any], network: dict[str, Any]) -> Iterator[Row]:
    """Seconds of each piece of work on the measured core, one GPU and several.

    A pass counts as three forward passes. What is measured at the largest size is carried over in proportion to the
    forward pass, sums of factors at the operations a second of a pass, eigendecompositions by 9 m³ from the largest
    one that was timed, on the core wherever the rest runs. A product reads the data anew: a forward pass more for all
    its columns. Several GPUs share the data, each its part, and the factors, each one whole.

    Args:
        rows: What was measured.
        ours: What ``counted`` says of the network and the size that were measured.
        network: The same of the network to plan for.
    """
    size = max(row["size"] for row in rows if row["part"] == "measured")

    def cost(structure: str, step: str, label: str = "") -> float:
        case = {"size": size, "structure": structure, "step": step}
        return next(row["a_image"] for row in rows if case.items() <= row.items() and row.get("label", "") == label)

    columns, scale = DRAWS + 1, network["forward"] / ours["forward"]
    forward, whole = (scale * cost("products", step) for step in ("forward", "pass"))
    rate = 3 * network["forward"] / whole
    column = scale * cost("products", "product", f"{columns}")
    inputs, outputs = network["inputs"] / rate, network["outputs"] / rate
    timed = max((row for row in rows if row["part"] == "eigh"), key=lambda row: row["side"])
    eigh = [timed["seconds"] * (side / timed["side"]) ** 3 for side in network["sides"]]
    slow = (sum(eigh), sum(eigh), max(max(eigh), sum(eigh) / GPUS))
    factors, block = sum(side**2 for side in network["sides"]), network["weights"] * columns

    def row(work: str, seconds: float, numbers: int = 0, times: int = 0, held: int = 0, apart: bool = False) -> Row:
        gpu = seconds * rate / H200
        each = (seconds, gpu, gpu / GPUS + 2 * 4 * numbers * times / LINK)
        core, one, several = (a + b * apart for a, b in zip(each, slow, strict=True))
        found = {"core": core, "gpu": one, "gpus": several, "sent": 4 * numbers, "times": times, "held": held}
        return {"part": "plan", "work": work} | found

    yield {"part": "rates", "core": rate, "gpu": H200, "eigh": slow[0], "forward": network["forward"]}
    fit, exact = whole + inputs + outputs, forward + inputs + (CLASSES - 1) * (whole - forward + outputs)
    yield row("KFAC fit, one sampled label", EXAMPLES * fit, factors, 1, 12 * factors, apart=True)
    yield row("KFAC fit, exact", EXAMPLES * exact, factors, 1, 12 * factors, apart=True)
    solves = EXAMPLES * (ITERATIONS + 1) * (columns * column + forward)
    yield row(f"EM step, {DRAWS} draws", solves, block, ITERATIONS + 1, 80 * block)
    passes = EXAMPLES * SOURCE_PASSES * (column + forward)
    yield row("EM step, as many passes as the source", passes, network["weights"], SOURCE_PASSES)
    yield row("prediction of one input, KFAC", scale * cost("kfac", "second prediction") / OUTPUTS * CLASSES)
    yield row(f"prediction of one input, {DRAWS} draws", forward + DRAWS * column)
    sums = (ours["inputs"] + ours["outputs"]) / rate
    found, told = cost("kfac", "fit without decompositions"), cost("kfac", "pass") + sums
    yield {"part": "check", "work": "KFAC fit of the measured network", "measured": found, "planned": told}


def rows(setting: Setting) -> Iterator[Row]:
    """What was measured, then what follows."""
    found = []
    for row in measured(setting):
        found.append(row)
        yield row
    size = max(row["size"] for row in found if row["part"] == "measured")
    yield from plan(found, counted(WideResNet18, size), counted(resnet50, 224))


def page(rows: Sequence[Row]) -> str:
    """The page of costs with its tables made anew, from the rows of a report."""
    parts = grouped(rows, "part")
    lines = ["| step | size | images | seconds an image | in passes | peak MiB |", "|---|---|---|---|---|---|"]
    for row in parts["measured"]:
        name = NAMES.get((row["structure"], row["step"]))
        if name is not None:
            about = f"{row['size']} x {row['size']} | {row['images']}"
            name += f", {row['label']} at once" if row["step"] == "product" else ""
            lines.append(f"| {name} | {about} | {row['a_image']:.2g} | {row['passes']:.3g} | {row['peak_mib']:.0f} |")
    lines += ["", "| factor | eigendecomposition in s |", "|---|---|"]
    lines += [f"| {row['side']} x {row['side']} | {row['seconds']:.2g} |" for row in parts["eigh"]]
    last = parts["eigh"][-1]
    lines.append(f"| {LARGEST} x {LARGEST} | {last['seconds'] * (LARGEST / last['side']) ** 3:.3g}, by 9 m³ |")
    lines += ["", "| plan | this core | one H200 | eight | GiB sent, times | GiB held |", "|---|---|---|---|---|---|"]
    for row in parts["plan"]:
        # processes do not share one prediction: it has no sums over the data
        times = " | ".join([*map(duration, (row["core"], row["gpu"])), duration(row["gpus"]) if row["times"] else "–"])
        rest = f"{row['sent'] / GIB:.2g}, {row['times']} | {row['held'] / GIB:.2g}" if row["times"] else " | "
        lines.append(f"| {row['work']} | {times} | {rest} |")
    rates, check = parts["rates"][0], parts["check"][0]
    lines += [
        "",
        "| the plan rests on | |",
        "|---|---|",
        f"| Gflop/s of the core, in passes | {rates['core'] / 1e9:.2g} |",
    ]
    lines += [
        f"| Gflop/s of an H200, assumed | {rates['gpu'] / 1e9:g} |",
        f"| ratio | {rates['gpu'] / rates['core']:.3g} |",
    ]
    ratio = check["measured"] / check["planned"]
    lines.append(f"| {check['work']}: measured over planned by the same arithmetic | {ratio:.2g} |")
    return with_tables(PAGE.read_text(encoding="utf-8"), "\n".join(lines).split("\n\n"))


def duration(seconds: float) -> str:
    """In the unit that suits.

    Example:
        >>> duration(0.0123), duration(90.0), duration(7200.0), duration(4e6)
        ('12 ms', '90 s', '2 h', '1100 h')
    """
    unit, name = (1e-3, "ms") if seconds < 1 else (1.0, "s") if seconds < 600 else (3600.0, "h")
    return f"{float(f'{seconds / unit:.2g}'):g} {name}"


STUDY = Study(rows, draw=page)

if __name__ == "__main__":
    main({"costs": STUDY})
