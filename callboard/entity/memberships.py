"""The memberships of a node in the tables of its entity types.

The types of a node share its leases in the registers, the news about other nodes, and the queue
in which types take turns to move slots (`MoveTurns`).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from callboard.entity.host import HostedType, HostNode
from callboard.entity.machine.ballot_machine import BALLOT_SECONDS
from callboard.entity.machine.table import SLOTS, SharedState, Table
from callboard.entity.messages import (
    AskVote,
    EntityTable,
    MoveSlots,
)
from callboard.entity.ownership import (
    POLL_SECONDS,
    MoveTurns,
    Ownership,
    OwnershipHooks,
)
from callboard.entity.router import TypeRouter
from callboard.entity.state.member_links import MemberLinks
from callboard.kernel.errors import WrongValue
from callboard.kernel.events import NodeDown, NodeUp
from callboard.kernel.reply import Future
from callboard.kernel.topology import ENTITIES
from callboard.lease.driver import LeaseDriver, LeaseNews
from callboard.lease.errors import (
    LeaseLost,
)
from callboard.lease.machine.lease_machine import (
    HolderGone,
    LeaseHeld,
    LeaseKilled,
)


class Memberships:
    """The memberships of one node. Its methods run on the node's thread."""

    def __init__(
        self,
        node: HostNode,
        router: Callable[[str], TypeRouter],
        on_lost: Callable[[bytes], object],
        links: MemberLinks,
    ) -> None:
        """Start with no membership.

        Args:
            node: the parts of the node that hosts of entities use.
            router: returns the router of a type.
            on_lost: called with each node that is lost.
            links: links with other members.
        """
        self._node, self._links = node, links
        self._runtime: Any = node.runtime
        self._router, self._on_lost = router, on_lost
        self._owned: dict[str, Ownership] = {}
        self._turns = MoveTurns()
        #: By type: nodes that have requested its table.
        self._askers: dict[str, set[bytes]] = {}
        #: By type: the URL of the register with its table.
        self._registers: dict[str, str] = {}
        #: By URL of a register: this node's lease in it, and the valid term of the lease.
        self._leases: dict[str, LeaseDriver] = {}
        self._terms: dict[str, int] = {}
        self._stop_listening: Callable[[], object] | None = None

    def get(self, name: str) -> Ownership | None:
        """Return the membership of a type; None without one."""
        return self._owned.get(name)

    def items(self) -> list[tuple[str, Ownership]]:
        """Return all memberships with the names of their types."""
        return list(self._owned.items())

    def remove(self, name: str) -> None:
        """Remove the membership of a type that could not join."""
        self._owned.pop(name, None)

    def create(
        self, hosted: HostedType, url: str, register: Any, lease: LeaseDriver
    ) -> Ownership:
        """Create the host of a type and its membership, which has not joined yet."""
        name = hosted.kind.name
        self._registers[name], self._leases[url] = url, lease
        hooks = OwnershipHooks(
            partial(self._adopted, name),
            partial(self._ask_vote, name),
            partial(self._ask_markers, name),
            self._turns,
        )
        return Ownership(self._node, hosted, self._router(name), register, lease, hooks)

    async def join(self, name: str, owned: Ownership, shared: SharedState) -> None:
        """Join the table of a type, and poll the membership from then on.

        Raises:
            WrongState: the members use another state.
            StorageError: the register cannot be used.
        """
        self._owned[name] = owned
        if self._stop_listening is None:
            self._stop_listening = self._runtime.listen(self._on_event)
        if (term := self._terms.get(self._registers[name])) is not None:
            owned.begin_term(term)
        try:
            await owned.join(shared)
        except BaseException:
            owned.abandon()
            raise
        self._runtime.call_later(POLL_SECONDS, self._poll, owned)

    def release(self) -> None:
        """Stop listening to the events of nodes."""
        if self._stop_listening is not None:
            self._stop_listening()

    def add_asker(self, name: str, node: bytes) -> None:
        """Send newer tables of a type to a node, too."""
        self._askers.setdefault(name, set()).add(node)

    def _of_register(self, url: str) -> list[Ownership]:
        """Return the ownerships of types whose tables are in a register."""
        ownerships = self._owned.items()
        return [owned for name, owned in ownerships if self._registers[name] == url]

    def handle_news(self, url: str, news: LeaseNews) -> None:
        """Handle a change of this node's lease, or the end of another node's lease."""
        ownerships = self._of_register(url)
        match news:
            case LeaseHeld(term):
                self._terms[url] = term
                for owned in ownerships:
                    owned.begin_term(term)
            case LeaseKilled(by):
                self._terms.pop(url, None)
                for owned in ownerships:
                    owned.end_term()
                cause = f"killed by {by}: it was silent" if by else "removed from its register"
                text = f"the lease of {self._runtime.name} was {cause}"
                self._runtime.warn_once(("lease killed", url), text)
            case HolderGone(writer, number):
                for owned in ownerships:
                    owned.holder_gone(writer, number)
            case LeaseLost():
                self._runtime.warn_once(("lease lost", url, news.handler), str(news))

    def _on_event(self, event: object) -> None:
        """Handle events of nodes; on any thread."""
        if isinstance(event, NodeDown | NodeUp):
            self._runtime.post(self._node_changed, event)

    def _node_changed(self, event: NodeDown | NodeUp) -> None:
        """Forget refusals of a lost node, and probe for the death of its members."""
        if isinstance(event, NodeDown):
            self._on_lost(event.node_id)
        for owned in list(self._owned.values()):
            if isinstance(event, NodeDown):
                owned.node_down(event.node_id)
            else:
                owned.node_up(event.node_id)
        self._links.check()

    def _ask_vote(self, name: str, node: bytes, writer: str) -> Future[Any]:
        """Ask a node to vote on whether a member is unreachable."""
        answer: Future[Any] = self._runtime.ref_of(node, ENTITIES).ask(
            AskVote(name, writer), timeout=BALLOT_SECONDS
        )
        return answer

    def _ask_markers(
        self, name: str, slots: Iterable[int], on_answers: Callable[[], object]
    ) -> None:
        """Call back when all messages that other members forwarded for some slots arrived."""
        nodes = {bytes.fromhex(node) for node in self._owned[name].table.nodes}
        nodes.discard(self._runtime.node_id)
        reachable = [node for node in nodes if self._runtime.is_reachable(node)]
        self._router(name).ask_markers(slots, reachable, on_answers)

    def vote(self, name: str, writer: str) -> bool | None:
        """Return whether a member is unreachable; None if this node is not a member."""
        owned = self._owned.get(name)
        return None if owned is None else owned.vote(writer)

    def _poll(self, owned: Ownership) -> None:
        """Poll the membership of a type, and schedule the next poll."""
        if owned.is_closed or self._runtime.is_closed:
            return
        owned.poll()
        self._runtime.call_later(POLL_SECONDS, self._poll, owned)

    def _adopted(self, name: str, table: Table) -> None:
        """Use a newer table, and send it to members and to nodes that have requested it."""
        url = self._registers[name]
        ownerships = self._of_register(url)
        self._leases[url].watch(
            {writer for owned in ownerships for writer in owned.table.members}
        )
        self._links.adopt(url, [owned.table for owned in ownerships])
        self._router(name).adopt(table, is_certain=True)
        announcement = EntityTable(name, table.version, table.text())
        nodes = {bytes.fromhex(node) for node in table.nodes} | self._askers.get(name, set())
        for node in sorted(nodes - {self._runtime.node_id}):  # sorted for simulations
            if self._runtime.is_reachable(node):
                self._runtime.ref_of(node, ENTITIES).tell(announcement)

    def move(self, order: MoveSlots) -> None:
        """Move slots of a type to another host.

        Raises:
            WrongValue: the new owner, or this node, is not a member, or a slot number is
                invalid.
        """
        owned = self._owned.get(order.type_name)
        if owned is None or owned.is_closed:
            msg = f"{self._runtime.name} does not share {order.type_name} with other nodes"
            raise WrongValue(msg)
        slots: Any = order.slots
        is_list = type(slots) is list and 0 < len(slots) <= SLOTS
        is_sound = is_list and all(type(s) is int and 0 <= s < SLOTS for s in slots)
        node: Any = order.node
        if not is_sound or type(node) is not str:
            msg = f"a move needs 1 to {SLOTS} slots, as numbers below {SLOTS}, and a node id"
            raise WrongValue(msg)
        owned.move(order.slots, order.node)
