"""A node among nodes of the C++ Actor Framework (CAF) 0.17.

`node.listen(wire="caf-0.17")`, `node.connect("caf://HOST:PORT")` and
`node.remote_actor("caf://HOST:PORT")` use it; this package has the types of its messages.
"""

from callboard.caf.errors import CafError
from callboard.caf.wire.message import (
    F32,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Atom,
    CafGroup,
    ConfigValue,
    Duration,
    GroupDown,
)

__all__ = [
    "F32",
    "I8",
    "I16",
    "I32",
    "I64",
    "U8",
    "U16",
    "U32",
    "U64",
    "Atom",
    "CafError",
    "CafGroup",
    "ConfigValue",
    "Duration",
    "GroupDown",
]
