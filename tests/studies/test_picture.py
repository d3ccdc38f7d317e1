from __future__ import annotations

from pathlib import Path

from studies.picture import main


def test_the_picture_of_the_readme_is_drawn(tmp_path: Path) -> None:
    main(["--quick", "--figure", str(tmp_path / "below" / "gap.png")])
    assert (tmp_path / "below" / "gap.png").stat().st_size > 10_000
