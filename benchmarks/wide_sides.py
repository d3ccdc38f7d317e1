"""The sides of the benchmark of wide networks, each in a process of its own, which also times a plain pass."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.data import CHECKPOINTS, cifar10, generated_images
from benchmarks.heads import forward
from benchmarks.meter import Meter
from benchmarks.networks import WideResNet18
from benchmarks.problems import Batches, batches, gradient

BATCH = 50


def loaded(
    meter: Meter, folder: str, images: int, stem: bool = False, size: int = 32
) -> tuple[nn.Module, Batches, Tensor]:
    """The network, its batches and one more image, after plain passes over them were timed."""
    data = cifar10(Path(folder), CHECKPOINTS["resnet20"]) if folder else generated_images(3, size, train=images, test=1)
    torch.manual_seed(0)
    model, (x, y) = WideResNet18(small=stem).eval(), (part[:images] for part in data.train)
    pairs = batches(x, y, BATCH)
    gradient(model, pairs)
    meter.ready()
    for _ in range(1 if stem else 3):
        meter.step("forward", lambda: forward(model, pairs))
        meter.step("pass", lambda: gradient(model, pairs))
    return model, pairs, data.x_test[:1]


def ours(meter: Meter, *, structure: str, folder: str, images: int, stem: bool = False, size: int = 32) -> None:
    """Lapwing: fit, predict one image twice, evidence, save and load; what a fit by draws says before it starts.

    A last layer is tuned, and has its curvature in closed form; others have that of one drawn label, or are "exact".
    """
    import lapwing as lw
    from lapwing.curvature.kfac import KroneckerSum

    model, batches, image = loaded(meter, folder, images, stem, size)
    last = structure == "last layer"
    held = lw.Diagonal() if structure == "diagonal" else lw.Sampled(16) if structure == "sampled" else lw.KFAC()
    curvature = lw.GGN() if last or structure in ("sampled", "exact kfac") else lw.MCFisher()
    recipe = lw.Laplace(
        lw.Categorical(), structure=held, curvature=curvature, weights=lw.LastLayer() if last else lw.All()
    )
    decomposed = KroneckerSum.result
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lapwing").addHandler(listener)

    def result(total: KroneckerSum) -> Any:
        return meter.step("decompositions", lambda: decomposed(total)).value

    with mock.patch.object(KroneckerSum, "result", result):
        fitted = meter.step("fit", lambda: recipe.fit(model, batches, generator=torch.Generator().manual_seed(0))).value
    for words in said:
        meter.step("says", lambda: None, label=words)
    if fitted is None or structure == "sampled":
        return
    if last:
        warnings.simplefilter("ignore")
        meter.step("tune", lambda: lw.tune(fitted))
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "posterior.safetensors"
        meter.step("first prediction", lambda: fitted.predict(image).probs)
        meter.step("second prediction", lambda: fitted.predict(image).probs)
        meter.step("evidence", fitted.log_marginal)
        meter.step("save", lambda: lw.save(fitted, file))
        again = meter.step("load", lambda: lw.load(file, model), label=f"{file.stat().st_size / 2**20:.0f} MiB").value
    if again is not None:
        meter.step("prediction after loading", lambda: again.predict(image).probs)


def laplace_torch(meter: Meter, *, structure: str, folder: str, images: int) -> None:
    """laplace-torch with curvlinops and one drawn label; norms out of the posterior, which it cannot have in it."""
    import laplace

    warnings.simplefilter("ignore")
    model, batches, image = loaded(meter, folder, images)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    pairs = torch.utils.data.TensorDataset(*(torch.cat(part) for part in zip(*batches, strict=True)))
    found = laplace.Laplace(
        model,
        "classification",
        subset_of_weights="all",
        hessian_structure={"kfac": "kron", "diagonal": "diag"}[structure],
        backend=laplace.curvature.CurvlinopsGGN,
        backend_kwargs={"stochastic": True},
    )
    if meter.step("fit", lambda: found.fit(torch.utils.data.DataLoader(pairs, batch_size=BATCH))).failure:
        return
    meter.step("first prediction", lambda: found(image, pred_type="glm", link_approx="probit"))
    meter.step("second prediction", lambda: found(image, pred_type="glm", link_approx="probit"))
    meter.step("evidence", lambda: float(found.log_marginal_likelihood()))


def curvlinops(meter: Meter, *, folder: str, images: int) -> None:
    """curvlinops, which has KFAC of linear maps and convolutions, and its inverse: factors, and one solve."""
    from curvlinops import KFACInverseLinearOperator, KFACLinearOperator

    warnings.simplefilter("ignore")
    model, batches, _ = loaded(meter, folder, images)
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    params = [value for layer in layers for value in layer.parameters()]

    def solved() -> Tensor:
        factors = KFACLinearOperator(
            model, nn.CrossEntropyLoss(), params, batches, fisher_type="mc", mc_samples=1, check_deterministic=False
        )
        return KFACInverseLinearOperator(factors, damping=1.0) @ torch.ones(factors.shape[1])

    meter.step("fit", solved)


def products(meter: Meter, *, folder: str, images: int, size: int, columns: Sequence[int]) -> None:
    """Products with blocks of so many columns, each after one that records what is kept."""
    from benchmarks.contest import product

    model, batches, _ = loaded(meter, folder, images, size=size)
    for count in columns:
        operator = product(model, batches, "traced", 2**31)
        block = torch.randn(operator.shape[0], count)
        meter.step("first product", lambda operator=operator, block=block: operator @ block, label=f"{count}")
        meter.step("product", lambda operator=operator, block=block: operator @ block, label=f"{count}")


def decompositions(meter: Meter, *, sides: Sequence[int]) -> None:
    """``eigh`` of a positive definite matrix of every size, in float64."""
    for m in sides:
        root = torch.randn(m, m, dtype=torch.float64)
        matrix = root @ root.mT / m
        meter.step("eigh", lambda matrix=matrix: torch.linalg.eigh(matrix), label=f"{m}")
