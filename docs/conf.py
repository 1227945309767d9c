"""Sphinx: MyST pages in the furo theme, built with warnings as errors by `make docs`."""

from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.docutils import SphinxDirective

from scripts.protocol_tables import TABLES, TableError, table

project = "callboard"
author = "callboard contributors"
copyright = "callboard contributors"  # noqa: A001 - Sphinx reads it under this name
version = release = installed_version("callboard")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

# Docstrings are Google's form, and write code in single backticks.
default_role = "code"
NAPOLEON = Config(napoleon_use_ivar=True)
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"callboard {release}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_js_files = ["copy.js"]


def read_google_form(
    app: Any, what: str, name: str, of: object, options: Any, lines: list[str]
) -> None:
    """Turn a docstring in Google's form into reStructuredText.

    The extension would do so too, but takes the colon of a property for that behind a type.
    """
    kind = "method" if what in ("property", "attribute") else what
    lines[:] = GoogleDocstring(lines, NAPOLEON, app, kind, name, of, options).lines()


class WireTable(SphinxDirective):
    """A table of a protocol page, made from the code: see `scripts.protocol_tables`."""

    has_content = True
    optional_arguments = 1
    option_spec = dict.fromkeys(("sample", "at", "start", "size"), directives.unchanged)

    def run(self) -> list[nodes.Node]:
        """Return the table, with what is said above it."""
        target = self.arguments[0] if self.arguments else ""
        try:
            text = table(self.name, target, list(self.content), self.options)
        except TableError as problem:
            raise self.error(str(problem)) from None
        parent = nodes.container(classes=["wire-table"])
        self.state.nested_parse(StringList(text.splitlines()), self.content_offset, parent)
        return [parent]


def put_drawings_into_the_page(app: Any, page: nodes.document, name: str) -> None:
    """Make drawings a part of their pages, whose switch of light and dark they follow."""
    if app.builder.format != "html":
        return
    for image in list(page.findall(nodes.image)):
        path = Path(app.srcdir, image["uri"])
        drawing = path.read_text() if path.suffix == ".svg" else ""
        if not any(f' class="{kind}"' in drawing for kind in ("cb", "tty")):
            continue
        content = f'<span class="drawing">{drawing}</span>'
        image.replace_self(nodes.raw("", content, format="html"))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    for kind in TABLES:
        app.add_directive(kind, WireTable)
    app.connect("doctree-resolved", put_drawings_into_the_page)
    app.connect("autodoc-process-docstring", read_google_form)
