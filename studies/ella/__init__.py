"""The studies of ELLA (Deng et al. 2022), each as ``python -m studies.ella NAME --json FILE``."""

from __future__ import annotations
