"""Files that hold a posterior."""

from __future__ import annotations

from os import PathLike

from lapwing.ground.archive import Archive, Json

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
        Long vectors are references ``{"tensor": name}``.

    Raises:
        DataError: If the file is damaged, not lapwing's, or of a schema newer than this lapwing.
        FileNotFoundError: If there is none.

    Example:
        >>> import tempfile, torch, lapwing as lw
        >>> from lapwing.store import read_header, save
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(lw.Laplace(lw.Categorical()).fit(model, (x, y)), f"{folder}/model.safetensors")
        ...     header = read_header(f"{folder}/model.safetensors")
        >>> header["posterior"], header["prior"], header["totals"]["examples"]
        ('WeightPosterior', {'kind': 'Isotropic', 'precision': 1.0}, 20)
    """
    return POSTERIOR.header(path)
