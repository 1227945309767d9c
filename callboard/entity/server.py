"""The actor that receives other nodes' messages for the entities of this node."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from callboard.cbor.reader import RunsUserCode
from callboard.entity.host import Arrival, EntityHost
from callboard.entity.journal.growth import JournalGrowth
from callboard.entity.machine.table import SLOTS, slot_of
from callboard.entity.memberships import Memberships
from callboard.entity.messages import (
    AskEntityTable,
    AskVote,
    EntityMarker,
    EntityMessage,
    EntityMessages,
    EntityTable,
    FollowJournal,
    JournalGrew,
    MoveSlots,
    NotOwner,
    StopEntity,
)
from callboard.entity.router import TypeRouter
from callboard.kernel.access import NamedRight, Rights
from callboard.kernel.activation import (
    CARRIED_ASKED,
    CARRIED_URGENT,
    NO_DEADLINE,
    Carried,
    Cell,
    Encoded,
    Envelope,
    RemoteReply,
)
from callboard.kernel.actors import ActorRef, handler
from callboard.kernel.context import NodeContext, SystemActor
from callboard.kernel.errors import NotPermitted, WrongValue, remote_error
from callboard.kernel.reply import NoReply, Sender
from callboard.kernel.topology import Topology
from callboard.kernel.tracing import INSTRUMENTATION
from callboard.protocol_errors import MalformedPayload, RemoteProtocolError
from callboard.support.keyed_name import KEY_LIMIT, is_key, is_type_name
from callboard.support.text import class_name, error_text, safe_repr

#: For a node without refused messages.
_NO_REFUSALS: Final[Mapping[int, int]] = MappingProxyType({})


class ArrivedMessage(NamedTuple):
    """A message from another node for an entity."""

    type_name: str
    key: str
    message: Any
    sender: Sender | None
    is_urgent: bool


def _invalid_key(key: object) -> WrongValue:
    """Return the error of a message with an invalid key."""
    limits = f"1 to {KEY_LIMIT} bytes in UTF-8 and no NUL"
    return WrongValue(f"a key must have {limits}, not {safe_repr(key):.80}")


class Inbound:
    """Posts messages of other nodes to the entities of this node, or refuses them."""

    def __init__(
        self,
        runtime: NodeContext,
        hosts: Mapping[str, EntityHost],
        router: Callable[[str], TypeRouter],
        table: Callable[[str], EntityTable | None],
    ) -> None:
        """Start without refusals.

        Args:
            runtime: the runtime of the node.
            hosts: the hosts on the node, by type.
            router: returns the router of a type.
            table: returns the table of a type for a refusal.
        """
        self._runtime, self._hosts = runtime, hosts
        self._router, self._table = router, table
        #: By node and type: the latest refused attempt for each slot.
        self._refused: dict[tuple[bytes, str], dict[int, int]] = {}

    def forget(self, node: bytes) -> None:
        """Forget the refusals of a lost node."""
        for source in [source for source in self._refused if source[0] == node]:
            del self._refused[source]

    def has_active(self, name: object, key: object) -> bool:
        """Return whether an entity is active here; the arguments may be of any type."""
        host = self._hosts.get(name) if isinstance(name, str) else None
        return host is not None and isinstance(key, str) and key in host.cells

    def deliver(self, arrived: "ArrivedMessage", node: bytes, attempt: int) -> NotOwner | None:
        """Post a message from another node to its entity, or return a refusal."""
        name, key, message, sender, is_urgent = arrived
        host, way = self._hosts.get(name), (bytes(node), name)
        return self._deliver(host, way, key, message, sender, attempt, is_urgent=is_urgent)

    def _deliver(
        self,
        host: EntityHost | None,
        way: tuple[bytes, str],
        key: str,
        message: Any,
        sender: Sender | None,
        attempt: int,
        *,
        is_urgent: bool,
    ) -> NotOwner | None:
        """Deliver a message to its entity, or hold it while this node claims the slot.

        Args:
            host: the host of the type on this node.
            way: the node that sent the message, and the name of the type.
            key: the key of the entity.
            message: the message.
            sender: its sender.
            attempt: the attempt in which it was sent.
            is_urgent: whether it is handled before normal messages.

        Returns:
            The refusal, if the message was neither delivered nor held.
        """
        slot, refused = slot_of(key), self._refused.get(way, _NO_REFUSALS)
        # An earlier message of the same attempt was refused: see `callboard.entity.router`.
        is_late = slot in refused and attempt <= refused[slot]
        if host is None:
            return NotOwner(self._table(way[1]))
        if not (is_late or host.is_closed):
            router = host.router
            if (
                slot not in router.forwarded
                and host.deliver(key, message, sender, is_urgent=is_urgent)
            ) or router.hold(key, slot, message, sender, is_urgent=is_urgent):
                if slot in refused:
                    del self._refused[way][slot]
                return None
        refused = self._refused.setdefault(way, {})
        refused[slot] = max(attempt, refused.get(slot, 0))
        return NotOwner(self._table(way[1]))

    def take(
        self, name: str, messages: Sequence[Carried], carrier: RemoteReply, cell: Cell
    ) -> None:
        """Deliver the messages of a batch to their entities, in order.

        Messages that cannot be decoded, or whose slots this node does not own, are answered
        with a refusal. `cell` is the cell of the server. `carrier` has counted all messages as
        received.
        """
        host, way = self._hosts.get(name), (bytes(carrier.node), name)
        arrivals, tells = self._read(messages, carrier, cell, host)

        def fail(position: int, error: Exception) -> None:
            arrivals[position][5].set_exception(remote_error(error))
            text = f"{class_name(error)}: {error_text(error)}"
            cell.runtime.log_failure(cell, text, error)

        position, count = 0, len(arrivals)
        while position < count:
            if host is not None:
                refused = self._refused.get(way, _NO_REFUSALS)
                position = host.deliver_run(arrivals, position, refused, fail)
                if position == count:
                    break
            key, message, sender, is_urgent, attempt, reply = arrivals[position]
            try:
                refusal = self._deliver(
                    host, way, key, message, sender, attempt, is_urgent=is_urgent
                )
            except Exception as error:  # noqa: BLE001 - the other messages are handled
                fail(position, error)
            else:
                if refusal is not None:
                    reply.set_result(refusal)
            position += 1
        for reply in tells:
            reply.set_result(None)  # no effect if the message was refused

    def _read(
        self,
        messages: Sequence[Carried],
        carrier: RemoteReply,
        server: Cell,
        host: EntityHost | None,
    ) -> tuple[list[Arrival], list[RemoteReply]]:
        """Decode the messages of a batch, and answer those that cannot be delivered.

        `server` is the cell of the server, which drops expired messages.

        Returns:
            The messages to deliver, and the replies to messages without an asker. These replies
            only report whether the message was refused.
        """
        arrivals: list[Arrival] = []
        tells: list[RemoteReply] = []
        cells = {} if host is None else host.cells
        read, entry, runtime = carrier.read, carrier.entry, self._runtime
        now = runtime.now()

        def unread(reply: RemoteReply, error: BaseException) -> None:
            runtime.counters.dead_letters += 1
            carrier.died()
            reply.set_exception(error)

        for message_id, flags, attempt, teller, left, key, body in messages:
            deadline = None
            if left != NO_DEADLINE:
                INSTRUMENTATION.used = True
                deadline = now + left / 1000
            reply = entry(message_id, 0, deadline)
            if key not in cells and not is_key(key):
                reply.set_exception(_invalid_key(key))
                continue
            try:
                message = read(body)
            except (RemoteProtocolError, MemoryError) as error:
                unread(reply, error)
                continue
            except RunsUserCode:
                message = Encoded(
                    partial(carrier.read_whole, body), partial(unread, reply), len(body)
                )
            if not left:
                carrier.died()
                server.drop_expired(message, reply)
                continue
            sender: Sender = reply
            if not flags & CARRIED_ASKED:
                tells.append(reply)
                sender = NoReply(
                    runtime, runtime.ref_of(carrier.node, teller) if teller else None
                )
            is_urgent = flags & CARRIED_URGENT != 0
            arrivals.append((key, message, sender, is_urgent, attempt, reply))
        return arrivals, tells

    def send_back(self, name: str, sender: Sender | None) -> bool:
        """Answer an ask from another node with `NotOwner`; return False for other messages."""
        if sender is None or not (sender.expects and sender.node and sender.wants_reply):
            return False
        sender.set_result(NotOwner(self._table(name)))
        return True

    def marker(
        self, msg: EntityMarker, passed: Callable[[], object], *, is_leaf: bool = False
    ) -> None:
        """Call back when earlier messages were accepted here or by a newer owner."""
        host = self._hosts.get(msg.type_name)
        if (
            is_leaf
        ):  # a leaf's messages were passed to this node's router, which sends the marker
            self._router(msg.type_name).send_marker(msg.slot, passed)
        elif host is None:
            passed()
        elif msg.slot in host.router.forwarded or not host.accept_marker(msg.slot, passed):
            host.router.forward_marker(msg.slot, passed)


class ServedEntities(Protocol):
    """The entities of a node, as its server uses them."""

    runtime: NodeContext
    overlay: Topology
    growth: JournalGrowth
    memberships: Memberships

    def route_for_leaf(self, arrived: ArrivedMessage, /) -> NotOwner | None:
        """Route a message of a leaf to its owner."""

    def table(self, name: str, asker: Sender | None = None, /) -> EntityTable | None:
        """Return the table of a hosted type; the asking node will receive newer ones."""

    def table_for_leaf(self, name: str, /) -> EntityTable:
        """Return a table for a leaf, in which this node owns all slots."""

    def receive_table(self, table: EntityTable, /) -> None:
        """Handle a table that another member has announced."""

    def followed(self, name: str, node: bytes, /, *, is_leaf: bool) -> EntityTable | None:
        """Notify a node from now on when the journal of a hosted type grows."""

    def passivate_here(self, type_name: str, key: str, /) -> None:
        """Passivate an entity of this node after its messages."""


class EntityServer(SystemActor):
    """Receives messages of other nodes for entities of this node.

    A message may come from a program that is not callboard, so each field is checked. A leaf
    may only do what its rights `entities` and `host` permit. It does not know the other
    members, so this node accepts the messages for all slots from it, and routes them to the
    owners.
    """

    def __init__(self, inbound: Inbound, entities: ServedEntities) -> None:
        """Serve the entities of a node; `inbound` takes the messages for them."""
        self._inbound, self._entities = inbound, entities

    @handler
    def on_message(self, msg: EntityMessage) -> NotOwner | None:
        """Post a message to its entity, or refuse it if this node is not the owner."""
        cell: Any = self.context
        entities, key, asker = self._entities, msg.key, cell.sender
        is_leaf = entities.overlay.rights(cell.sender_node) is not None
        # If the entity is active, its name and key are valid, and need not be checked.
        if is_leaf or not self._inbound.has_active(msg.type_name, key):
            if self._refuses(msg.type_name, ("entities",)):
                return None
            if not is_key(key):
                self._refuse(_invalid_key(key))
                return None
        is_asked = msg.is_asked is True
        if is_asked:
            if asker is None or not asker.expects:
                return None
            # This is not recorded as a promise of this actor: the entity answers the ask, even
            # if this actor has ended by then.
            cell.promised = asker
            asker.mark_handled()
        trace, chain = INSTRUMENTATION.current(), INSTRUMENTATION.chain.get()
        message = Envelope(msg.message, trace, chain=chain) if trace or chain else msg.message
        sender: Sender | None = asker
        if not is_asked:
            ref = msg.sender if isinstance(msg.sender, ActorRef) else None
            sender = NoReply(cell.runtime, ref)
        arrived = ArrivedMessage(msg.type_name, key, message, sender, msg.is_urgent is True)
        if is_leaf:
            refusal = entities.route_for_leaf(arrived)
        else:
            attempt = msg.attempt if type(msg.attempt) is int else 0
            refusal = self._inbound.deliver(arrived, cell.sender_node, attempt)
        if refusal is not None and is_asked:
            asker.set_result(refusal)
        return refusal

    @handler
    def on_messages(self, msg: EntityMessages) -> None:
        """Post the messages of a batch to their entities."""
        cell: Any = self.context
        carrier = cell.sender
        if carrier is None or not carrier.expects:
            return
        if self._refuses(msg.type_name, ("entities",)):
            return
        if self._rights() is not None:
            self._refuse(NotPermitted("a node with limited rights sends messages one by one"))
            return
        try:
            messages = msg.each()
        except MalformedPayload as error:
            self._refuse(error)
            return
        count = carrier.count if isinstance(carrier, RemoteReply) else 0
        if count != len(messages) or not count:
            counted = f"{len(messages):,} messages for entities was counted as {count or 1:,}"
            text = f"a batch of {counted}"
            self._refuse(MalformedPayload(text))
            return
        cell.promised = carrier  # each message is answered separately
        carrier.mark_handled()
        self._inbound.take(msg.type_name, messages, carrier, cell)

    @handler
    def on_ask(self, msg: AskEntityTable) -> EntityTable | None:
        """Answer with the table of a type."""
        if self._refuses(msg.type_name, ("entities", "host")):
            return None
        rights = self._rights()
        if rights is None or rights.permit("host", msg.type_name):
            return self._entities.table(msg.type_name, self.context.sender)
        return self._entities.table_for_leaf(msg.type_name)

    @handler
    def on_table(self, msg: EntityTable) -> None:
        """Handle a newer table."""
        if not self._refuses(msg.type_name, ("host",)):
            self._entities.receive_table(msg)

    @handler
    def on_vote(self, msg: AskVote) -> bool | None:
        """Vote whether a member is unreachable."""
        if self._refuses(msg.type_name, ("host",)) or type(msg.writer) is not str:
            return None
        return self._entities.memberships.vote(msg.type_name, msg.writer)

    @handler
    def on_marker(self, msg: EntityMarker) -> None:
        """Answer when everything that was sent before was accepted or refused."""
        if self._refuses(msg.type_name, ("entities",)):
            return
        if type(msg.slot) is not int or not 0 <= msg.slot < SLOTS:
            text = f"slot {safe_repr(msg.slot):.80} must be a number from 0 to {SLOTS - 1}"
            self._refuse(WrongValue(text))
            return
        promise = self.promise()
        if msg.is_refused is True:
            promise.set_result(None)
            return
        passed = partial(promise.set_result, None)
        self._inbound.marker(msg, passed, is_leaf=self._rights() is not None)

    @handler
    def on_follow(self, msg: FollowJournal) -> EntityTable | None:
        """Start notifying the asking node of the growth of a type's journal."""
        if self._refuses(msg.type_name, ("entities", "host")):
            return None
        rights = self._rights()
        is_member = rights is None or rights.permit("host", msg.type_name)
        return self._entities.followed(msg.type_name, self._peer(), is_leaf=not is_member)

    @handler
    def on_grew(self, msg: JournalGrew) -> None:
        """Wake the followers of a journal."""
        if not self._refuses(msg.type_name, ("host",)):
            self._entities.growth.wake(msg.type_name)

    @handler
    def on_move(self, msg: MoveSlots) -> None:
        """Move slots to another host."""
        if self._refuses(msg.type_name, ("host",)):
            return
        try:
            self._entities.memberships.move(msg)
        except WrongValue as error:
            self._refuse(error)

    @handler
    def on_stop(self, msg: StopEntity) -> None:
        """Passivate an entity."""
        if not self._refuses(msg.type_name, ("entities",)) and is_key(msg.key):
            self._entities.passivate_here(msg.type_name, msg.key)

    def _rights(self) -> Rights | None:
        """Return the rights of the sender; None for a full member."""
        return self._entities.overlay.rights(self._peer())

    def _peer(self) -> bytes:
        """Return the node of the sender."""
        return self.context.sender_node

    def _refuses(self, type_name: object, rights: Sequence[NamedRight]) -> bool:
        """Refuse a message with an invalid type name, or without any of some rights.

        Returns:
            Whether the message was refused, and thereby answered.
        """
        if not is_type_name(type_name):
            text = f"{safe_repr(type_name):.80} is not the name of an entity type"
            self._refuse(WrongValue(text))
            return True
        name, permitted = str(type_name), self._rights()
        if permitted is None or any(permitted.permit(right, name) for right in rights):
            return False
        self._entities.overlay.refused(self._peer(), rights[0], name)
        text = f"no right {rights[0]!r} for {name!r} at {self.node.name}"
        self._refuse(NotPermitted(text))
        return True

    def _refuse(self, error: BaseException) -> None:
        """Answer with an error; an exception would end this actor."""
        self.promise().set_exception(error)
