"""The gate of a leaf: filters the frames on the leaf's link.

A gate takes frames, and returns the frames that may pass and the refusals of the others. It
runs on the member that has the permissions. It checks a frame of the leaf before the member
processes it, and a frame for the leaf as the last step before it is written. In a frame for the
leaf, the source of the message and every ref inside it are *granted* to the leaf: the leaf may
send to these actors as long as the link lasts. A frame of the leaf must name the leaf as its
source, must be addressed to this node or to one that the leaf may reach, and may contain only
granted refs and refs of the leaf's own actors. Otherwise a leaf could make another actor send,
under its own identity, to an actor that the leaf itself may not send to.

A refused message keeps its position among the messages of its pair of nodes. It is forwarded to
an actor number that means "not permitted", so that order and accounts stay exact. Frames of an
unknown type do not pass.
"""

from collections.abc import Collection
from dataclasses import field
from typing import Any, Final, Literal, NamedTuple, Protocol

from callboard import locks
from callboard.actors.envelope import Envelope
from callboard.actors.exit_reason import ExitReason
from callboard.actors.values import Message
from callboard.basp.accounting import Accounts
from callboard.basp.control import pack_down
from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import RawFrame, pack_frame
from callboard.basp.header import (
    CORE_ACTOR,
    DIRECTORY,
    ENTITIES,
    EPOCH_COUNT,
    EPOCH_SHIFT,
    FIRST_ACTOR,
    HEADER,
    HEADER_SIZE,
    INSPECTOR,
    LOG_INTAKE,
    LOG_SERVICE,
    MESSAGE_ID_MASK,
    NODE_ACTOR,
    NOT_PERMITTED,
    POSITION_MASK,
    POSITION_SHIFT,
    RESPONSE,
    SPAWN_SERVER,
    Fields,
    Operation,
    count_of,
)
from callboard.basp.payload import LargePayload
from callboard.cbor.pieces import find_references
from callboard.cbor.plain import write_plain
from callboard.proxies import messages
from callboard.proxies.rights.permissions import Principal
from callboard.proxies.rights.rights import OWN, NamedRight, may_look_up
from callboard.support.dataclass import dataclass

#: Actors granted to one leaf, and actors that it may watch: some 300 B each. The oldest grants
#: are forgotten; further actors cannot be watched.
ACTORS_LIMIT: Final = 100_000

#: Pending look-ups at other nodes, whose answers will reveal the name of an actor.
LOOKUP_LIMIT: Final = 1_024

#: Bytes of short items that are searched for refs: some milliseconds.
REFS_WITHIN: Final = 256 * 1024
#: The same for messages of this node.
OWN_REFS_WITHIN: Final = 16 * 1024 * 1024

#: Frames that name an actor of the leaf itself, so that they need no right.
_OF_THE_LEAF: Final = frozenset(
    {Operation.DOWN_MESSAGE, Operation.DELIVERY_REPORT, Operation.PATH_END}
    | {Operation.RELEASE_PROXY_INSTANCE, Operation.ROUTING_UPDATE}
)
_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_ANNOUNCE: Final = int(Operation.ANNOUNCE_PROXY_INSTANCE)
_DOWN: Final = int(Operation.DOWN_MESSAGE)
_POSITION: Final = POSITION_MASK << POSITION_SHIFT

#: An actor: its node, and its number there.
Key = tuple[bytes, int]


class GateHost(Protocol):
    """The methods of the node that a gate uses."""

    #: Read-only questions to the inspector.
    inspections: tuple[type, ...]

    def names_of(self, number: int) -> Collection[str]:
        """Return the names of an actor of this node.

        Can be called from any thread. Empty if it ended.
        """

    def offered_as(self, request: messages.Spawn) -> str:
        """Return the name under which the class of a spawn request is offered."""

    def name_of(self, node: bytes) -> str:
        """Return the name of a node."""

    def is_behind(self, node: bytes) -> bool:
        """Return whether a node is a member that a path leads to."""

    def read(self, payload: bytes) -> object:
        """Decode a message."""

    def write_error(self, text: str) -> bytes:
        """Encode the answer to an ask that is not permitted."""


class Refusal(NamedTuple):
    """A right that a leaf lacks; `label` is the leaf's own name of the object."""

    right: str
    name: str
    label: str


@dataclass(eq=False, repr=False)
class LeafGate:
    """The gate of one link. `admit` is called on the runner, `lets_out` on any thread."""

    _host: GateHost
    #: The node that has the permissions.
    _node: bytes
    _leaf: bytes
    standing: Principal
    #: Refusals, which the owner removes.
    refusals: list[Refusal] = field(default_factory=list)
    #: Actors that the leaf may not monitor, though it has their refs; the owner removes them.
    unwatched: list[Key] = field(default_factory=list)
    #: Frames dropped because they name another source or a node out of reach.
    dropped: int = 0
    #: Answers to nodes that the leaf may not talk with: the node, and the frame.
    answers: list[tuple[bytes, bytes]] = field(default_factory=list)
    #: Actors granted to the leaf, with their names at that time; the latest last.
    _granted: dict[Key, Collection[str]] = field(default_factory=dict)
    #: Actors whose end is reported to the leaf.
    _watched: set[Key] = field(default_factory=set)
    #: Names that the leaf looks up at other nodes, by node and message id.
    _lookups: dict[Key, str] = field(default_factory=dict)
    #: Accounts of turned-away nodes, kept here because the leaf sends them no reports.
    _turned_away: Accounts = field(default_factory=Accounts)
    _lock: locks.Lock = field(
        default_factory=lambda: locks.lock("actors that a leaf was given", 705)
    )

    # --- frames from the leaf ---

    def admit(self, frames: list[RawFrame]) -> list[RawFrame]:
        """Return the frames of one read that may pass, in order."""
        admitted = []
        for frame in frames:
            operation, source, destination = frame[0], frame[3], frame[4]
            if source != self._leaf:
                self._drop("source", source.hex())
            elif destination != self._node and not self._may_reach(destination):
                self._drop("reach", self._host.name_of(destination) or destination.hex())
            elif operation == _DISPATCH:
                admitted.append(self._check_dispatch(frame))
            elif operation == _ANNOUNCE:
                if self._may_announce((destination, frame[6])):
                    admitted.append(frame)
            elif operation in _OF_THE_LEAF:
                if operation == Operation.RELEASE_PROXY_INSTANCE:
                    self._watched.discard((destination, frame[6]))
                admitted.append(frame)
            else:
                self._drop("source", f"operation {operation}")
        return admitted

    def _may_reach(self, node: bytes) -> bool:
        """Return whether the leaf may talk with another node than this one."""
        host = self._host
        return self.standing.rights.permit("reach", host.name_of(node)) and host.is_behind(node)

    def _drop(self, right: str, name: str) -> None:
        """Record a dropped frame."""
        self.dropped += 1
        self.refusals.append(Refusal(right, name, name))

    def _check_dispatch(self, frame: RawFrame) -> RawFrame:
        """Return a dispatch unchanged if it may pass, or else as a refused one."""
        operation, _, data, source, destination, actor, number, _ = frame
        # A batch of answers is refused, because the gate cannot check the refs in it.
        if data & RESPONSE and not data & MESSAGE_ID_MASK:
            label = "a batch of answers"
            refusal: Refusal | None = Refusal("send", label, label)
        else:
            refusal = self._refusal_of(frame)
        if refusal is None:
            return frame
        self.refusals.append(refusal)
        text = self.text_of(refusal)
        if data & RESPONSE:
            payload = self._host.write_error(text)
        else:
            data &= _POSITION | MESSAGE_ID_MASK
            payload, number = write_plain([text]), NOT_PERMITTED
        return (operation, len(payload), data, source, destination, actor, number, payload)

    def text_of(self, refusal: Refusal) -> str:
        """Return the text of a refusal for the leaf."""
        identity, node = self.standing.identity, self._host.name_of(self._node)
        return f"{identity!r} has no right {refusal.right!r} for {refusal.label:.200} at {node}"

    def _refusal_of(self, frame: RawFrame) -> Refusal | None:
        """Return the right that a dispatch lacks; None if it may pass."""
        _, _, data, _, node, source_actor, number, payload = frame
        if source_actor == DIRECTORY and not data & RESPONSE and node != self._node:
            return Refusal("names", "names of the leaf", "names of its own")
        if not data & RESPONSE and number >= FIRST_ACTOR:
            key = (node, number)
            if key not in self._granted and not self._permits("send", key):
                return self._refusal("send", key)
        foreign = self._foreign_ref(payload)
        if foreign is not None:
            return foreign
        if data & RESPONSE or number >= FIRST_ACTOR:
            return None
        if node == self._node and self._checks_itself(number):
            return None
        if number == CORE_ACTOR:
            return Refusal("publish", "topics", "topics")
        try:
            message: Message = self._host.read(payload)
        except RemoteProtocolError:
            return None  # the receiver will refuse the malformed message, and tell the sender
        except LargePayload:
            label = f"a message of {len(payload):,} B to part {number} of a node"
            return Refusal("send", label, label)
        message = message.message if message.__class__ is Envelope else message
        return self._refusal_at_part(number, message, node, data & MESSAGE_ID_MASK)

    def _checks_itself(self, number: int) -> bool:
        """Return whether a part of this node checks topics, logs or entities itself."""
        rights = self.standing.rights
        return (
            (number == CORE_ACTOR and rights.has_topics)
            or (number == LOG_INTAKE and bool(rights.append))
            or (number == ENTITIES and bool(rights.entities or rights.host))
        )

    def _foreign_ref(self, payload: bytes) -> Refusal | None:
        """Return the refusal of the first ref that was not granted to the leaf."""
        try:
            for first, second in find_references(payload, REFS_WITHIN):
                if isinstance(first, str) or isinstance(second, str):
                    name = str(first)
                    if not self.standing.rights.permit("entities", name):
                        return Refusal("entities", name, f"entities of {name!r:.200}")
                elif first != self._leaf and (first, second) not in self._granted:
                    return self._refusal("send", (first, second))
        except RemoteProtocolError as error:
            return Refusal("send", str(error), str(error))
        return None

    def _refusal_at_part(
        self, number: int, message: Any, node: bytes, message_id: int
    ) -> Refusal | None:
        """Return the right that a message to a system actor of a node needs and lacks."""
        rights, kind = self.standing.rights, type(message)
        if number == NODE_ACTOR and kind in _COMMANDS:
            target = message.number
            right: NamedRight = _COMMANDS[kind]
            key = (node, target if type(target) is int else 0)
            is_own = (
                kind is not messages.LinkActors
                or getattr(message.other, "node_id", b"") == self._leaf
            )
            is_granted = kind is messages.AskCredit and key in self._granted
            if is_granted or (is_own and key[1] >= FIRST_ACTOR and self._permits(right, key)):
                return None
            return self._refusal(right, key)
        if (number, kind) in ((DIRECTORY, messages.Describe), (NODE_ACTOR, messages.CancelAsk)):
            return None  # a leaf can cancel only its own asks
        if number == INSPECTOR and kind in self._host.inspections:
            return None if rights.inspect else Refusal("inspect", "figures", "figures")
        if number == INSPECTOR and kind is messages.DrainNode:
            return None if rights.drain else Refusal("drain", "the node", "the node")
        if number == LOG_SERVICE:
            return self._refusal_of_log(message, node, "logs")
        if number == LOG_INTAKE:
            return self._refusal_of_log(message, node, "append")
        if number == ENTITIES:
            name = str(getattr(message, "type_name", ""))
            return Refusal("entities", name, f"entities of {name!r:.200}")
        return self._refusal_of_name(number, message, node, message_id)

    def _refusal_of_name(
        self, number: int, message: Any, node: bytes, message_id: int
    ) -> Refusal | None:
        """Return the right that a name in a request to spawn server or directory lacks."""
        rights, kind = self.standing.rights, type(message)
        is_named = kind in _NAMED.get(number, ()) and type(message.name) is str
        if not is_named:
            label = f"{kind.__qualname__} to part {number} of a node"
            return Refusal("send", label, label)
        if number == SPAWN_SERVER:
            name = self._host.offered_as(message) if node == self._node else message.name
            is_permitted = rights.permit("spawn", name)
            return None if is_permitted else Refusal("spawn", name, repr(message.name))
        if not may_look_up(rights, message.name, is_here=node == self._node):
            return Refusal("names", message.name, repr(message.name))
        if node != self._node and kind is messages.Lookup and len(self._lookups) < LOOKUP_LIMIT:
            self._lookups[node, message_id] = message.name
        return None

    def _refusal_of_log(
        self, message: Message, node: bytes, right: Literal["logs", "append"]
    ) -> Refusal | None:
        """Return the right that a question about a log lacks.

        Only this node tells a leaf the list of its logs.
        """
        rights, log = self.standing.rights, getattr(message, "log", None)
        if type(log) is str:
            return None if rights.permit(right, log) else Refusal(right, log, repr(log))
        is_here = node == self._node
        return None if is_here and rights.logs else Refusal(right, "logs", "logs")

    def _may_announce(self, key: Key) -> bool:
        """Return whether a proxy may be announced; record whether its end is reported."""
        is_watched = key in self._watched or (
            len(self._watched) < ACTORS_LIMIT
            and (
                self._permits("monitor", key)
                or self._permits("link", key)
                or (key == (self._node, CORE_ACTOR) and self.standing.rights.has_topics)
            )
        )
        if is_watched:
            self._watched.add(key)
            return True
        self.unwatched.append(key)
        if key in self._granted:
            # Announced, so that the number is not reused: see
            # `callboard.proxies.ledger.registry`.
            return True
        self.refusals.append(self._refusal("monitor", key))
        return False

    def may_send(self, number: int) -> bool:
        """Return whether the leaf may send to an actor of this node by its names."""
        return self._permits("send", (self._node, number))

    def _names_of(self, key: Key) -> Collection[str]:
        """Return the names of an actor, if this node knows them."""
        names = self._host.names_of(key[1]) if key[0] == self._node else ()
        return names or self._granted.get(key) or ("",)

    def _permits(self, right: NamedRight, key: Key) -> bool:
        return any(self.standing.rights.permit(right, name) for name in self._names_of(key))

    def _refusal(self, right: str, key: Key) -> Refusal:
        """Return the refusal of a right for an actor, without revealing unknown names."""
        label = f"actor {key[1]} of node {key[0].hex()[:12]}"
        name = ", ".join(self._names_of(key))
        return Refusal(right, f"{name} ({label})" if name else label, label)

    # --- frames to the leaf ---

    def outgoing(self, frame: bytes) -> bytes:
        """Return a frame as it is sent to the leaf: unchanged, as a refusal, or empty.

        A leaf exchanges topics, groups and callboard's internal names only with this node.
        Frames of other nodes about these are dropped.
        """
        operation, _, data, source, _, source_actor, number = HEADER.unpack_from(frame)
        is_open = (
            source == self._node
            or operation != _DISPATCH
            or data & RESPONSE
            or number not in {CORE_ACTOR, DIRECTORY}
            or not self._may_reach(source)  # refused below
            or (number == DIRECTORY and self._may_be_asked(frame[HEADER_SIZE:]))
        )
        if is_open:
            return frame if self.lets_out(frame) else b""
        data &= _POSITION | MESSAGE_ID_MASK
        text = f"{self.standing.identity!r} has topics, groups and own names at this node only"
        payload = write_plain([text])
        return pack_frame(
            _DISPATCH, data, source, self._leaf, source_actor, NOT_PERMITTED, payload
        )

    def _may_be_asked(self, payload: bytes) -> bool:
        """Return whether another node may send a question to the leaf's directory."""
        try:
            message: Message = self._host.read(payload)
        except (RemoteProtocolError, LargePayload):
            return False
        message = message.message if message.__class__ is Envelope else message
        return type(message) is messages.Describe or (
            type(message) is messages.Lookup and not str(message.name).startswith(OWN)
        )

    def grant(self, number: int) -> None:
        """Grant the leaf an actor of this node that it may look up by its names."""
        key = (self._node, number)
        if self._permits("names", key):
            self._record_grants([key])

    def lets_out(self, frame: bytes) -> bool:
        """Return whether a frame may be sent to the leaf, and grant the refs in it."""
        fields = HEADER.unpack_from(frame)
        operation, _, data, source, destination, source_actor, _ = fields
        if destination != self._leaf:
            return False
        if source != self._node and not self._may_reach(source):
            self._turn_away(fields)
            return False
        if operation == _DISPATCH:
            keys = [(source, source_actor)]
            try:
                for first, second in find_references(frame[HEADER_SIZE:], OWN_REFS_WITHIN):
                    if isinstance(first, bytes) and isinstance(second, int):
                        keys.append((first, second))  # a ref of an entity is not granted
            except RemoteProtocolError:
                pass  # a malformed frame, which the leaf cannot read either
            name = ""
            if data & RESPONSE and source != self._node:
                name = self._lookups.pop((source, data & MESSAGE_ID_MASK), "")
            self._record_grants(keys, name)
        elif operation == _DOWN:
            if (source, source_actor) not in self._watched:
                return False
            self._watched.discard((source, source_actor))
        return True

    def _turn_away(self, fields: Fields) -> None:
        """Answer a node's message to the leaf with a refusal, because the leaf may not answer.

        Must be called on the runner's thread.
        """
        operation, _, data, node, _, actor, number = fields
        accounts, leaf, name = self._turned_away, self._leaf, self._host.name_of(node)
        text = self.text_of(Refusal("reach", name, name))
        if operation == _ANNOUNCE:
            down = pack_down(leaf, number, node, ExitReason.UNREACHABLE.ordinal, text)
            self.answers.append((node, down))
        if operation != _DISPATCH:
            return
        epoch = data >> EPOCH_SHIFT & EPOCH_COUNT - 1
        accounts.arrivals_of(node, epoch).dead_letters += count_of(data, actor, number)
        message_id = data & MESSAGE_ID_MASK
        if message_id and not data & RESPONSE:
            account = accounts.account(node)
            position = (account.offset + account.sent & POSITION_MASK) << POSITION_SHIFT
            account.sent += 1
            error, data = self._host.write_error(text), RESPONSE | position | message_id
            answer = pack_frame(_DISPATCH, data, leaf, node, 0, actor, error)
            self.answers.append((node, answer))
        for peer, report in accounts.reports():
            frame = pack_frame(Operation.DELIVERY_REPORT, 0, leaf, peer, 0, 0, report)
            self.answers.append((peer, frame))

    def _record_grants(self, keys: list[Key], name: str = "") -> None:
        """Record actors that are granted to the leaf."""
        granted = self._granted
        for key in keys:
            if key[1] < FIRST_ACTOR or key[0] == self._leaf or (key in granted and not name):
                continue
            names = self._host.names_of(key[1]) if key[0] == self._node else (name,)
            with self._lock:
                granted.pop(key, None)
                granted[key] = names
                if len(granted) > ACTORS_LIMIT:
                    del granted[next(iter(granted))]


#: Commands to nodes, and the rights that they need.
_COMMANDS: Final[dict[type, NamedRight]] = {
    messages.StopActor: "stop",
    messages.LinkActors: "link",
    messages.AskCredit: "send",
}

#: Questions to parts of a node that contain a name.
_NAMED: Final = {
    SPAWN_SERVER: (messages.Spawn,),
    DIRECTORY: (messages.Lookup, messages.WatchName),
}
