"""Values between the command line and messages: JSON where it is JSON, else text."""

import json
from typing import Any

from callboard.commitlog.json_text import to_json

__all__ = ["from_text", "to_json"]


def from_text(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text
