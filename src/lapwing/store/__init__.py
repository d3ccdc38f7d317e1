"""Posteriors on disk: safetensors with a JSON header, bound to the network's weights by their fingerprint."""

from __future__ import annotations

from lapwing.store.export import export
from lapwing.store.files import load, read_header, save

__all__ = ["export", "load", "read_header", "save"]
