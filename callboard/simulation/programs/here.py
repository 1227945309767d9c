"""Whose turn it is: the life of the program that runs just now."""

import threading
from collections.abc import Callable
from random import Random
from typing import Any, Final, NoReturn, Protocol

from callboard.simulation.clock import Clock, NodeClock
from callboard.simulation.network import SimulatedNetwork


class Program(Protocol):
    """The host of a program, as its loop and what stands for Python's library see it."""

    name: str
    address: str
    number: int
    #: What its program does at a signal, by number.
    handlers: dict[int, Any]

    def signal(self, number: int, /) -> None:
        """Send a signal to the program."""

    def exited(self, code: object, /) -> None:
        """Take note that the program left by `sys.exit`, or was ended by a signal."""

    def troubled(self, message: str, error: BaseException | None, /) -> None:
        """Take note of an error that nobody waits for."""


class ProgramLife(Protocol):
    """One life of a program: its loop, as sockets and substitutes use it."""

    host: Program
    network: SimulatedNetwork
    #: The clock of all.
    simulation: Clock
    #: Where what the simulation draws comes from, and what the program draws.
    random: Random
    drawn: Random
    chance: Callable[[], float]
    #: What the host has for clocks.
    node_clock: NodeClock
    #: How often the program asked for the time in this turn.
    calls: int

    def block(self, seconds: float, /) -> None:
        """Let seconds pass in which the host does nothing else."""

    def time(self) -> float:
        """Return what the host's clock shows."""

    def refuse(self, what: str, instead: str, /) -> NoReturn:
        """Raise `NotSimulated`, and say what to do."""

    def new_descriptor(self, of: object, /) -> int:
        """Return the number of a socket or file."""

    def drop_descriptor(self, number: int, /) -> None:
        """Forget a number."""


class Here(threading.local):
    """What runs on a thread."""

    def __init__(self) -> None:
        #: The life that has its turn; None outside of all turns.
        self.loop: ProgramLife | None = None
        #: The life of the node's actors that has its turn.
        self.actors: Any = None


#: There is one: a thread runs one program at a time.
here: Final = Here()
