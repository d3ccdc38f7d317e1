"""Benchmarks: each runs as ``python -m benchmarks.NAME --json FILE`` and writes one JSON object.

Threads that wait must not spin, or a busy neighbour makes a two-thread product ten times slower. OpenMP reads
the policy when torch is imported, so it is set here, before any module of this package can import torch.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
