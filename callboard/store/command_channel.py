"""Commands as messages of channels, and back.

| command | message of a channel |
|---|---|
| `AttachWriter`, `AckClone` | `Handshake` |
| `Keepalive` | `Heartbeat` |
| `RetransmitFailedCommand` | `RetransmitFailed` |
| `CumulativeAckCommand` | `CumulativeAck` |
| `NackCommand` | `Nack` |
| any action | `Event`, with the command as payload |

Source: Broker's developer guide, section 7.5.1.
"""

from callboard.channel import (
    ConsumerMessage,
    CumulativeAck,
    Event,
    Handshake,
    Heartbeat,
    Nack,
    ProducerMessage,
    RetransmitFailed,
)
from callboard.endpoint.container import Table
from callboard.store.command import (
    AckClone,
    AttachWriter,
    Command,
    CumulativeAckCommand,
    InternalCommand,
    Keepalive,
    NackCommand,
    RetransmitFailedCommand,
)

__all__ = ["channel_message", "control_command"]

StoreMessage = ProducerMessage[InternalCommand] | ConsumerMessage


def channel_message(command: InternalCommand) -> StoreMessage:
    """Return what a command says in terms of channels."""
    match command.content:
        case AttachWriter(offset, interval) | AckClone(offset, interval):
            return Handshake(offset + 1, interval)
        case Keepalive(seq):
            return Heartbeat(seq)
        case RetransmitFailedCommand(seq):
            return RetransmitFailed(seq)
        case CumulativeAckCommand(seq):
            return CumulativeAck(seq)
        case NackCommand(seqs):
            return Nack(seqs)
    return Event(command.seq, command)


def control_command(message: StoreMessage, state: Table | None = None) -> Command:
    """Return the content of the command that carries a message of a channel.

    Args:
        message: what a producer or consumer sends.
        state: all that the master holds, in the handshake of a clone; None in a writer's.
    """
    match message:
        case Handshake(first, interval):
            if state is None:
                return AttachWriter(first - 1, interval)
            return AckClone(first - 1, interval, state)
        case Heartbeat(seq):
            return Keepalive(seq)
        case RetransmitFailed(seq):
            return RetransmitFailedCommand(seq)
        case CumulativeAck(seq):
            return CumulativeAckCommand(seq)
        case Nack(seqs):
            return NackCommand(seqs)
        case Event(_, command):
            return command.content
