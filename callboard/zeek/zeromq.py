"""A node on Zeek's ZeroMQ cluster backend, as a pure machine.

A manager connects two sockets: publications of the nodes arrive at one and leave by the other.
Subscriptions go the opposite way, so every node sees the subscriptions of all nodes.

| part of a publication | |
|---|---|
| topic | Zeek's topics have dots (`zeek.cluster.worker`); ours are sent unchanged |
| sender | id of the publishing node; a node drops its own messages, which come back |
| format | `broker-bin-v1` or `broker-json-v1` |
| payload | the value, in Broker's binary encoding or in JSON |

A subscription is the byte 1 and a prefix; its end is the byte 0 and the prefix. The
subscriptions of other nodes are the filter for our publications. Our own subscriptions come
back as well and must not count as another node's. A prefix that came back once, and that this
node subscribed to while it was linked, belongs to this node alone. If that is uncertain, as
after a lost connection, the prefix counts as wanted by others.

To learn when a subscription has reached the manager, the node subscribes after it to a *mark*:
a topic of its own with a new number each time. When the mark comes back, the manager has
processed all earlier subscriptions, and both directions work: the node is *linked*.

A *member* is visible to other nodes as one of them. It subscribes to the topic of its own id. A
node that sees this subscription publishes `Cluster::Backend::ZeroMQ::hello` on that topic. A
node that has seen both the subscription and the hello of another node publishes
`Cluster::hello`, which makes it known as up. When the subscription ends, the node is down.

Only `take`, `take_subscriptions`, `want` and `lost` change the state. The driver owns the
sockets and knows which senders belong to the overlay.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import cbor2

from callboard.model.encoding import data_to_cbor, immutable_of_item, read_item
from callboard.model.errors import EndpointError, InvalidData, InvalidOption
from callboard.support.dataclass import dataclass
from callboard.topics.machine.subscriptions import SubscriptionTable
from callboard.topics.machine.topic import TOPIC_LIMIT, checked_topic, is_reserved
from callboard.zeek.event import zeek_event, zeek_events
from callboard.zeek.json_message import message_of_frame, message_to_json, parse_frame
from callboard.zeek.transcoder import broker_from_cbor, cbor_from_broker

#: Parts of a publication.
PARTS: Final = 4

#: Formats of values.
BINARY: Final = "broker-bin-v1"
JSON: Final = "broker-json-v1"

#: Prefixes of the topics of a node; its name or id follows, and a dot.
NODE_TOPIC: Final = "zeek.cluster.node."
ID_TOPIC: Final = "zeek.cluster.nodeid."

#: Prefix of marks; the id, a number and a dot follow.
MARK_TOPIC: Final = "callboard.door."

#: Longest id or name of a node in bytes.
ID_LIMIT: Final = 512

#: Remembered prefixes of other nodes, and their total length in characters. Above either, every
#: topic counts as wanted.
PREFIX_LIMIT: Final = 65_536
PREFIX_ROOM: Final = 4 << 20

#: Nodes known at a time, and cached senders and topics.
NODE_LIMIT: Final = 4_096

_SUBSCRIBE, _UNSUBSCRIBE = b"\1", b"\0"
_JSON_HEAD: Final = message_to_json("", 0).partition('"@')[0]
_SHOWN: Final = 80


@zeek_event("Cluster::Backend::ZeroMQ::hello")
@dataclass(frozen=True, slots=True)
class BackendHello:
    """A node has seen the subscription of another node."""

    name: str
    id: str


@zeek_event("Cluster::hello")
@dataclass(frozen=True, slots=True)
class ClusterHello:
    """A node has seen another node, and knows that it was seen."""

    name: str
    id: str


class NodeChange(NamedTuple):
    """A member came up or went down."""

    name: str
    id: str
    is_up: bool


Message = tuple[str, bytes]
_read_hello: Final = zeek_events(BackendHello, ClusterHello)


class _Senders(dict[bytes, bool]):
    """Cache: whether a sender belongs to our overlay."""

    def __init__(self, is_ours: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._is_ours = is_ours

    def __missing__(self, sender: bytes) -> bool:
        if len(sender) > ID_LIMIT:
            msg = f"a sender of {len(sender):,} bytes exceeds the limit of {ID_LIMIT}"
            raise InvalidData(msg)
        if len(self) >= NODE_LIMIT:
            self.clear()
        is_ours = self[sender] = self._is_ours(sender)
        return is_ours


class _TopicTexts(dict[bytes, str]):
    """Cache of decoded topics."""

    def __missing__(self, data: bytes) -> str:
        try:
            topic = data.decode()
        except UnicodeDecodeError as cause:
            msg = f"a topic is not UTF-8: {data[:_SHOWN]!r}"
            raise InvalidData(msg) from cause
        if is_reserved(checked_topic(topic)):
            msg = f"topic {topic[:_SHOWN]!r} is reserved for endpoints"
            raise InvalidData(msg)
        if len(self) >= NODE_LIMIT:
            self.clear()
        if len(data) <= ID_LIMIT:  # longer ones are rare and would take much memory
            self[data] = topic
        return topic


class ZeroMqNode:
    """The state of one node.

    Attributes:
        id: the id of this node; the sender of its publications.
        member: its name as a member; empty for a node that is not visible.
        linked: whether a mark has come back since the last lost connection.
        own: received messages from our overlay, which has them already.
        unreadable: messages and subscriptions that could not be decoded.
        why: the reason for the last of them.
        nodes: names of the active members, by id.
        changes: members that came up or went down; the driver clears it.
        answers: messages to publish to members; the driver clears it.
    """

    def __init__(
        self,
        id: str,  # noqa: A002  # Zeek's word
        is_ours: Callable[[bytes], bool] = lambda _: False,
        *,
        member: str = "",
        form: str = BINARY,
    ) -> None:
        """Start without a link.

        Args:
            id: the id of this node.
            is_ours: whether a sender is another node of our overlay.
            member: its name as a member.
            form: format of published values.

        Raises:
            InvalidOption: the format is unknown, or the name is invalid.
        """
        if form not in _WRITERS:
            msg = f"format {form!r} is not one of {', '.join(_WRITERS)}"
            raise InvalidOption(msg)
        if not member.isascii() or any(map(str.isspace, member)):
            msg = f"the name of a member must be ASCII without spaces, not {member!r}"
            raise InvalidOption(msg)
        self.id, self.member = id, member
        self.linked = False
        self.own = self.unreadable = 0
        self.why = ""
        self.nodes: dict[str, str] = {}
        self.changes: list[NodeChange] = []
        self.answers: list[Message] = []
        self._write, self._form = _WRITERS[form], form.encode()
        own = id.encode()
        self._id = own
        self._senders = _Senders(lambda sender: sender == own or is_ours(sender))
        self._topics = _TopicTexts()
        self._inbox = f"{ID_TOPIC}{id}."
        self._wanted: set[str] = set()
        #: Subscriptions made while linked: each comes back exactly once.
        self._own_once: set[str] = set()
        self._mark = 0
        self._returned_mark = 0
        #: For each prefix, how often it arrived since it last had no subscriber.
        self._seen: dict[str, int] = {}
        self._room = PREFIX_ROOM
        self._elsewhere: SubscriptionTable[str] = SubscriptionTable()
        #: Members whose subscription was seen, and names from first hellos, until they are up.
        self._subscribed: set[str] = set()
        self._greeted: dict[str, str] = {}

    # --- receiving ---

    def take(self, messages: Iterable[Sequence[bytes]]) -> list[Message]:
        """Return topics and values that other nodes published.

        Malformed publications are counted and dropped; greetings of members are answered.
        """
        messages_out: list[Message] = []
        append, senders, topics, readers = (
            messages_out.append,
            self._senders,
            self._topics,
            _READERS,
        )
        for parts in messages:
            try:
                data, sender, form, payload = parts
                if senders[sender]:
                    self.own += 1
                    continue
                topic = topics[data]
                content = readers[form](payload)
            except (EndpointError, KeyError, ValueError) as error:
                self._reject(parts, error)
                continue
            if topic == self._inbox and self._greet(sender, content):
                continue
            append((topic, content))
        return messages_out

    def _reject(self, parts: Sequence[bytes], error: Exception) -> None:
        """Count a malformed publication."""
        self.unreadable += 1
        if len(parts) != PARTS:
            self.why = f"a publication has {PARTS} parts, not {len(parts)}"
        elif isinstance(error, KeyError):
            self.why = f"format {parts[2][:_SHOWN]!r} is unknown"
        else:
            self.why = str(error)[: 2 * _SHOWN]

    def forget_senders(self) -> None:
        """Clear the cache of senders: the nodes of the overlay have changed."""
        self._senders.clear()

    # --- sending ---

    def pack(self, topic: str, content: bytes) -> list[bytes]:
        """Return the parts of a publication.

        Args:
            topic: the topic.
            content: the value in the encoding of our topics.

        Raises:
            EndpointError: the format cannot express the value.
        """
        return [topic.encode(), self._id, self._form, self._write(content)]

    def is_wanted(self, topic: str) -> bool:
        """Return whether another node subscribes to a topic. Can be called from any thread."""
        return bool(self._elsewhere.match(topic))

    def peer_topics(self) -> tuple[str, ...]:
        """Return the prefixes that other nodes subscribe to. Can be called from any thread."""
        return self._elsewhere.prefixes("others")

    # --- own subscriptions ---

    def mark(self) -> list[bytes]:
        """Return the frames of a new mark, after a connect or a change of subscriptions."""
        old, self._mark = self._mark, self._mark + 1
        frames = [_SUBSCRIBE + self._mark_topic(self._mark).encode()]
        if old:
            frames.append(_UNSUBSCRIBE + self._mark_topic(old).encode())
        return frames

    def _mark_topic(self, number: int) -> str:
        return f"{MARK_TOPIC}{self.id}.{number}."

    @property
    def settled(self) -> bool:
        """Whether the manager has processed all our subscriptions."""
        return self.linked and self._returned_mark == self._mark

    def want(self, topics: Iterable[str]) -> list[bytes]:
        """Return the frames that set our subscriptions; a member's own are added."""
        subscribed = {*topics}
        if self.member:
            subscribed |= {self._inbox, f"{NODE_TOPIC}{self.member}."}
        added, removed = sorted(subscribed - self._wanted), sorted(self._wanted - subscribed)
        self._wanted = subscribed
        if self.linked:
            self._own_once.update(added)
        self._own_once.difference_update(removed)
        # Added ones first, so that a wider prefix replaces a narrower one without a gap.
        frames = [_SUBSCRIBE + prefix.encode() for prefix in added]
        frames += [_UNSUBSCRIBE + prefix.encode() for prefix in removed]
        for prefix in (*added, *removed):
            self._update_filter(prefix)
        return frames

    def lost(self) -> None:
        """Handle a lost connection: all subscriptions may arrive again."""
        self.linked = False
        uncertain, self._own_once = self._own_once, set()
        for prefix in uncertain:
            self._update_filter(prefix)

    # --- subscriptions of all nodes ---

    def take_subscriptions(self, frames: Iterable[Sequence[bytes]]) -> None:
        """Handle subscriptions and their ends."""
        for parts in frames:
            kind, prefix = parts[0][:1], _prefix_of(parts[0][1:])
            if len(parts) > 1 or kind > _SUBSCRIBE or not kind or prefix is None:
                self.unreadable += 1
                self.why = f"{bytes(parts[0][:_SHOWN])!r} is not a subscription"
            elif prefix.startswith(MARK_TOPIC):
                self._handle_mark(prefix, is_subscribed=kind == _SUBSCRIBE)
            elif kind == _SUBSCRIBE:
                self._add_subscription(prefix)
            else:
                if self._seen.pop(prefix, None) is not None:
                    self._room += len(prefix)
                self._update_filter(prefix)
                self._remove_member(prefix)

    def _handle_mark(self, prefix: str, *, is_subscribed: bool) -> None:
        """Record that our latest mark has come back."""
        if is_subscribed and self._mark and prefix == self._mark_topic(self._mark):
            self._returned_mark = self._mark
            self.linked = True

    def _add_subscription(self, prefix: str) -> None:
        """Record a subscription, our own or another node's."""
        if prefix not in self._seen:
            if len(self._seen) >= PREFIX_LIMIT or len(prefix) > self._room:
                self._elsewhere.add("", "others")
                return
            self._room -= len(prefix)
        self._seen[prefix] = self._seen.get(prefix, 0) + 1
        self._update_filter(prefix)
        node = _node_of(prefix)
        if self.member and node and node != self.id:
            self._send_hello(node, BackendHello(self.member, self.id))
            if self._greeted.pop(node, None) is not None:
                self._send_hello(node, ClusterHello(self.member, self.id))
            elif len(self._subscribed) < NODE_LIMIT:
                self._subscribed.add(node)

    def _update_filter(self, prefix: str) -> None:
        """Update the filter of other nodes for one prefix."""
        if self._seen.get(prefix, 0) > (prefix in self._own_once):
            self._elsewhere.add(prefix, "others")
        else:
            self._elsewhere.remove(prefix, "others")

    # --- members ---

    def _greet(self, sender: bytes, content: bytes) -> bool:
        """Handle a greeting; return whether the message was one."""
        hello = _hello_of(content)
        if hello is None:
            return False
        if hello.id.encode(errors="replace") != sender or len(sender) > ID_LIMIT:
            self.unreadable += 1
            self.why = f"{sender[:_SHOWN]!r} greets as {hello.id[:_SHOWN]!r}"
        elif isinstance(hello, ClusterHello):
            self._add_member(hello)
        elif hello.id in self._subscribed:
            self._subscribed.discard(hello.id)
            self._send_hello(hello.id, ClusterHello(self.member, self.id))
        elif len(self._greeted) < NODE_LIMIT:
            self._greeted[hello.id] = hello.name
        return True

    def _add_member(self, hello: ClusterHello) -> None:
        """Record that a member is up."""
        if hello.id not in self.nodes and len(self.nodes) < NODE_LIMIT:
            self.nodes[hello.id] = hello.name
            self.changes.append(NodeChange(hello.name, hello.id, is_up=True))

    def _remove_member(self, prefix: str) -> None:
        """Record that a member is down, if its own subscription has ended."""
        node = _node_of(prefix)
        self._subscribed.discard(node)
        self._greeted.pop(node, None)
        name = self.nodes.pop(node, None)
        if name is not None:
            self.changes.append(NodeChange(name, node, is_up=False))

    def _send_hello(self, node: str, hello: BackendHello | ClusterHello) -> None:
        """Send a greeting to a node."""
        content = data_to_cbor(hello.as_data())  # type: ignore[union-attr]
        self.answers.append((f"{ID_TOPIC}{node}.", content))


def _prefix_of(data: bytes) -> str | None:
    """Return a prefix as text; None if no topic can begin with it."""
    try:
        return data.decode() if len(data) <= TOPIC_LIMIT else None
    except UnicodeDecodeError as error:  # a prefix may end within a character
        return data[: error.start].decode() if "end of data" in error.reason else None


def _node_of(prefix: str) -> str:
    """Return the node id in a prefix, or an empty text."""
    if not prefix.startswith(ID_TOPIC) or not prefix.endswith(".") or len(prefix) > ID_LIMIT:
        return ""
    return prefix[len(ID_TOPIC) : -1]


def _hello_of(content: bytes) -> BackendHello | ClusterHello | None:
    """Return the greeting in a value, if it is one."""
    try:
        hello = _read_hello("", read_item(content, immutable_of_item))
    except EndpointError:
        return None
    is_hello = isinstance(hello, BackendHello | ClusterHello)
    return hello if is_hello and isinstance(hello.name, str) else None


def _from_json(payload: bytes) -> bytes:
    """Convert a value from JSON to the encoding of our topics."""
    frame = parse_frame(payload.decode())
    return message_of_frame({**frame, "topic": ""})[1]


def _to_json(content: bytes) -> bytes:
    """Convert a value to JSON."""
    text = message_to_json("", cbor2.loads(content))
    return b"{" + text.removeprefix(_JSON_HEAD).encode()


_READERS: Final = {BINARY.encode(): cbor_from_broker, JSON.encode(): _from_json}
_WRITERS: Final = {BINARY: broker_from_cbor, JSON: _to_json}
