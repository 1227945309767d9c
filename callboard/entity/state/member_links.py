"""Links between the hosts that share a SQLite file on one machine: see `MemberSockets`.

A host that cannot reach another member dials that member's socket. Of two members, only the one
with the higher node id dials, so that they do not dial each other. A member that is reachable
on any path is not dialed.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from callboard.entity.machine.table import Table
from callboard.entity.state.member_sockets import MemberSockets
from callboard.kernel.context import NodeContext
from callboard.kernel.topology import Endpoint, Topology

#: Longest pause between two attempts to reach a member, in seconds.
LONGEST_PAUSE: Final = 0.5


class MemberLinks:
    """The links of one node to other members. All methods but `listen` run on its thread."""

    def __init__(self, runtime: NodeContext, overlay: Topology) -> None:
        """Start without links."""
        self._runtime, self._overlay = runtime, overlay
        #: By URL of a register.
        self._sockets: dict[str, MemberSockets] = {}
        #: By register: the members that its tables name.
        self._members: dict[str, frozenset[bytes]] = {}
        self._dialed: dict[bytes, Endpoint] = {}

    def listen(self, url: str, sockets: MemberSockets) -> None:
        """Listen for other members of a register; may be called from any thread.

        Raises:
            OSError: the socket cannot be opened.
        """
        path = sockets.path(self._runtime.node_id)
        self._overlay.listen_at_socket(path)
        sockets.opened(path)
        self._sockets[url] = sockets

    def adopt(self, url: str, tables: Iterable[Table]) -> None:
        """Link with the members that the tables of a register name."""
        nodes = {bytes.fromhex(node) for table in tables for node in table.nodes}
        self._members[url] = frozenset(nodes - {self._runtime.node_id})
        self.check()

    def check(self) -> None:
        """Dial unreachable members, and stop the dials of nodes that have left."""
        folders = self._folders()
        for node in [node for node in self._dialed if node not in folders]:
            self._overlay.stop_dial(self._dialed.pop(node))
        for node, sockets in folders.items():
            if node in self._dialed or self._runtime.is_reachable(node):
                continue
            self._dialed[node] = endpoint = (sockets.path(node), 0)
            self._overlay.dial(endpoint, retry=LONGEST_PAUSE, on_failure=_ignore)

    def _folders(self) -> Mapping[bytes, MemberSockets]:
        """Return the members that this node has to dial, with their sockets."""
        return {
            node: self._sockets[url]
            for url, nodes in self._members.items()
            if url in self._sockets
            for node in nodes
            if node < self._runtime.node_id
        }

    def release(self) -> None:
        """Close the folders of the sockets; on a thread that may block."""
        for sockets in self._sockets.values():
            sockets.close()


def _ignore(_reason: str) -> None:
    """Do nothing: the log has the reason, and the dial continues."""
