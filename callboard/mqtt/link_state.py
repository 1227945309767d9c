"""Where a client's connection stands, from its CONNECT to its end."""

import enum


class State(enum.Enum):
    """States of a `RemoteLink`, which alone changes them, on one thread.

    WAITING: nothing has come yet; a CONNECT has to, in time.
    ADMITTING: the gate thinks about the CONNECT, and reading is paused; or the client proves
    who it is (`authentication`).
    OPEN: a link with the router; chunks go in, notifications come out.
    CLOSING: the last bytes are on their way out; nothing is read any more.
    CLOSED: the wire is gone.
    """

    WAITING = "waiting"
    ADMITTING = "admitting"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
