"""One function a figure: each takes results, draws on ``ax`` and returns it.

Nothing is shown and no global style is touched. Without ``ax`` a figure of its own is made, outside pyplot's
list: ``ax.figure.savefig("name.png")`` writes it, a cell that ends in ``ax.figure`` shows it. Colours are
those of Okabe & Ito (2008), distinct to colour-blind readers; hatches and line styles tell them apart in
print.
"""

from __future__ import annotations

from lapwing.show.plots.posteriors import plot_diagnosis, plot_evidence
from lapwing.show.plots.predictions import plot_band, plot_coverage, plot_reliability, plot_residuals
from lapwing.show.plots.processes import plot_maps, plot_process, plot_regions

__all__ = [
    "plot_band",
    "plot_coverage",
    "plot_diagnosis",
    "plot_evidence",
    "plot_maps",
    "plot_process",
    "plot_regions",
    "plot_reliability",
    "plot_residuals",
]
