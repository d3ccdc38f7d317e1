"""One study: its rows as JSON, its figure where asked; the sine has a command line of its own, ``studies.sine``."""

from __future__ import annotations

import sys

from studies import sine
from studies.full_laplace.setting import Setting
from studies.runs import command

NAMES = ("spectrum", "cost", "quadrature", "preconditioners", "mnist")

study = command("studies.full_laplace", __doc__, Setting(), NAMES, hidden=("data", "verdict"))


def main(arguments: list[str] | None = None) -> None:
    """Run what was typed; ``None`` takes ``sys.argv``."""
    words = sys.argv[1:] if arguments is None else arguments
    (sine.main if words[:1] == ["sine"] else study)(words[words[:1] == ["sine"] :])


if __name__ == "__main__":
    main()
