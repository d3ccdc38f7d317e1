"""The tables of the documentation, each made of a committed report."""

from __future__ import annotations
