"""What ``lapwing demo`` runs: real digits with three of them unseen, and a curve with a gap."""

from __future__ import annotations

from lapwing.demo.tour import Demo, run

__all__ = ["Demo", "run"]
