"""Studies of ELLA, a Nyström approximation, after Deng et al. (2022): ``python -m studies.ella NAME``."""

from __future__ import annotations
