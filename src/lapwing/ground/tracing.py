"""Whether what is computed is being recorded rather than computed: then no number is known, and none is looked at."""

from __future__ import annotations

import sys


def traced() -> bool:
    """Whether ``make_fx`` or ``torch.export`` records: checks of numbers are left out, and work is not cut in pieces.

    Example:
        >>> traced()
        False
    """
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")  # it takes a second to load: not for a question
    return recorder is not None and recorder.get_proxy_mode() is not None
