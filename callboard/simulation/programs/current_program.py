"""The program that is currently running on this thread."""

import threading
from collections.abc import Callable
from random import Random
from typing import Any, Final, NoReturn, Protocol

from callboard.simulation.clock import Clock, NodeClock
from callboard.simulation.network import SimulatedNetwork


class Program(Protocol):
    """The host of a program, as used by its loop and by the patches of the standard library."""

    name: str
    address: str
    number: int
    #: The program's signal handlers by signal number.
    handlers: dict[int, Any]

    def signal(self, number: int, /) -> None:
        """Send a signal to the program."""

    def exited(self, code: object, /) -> None:
        """Record that the program ended by `sys.exit` or by a signal."""

    def troubled(self, message: str, error: BaseException | None, /) -> None:
        """Record an error that no task awaits."""


class ProgramLife(Protocol):
    """One run of a program: its loop, as used by sockets and patches."""

    host: Program
    network: SimulatedNetwork
    #: The clock of the simulation.
    simulation: Clock
    #: The random source of the simulation for this host, and that of the program itself.
    random: Random
    drawn: Random
    chance: Callable[[], float]
    #: The clocks of the host.
    node_clock: NodeClock
    #: Number of times that the program read the clock in this turn.
    calls: int

    def block(self, seconds: float, /) -> None:
        """Block the host for some seconds."""

    def time(self) -> float:
        """Return the host's monotonic time."""

    def refuse(self, what: str, instead: str, /) -> NoReturn:
        """Raise `NotSimulated` with the unsupported call and an alternative."""

    def new_descriptor(self, of: object, /) -> int:
        """Assign a descriptor number to a socket or file."""

    def drop_descriptor(self, number: int, /) -> None:
        """Release a descriptor number."""


class CurrentProgram(threading.local):
    """The programs running on a thread."""

    def __init__(self) -> None:
        #: The program whose turn it is; None outside of turns.
        self.loop: ProgramLife | None = None
        #: The `ActorLife` of the node whose turn it is.
        self.actors: Any = None


#: The programs running on the current thread.
here: Final = CurrentProgram()
