"""What only few actors need, so that the others have no room for it in their cells."""

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.answers import Sender
    from actors.cell import Cell
    from actors.interleaving import ConcurrentTask
    from actors.reminder import Reminder


class Aside:
    """The rarely used state of a cell, made on first use."""

    __slots__ = (
        "blocked_by",
        "is_held",
        "reminders",
        "stash",
        "stashing",
        "tasks",
        "urgent",
        "woken",
    )

    def __init__(self) -> None:
        #: The actor whose full mailbox this one waits for.
        self.blocked_by: Cell | None = None
        self.reminders: set[Reminder] = set()
        #: Messages put aside by handlers, in the order of their arrival.
        self.stash: list[tuple[Any, Sender | None]] = []
        #: True between `stash()` and the end of the handler that called it.
        self.stashing = False
        #: Concurrent handlers that are under way, and those of them that can go on.
        self.tasks: dict[ConcurrentTask, None] = {}
        self.woken: deque[ConcurrentTask] = deque()
        #: True while the first message waits for a concurrent handler to finish.
        self.is_held = False
        #: Messages with high priority; each has an `Urgent` mark at the mailbox's front.
        self.urgent: deque[tuple[Any, Sender | None]] = deque()
