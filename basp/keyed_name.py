"""What names an actor by its kind and a key in references, as entities are.

Both stand in addresses (`basp:///TYPE/KEY`), on the wire and in databases, so all who take them
from elsewhere look with one function whether they can be meant.
"""

from typing import Final

#: Characters of the name of a type, and bytes of a key in UTF-8.
TYPE_NAME_LIMIT: Final = 128
KEY_LIMIT: Final = 256

#: What the names of the types begin with that own work queues; the queue's name follows.
QUEUE_PREFIX: Final = "queue."


def is_type_name(name: object) -> bool:
    """Return whether a value can be the name of a type of entities."""
    return (
        type(name) is str
        and 0 < len(name) <= TYPE_NAME_LIMIT
        and name.isprintable()
        and "/" not in name
        and " " not in name
    )


def is_key(key: object) -> bool:
    """Return whether a value can be the key of an entity."""
    if type(key) is not str or "\0" in key:
        return False
    try:
        return 0 < len(key.encode()) <= KEY_LIMIT
    except UnicodeEncodeError:
        return False
