"""A node on Zeek's ZeroMQ cluster backend, as a pure machine: what comes, goes, and is wanted.

A manager joins two sockets: what nodes publish comes in at one and leaves by the other, and
what nodes subscribe to goes the other way, so every node sees the subscriptions of all.

| part of a publish | |
|---|---|
| topic | Zeek's have dots: `zeek.cluster.worker`; ours go as they are |
| sender | the id of the node that published; one's own messages come back and are dropped |
| format | `broker-bin-v1` or `broker-json-v1` |
| payload | the value, in Broker's bytes or in JSON |

A subscription is the byte 1 and a prefix, its end the byte 0 and the prefix. What is wanted
elsewhere is the filter for what goes out. Own subscriptions come back too, and are known by
that: a prefix that came once, and that this node asked for while it was linked, is its own
alone. Where that cannot be told, as after a cut, the prefix counts as wanted elsewhere.

To know that a subscription has reached the manager, a *mark* goes behind it: a subscription to
a topic of nobody, with a new number each time. When the mark has come back, all before it has
been heard, and both directions stand: that is what *linked* means.

A *member* is seen by other nodes as one of them. It subscribes to the topic of its own id; who
sees that says `Cluster::Backend::ZeroMQ::hello` there; who has seen the subscription and that
hello of another says `Cluster::hello`, which makes a node up; its unsubscription means down.

Only `take`, `take_subscriptions`, `want` and `lost` change the state; sockets, and the question
who is a node of the own overlay, belong to the driver.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import cbor2

from callboard.endpoint.machine.subscriptions import SubscriptionTable
from callboard.endpoint.machine.topic import TOPIC_LIMIT, checked_topic, is_reserved
from callboard.model.encoding import data_to_cbor, immutable_of_item, read_item
from callboard.model.errors import EndpointError, InvalidData, InvalidOption
from callboard.support.dataclass import dataclass
from callboard.zeek.event import zeek_event, zeek_events
from callboard.zeek.json_message import message_of_frame, message_to_json, parse_frame
from callboard.zeek.transcoder import broker_from_cbor, cbor_from_broker

#: Parts of a publish.
PARTS: Final = 4

#: How values travel.
BINARY: Final = "broker-bin-v1"
JSON: Final = "broker-json-v1"

#: Topics of one node, by its name and by its id; the name or id and a dot follow.
NODE_TOPIC: Final = "zeek.cluster.node."
ID_TOPIC: Final = "zeek.cluster.nodeid."

#: What marks are below; the id, a number and a dot follow.
MARK_TOPIC: Final = "callboard.door."

#: Bytes of a node's id or name.
ID_LIMIT: Final = 512

#: Prefixes of others that are kept, and their characters; with more, everything counts as
#: wanted.
PREFIX_LIMIT: Final = 65_536
PREFIX_ROOM: Final = 4 << 20

#: Nodes that are known at once, and senders and topics that are remembered.
NODE_LIMIT: Final = 4_096

_SUBSCRIBE, _UNSUBSCRIBE = b"\1", b"\0"
_JSON_HEAD: Final = message_to_json("", 0).partition('"@')[0]
_SHOWN: Final = 80


@zeek_event("Cluster::Backend::ZeroMQ::hello")
@dataclass(frozen=True, slots=True)
class BackendHello:
    """A node has seen the subscription of another."""

    name: str
    id: str


@zeek_event("Cluster::hello")
@dataclass(frozen=True, slots=True)
class ClusterHello:
    """A node has seen another, and knows that it was seen."""

    name: str
    id: str


class NodeChange(NamedTuple):
    """Another node is up, or down."""

    name: str
    id: str
    is_up: bool


Message = tuple[str, bytes]
_read_hello: Final = zeek_events(BackendHello, ClusterHello)


class _Senders(dict[bytes, bool]):
    """Whether senders belong to the own overlay, as far as that was asked."""

    def __init__(self, is_ours: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._is_ours = is_ours

    def __missing__(self, sender: bytes) -> bool:
        if len(sender) > ID_LIMIT:
            msg = f"a sender of {len(sender):,} bytes exceeds the limit of {ID_LIMIT}"
            raise InvalidData(msg)
        if len(self) >= NODE_LIMIT:
            self.clear()
        found = self[sender] = self._is_ours(sender)
        return found


class _TopicTexts(dict[bytes, str]):
    """Topics that were read."""

    def __missing__(self, data: bytes) -> str:
        try:
            topic = data.decode()
        except UnicodeDecodeError as cause:
            msg = f"a topic is no UTF-8: {data[:_SHOWN]!r}"
            raise InvalidData(msg) from cause
        if is_reserved(checked_topic(topic)):
            msg = f"topic {topic[:_SHOWN]!r} belongs to the endpoints themselves"
            raise InvalidData(msg)
        if len(self) >= NODE_LIMIT:
            self.clear()
        if len(data) <= ID_LIMIT:  # longer ones are not worth their memory
            self[data] = topic
        return topic


class ZeroMqNode:
    """What one node knows and says.

    Attributes:
        id: its own; part 2 of what it publishes.
        member: its name as a member; empty for a node that only publishes and subscribes.
        linked: whether a mark has come back since the last cut.
        own: messages of nodes of the own overlay, which have them already.
        unreadable: messages and subscriptions that were none; why the last was none.
        nodes: names of the members that are up, by their ids.
        changes: members that came and went, until the driver takes them.
        answers: what is to be published for members, until the driver takes it.
    """

    def __init__(
        self,
        id: str,  # noqa: A002  # Zeek's word
        is_ours: Callable[[bytes], bool] = lambda _: False,
        *,
        member: str = "",
        form: str = BINARY,
    ) -> None:
        """Begin, unlinked.

        Args:
            id: of this node.
            is_ours: whether a sender is another node of the own overlay.
            member: its name as a member.
            form: how values go out.

        Raises:
            InvalidOption: there is no such format, or the name is none.
        """
        if form not in _WRITERS:
            msg = f"format {form!r} is not one of {', '.join(_WRITERS)}"
            raise InvalidOption(msg)
        if not member.isascii() or any(map(str.isspace, member)):
            msg = f"the name of a member is ASCII without spaces, not {member!r}"
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
        #: Of what is wanted: asked for while linked, so that its return is known.
        self._sure: set[str] = set()
        self._mark = 0
        self._heard = 0
        #: How often each prefix has come since it was last there for nobody.
        self._seen: dict[str, int] = {}
        self._room = PREFIX_ROOM
        self._elsewhere: SubscriptionTable[str] = SubscriptionTable()
        #: Members that subscribed to their ids and were not up yet, and names in first hellos.
        self._subscribed: set[str] = set()
        self._greeted: dict[str, str] = {}

    # --- messages in ---

    def take(self, messages: Iterable[Sequence[bytes]]) -> list[Message]:
        """Return topics and values, as ours, of what others published.

        What is no publish is counted and dropped; greetings of members are answered.
        """
        found: list[Message] = []
        append, senders, topics, readers = found.append, self._senders, self._topics, _READERS
        for parts in messages:
            try:
                data, sender, form, payload = parts
                if senders[sender]:
                    self.own += 1
                    continue
                topic = topics[data]
                content = readers[form](payload)
            except (EndpointError, KeyError, ValueError) as error:
                self._refuse(parts, error)
                continue
            if topic == self._inbox and self._greet(sender, content):
                continue
            append((topic, content))
        return found

    def _refuse(self, parts: Sequence[bytes], error: Exception) -> None:
        """Count what is no publish."""
        self.unreadable += 1
        if len(parts) != PARTS:
            self.why = f"a publish has {PARTS} parts, not {len(parts)}"
        elif isinstance(error, KeyError):
            self.why = f"format {parts[2][:_SHOWN]!r} is unknown"
        else:
            self.why = str(error)[: 2 * _SHOWN]

    def forget_senders(self) -> None:
        """Ask anew who belongs to the own overlay: that has changed."""
        self._senders.clear()

    # --- messages out ---

    def pack(self, topic: str, content: bytes) -> list[bytes]:
        """Return the parts of a publish.

        Args:
            topic: the topic.
            content: the value, as our topics carry it.

        Raises:
            EndpointError: the format has no such value.
        """
        return [topic.encode(), self._id, self._form, self._write(content)]

    def is_wanted(self, topic: str) -> bool:
        """Return whether some other node subscribes to a topic; from any thread."""
        return bool(self._elsewhere.match(topic))

    def peer_topics(self) -> tuple[str, ...]:
        """Return the prefixes that other nodes subscribe to; from any thread."""
        return self._elsewhere.prefixes("others")

    # --- own subscriptions ---

    def mark(self) -> list[bytes]:
        """Return the frames of a new mark: both sockets stand, or the wishes have changed."""
        old, self._mark = self._mark, self._mark + 1
        frames = [_SUBSCRIBE + self._mark_topic(self._mark).encode()]
        if old:
            frames.append(_UNSUBSCRIBE + self._mark_topic(old).encode())
        return frames

    def _mark_topic(self, number: int) -> str:
        return f"{MARK_TOPIC}{self.id}.{number}."

    @property
    def settled(self) -> bool:
        """Whether the manager has heard all that was subscribed to."""
        return self.linked and self._heard == self._mark

    def want(self, topics: Iterable[str]) -> list[bytes]:
        """Return the frames that make these the subscriptions, with those of a member."""
        wanted = {*topics}
        if self.member:
            wanted |= {self._inbox, f"{NODE_TOPIC}{self.member}."}
        grown, shrunk = sorted(wanted - self._wanted), sorted(self._wanted - wanted)
        self._wanted = wanted
        if self.linked:
            self._sure.update(grown)
        self._sure.difference_update(shrunk)
        frames = [_SUBSCRIBE + each.encode() for each in grown]  # first: there is no gap
        frames += [_UNSUBSCRIBE + each.encode() for each in shrunk]
        for each in (*grown, *shrunk):
            self._judge(each)
        return frames

    def lost(self) -> None:
        """Take note that a connection was cut: subscriptions of all may come again."""
        self.linked = False
        unsure, self._sure = self._sure, set()
        for each in unsure:
            self._judge(each)

    # --- subscriptions of all ---

    def take_subscriptions(self, frames: Iterable[Sequence[bytes]]) -> None:
        """Take note of subscriptions and their ends."""
        for parts in frames:
            kind, prefix = parts[0][:1], _prefix_of(parts[0][1:])
            if len(parts) > 1 or kind > _SUBSCRIBE or not kind or prefix is None:
                self.unreadable += 1
                self.why = f"{bytes(parts[0][:_SHOWN])!r} is no subscription"
            elif prefix.startswith(MARK_TOPIC):
                self._take_mark(prefix, is_there=kind == _SUBSCRIBE)
            elif kind == _SUBSCRIBE:
                self._subscribed_to(prefix)
            else:
                if self._seen.pop(prefix, None) is not None:
                    self._room += len(prefix)
                self._judge(prefix)
                self._gone(prefix)

    def _take_mark(self, prefix: str, *, is_there: bool) -> None:
        """Take note of a mark, if it is the own one that went last."""
        if is_there and self._mark and prefix == self._mark_topic(self._mark):
            self._heard = self._mark
            self.linked = True

    def _subscribed_to(self, prefix: str) -> None:
        """Take note of a subscription, the own or another."""
        if prefix not in self._seen:
            if len(self._seen) >= PREFIX_LIMIT or len(prefix) > self._room:
                self._elsewhere.add("", "others")
                return
            self._room -= len(prefix)
        self._seen[prefix] = self._seen.get(prefix, 0) + 1
        self._judge(prefix)
        node = _node_of(prefix)
        if self.member and node and node != self.id:
            self._say(node, BackendHello(self.member, self.id))
            if self._greeted.pop(node, None) is not None:
                self._say(node, ClusterHello(self.member, self.id))
            elif len(self._subscribed) < NODE_LIMIT:
                self._subscribed.add(node)

    def _judge(self, prefix: str) -> None:
        """Bring the filter of others up to date with what is known of one prefix."""
        if self._seen.get(prefix, 0) > (prefix in self._sure):
            self._elsewhere.add(prefix, "others")
        else:
            self._elsewhere.remove(prefix, "others")

    # --- members ---

    def _greet(self, sender: bytes, content: bytes) -> bool:
        """Take a greeting; returns whether the message was one."""
        hello = _hello_of(content)
        if hello is None:
            return False
        if hello.id.encode(errors="replace") != sender or len(sender) > ID_LIMIT:
            self.unreadable += 1
            self.why = f"{sender[:_SHOWN]!r} greets as {hello.id[:_SHOWN]!r}"
        elif isinstance(hello, ClusterHello):
            self._up(hello)
        elif hello.id in self._subscribed:
            self._subscribed.discard(hello.id)
            self._say(hello.id, ClusterHello(self.member, self.id))
        elif len(self._greeted) < NODE_LIMIT:
            self._greeted[hello.id] = hello.name
        return True

    def _up(self, hello: ClusterHello) -> None:
        """Take note that a node is up."""
        if hello.id not in self.nodes and len(self.nodes) < NODE_LIMIT:
            self.nodes[hello.id] = hello.name
            self.changes.append(NodeChange(hello.name, hello.id, is_up=True))

    def _gone(self, prefix: str) -> None:
        """Take note that a node is down, if that was the subscription to its id."""
        node = _node_of(prefix)
        self._subscribed.discard(node)
        self._greeted.pop(node, None)
        name = self.nodes.pop(node, None)
        if name is not None:
            self.changes.append(NodeChange(name, node, is_up=False))

    def _say(self, node: str, hello: BackendHello | ClusterHello) -> None:
        """Greet a node."""
        content = data_to_cbor(hello.as_data())  # type: ignore[union-attr]
        self.answers.append((f"{ID_TOPIC}{node}.", content))


def _prefix_of(data: bytes) -> str | None:
    """Return a prefix as text; None for what no topic begins with."""
    try:
        return data.decode() if len(data) <= TOPIC_LIMIT else None
    except UnicodeDecodeError as error:  # it may end within a character
        return data[: error.start].decode() if "end of data" in error.reason else None


def _node_of(prefix: str) -> str:
    """Return the id that a prefix is the topic of; empty for none."""
    if not prefix.startswith(ID_TOPIC) or not prefix.endswith(".") or len(prefix) > ID_LIMIT:
        return ""
    return prefix[len(ID_TOPIC) : -1]


def _hello_of(content: bytes) -> BackendHello | ClusterHello | None:
    """Return the greeting that a value is."""
    try:
        found = _read_hello("", read_item(content, immutable_of_item))
    except EndpointError:
        return None
    is_hello = isinstance(found, BackendHello | ClusterHello)
    return found if is_hello and isinstance(found.name, str) else None


def _from_json(payload: bytes) -> bytes:
    """Return a value in JSON as our topics carry it."""
    frame = parse_frame(payload.decode())
    return message_of_frame({**frame, "topic": ""})[1]


def _to_json(content: bytes) -> bytes:
    """Return a value in JSON."""
    text = message_to_json("", cbor2.loads(content))
    return b"{" + text.removeprefix(_JSON_HEAD).encode()


_READERS: Final = {BINARY.encode(): cbor_from_broker, JSON.encode(): _from_json}
_WRITERS: Final = {BINARY: broker_from_cbor, JSON: _to_json}
