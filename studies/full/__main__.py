"""One study: its rows, and beside what the source printed its numbers, as JSON; its figure where asked."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.full import cost, digits, preconditioners, quadrature, sine, spectrum

STUDIES = {
    "spectrum": Study(spectrum.rows, verdict=spectrum.verdict, draw=spectrum.draw),
    "cost": Study(cost.rows, verdict=cost.verdict, draw=cost.draw),
    "quadrature": Study(quadrature.rows, verdict=quadrature.verdict),
    "sine": Study(sine.rows, sine.COLUMNS),
    "digits": Study(digits.rows, draw=digits.draw),
    "preconditioners": Study(preconditioners.rows),
}

if __name__ == "__main__":
    main(STUDIES)
