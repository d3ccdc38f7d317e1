"""Saving and loading a posterior."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Protocol, overload, runtime_checkable

import torch
from torch import nn

from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.device import default_device_aside
from lapwing.ground.distributed import once, several
from lapwing.ground.errors import ConfigError, DataError, MismatchError, check_kind
from lapwing.ground.files.archive import Archive, Json, Tensors
from lapwing.ground.files.atomic import check_directory, file_at
from lapwing.ground.files.records import Records
from lapwing.ground.progress import working
from lapwing.ground.version import installed
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.store.binding import bound, network_state
from lapwing.store.families import POSTERIORS, records
from lapwing.store.processes import KINDS as PROCESSES
from lapwing.store.processes import Processes, process_from, process_state


@runtime_checkable
class Saveable(Protocol):
    """A posterior around a network that says what a file holds of it."""

    def recorded_network(self) -> Network:
        """The network, without which it cannot be loaded."""
        ...

    def shared_by_processes(self) -> bool:
        """Whether several processes hold it, each with a part of the training data."""
        ...

    def record(self, records: Records, *, training_inputs: bool = False) -> Json:
        """What a file holds of it, its network and its data aside."""
        ...

    @classmethod
    def of_record(cls, record: Json, records: Records, network: Network, data: Data | None) -> Saveable:
        """The posterior of a record, around the network it was fitted to."""
        ...

    def check_record(self) -> None:
        """Refuses parts that do not belong together."""
        ...

    def with_checked_data(self) -> Saveable:
        """The posterior, refused where the training data at hand are not those of its fit."""
        ...


POSTERIOR = Archive("lapwing", "lapwing.posterior", 1, "lapwing.save")
"""The kind of file."""


def read_header(path: str | PathLike[str]) -> Json:
    """The header of a saved posterior, without its tensors and without its network.

    Args:
        path: The file.

    Returns:
        ``format``, ``schema``, ``versions``, ``posterior`` (its class), ``likelihood``, ``fitted`` (the likelihood the
        curvature was computed with), ``prior``, ``network`` (class, fingerprint, parameters, uncertain weights),
        ``survey``, ``totals`` (examples, nll in nats, ...), ``trace``, and what the class holds, such as ``curvature``.
        Of a Gaussian process its kernel, likelihood, data and solves instead of a network's. ``notes`` where there are
        any. Long vectors are references ``{"tensor": name}``.

    Raises:
        ConfigError: If there is no such file.
        DataError: If the file is damaged, not lapwing's, or of a schema newer than this lapwing.

    Example:
        >>> import tempfile, torch, lapwing as lw
        >>> from lapwing.store import read_header, save
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(lw.Laplace(lw.Categorical()).fit(model, (x, y)), f"{folder}/model.safetensors")
        ...     header = read_header(f"{folder}/model.safetensors")
        >>> header["posterior"], header["prior"], header["totals"]["examples"]
        ('WeightPosterior', {'kind': 'Isotropic', 'precision': 1.0, 'mean': None, 'earlier': None}, 20)
    """
    return POSTERIOR.header(there(path))


@default_device_aside()
@working("save")
def save(
    posterior: Saveable | Processes,
    path: str | PathLike[str],
    *,
    notes: Mapping[str, str | float | list[str]] | None = None,
    training_inputs: bool = False,
) -> None:
    """Writes a posterior to a file, without its network: save that as you always do.

    The file is safetensors with a JSON header and holds no code. It is written beside ``path`` and then moved there, so
    that an interruption leaves the old file. The same posterior gives the same bytes. Of several processes that have
    parts of the training data all call this together: the first writes, the others wait.

    Args:
        posterior: Any posterior, that over an image or a Gaussian process among them, or functions drawn from one.
        path: The file; one already there is replaced. ``.safetensors`` is the usual ending.
        notes: Words and numbers of your own, such as the names of columns: ``read_header(path)["notes"]``.
        training_inputs: Whether to write the training inputs into the file too, where predictions need them: for
            ``Full(view="functions")`` over more than a last layer. Without them ``load`` needs the training data.

    Raises:
        ConfigError: If the directory does not exist, or the path is one; if it is no posterior.
        MismatchError: If the network was written to since the fit.
        UnsupportedError: If the posterior holds what no file can: an operator, likelihood or kernel that is not
            lapwing's, or training inputs that are no tensors or plain values.

    Cost:
        The curvature's bytes on disk. A posterior made of draws solves for them if it has not, and holds them and their
        noise: three numbers a weight and draw. ``Full(view="functions")`` holds its kernel matrix and roots of the
        output Hessians; over a last layer also the features of each training input, from which one may guess at it.
        A Gaussian process is solved for if it was not; its data and solutions are held.

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
    check_kind("the posterior", posterior, (Saveable, *PROCESSES.values()), "save(Laplace(...).fit(model, data), path)")
    target = file_at(path)
    tensors = Tensors()
    kind = type(posterior).__name__
    shared = isinstance(posterior, Saveable) and posterior.shared_by_processes()
    once(shared, lambda: check_directory(target))
    header: Json = {"versions": {"lapwing": installed(), "torch": str(torch.__version__)}, "posterior": kind}
    if isinstance(posterior, Saveable):
        network = posterior.recorded_network()
        network.check_unchanged(whole=True)
        header["network"] = network_state(network, tensors)
        header |= posterior.record(records(tensors), training_inputs=training_inputs)
    else:
        header |= process_state(posterior, tensors)
    if notes is not None:
        header["notes"] = dict(notes)
    once(shared, lambda: POSTERIOR.write(target, header, tensors))


@overload
def load(path: str | PathLike[str], *, device: torch.device | str = ...) -> Processes: ...


@overload
def load(
    path: str | PathLike[str],
    model: nn.Module,
    data: Source | None = ...,
    *,
    output: Output = ...,
    unpack: Unpack | None = ...,
    progress: bool | None = ...,
) -> Saveable: ...


@default_device_aside()
def load(
    path: str | PathLike[str],
    model: nn.Module | None = None,
    data: Source | None = None,
    *,
    output: Output = None,
    unpack: Unpack | None = None,
    progress: bool | None = None,
    device: torch.device | str = "cpu",
) -> Saveable | Processes:
    """The posterior of a file, around the network it was fitted to; a Gaussian process needs none.

    It predicts, samples and scores itself as the saved one did, to the last bit on the same machine, and can be tuned
    further. What reads the training data, such as moving a posterior made of draws to another prior, needs them again.

    Args:
        path: The file.
        model: The network, its weights as they were; left as it is. The posterior is put on its device. ``None`` for a
            Gaussian process, or functions drawn from one.
        data: The training data, as they were given to ``Laplace.fit``; ``None`` where nothing will ask for them.
            ``Full(view="functions")`` over more than a last layer asks at every prediction, unless they were saved with
            ``training_inputs=True``, and takes them in the order they had.
        output: The function by which the output was taken from what the network returns, as given to ``Laplace.fit``: a
            file holds no code. A key or an index it holds.
        unpack: As given to ``Laplace.fit``.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        device: Where to put a Gaussian process.

    Raises:
        ConfigError: If there is no such file.
        DataError: If the file is damaged, not lapwing's, or of a schema newer than this lapwing; if the data are not
            those the posterior was fitted to; if this torch draws other random features than the one that wrote it.
        MismatchError: If the network has other parameters, by name, shape or dtype, or other weights, by fingerprint;
            if there is a network and none is needed, or none and one is; if the output is another, or is taken by a
            function and there is none.

    Cost:
        Reading the file, and hashing it and the network; a forward pass over the data. Factorisations but for those
        of ``KFAC`` are computed again when first asked for.
    """
    with working("load", progress):
        file = there(path)
        header = POSTERIOR.header(file)
        tensors = POSTERIOR.tensors(file, header)
        kind = str(header.get("posterior"))
        if kind in PROCESSES:
            if model is not None:
                raise MismatchError(f"no network, for '{path}' is a {kind:.40}", "one", "load(path)")
            return process_from(header, tensors, device)
        if model is None:
            expected = f"the network it was fitted to, for '{path}' is a {kind:.40}"
            raise MismatchError(expected, "none", "load(path, model)")
        network = bound(header.get("network"), tensors, unwrapped(model), output)
        if kind not in POSTERIORS:
            raise DataError("a kind of posterior this lapwing has", f"'{kind:.40}'", "the lapwing that wrote the file")
        read = None if data is None else Data(data, network.like, unpack, several())
        posterior = POSTERIORS[kind].of_record(header, records(tensors, network.like.device), network, read)
        posterior.check_record()
        return posterior.with_checked_data()


def there(path: str | PathLike[str]) -> Path:
    """The path of a file that is there.

    Raises:
        ConfigError: If there is none; naming the one beside it whose name is closest.
    """
    file = file_at(path)
    if file.is_file():
        return file
    came = "a directory" if file.is_dir() else "where there is none"
    beside = {each.stem: each for each in file.parent.glob("*") if each.is_file()}
    close = difflib.get_close_matches(file.stem, beside, 1)
    cure = f"'{beside[close[0]]}'" if close else "the path that save(posterior, path) was given"
    raise ConfigError("a file that lapwing.save wrote", f"'{file}', {came}", cure)
