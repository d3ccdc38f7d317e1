from __future__ import annotations

from pathlib import Path

from benchmarks.command import main
from studies.picture import STUDY


def test_the_picture_of_the_readme_is_drawn(tmp_path: Path) -> None:
    main({"picture": STUDY}, ["--quick", "--figure", str(tmp_path / "below" / "gap.png")])
    assert (tmp_path / "below" / "gap.png").stat().st_size > 10_000
