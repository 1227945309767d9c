"""The name of a keyed actor, such as an entity, in references: its kind and its key.

Both occur in addresses (`basp:///TYPE/KEY`), on the wire and in databases. All code that reads
them from outside checks them with the functions below.
"""

from typing import Final

#: Limits: characters of a type name, and UTF-8 bytes of a key.
TYPE_NAME_LIMIT: Final = 128
KEY_LIMIT: Final = 256

#: Prefix of the types that own work queues; the name of the queue follows.
QUEUE_PREFIX: Final = "queue."


def is_type_name(name: object) -> bool:
    """Return whether a value is a valid name of an entity type."""
    return (
        type(name) is str
        and 0 < len(name) <= TYPE_NAME_LIMIT
        and name.isprintable()
        and "/" not in name
        and " " not in name
    )


def is_key(key: object) -> bool:
    """Return whether a value is a valid key of an entity."""
    if type(key) is not str or "\0" in key:
        return False
    try:
        return 0 < len(key.encode()) <= KEY_LIMIT
    except UnicodeEncodeError:
        return False
