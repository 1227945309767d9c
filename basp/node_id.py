"""Node ids: 18 bytes that identify a running node in the whole network.

====== ==== =======================================================
offset size meaning
====== ==== =======================================================
0      15   BLAKE2b hash of machine facts, start time and index
15     3    process id, big-endian (modulo 2**24)
====== ==== =======================================================

The start time is part of the hash, so a restarted process has another id. Source:
CAF 0.17 manual, "Node IDs".
"""

from hashlib import blake2b
from typing import Final, NewType

from callboard.basp.errors import InvalidNodeId

NodeId = NewType("NodeId", bytes)

NODE_ID_SIZE: Final = 18
_HASH_SIZE: Final = 15
_PROCESS_ID_MASK: Final = (1 << 24) - 1

#: Placeholder for an unknown node, such as the destination of a server handshake.
NO_NODE: Final = NodeId(bytes(NODE_ID_SIZE))


def make_node_id(machine: bytes, started_ns: int, index: int, process_id: int) -> NodeId:
    """Create a node id from facts that the caller has collected.

    Args:
        machine: identity of the machine (file system UUID, MAC addresses).
        started_ns: start time of the process, wall clock, nanoseconds.
        index: number of the node in its process, from 0.
        process_id: operating system's process id; its low 24 bits are kept.

    Raises:
        InvalidNodeId: a number is negative.
    """
    if started_ns < 0 or index < 0 or process_id < 0:
        msg = (
            f"node id facts must not be negative: started_ns {started_ns}, "
            f"index {index}, process_id {process_id}"
        )
        raise InvalidNodeId(msg)
    # The length is part of the text, so different facts are never hashed as the same bytes.
    facts = b"%d:%b:%d:%d:%d" % (len(machine), machine, started_ns, index, process_id)
    digest = blake2b(facts, digest_size=_HASH_SIZE, person=b"basp node id").digest()
    return NodeId(digest + (process_id & _PROCESS_ID_MASK).to_bytes(3, "big"))


def node_id_text(node_id: bytes) -> str:
    """Return a node id as 36 lower-case hexadecimal digits."""
    return node_id.hex()
