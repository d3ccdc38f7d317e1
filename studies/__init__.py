"""Studies: each runs as ``python -m studies.NAME --json FILE`` and writes one JSON object, and a figure where asked.

Threads that wait must not spin; OpenMP reads the policy when torch is imported, so it is set here, first.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
