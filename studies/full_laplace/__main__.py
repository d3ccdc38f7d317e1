"""One study: its rows as JSON, its figure where asked."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies import sine
from studies.full_laplace import cost, mnist, preconditioners, quadrature, spectrum

MODULES = (spectrum, cost, quadrature, preconditioners, mnist)
STUDIES = {each.__name__.rpartition(".")[2]: Study(each.rows, draw=each.draw) for each in MODULES}
STUDIES["sine"] = sine.STUDY

if __name__ == "__main__":
    main(STUDIES)
