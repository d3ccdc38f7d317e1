from __future__ import annotations

import pytest

from lapwing.ground import version


def test_version_of_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise version.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", absent)
    assert version.installed() == "0.0.0"
    monkeypatch.setattr(version, "version", lambda name: f"{name} 1.2")
    assert version.installed() == "lapwing 1.2"
