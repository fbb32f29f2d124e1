"""Sphinx settings; pages are Markdown (MyST), API pages come from docstrings."""

import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import tables

project = "mtpcore"
author = "the mtpcore authors"
settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
release = version = settings["project"]["version"]
del settings  # Sphinx reads every name of this file
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
napoleon_google_docstring = False
autodoc_typehints = "description"
html_theme = "alabaster"
html_theme_options = {"description": "Drafters as small graphs on another context's hidden states"}


def setup(app: Sphinx) -> None:
    """Fill in the tables that are made of facts in the repository."""

    def fill(app: Sphinx, page: str, source: list[str]) -> None:
        source[0] = tables.filled(source[0])

    app.connect("source-read", fill)
