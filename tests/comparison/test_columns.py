from __future__ import annotations

import pytest

from lapwing.comparison import COLUMNS, Column


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (-0.5, "−0.500"), (999_999.0, "999999.000"), (1e6, "1.0e+06"), (-2.5e12, "−2.5e+12")],
)
def test_numbers_are_written_by_their_format_until_they_are_too_long(value: float, text: str) -> None:
    assert Column("a", "a", "lower", ".3f", "").write(value) == text


def test_no_two_columns_share_a_name_or_a_label() -> None:
    assert len({column.name for column in COLUMNS}) == len({column.label for column in COLUMNS}) == len(COLUMNS)
