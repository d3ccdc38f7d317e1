"""What joins lapwing to other libraries: an adapter each, loaded when it is asked for, as ``lw.sklearn``."""

from __future__ import annotations

import importlib
from types import ModuleType

from lapwing.ground.errors import ConfigError
from lapwing.ground.version import with_extra

ADAPTERS = {
    "botorch": ("botorch", "integrations"),
    "huggingface": ("transformers", "integrations"),
    "laplace_torch": ("torch", "integrations"),
    "lightning": ("lightning", "integrations"),
    "operators": ("torch", "integrations"),
    "sklearn": ("sklearn", "sklearn"),
}
"""The package that each adapter stands on, and the extra of lapwing that installs it."""


def adapter(name: str) -> ModuleType:
    """The module of an adapter.

    Args:
        name: One of ``ADAPTERS``.

    Raises:
        ConfigError: If a package that it needs is not installed.
    """
    package, extra = ADAPTERS[name]
    try:
        return importlib.import_module(f"lapwing.integrations.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "lapwing").startswith("lapwing"):
            raise
        raise ConfigError(f"{package}, for which lw.{name} is an adapter", str(error), with_extra(extra)) from error
