"""Saving and loading a posterior."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import Any

import torch
from torch import nn

from lapwing.curvature.network import unwrapped
from lapwing.curvature.sums import Held
from lapwing.data import Data, Source
from lapwing.errors import DataError, UnsupportedError
from lapwing.files import check_directory, file_at
from lapwing.posteriors import FunctionPosterior, NystromPosterior, Posterior, SampledPosterior, WeightPosterior
from lapwing.repeatability import check_same
from lapwing.store.archive import Json, Tensors, read_header, read_tensors, write
from lapwing.store.binding import bound, check_parameters, network_state
from lapwing.store.nystrom import nystrom_from, nystrom_state
from lapwing.store.operators import operator_from, operator_state
from lapwing.store.records import (
    inputs_from,
    inputs_state,
    likelihood_from,
    likelihood_state,
    prior_from,
    prior_state,
    survey_from,
    survey_state,
    totals_from,
    totals_state,
    trace_from,
    trace_state,
)
from lapwing.store.sampled import sampled_from, sampled_state
from lapwing.types import Unpack


def save(posterior: Posterior, path: str | PathLike[str]) -> None:
    """Writes a posterior to a file, without its network: save that as you always do.

    The file is safetensors with a JSON header and holds no code. It is written beside ``path`` and then moved there, so
    that an interruption leaves the old file. The same posterior gives the same bytes.

    Args:
        posterior: Any posterior.
        path: The file; one already there is replaced. ``.safetensors`` is the usual ending.

    Raises:
        ConfigError: If the directory does not exist, or the path is one.
        MismatchError: If the network was written to since the fit.
        UnsupportedError: If the posterior holds what no file can: an operator or likelihood that is not lapwing's, or
            training inputs that are no tensors or plain values.

    Cost:
        The curvature's bytes on disk. A posterior over functions holds its training inputs, and so does its file. One
        made of draws solves for them if it has not, and holds them and their noise: three numbers a weight and draw.

    Example:
        >>> import tempfile, lapwing as lw
        >>> from lapwing.store import load, save
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
        >>> posterior = lw.Laplace(lw.Categorical()).fit(model, (x, y))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(posterior, f"{folder}/model.safetensors")
        ...     again = load(f"{folder}/model.safetensors", model)
        >>> again.log_marginal() == posterior.log_marginal()
        True
    """
    target = file_at(path)
    check_directory(target)
    posterior.network.check_unchanged()
    tensors = Tensors()
    header = {
        "versions": {"lapwing": installed(), "torch": str(torch.__version__)},
        "posterior": type(posterior).__name__,
        "likelihood": likelihood_state(posterior.likelihood),
        "fitted": likelihood_state(posterior.fitted),
        "prior": prior_state(posterior.prior, tensors),
        "link": posterior.link,
        "temperature": posterior.temperature,
        "network": network_state(posterior.network, tensors),
        "survey": survey_state(posterior.survey),
        "totals": totals_state(posterior.totals, tensors),
        "trace": trace_state(posterior.trace, tensors),
        "noise_fixed": posterior.noise_fixed,
        **held_state(posterior, tensors),
    }
    write(target, header, tensors)


def load(
    path: str | PathLike[str],
    model: nn.Module,
    data: Source | None = None,
    *,
    unpack: Unpack | None = None,
    progress: bool = False,
) -> Posterior:
    """The posterior of a file, around the network it was fitted to.

    It predicts, samples and scores itself as the saved one did, to the last bit on the same machine, and can be tuned
    further. What reads the training data, such as moving a posterior made of draws to another prior, needs them again.

    Args:
        path: The file.
        model: The network, its weights as they were; left as it is. The posterior is put on its device.
        data: The training data, as they were given to ``Laplace.fit``; ``None`` where nothing will ask for them.
        unpack: As given to ``Laplace.fit``.
        progress: Whether to show a progress bar whenever the data are read.

    Raises:
        DataError: If the file is damaged, not lapwing's, or of a schema newer than this lapwing; if the data are not
            those the posterior was fitted to.
        FileNotFoundError: If there is none.
        MismatchError: If the network has other parameters, by name, shape or dtype, or other weights, by fingerprint.

    Cost:
        Reading the file, and hashing it and the network; a forward pass over the data. Factorisations are computed
        again when first asked for.
    """
    header = read_header(path)
    module = unwrapped(model)
    check_parameters(header["network"], module)
    tensors = read_tensors(file_at(path), header)
    network = bound(header["network"], tensors, module)
    device = network.like.device
    common: dict[str, Any] = {
        "network": network,
        "survey": survey_from(header["survey"]),
        "likelihood": likelihood_from(header["likelihood"]),
        "prior": prior_from(header["prior"], tensors),
        "totals": totals_from(header["totals"], tensors, device),
        "fitted": likelihood_from(header["fitted"]),
        "trace": trace_from(header["trace"], tensors),
        "noise_fixed": header.get("noise_fixed", False),
        "link": header.get("link", "probit"),  # what files without one predicted with
        "temperature": header.get("temperature", 1.0),
    }
    if data is not None:
        common["data"] = Data(data, like=network.like, unpack=unpack, progress=progress)
    posterior = posterior_from(header, tensors, device, common)
    if posterior.data is not None and not posterior.partial:
        check_same(network, posterior.survey, posterior.data, posterior.fitted, posterior.totals)
    return posterior


def held_state(posterior: Posterior, tensors: Tensors) -> Json:
    """What one kind of posterior holds and others do not."""
    match posterior:
        case WeightPosterior():
            operator = operator_state(posterior.held.operator, "curvature", tensors)
            return {"curvature": {"operator": operator, "partition": posterior.held.partition}}
        case FunctionPosterior():
            return {
                "inputs": inputs_state(posterior.inputs, "inputs", tensors),
                "cotangents": tensors.put("cotangents", posterior.cotangents),
                "grams": tensors.put("grams", posterior.grams),
            }
        case NystromPosterior():
            return {"nystrom": nystrom_state(posterior, tensors)}
        case SampledPosterior():
            return {"sampled": sampled_state(posterior, tensors)}
        case _:
            raise UnsupportedError(
                "a posterior that holds its curvature",
                f"{type(posterior).__name__}, whose curvature is not held but in its training data",
                "fitting it again, which takes one forward pass over the data, or structure LowRank(100) or KFAC()",
            )


def posterior_from(header: Json, tensors: Tensors, device: torch.device, common: dict[str, Any]) -> Posterior:
    """The posterior of a header; ``common`` is what every kind has."""
    match header["posterior"]:
        case "WeightPosterior":
            curvature = header["curvature"]
            partition = tuple(tuple(names) for names in curvature["partition"])
            return WeightPosterior(
                **common, held=Held(operator_from(curvature["operator"], tensors, device), partition)
            )
        case "FunctionPosterior":
            return FunctionPosterior(
                **common,
                inputs=inputs_from(header["inputs"], tensors, device),
                cotangents=tensors.get(header["cotangents"], device),
                grams=tensors.get(header["grams"], device),
            )
        case "NystromPosterior":
            return NystromPosterior(**common, **nystrom_from(header["nystrom"], tensors, device))
        case "SampledPosterior":
            return SampledPosterior(**common, **sampled_from(header["sampled"], tensors, device))
        case kind:
            raise DataError("a kind of posterior this lapwing has", f"'{kind}'", "the lapwing that wrote the file")


def installed() -> str:
    """The version of this lapwing; 0.0.0 where it runs from its sources without being installed."""
    try:
        return version("lapwing")
    except PackageNotFoundError:
        return "0.0.0"
