"""Ready-made modules, so that a useful gateway needs no code.

A configuration calls them by their short names: `module = "timer"`.
"""

from typing import Final

__all__ = ["READY_MADE"]

#: Short names, and what they stand for.
READY_MADE: Final[dict[str, str]] = {
    name: f"callboard.gateway.modules.{name}:{name.capitalize()}Module"
    for name in ("timer", "filter", "map", "file", "http", "topic", "record", "mqtt")
}
