"""Posteriors on disk: safetensors with a JSON header, bound to the network's weights by their fingerprint."""

from __future__ import annotations

from lapwing.store.archive import read_header
from lapwing.store.posteriors import load, save

__all__ = ["load", "read_header", "save"]
