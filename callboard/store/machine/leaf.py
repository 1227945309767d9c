"""What a leaf may say to the master of a store: a peer that may only read it, or write as well.

Who reads says how far it is and what it misses. Who writes also announces itself, and sends
commands that clones send. Both speak for themselves only, and to this master: a heartbeat for
everybody is a master's, and would make another one resign.
"""

from typing import Final

from callboard.channel import CumulativeAck, Handshake, Heartbeat, Nack, RetransmitFailed
from callboard.store.machine.command import Command, CommandRun

_WRITES: Final = frozenset(
    {Command.PUT, Command.PUT_UNIQUE, Command.ERASE, Command.ADD, Command.SUBTRACT}
    | {Command.CLEAR}
)
_READS: Final = (CumulativeAck, Nack)
_WRITERS: Final = (Handshake, Heartbeat, RetransmitFailed)


def may_say(run: CommandRun, endpoint: bytes | None, *, may_write: bool) -> bool:
    """Return whether a leaf that may read the store may send a run to its master.

    Args:
        run: the commands.
        endpoint: the leaf's; None where it has none that is its own.
        may_write: whether it may write as well.
    """
    if run.sender.endpoint.bytes != endpoint:
        return False
    if run.control is not None:
        is_ours = may_write and isinstance(run.control, _WRITERS) and bool(run.receiver)
        return is_ours or isinstance(run.control, _READS)
    return may_write and all(_is_write(action, run.sender.who) for action in run.actions)


def _is_write(action: tuple[object, ...], who: tuple[bytes, int]) -> bool:
    """Return whether an action is a clone's, and asks in nobody else's name."""
    is_question = action[0] == Command.PUT_UNIQUE
    return action[0] in _WRITES and (not is_question or action[4] == who)


def is_write(run: CommandRun) -> bool:
    """Return whether a run needs the right to write."""
    return not isinstance(run.control, _READS)
