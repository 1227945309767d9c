"""Sphinx: MyST pages in the furo theme, built with warnings as errors by `make docs`."""

from importlib.metadata import version as installed_version

project = "callboard"
author = "callboard contributors"
copyright = "callboard contributors"  # noqa: A001 - Sphinx reads it under this name
version = release = installed_version("callboard")

extensions = ["myst_parser"]
myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "callboard"
