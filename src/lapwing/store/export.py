"""A posterior as a file that PyTorch alone reads, or ONNX Runtime: what it predicts, without lapwing."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from lapwing.ground.data.inputs import InputsLike
from lapwing.ground.device import default_device_aside
from lapwing.ground.errors import ConfigError, UnsupportedError, check_kind, reason_of
from lapwing.ground.files.atomic import check_directory, file_at, replacing
from lapwing.ground.progress import working
from lapwing.ground.version import with_extra

PYTORCH = ".pt2"
"""Ending of files for PyTorch."""

ONNX = ".onnx"
"""Ending of files for ONNX Runtime."""


@runtime_checkable
class Exportable(Protocol):
    """What can be a module of plain PyTorch."""

    def module(self, outputs: Sequence[str] | None = None, example: Any = None, **options: Any) -> nn.Module:
        """The module; see ``Posterior.module``."""
        ...


@default_device_aside()
@working("export")
def export(
    posterior: Exportable,
    path: str | PathLike[str],
    outputs: Sequence[str] | None = None,
    example: InputsLike | None = None,
    **options: Any,
) -> None:
    """Writes what a posterior predicts as a program that runs where lapwing is not installed.

    The number of examples is left open. The program takes what the network takes, tensors in order, and returns the
    outputs by name: ``torch.export.load(path).module()(x)["probs"]``. By ONNX Runtime they come in the order of
    ``outputs``.

    Args:
        posterior: Of a network or a Gaussian process.
        path: The file; one already there is replaced. Its ending is ``.pt2`` for PyTorch, ``.onnx`` for ONNX Runtime.
        outputs: What is predicted, see ``Posterior.module``.
        example: Some inputs, where the training inputs are not at hand.
        options: Others of ``module``, such as ``linearised=False``.

    Raises:
        ConfigError: If the directory does not exist, or the path is one, or has another ending; if a package for ONNX
            is missing.
        UnsupportedError: If it cannot be recorded, or not for every number of examples, or ONNX lacks an operation.

    Cost:
        Seconds; the file has the network, and what the covariance is made from.

    Example:
        >>> import tempfile, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randn(20, 3)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(model, (x, y))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lw.export(posterior, f"{folder}/model.pt2")
        ...     served = torch.export.load(f"{folder}/model.pt2").module()
        >>> served(x[:1])["mean"].shape
        torch.Size([1, 3])
    """
    from torch.export import Dim  # with what it loads, a second

    check_kind("the posterior", posterior, (Exportable,), "export(Laplace(...).fit(model, data), path)")
    target = file_at(path)
    check_directory(target)
    if target.suffix not in (PYTORCH, ONNX):
        hint = f"lw.export(posterior, {str(target.with_suffix(PYTORCH))!r})"
        raise ConfigError("a file that ends in .pt2, for torch.export.load, or .onnx", f"{target.name!r}", hint)
    module: Any = posterior.module(outputs, example, **options)
    inputs = module.meta["inputs"]
    n = Dim("n", min=1)
    shapes = tuple({0: n} if value.ndim and len(value) == len(inputs[0]) else {} for value in inputs)
    try:
        program = torch.export.export(module, inputs, dynamic_shapes=shapes)
    except Exception as reason:
        raise not_exported(reason, "torch.export") from reason
    if target.suffix == ONNX:
        write_onnx(program, target, module.meta["outputs"])
        return
    with replacing(target) as draft, draft.open("wb") as file:
        torch.export.save(program, file)


def write_onnx(program: Any, path: Path, names: Sequence[str]) -> None:
    """Writes an exported program for ONNX Runtime.

    Args:
        program: The program.
        path: Where to.
        names: Of its outputs.

    Raises:
        ConfigError: If onnxscript is not installed.
        UnsupportedError: If ONNX lacks an operation of it.
    """
    try:
        importlib.import_module("onnxscript")
    except ImportError as error:
        raise ConfigError("onnxscript, to write ONNX", str(error), with_extra("integrations")) from error
    try:
        written: Any = torch.onnx.export(program, output_names=list(names), dynamo=True, verbose=False)
    except Exception as reason:
        raise not_exported(reason, "ONNX") from reason
    with replacing(path) as draft:
        written.save(str(draft))


def not_exported(reason: Exception, to: str) -> UnsupportedError:
    """What is said of a program that has no other form."""
    hint = "weights=LastLayer(), or link='probit'"
    if to == "ONNX":
        hint = "weights=LastLayer(), link='probit', or a file for PyTorch, .pt2"
    return UnsupportedError(
        f"predictions that {to} can write down for every number of examples",
        f"{type(reason).__name__}: {reason_of(reason):.300}",
        hint,
    )
