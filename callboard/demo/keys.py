"""Keys of the terminal: read one by one without Enter, and turned into commands."""

import os
import sys
import termios
import tty
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

from callboard.demo.line import LINKS, NAMES

HELP: Final = "k kill a node · p freeze it, again: let it go on · c cut a link · q end"

_VERBS: Final[dict[str, Literal["kill", "freeze", "cut"]]] = {
    "k": "kill",
    "p": "freeze",
    "c": "cut",
}


@dataclass(frozen=True, slots=True)
class Command:
    """What the user wants; `target` is a node, for `cut` the node on the link's A side."""

    verb: Literal["kill", "freeze", "cut", "quit"]
    target: str = ""


class KeyParser:
    """Turns keys into commands. Pure: `k` then `c` kills C, any other key takes `k` back."""

    def __init__(self) -> None:
        self._verb: Literal["kill", "freeze", "cut"] | None = None

    @property
    def prompt(self) -> str:
        """What the bottom line says."""
        if self._verb == "cut":
            links = " · ".join(f"{left.lower()}: {left}─{right}" for left, right in LINKS)
            return f"cut which link?  {links}"
        if self._verb is not None:
            return f"{self._verb} which node?  " + " · ".join(name.lower() for name in NAMES)
        return HELP

    def press(self, key: str) -> Command | None:
        """Take one key; returns a command when it completes one."""
        key = key.lower()
        verb, self._verb = self._verb, None
        if verb is None:
            if key == "q":
                return Command("quit")
            self._verb = _VERBS.get(key)
            return None
        target = key.upper()
        targets = [left for left, _ in LINKS] if verb == "cut" else NAMES
        return Command(verb, target) if target in targets else None


class Keyboard:
    """The terminal's keys while the block runs; the terminal is restored after it.

    Where standard input is no terminal, or that of a job in the foreground while this is one in
    the background, `is_there` is False and no key ever comes.
    """

    def __init__(self) -> None:
        self.is_there = _is_ours()
        self._before: list[Any] | None = None

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return sys.stdin.fileno()

    def read(self) -> str:
        """Return the keys that were pressed."""
        return os.read(self.fileno(), 64).decode(errors="replace")

    def __enter__(self) -> Self:
        if self.is_there:
            self._before = termios.tcgetattr(self.fileno())
            tty.setcbreak(self.fileno())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self.fileno(), termios.TCSADRAIN, self._before)


def _is_ours() -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return True  # a terminal that controls nobody, as a test makes it
