"""Origins: the publishers to which a message must not return.

A message on a node has origins: its publisher, and the adapters through which it arrived. A
subscription may belong to a publisher. Then it does not get the messages that have this
publisher among their origins.
"""

from pathlib import Path


def origin_of_log(folder: str | Path) -> str:
    """Return the origin of messages from a log: a recording of that log does not hear them."""
    text = str(folder)
    return f"log {text if '://' in text else Path(text).resolve()}"
