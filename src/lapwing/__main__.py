"""``python -m lapwing``: the command line."""

from __future__ import annotations

from lapwing.cli import main

if __name__ == "__main__":
    main()
