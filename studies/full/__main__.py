"""One study: its rows, and beside what the source printed its numbers, as JSON; its figure where asked.

``page`` puts the tables of committed reports into the page of the documentation:

    python -m studies.full page --join benchmarks/results/full-*.json --markdown docs/full-laplace.md
"""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.full import cost, digits, page, preconditioners, quadrature, sine, spectrum

STUDIES = {
    "spectrum": Study(spectrum.rows, verdict=spectrum.verdict, draw=spectrum.draw),
    "cost": Study(cost.rows, verdict=cost.verdict, draw=cost.draw),
    "quadrature": Study(quadrature.rows, verdict=quadrature.verdict),
    "sine": Study(sine.rows, sine.COLUMNS),
    "digits": Study(digits.rows, draw=digits.draw),
    "preconditioners": Study(preconditioners.rows),
    "page": Study(lambda _: (), draw=page.page),
}

if __name__ == "__main__":
    main(STUDIES)
