"""Sphinx configuration: ``make docs``, or ``sphinx-build docs docs/_build``, which runs the gallery's scripts too."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
import re
import warnings
from pathlib import Path
from typing import Any

project = "lapwing"
author = "lapwing developers"
copyright = "2026, lapwing developers"
release = importlib.metadata.version("lapwing")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # the formulas of a page need no network
    "sphinxcontrib.bibtex",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/**/*.ipynb", "gallery/**/*.py", "gallery/**/*.zip"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"lapwing {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]

ROOMS_OF_EXAMPLES = ("start", "structures", "tuning", "uses", "beyond")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all are run
    "subsection_order": [f"../examples/{room}" for room in ROOMS_OF_EXAMPLES],
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": False,  # all that fail are named, at the end
    "image_srcset": ["2x"],
    "doc_module": ("lapwing",),
    "reference_url": {"lapwing": None},  # names in the code lead to their pages
    # What differs from one build to the next is not shown.
    "min_reported_time": float("inf"),
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
}

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 2
bibtex_bibfiles = ["refs.bib"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Cost", "Source"]

REFERENCE = Path(__file__).parent / "reference"
ROOMS = {
    "lapwing": "Everyday names",
    "lapwing.posteriors": "Posteriors",
    "lapwing.predictive": "Predictive distributions",
    "lapwing.linear.solvers": "Solvers",
    "lapwing.linear.preconditioners": "Preconditioners",
    "lapwing.gp": "Gaussian processes",
    "lapwing.ct": "Tomography",
    "lapwing.methods.marginal": "Training on the marginal likelihood",
    "lapwing.methods.hessian_free": "Hessian-free Laplace",
    "lapwing.comparison": "Comparison",
    "lapwing.baselines": "Baselines",
    "lapwing.metrics": "Metrics",
    "lapwing.evaluation.corruptions": "Corruptions",
    "lapwing.evaluation.diagnosis": "Diagnosis of draws",
    "lapwing.show.plots": "Plots",
    "lapwing.linalg": "Matrices",
}
"""The rooms that are documented, and how each is headed: a name in several of them has its page in the first."""

EVERYDAY = {
    "From a network to a posterior": ["Laplace", "tune", "Posterior"],
    "What a posterior is asked": ["evaluate", "Scores", "compare", "Comparison", "health", "Health", "diagnose"],
    "Files": ["save", "load", "export"],
    "Likelihoods": [
        "Categorical",
        "Gaussian",
        "Bernoulli",
        "Poisson",
        "NegativeBinomial",
        "HeteroscedasticGaussian",
        "StudentT",
        "Likelihood",
    ],
    "The network": ["TestTimeAugmentation"],
    "Weights": ["All", "LastLayer", "Names", "Subnetwork", "Mask"],
    "Structures": ["Auto", "Full", "KFAC", "EKFAC", "Diagonal", "LowRank", "Nystrom", "Sampled", "MatrixFree"],
    "Curvature": ["GGN", "MCFisher", "EmpiricalFisher", "Hessian"],
    "Priors": ["Isotropic", "Layerwise", "GPrior", "DiagonalPrior", "normalised", "Prior"],
    "Tuning": ["Validation", "Mixup", "EvidenceGradient", "MacKay", "EM", "ELBO", "train_marginal"],
    "Predictions": ["Classification", "Regression", "Counts"],
    "Without a network, and without curvature": ["GP", "HessianFree"],
    "Errors and warnings": [
        "LapwingError",
        "ConvergenceWarning",
        "DataWarning",
        "NetworkWarning",
        "PrecisionWarning",
    ],
}
"""How the everyday names are grouped on their page, what is needed first at the top."""


def grouped(room: str, own: list[str]) -> dict[str, list[str]]:
    """Names by their heading, those of the everyday names as above and others in one group without any.

    Raises:
        ValueError: If an everyday name is in no group, or a group has one that is not there.
    """
    if room != "lapwing":
        return {"": sorted(own, key=str.lower)}
    placed = [name for names in EVERYDAY.values() for name in names]
    if sorted(placed) != sorted(own):
        raise ValueError(f"EVERYDAY and lapwing.__all__ differ in {sorted(set(placed) ^ set(own))}")
    return EVERYDAY


def table_of_names(heading: str, names: list[str]) -> str:
    """A heading, and what autosummary makes pages from."""
    title = f"{heading}\n{'-' * len(heading)}\n\n" if heading else ""
    listed = "\n".join(f"   {name}" for name in names)
    return f"{title}.. autosummary::\n   :toctree: names\n\n{listed}\n"


def write_reference() -> None:
    """A page a room in ``docs/reference``, from which autosummary makes one for each name.

    Pages that it made before, of names that are gone, are deleted.
    """
    REFERENCE.mkdir(exist_ok=True)
    described = set[int]()
    pages = set[str]()
    for room, title in ROOMS.items():
        module = importlib.import_module(room)
        public = getattr(module, "__all__", [name for name in vars(module) if name[0].isupper() or name[0].islower()])
        own = [
            name for name in public if callable(getattr(module, name)) and id(getattr(module, name)) not in described
        ]
        described |= {id(getattr(module, name)) for name in own}
        pages |= {f"{room}.{name}.rst" for name in own}
        tables = "\n".join(table_of_names(heading, names) for heading, names in grouped(room, own).items())
        text = (
            f"{title}\n{'=' * len(title)}\n\n.. automodule:: {room}\n   :no-index:\n\n"
            f".. currentmodule:: {room}\n\n{tables}"
        )
        path = REFERENCE / f"{room}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in (REFERENCE / "names").glob("*.rst"):
        if path.name not in pages:
            path.unlink()


def literal_formulas(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Indented formulas above the first section of a docstring are shown as they are written."""
    done: list[str] = []
    in_section = False
    in_formula = False
    for line in lines:
        in_section = in_section or re.fullmatch(r"[A-Z][a-z]+:", line) is not None
        indented = line.startswith("    ") and not in_section
        if indented and not in_formula and (not done or not done[-1].strip()):
            done += [".. code-block:: none", ""]
            in_formula = True
        elif line.strip() and not indented:
            in_formula = False
        done.append(line)
    lines[:] = done


def skip_of_others(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool:
    """Functions of PyTorch that are values of ours are documented there."""
    return skip or inspect.isbuiltin(obj)


def be_strict_with_examples() -> None:
    """What the examples log is not printed among the messages of Sphinx; what they are warned of fails them."""
    from lapwing import ConvergenceWarning, DataWarning, NetworkWarning, PrecisionWarning

    logging.getLogger("lapwing").setLevel(logging.WARNING)
    for kind in (ConvergenceWarning, DataWarning, NetworkWarning, PrecisionWarning):
        warnings.simplefilter("error", kind)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    be_strict_with_examples()
    write_reference()  # before Sphinx looks for pages
    app.connect("autodoc-skip-member", skip_of_others)
    app.connect("autodoc-process-docstring", literal_formulas, priority=100)  # before sections are read
