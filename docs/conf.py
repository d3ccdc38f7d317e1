"""Sphinx configuration: ``sphinx-build docs docs/_build``."""

from __future__ import annotations

import importlib.metadata

project = "lapwing"
author = "lapwing developers"
copyright = "2026, lapwing developers"
release = importlib.metadata.version("lapwing")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"lapwing {release}"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 2
bibtex_bibfiles = ["refs.bib"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Cost", "Source", "Warns"]
