"""Saving and loading a posterior."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import Any, TypeAlias

import torch
from torch import nn

from lapwing.curvature.repeatability import check_same
from lapwing.curvature.sums import Held
from lapwing.ground.archive import REPAIR, Json, Tensors, check_directory, file_at, inputs_state
from lapwing.ground.data import Data, Source
from lapwing.ground.errors import DataError, UnsupportedError, check_kind
from lapwing.ground.types import Inputs, Unpack
from lapwing.jacobian.network.network import Network, unwrapped
from lapwing.methods.hessian_free import HessianFreePosterior
from lapwing.posteriors import FunctionPosterior, NystromPosterior, Posterior, SampledPosterior, WeightPosterior
from lapwing.predictive import Link
from lapwing.store.archive import POSTERIOR
from lapwing.store.binding import bound, check_parameters, network_state
from lapwing.store.families import records
from lapwing.store.fits import check_fits
from lapwing.store.nystrom import nystrom_from, nystrom_state
from lapwing.store.operators import operator_state
from lapwing.store.records import (
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
from lapwing.store.refits import refitted_from, refitted_state
from lapwing.store.sampled import sampled_from, sampled_state

Saved: TypeAlias = Posterior | HessianFreePosterior
"""What a file may hold."""

KINDS = (Posterior, HessianFreePosterior)
"""The same, to be asked for."""


def save(posterior: Saved, path: str | PathLike[str]) -> None:
    """Writes a posterior to a file, without its network: save that as you always do.

    The file is safetensors with a JSON header and holds no code. It is written beside ``path`` and then moved there, so
    that an interruption leaves the old file. The same posterior gives the same bytes.

    Args:
        posterior: Any posterior.
        path: The file; one already there is replaced. ``.safetensors`` is the usual ending.

    Raises:
        ConfigError: If the directory does not exist, or the path is one; if it is no posterior.
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
    check_kind("the posterior", posterior, KINDS, "save(Laplace(...).fit(model, data), path)")
    target = file_at(path)
    check_directory(target)
    posterior.network.check_unchanged()
    tensors = Tensors()
    header = {
        "versions": {"lapwing": installed(), "torch": str(torch.__version__)},
        "posterior": type(posterior).__name__,
        "network": network_state(posterior.network, tensors),
        **(state(posterior, tensors) if isinstance(posterior, Posterior) else refitted_state(posterior, tensors)),
    }
    POSTERIOR.write(target, header, tensors)


def state(posterior: Posterior, tensors: Tensors) -> Json:
    """Everything but the network and the data."""
    return {
        "likelihood": likelihood_state(posterior.likelihood),
        "fitted": likelihood_state(posterior.fitted),
        "prior": prior_state(posterior.prior, tensors),
        "link": posterior.link,
        "temperature": posterior.temperature,
        "survey": survey_state(posterior.survey),
        "totals": totals_state(posterior.totals, tensors),
        "trace": trace_state(posterior.trace, tensors),
        "noise_fixed": posterior.noise_fixed,
        **held_state(posterior, tensors),
    }


def load(
    path: str | PathLike[str],
    model: nn.Module,
    data: Source | None = None,
    *,
    unpack: Unpack | None = None,
    progress: bool = False,
) -> Saved:
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
    header = POSTERIOR.header(path)
    missing = [name for name in ("posterior", "network") if name not in header]
    if missing or not isinstance(header["posterior"], str):
        raise DataError("the header of a posterior", f"one without {missing or 'its kind'}", REPAIR)
    module = unwrapped(model)
    check_parameters(header["network"], module)
    tensors = POSTERIOR.tensors(file_at(path), header)
    network = bound(header["network"], tensors, module)
    read = None if data is None else Data(data, like=network.like, unpack=unpack, progress=progress)
    if header["posterior"] == "HessianFreePosterior":
        refitted = refitted_from(header, tensors, network, read)
        check_fits(refitted)
        return refitted
    posterior = posterior_from(header, tensors, network, read)
    check_fits(posterior)
    if posterior.data is not None and not posterior.partial:
        check_same(posterior.training, posterior.totals)
    return posterior


def common_from(header: Json, tensors: Tensors, network: Network, data: Data | None) -> dict[str, Any]:
    """What every kind of ``Posterior`` has."""
    header = {"noise_fixed": False, "link": "probit", "temperature": 1.0} | header  # as files without them meant it
    return {
        "network": network,
        "survey": survey_from(header.get("survey")),
        "likelihood": likelihood_from(header.get("likelihood")),
        "prior": prior_from(header.get("prior"), tensors),
        "totals": totals_from(header.get("totals"), tensors, network.like.device),
        "fitted": likelihood_from(header.get("fitted")),
        "trace": trace_from(header.get("trace"), tensors),
        "noise_fixed": records().read(bool, header["noise_fixed"], "noise_fixed"),
        "link": records().read(Link, header["link"], "link"),
        "temperature": records().read(float, header["temperature"], "temperature"),
        "data": data,
    }


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


def posterior_from(header: Json, tensors: Tensors, network: Network, data: Data | None) -> Posterior:
    """The posterior of a header, around a network."""
    kind, device = header["posterior"], network.like.device
    kinds = ("WeightPosterior", "FunctionPosterior", "NystromPosterior", "SampledPosterior")
    if kind not in kinds:
        raise DataError("a kind of posterior this lapwing has", f"'{kind:.40}'", "the lapwing that wrote the file")
    common = common_from(header, tensors, network, data)
    read = records(tensors, device).read
    match kind:
        case "WeightPosterior":
            return WeightPosterior(**common, held=read(Held, header.get("curvature"), "curvature"))
        case "FunctionPosterior":
            return FunctionPosterior(
                **common,
                inputs=read(Inputs, header.get("inputs"), "inputs"),
                cotangents=tensors.get(header.get("cotangents"), device),
                grams=tensors.get(header.get("grams"), device),
            )
        case "NystromPosterior":
            return NystromPosterior(**common, **nystrom_from(header.get("nystrom"), tensors, device))
        case _:
            return SampledPosterior(**common, **sampled_from(header.get("sampled"), tensors, device))


def installed() -> str:
    """The version of this lapwing; 0.0.0 where it runs from its sources without being installed."""
    try:
        return version("lapwing")
    except PackageNotFoundError:
        return "0.0.0"
