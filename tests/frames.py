"""A data frame without pandas."""

from __future__ import annotations

from typing import Any

import numpy as np


class Frame:
    """What is read of a data frame, as that of pandas has it."""

    def __init__(self, **columns: Any) -> None:
        self.columns = list(columns)
        self.values = {name: np.asarray(values) for name, values in columns.items()}

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __array__(self) -> Any:
        return np.stack([self.values[name] for name in self.columns], 1)
