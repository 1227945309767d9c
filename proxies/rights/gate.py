"""The gate of a leaf: which frames of its link pass. Frames in, frames out, refusals.

It stands at the member that has the permissions, in front of everything that a leaf's frames
lead to, and behind everything that is sent to the leaf. What goes out is looked at: the source
of each message and every ref inside it is *given* to the leaf, which may send there from then
on, as long as the link lasts. What comes in speaks for the leaf itself, goes to this node or to
one that it may reach, and holds no refs but the leaf's own and those that it was given: nobody
can be made to send, in its own name, to whom the leaf may not.

A refused dispatch keeps its place among the others of its pair: it goes on to an actor number
that means "not permitted", so order and accounts stay exact. Nothing unknown passes.
"""

from collections.abc import Collection
from dataclasses import field
from typing import Any, Final, Literal, NamedTuple, Protocol

from callboard import locks
from callboard.actors.envelope import Envelope
from callboard.actors.exit_reason import ExitReason
from callboard.basp.accounting import Accounts
from callboard.basp.cbor.pieces import find_references
from callboard.basp.cbor.plain import write_plain
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
from callboard.proxies import messages
from callboard.proxies.rights.permissions import Principal
from callboard.proxies.rights.rights import OWN, NamedRight, may_look_up
from callboard.support.dataclass import dataclass

#: Actors that one leaf may have been given, and that it may watch: some 300 B each. The oldest
#: given are forgotten, further ones cannot be watched.
GIVEN_LIMIT: Final = 100_000

#: Lookups at other nodes whose answers will say what an actor is called.
LOOKUP_LIMIT: Final = 1_024

#: Bytes of short items that are gone through for refs: some milliseconds.
REFS_WITHIN: Final = 256 * 1024
#: Of messages of our own.
OWN_REFS_WITHIN: Final = 16 * 1024 * 1024

#: Whose end, or release, or report it is stands in the frame, and is the leaf's alone.
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
    """What a gate has to know of its node."""

    #: Questions to the inspector that only look.
    inspections: tuple[type, ...]

    def names_of(self, number: int) -> Collection[str]:
        """Return what an actor of this node is called; from any thread. Nothing if it ended."""

    def offered_as(self, request: messages.Spawn) -> str:
        """Return the name under which the class is offered that a request means."""

    def name_of(self, node: bytes) -> str:
        """Return what a node is called."""

    def is_behind(self, node: bytes) -> bool:
        """Return whether a node is a member that a path leads to."""

    def read(self, payload: bytes) -> object:
        """Read a message."""

    def write_error(self, text: str) -> bytes:
        """Write the answer to an ask that says that it is not permitted."""


class Refusal(NamedTuple):
    """What a leaf lacks a right for; `said` is what it calls that itself."""

    right: str
    name: str
    said: str


@dataclass(eq=False, repr=False)
class LeafGate:
    """The gate of one link. `admit` is for the runner, `lets_out` for any thread."""

    _host: GateHost
    #: The node that has the permissions.
    _node: bytes
    _leaf: bytes
    standing: Principal
    #: What was refused, for the owner to take away.
    refusals: list[Refusal] = field(default_factory=list)
    #: Actors whose end the leaf will not be told, though it has their refs; the same.
    unwatched: list[Key] = field(default_factory=list)
    #: Frames that were dropped because they are in another node's name, or for another one.
    dropped: int = 0
    #: What nodes are answered that the leaf may not talk with: the node, and the frame.
    answers: list[tuple[bytes, bytes]] = field(default_factory=list)
    #: Actors that the leaf was given, with what they were called then; the latest last.
    _given: dict[Key, Collection[str]] = field(default_factory=dict)
    #: Actors whose end it is told.
    _watched: set[Key] = field(default_factory=set)
    #: Names that it looks up at other nodes, by node and message id.
    _lookups: dict[Key, str] = field(default_factory=dict)
    #: Of what such nodes sent: the leaf says nothing to them, so it is counted here.
    _turned_away: Accounts = field(default_factory=Accounts)
    _lock: locks.Lock = field(
        default_factory=lambda: locks.lock("actors that a leaf was given", 705)
    )

    # --- what comes from the leaf ---

    def admit(self, frames: list[RawFrame]) -> list[RawFrame]:
        """Return what goes on of the frames of one read, in their order."""
        admitted = []
        for frame in frames:
            operation, source, destination = frame[0], frame[3], frame[4]
            if source != self._leaf:
                self._drop("source", source.hex())
            elif destination != self._node and not self._may_reach(destination):
                self._drop("reach", self._host.name_of(destination) or destination.hex())
            elif operation == _DISPATCH:
                admitted.append(self._take_dispatch(frame))
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
        """Note a frame that goes nowhere."""
        self.dropped += 1
        self.refusals.append(Refusal(right, name, name))

    def _take_dispatch(self, frame: RawFrame) -> RawFrame:
        """Return a dispatch as it goes on: as it is, or to nobody."""
        operation, _, data, source, destination, actor, number, _ = frame
        if data & RESPONSE and not data & MESSAGE_ID_MASK:  # refs in them would pass unseen
            what = "answers that go together"
            refusal: Refusal | None = Refusal("send", what, what)
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
        """Return what a leaf is told of a refusal."""
        who, where = self.standing.identity, self._host.name_of(self._node)
        return f"{who!r} has no right {refusal.right!r} for {refusal.said:.200} at {where}"

    def _refusal_of(self, frame: RawFrame) -> Refusal | None:
        """Return what a dispatch lacks; None when it may pass."""
        _, _, data, _, node, source_actor, number, payload = frame
        if source_actor == DIRECTORY and not data & RESPONSE and node != self._node:
            return Refusal("names", "names of the leaf", "names of its own")
        if not data & RESPONSE and number >= FIRST_ACTOR:
            key = (node, number)
            if key not in self._given and not self._permits("send", key):
                return self._about("send", key)
        foreign = self._foreign_ref(payload)
        if foreign is not None:
            return foreign
        if data & RESPONSE or number >= FIRST_ACTOR:
            return None
        if node == self._node and self._looks_itself(number):
            return None
        if number == CORE_ACTOR:
            return Refusal("publish", "topics", "topics")
        try:
            message: Any = self._host.read(payload)
        except RemoteProtocolError:
            return None  # nobody else can read it either, and its sender is told why
        except LargePayload:
            what = f"a message of {len(payload):,} B to part {number} of a node"
            return Refusal("send", what, what)
        message = message.message if message.__class__ is Envelope else message
        return self._refusal_at_part(number, message, node, data & MESSAGE_ID_MASK)

    def _looks_itself(self, number: int) -> bool:
        """Return whether a part of this node looks at each topic, log or entity itself."""
        rights = self.standing.rights
        return (
            (number == CORE_ACTOR and rights.has_topics)
            or (number == LOG_INTAKE and bool(rights.append))
            or (number == ENTITIES and bool(rights.entities or rights.host))
        )

    def _foreign_ref(self, payload: bytes) -> Refusal | None:
        """Return the refusal of a ref that the leaf names and was not given."""
        try:
            for first, second in find_references(payload, REFS_WITHIN):
                if isinstance(first, str) or isinstance(second, str):
                    name = str(first)
                    if not self.standing.rights.permit("entities", name):
                        return Refusal("entities", name, f"entities of {name!r:.200}")
                elif first != self._leaf and (first, second) not in self._given:
                    return self._about("send", (first, second))
        except RemoteProtocolError as error:
            return Refusal("send", str(error), str(error))
        return None

    def _refusal_at_part(
        self, number: int, message: Any, node: bytes, message_id: int
    ) -> Refusal | None:
        """Return what a message to a part of a node lacks."""
        rights, kind = self.standing.rights, type(message)
        if number == NODE_ACTOR and kind in _COMMANDS:
            target = message.number
            right: NamedRight = _COMMANDS[kind]
            key = (node, target if type(target) is int else 0)
            is_own = (
                kind is not messages.LinkActors
                or getattr(message.other, "node_id", b"") == self._leaf
            )
            is_given = kind is messages.AskCredit and key in self._given
            if is_given or (is_own and key[1] >= FIRST_ACTOR and self._permits(right, key)):
                return None
            return self._about(right, key)
        if (number, kind) in ((DIRECTORY, messages.Describe), (NODE_ACTOR, messages.CancelAsk)):
            return None  # what it may cancel is its own asks
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
        """Return what a question about a name lacks, to a spawn server or a directory."""
        rights, kind = self.standing.rights, type(message)
        is_named = kind in _NAMED.get(number, ()) and type(message.name) is str
        if not is_named:
            what = f"{kind.__qualname__} to part {number} of a node"
            return Refusal("send", what, what)
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
        self, message: Any, node: bytes, right: Literal["logs", "append"]
    ) -> Refusal | None:
        """Return what a question about a log lacks; only this node tells which there are."""
        rights, log = self.standing.rights, getattr(message, "log", None)
        if type(log) is str:
            return None if rights.permit(right, log) else Refusal(right, log, repr(log))
        is_here = node == self._node
        return None if is_here and rights.logs else Refusal(right, "logs", "logs")

    def _may_announce(self, key: Key) -> bool:
        """Return whether a proxy of an actor may be announced; note whether its end is told."""
        is_watched = key in self._watched or (
            len(self._watched) < GIVEN_LIMIT
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
        if key in self._given:
            return True  # its number stays taken, see `callboard.proxies.ledger.registry`
        self.refusals.append(self._about("monitor", key))
        return False

    def may_send(self, number: int) -> bool:
        """Return whether the leaf may send to an actor of this node by its names."""
        return self._permits("send", (self._node, number))

    def _names_of(self, key: Key) -> Collection[str]:
        """Return what an actor is called, as far as this node knows."""
        names = self._host.names_of(key[1]) if key[0] == self._node else ()
        return names or self._given.get(key) or ("",)

    def _permits(self, right: NamedRight, key: Key) -> bool:
        return any(self.standing.rights.permit(right, name) for name in self._names_of(key))

    def _about(self, right: str, key: Key) -> Refusal:
        """Return the refusal of a right for an actor; the leaf reads no name that it lacks."""
        said = f"actor {key[1]} of node {key[0].hex()[:12]}"
        name = ", ".join(self._names_of(key))
        return Refusal(right, f"{name} ({said})" if name else said, said)

    # --- what goes to the leaf ---

    def sent(self, frame: bytes) -> bytes:
        """Return a frame as it goes out to the leaf: as it is, to nobody, or nothing at all.

        Topics, groups and callboard's own names are the business of this node with its leaf:
        others neither tell it theirs, nor are led to it.
        """
        operation, _, data, source, _, source_actor, number = HEADER.unpack_from(frame)
        is_open = (
            source == self._node
            or operation != _DISPATCH
            or data & RESPONSE
            or number not in {CORE_ACTOR, DIRECTORY}
            or not self._may_reach(source)  # which is turned away
            or (number == DIRECTORY and self._may_be_asked(frame[HEADER_SIZE:]))
        )
        if is_open:
            return frame if self.lets_out(frame) else b""
        data &= _POSITION | MESSAGE_ID_MASK
        text = f"{self.standing.identity!r} has no topics, groups or own names but here"
        payload = write_plain([text])
        return pack_frame(
            _DISPATCH, data, source, self._leaf, source_actor, NOT_PERMITTED, payload
        )

    def _may_be_asked(self, payload: bytes) -> bool:
        """Return whether another node may put a question to the directory of the leaf."""
        try:
            message: Any = self._host.read(payload)
        except (RemoteProtocolError, LargePayload):
            return False
        message = message.message if message.__class__ is Envelope else message
        return type(message) is messages.Describe or (
            type(message) is messages.Lookup and not str(message.name).startswith(OWN)
        )

    def give(self, number: int) -> None:
        """Let the leaf send to an actor of this node that it may look up by its names."""
        key = (self._node, number)
        if self._permits("names", key):
            self._note([key])

    def lets_out(self, frame: bytes) -> bool:
        """Return whether a frame goes out to the leaf, which is given what is in it."""
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
                        keys.append((first, second))  # refs of entities give nothing
            except RemoteProtocolError:
                pass  # the leaf cannot read it either
            name = ""
            if data & RESPONSE and source != self._node:
                name = self._lookups.pop((source, data & MESSAGE_ID_MASK), "")
            self._note(keys, name)
        elif operation == _DOWN:
            if (source, source_actor) not in self._watched:
                return False
            self._watched.discard((source, source_actor))
        return True

    def _turn_away(self, fields: Fields) -> None:
        """Answer a node in the leaf's name that this one cannot answer; on the runner."""
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
        for told, report in accounts.reports():
            frame = pack_frame(Operation.DELIVERY_REPORT, 0, leaf, told, 0, 0, report)
            self.answers.append((told, frame))

    def _note(self, keys: list[Key], name: str = "") -> None:
        """Take note of actors that the leaf is given."""
        given = self._given
        for key in keys:
            if key[1] < FIRST_ACTOR or key[0] == self._leaf or (key in given and not name):
                continue
            names = self._host.names_of(key[1]) if key[0] == self._node else (name,)
            with self._lock:
                given.pop(key, None)
                given[key] = names
                if len(given) > GIVEN_LIMIT:
                    del given[next(iter(given))]


#: What nodes themselves are told, and the right that it takes.
_COMMANDS: Final[dict[type, NamedRight]] = {
    messages.StopActor: "stop",
    messages.LinkActors: "link",
    messages.AskCredit: "send",
}

#: What the parts of a node are asked by name.
_NAMED: Final = {
    SPAWN_SERVER: (messages.Spawn,),
    DIRECTORY: (messages.Lookup, messages.WatchName),
}
