"""The README as the package's page on an index shows it: there its relative links lead nowhere.

Hatchling calls this when it builds (`[tool.hatch.metadata.hooks.custom]`). Links lead to the
project's home if `project.urls` has one, `Source = "https://…/blob/main"`; until then they are
their text, with the path of the file in the source.
"""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A picture of the repository, with the line break after it.
_PICTURE: Final = re.compile(r"!\[([^\]]*)\]\((?![a-z][a-z0-9+.-]*:)([^)\s]+)\)\n*")
#: A link to a file of the repository: no scheme, no place on the page itself.
_LINK: Final = re.compile(r"\[([^\]]+)\]\((?![a-z][a-z0-9+.-]*:|#)([^)\s]+)\)")


def with_links(text: str, home: str) -> str:
    """Return a page with its relative links at home, or as text if there is no home.

    Pictures are loaded from home, or omitted.
    """
    if not home:
        text = _PICTURE.sub("", text)
    if home:
        return _LINK.sub(lambda link: f"[{link[1]}]({home.rstrip('/')}/{link[2]})", text)
    return _LINK.sub(lambda link: f"{link[1]} (`{link[2]}`)", text)


class Readme(MetadataHookInterface):
    """Puts the README into the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = (Path(self.root) / "README.md").read_text()
        home = metadata.get("urls", {}).get("Source", "")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_links(text, home),
        }
