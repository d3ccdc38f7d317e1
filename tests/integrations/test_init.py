"""Adapters are loaded when they are asked for, and name what to install."""

from __future__ import annotations

import sys

import pytest

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.integrations import ADAPTERS
from tests.posterior_cases import refused


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_an_adapter_without_its_package_names_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, extra = ADAPTERS[name]
    missing = ModuleNotFoundError(f"No module named {package!r}", name=package)

    class Missing:
        @staticmethod
        def find_spec(module: str, path: object = None, target: object = None) -> None:
            if module == f"lapwing.integrations.{name}":
                raise missing

    monkeypatch.delitem(sys.modules, f"lapwing.integrations.{name}", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    with refused(ConfigError, f"pip install '.[{extra}]'"):
        getattr(lw, name)


def test_no_other_name_is_an_adapter() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'numpyro'"):
        _ = lw.numpyro
