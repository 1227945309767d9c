"""The 60-byte header before every payload.

====== ==== ================= ==================================================
offset size field             meaning (all numbers big-endian)
====== ==== ================= ==================================================
0      4    operation         :class:`Operation`
4      4    payload length    bytes after the header
8      8    operation data    depends on the operation, see below
16     18   source node       node that created the frame, not the last hop
34     18   destination node  compared with our own id; a mismatch is forwarded
52     4    source actor      0 = anonymous
56     4    destination actor 0 = the node itself
====== ==== ================= ==================================================

Operation data of ``dispatch_message``:

===== ====================================================================
bits  meaning
===== ====================================================================
63    ``RESPONSE``: answers the request of the same message id
62    ``HIGH_PRIORITY``: overtakes normal messages in the mailbox
61-56 path epoch of the (source, destination) pair, modulo 64
55-32 sequence number in the epoch; after the last one, the next epoch follows
31-0  message id; 0 = no answer expected
===== ====================================================================

Bits 61-32 are the *position* of a dispatch among all dispatches of its pair, of any priority.
They are delivered in this order, see :mod:`callboard.basp.routing.path_order`.

A dispatch may *carry* several messages: a request to ``CARRIED``, or a response with message id
0. Its source actor is their number. It uses as many positions, all in one epoch, and its own is
the last of them. Thus accounts, reports and ends of paths count messages.

The operation data of ``server_handshake`` and ``client_handshake`` is the protocol version, of
``down_message`` the ordinal of the exit reason, of ``release_proxy_instance`` the number of
sightings, and of ``drop_conn`` the reason (:class:`callboard.basp.handshake.DropReason`).

Source: CAF 0.17 manual, "Binary Actor System Protocol".
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from callboard.basp.errors import MalformedFrame
from callboard.basp.node_id import NO_NODE, node_id_text


class Operation(IntEnum):
    """Operations of frames; 0-5 are defined by CAF, the others by us."""

    SERVER_HANDSHAKE = 0
    CLIENT_HANDSHAKE = 1
    DISPATCH_MESSAGE = 2
    ANNOUNCE_PROXY_INSTANCE = 3
    DOWN_MESSAGE = 4
    HEARTBEAT = 5
    HELLO = 6
    ORIGINATOR_SYN = 7
    RESPONDER_SYN_ACK = 8
    ORIGINATOR_ACK = 9
    DROP_CONN = 10
    ROUTING_UPDATE = 11
    RELEASE_PROXY_INSTANCE = 12
    DELIVERY_REPORT = 13
    PATH_END = 14


OPERATION_COUNT: Final = len(Operation)

HEADER: Final = Struct(">IIQ18s18sII")
HEADER_SIZE: Final = 60

RESPONSE: Final = 1 << 63
HIGH_PRIORITY: Final = 1 << 62
EPOCH_SHIFT: Final = 56
EPOCH_COUNT: Final = 64
SEQUENCE_BITS: Final = 24
SEQUENCE_COUNT: Final = 1 << SEQUENCE_BITS
#: Epoch and sequence number together.
POSITION_SHIFT: Final = 32
POSITION_MASK: Final = (EPOCH_COUNT << SEQUENCE_BITS) - 1
MESSAGE_ID_MASK: Final = (1 << POSITION_SHIFT) - 1

NODE_ACTOR: Final = 0
CORE_ACTOR: Final = 1
SPAWN_SERVER: Final = 2
DIRECTORY: Final = 3
INSPECTOR: Final = 4
#: Serves the logs of a node, if it has any.
LOG_SERVICE: Final = 5
#: Appends records from other nodes to these logs.
LOG_INTAKE: Final = 6
#: Receives messages for entities, on nodes that host or use entities.
ENTITIES: Final = 7
#: Replaces `ENTITIES` in a dispatch that carries several messages, see `count_of`.
CARRIED: Final = 8
#: Replaces the destination of a dispatch for which its source lacks the right; the payload has
#: the reason.
NOT_PERMITTED: Final = 15
#: Numbers below this one are reserved for system actors of the node.
FIRST_ACTOR: Final = 16
MAX_ACTOR: Final = (1 << 32) - 1

#: Unpacked header: operation, payload length, operation data, source node, destination
#: node, source actor, destination actor.
Fields = tuple[int, int, int, bytes, bytes, int, int]


def count_of(data: int, source_actor: int, destination_actor: int) -> int:
    """Return the number of messages in a dispatch, by its operation data and actors."""
    if data & MESSAGE_ID_MASK if data & RESPONSE else destination_actor != CARRIED:
        return 1
    # At most the positions that its epoch has used, whatever the dispatch claims.
    sequence = data >> POSITION_SHIFT & SEQUENCE_COUNT - 1
    return max(1, min(source_actor, sequence + 1))


_EMPTY = frozenset(
    {Operation.ANNOUNCE_PROXY_INSTANCE, Operation.HEARTBEAT, Operation.DROP_CONN}
    | {Operation.RELEASE_PROXY_INSTANCE, Operation.PATH_END}
)
_WITH_DATA = frozenset(
    {Operation.SERVER_HANDSHAKE, Operation.CLIENT_HANDSHAKE, Operation.DISPATCH_MESSAGE}
    | {Operation.DOWN_MESSAGE, Operation.DROP_CONN, Operation.RELEASE_PROXY_INSTANCE}
    | {Operation.ANNOUNCE_PROXY_INSTANCE, Operation.PATH_END}
)
_WITH_SOURCE_ACTOR = frozenset({Operation.DISPATCH_MESSAGE, Operation.DOWN_MESSAGE})
_WITH_DESTINATION_ACTOR = frozenset(
    {Operation.DISPATCH_MESSAGE, Operation.ANNOUNCE_PROXY_INSTANCE}
    | {Operation.RELEASE_PROXY_INSTANCE}
)


def check_header(fields: Fields) -> None:
    """Refuse a header whose fields contradict its operation.

    ====================== ======= ==== ============ =================
    operation              payload data source actor destination actor
    ====================== ======= ==== ============ =================
    handshakes             yes     yes  0            0
    dispatch_message       yes     any  any          any
    announce_proxy         none    any  0            the actor
    down_message           any     yes  the actor    0
    release_proxy          none    >0   0            the actor
    heartbeat              none    0    0            0
    drop_conn              none    yes  0            0
    path_end               none    yes  0            0
    all others             any     0    0            0
    ====================== ======= ==== ============ =================

    Every frame has a source node. Only a server handshake, whose sender does not know the peer
    yet, lacks a destination node.

    Raises:
        MalformedFrame: names the operation, the field and its value.
    """
    number, length, data, source, destination, source_actor, destination_actor = fields
    if not 0 <= number < OPERATION_COUNT:
        msg = f"operation {number} is not one of 0-{OPERATION_COUNT - 1}"
        raise MalformedFrame(msg)
    operation, node = Operation(number), node_id_text(destination)
    has_no_destination = destination == NO_NODE
    is_odd = has_no_destination != (operation is Operation.SERVER_HANDSHAKE)
    is_from_actor = source_actor and operation not in _WITH_SOURCE_ACTOR
    is_to_actor = destination_actor and operation not in _WITH_DESTINATION_ACTOR
    is_release = operation is Operation.RELEASE_PROXY_INSTANCE
    is_down = operation is Operation.DOWN_MESSAGE
    for broken, problem in (
        (source == NO_NODE, "source node must not be zero"),
        (is_odd, f"destination node {node} is not allowed"),
        (length and operation in _EMPTY, f"payload must be empty, has {length:,} B"),
        (data and operation not in _WITH_DATA, f"operation data must be 0, is {data}"),
        (is_release and not data, "sightings must be at least 1, are 0"),
        (is_from_actor, f"source actor must be 0, is {source_actor}"),
        (is_to_actor, f"destination actor must be 0, is {destination_actor}"),
        (is_down and not source_actor, "source actor must name the actor that ended, is 0"),
    ):
        if broken:
            msg = f"{operation.name.lower()} from node {node_id_text(source)}: {problem}"
            raise MalformedFrame(msg)
