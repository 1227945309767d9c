"""Origins: the publishers of a message on a node, so that it does not come back to them.

A subscription can name the publisher whose own it is. Messages carry their origins through the
node: their publisher, and the adapters through which they came in. A subscription gets the
messages of all origins except its own publisher.
"""

from pathlib import Path


def origin_of_log(folder: str | Path) -> str:
    """Return the origin of messages from a log: a recording of that log does not hear them."""
    text = str(folder)
    return f"log {text if '://' in text else Path(text).resolve()}"
