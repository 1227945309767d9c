"""Zeek's former name, for programs that still use it."""

import warnings
from typing import Any

from callboard.broker import zeek


class Event(zeek.Event):
    """The same as `zeek.Event`, with a deprecation warning."""

    def __init__(self, *args: Any, **named: Any) -> None:
        warnings.warn(
            "bro.Event is deprecated, use zeek.Event instead", DeprecationWarning, stacklevel=2
        )
        super().__init__(*args, **named)
