"""Commands that a leaf, a peer with limited rights, may send to the master of a store.

A reader may report its progress and its missing commands. A writer may also announce itself
and send the commands that clones send. Both may name only themselves as the sender, and must
address this master: a heartbeat to all receivers is a master's, and would make another master
resign.
"""

from typing import Final

from callboard.channel import CumulativeAck, Handshake, Heartbeat, Nack, RetransmitFailed
from callboard.store.machine.command import WRITES, Command, CommandRun

_READS: Final = (CumulativeAck, Nack)
_WRITERS: Final = (Handshake, Heartbeat, RetransmitFailed)


def may_send(run: CommandRun, endpoint: bytes | None, *, may_write: bool) -> bool:
    """Return whether a leaf that may read the store may send a run to its master.

    Args:
        run: the commands.
        endpoint: the endpoint of the leaf; None if it has no endpoint of its own.
        may_write: whether the leaf may write the store.
    """
    if run.sender.endpoint.bytes != endpoint:
        return False
    if run.control is not None:
        is_ours = may_write and isinstance(run.control, _WRITERS) and bool(run.receiver)
        return is_ours or isinstance(run.control, _READS)
    return may_write and all(_is_write(action, run.sender.plain) for action in run.actions)


def _is_write(action: tuple[object, ...], sender: tuple[bytes, int]) -> bool:
    """Return whether an action is a clone's write, and any answer goes to the sender itself."""
    has_answer = action[0] == Command.PUT_UNIQUE
    return action[0] in WRITES and (not has_answer or action[4] == sender)


def is_write(run: CommandRun) -> bool:
    """Return whether a run needs the right to write."""
    return not isinstance(run.control, _READS)
