"""Rights of leaves: the peers that are not full members.

- Every value from a leaf or for a leaf is checked by its topic.
- Prefixes of a leaf do not match the reserved topics of endpoints. Of these, a leaf may use
  two: it may send to the master of a store that it may read, and receive the master's messages
  to clones. The store itself checks each command.
- Filters that are sent to a leaf, or accepted from it, are reduced to topics within its rights.
- A leaf cannot use the endpoint id of a full member.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, Literal, Protocol

from callboard.topics.machine.effect import Item
from callboard.topics.machine.filter_exchange import FilterUpdate
from callboard.topics.machine.run import PackedType
from callboard.topics.machine.topic import RESERVED, clone_topic, is_reserved, master_topic

#: Maximum number of known endpoint ids of members, also of members that left.
MEMBERS_KEPT: Final = 65_536
#: Maximum number of topics in the filter of a leaf.
LEAF_FILTER_LIMIT: Final = 8192
#: Maximum number of refusals that one answer to a leaf names.
REFUSALS_SENT: Final = 64

_TO_CLONES: Final = clone_topic("")
_TO_MASTERS: Final = master_topic("")

#: The missing right (for stores, the missing level), and the topic or store.
Refusal = tuple[str, str]


class TopicRights(Protocol):
    """Rights of a leaf to topics and stores."""

    @property
    def publish(self) -> Collection[str]:
        """Prefixes of the topics on which it may publish."""

    @property
    def subscribe(self) -> Collection[str]:
        """Prefixes of the topics whose values it may receive."""

    def permit_topic(self, right: Literal["publish", "subscribe"], topic: str) -> bool:
        """Return whether a topic has a prefix of the right."""

    def permit_store(self, name: str, level: Literal["read", "write"]) -> bool:
        """Return whether the leaf may read or write a store."""


class Leaves:
    """The leaves of one endpoint, and the endpoint ids of members."""

    def __init__(self, endpoint: bytes, rights: Mapping[bytes, TopicRights]) -> None:
        """Start without other members.

        Args:
            endpoint: the id of this endpoint.
            rights: rights of the present leaves, by node; a live view that the owner updates.
        """
        self.rights = rights
        self._members: dict[bytes, None] = {endpoint: None}

    def record_member(self, endpoint: bytes) -> None:
        """Record the endpoint id of a full member: a leaf cannot use it."""
        own = next(iter(self._members))
        if endpoint not in self._members:
            self._members[endpoint] = None
            if len(self._members) > MEMBERS_KEPT:
                oldest = next(member for member in self._members if member != own)
                del self._members[oldest]

    def is_false(self, node: bytes, endpoint: bytes) -> bool:
        """Return whether the node is a leaf and the id belongs to a member's endpoint."""
        return node in self.rights and endpoint in self._members

    def may_have(self, node: bytes, topic: str) -> bool:
        """Return whether a message with this topic may be sent to a node."""
        rights = self.rights.get(node)
        if rights is None:
            return True
        if is_reserved(topic):
            return _may_speak_of(rights, topic, _TO_CLONES)
        return rights.permit_topic("subscribe", topic)

    def permitted_items(
        self, rights: TopicRights, kind: PackedType, items: list[Item]
    ) -> tuple[list[Item], list[Refusal]]:
        """Return the permitted data and commands from a leaf, and the refusals of the rest."""
        permitted: list[Item] = []
        refusals: list[Refusal] = []
        for item in items:
            topic = item[0]
            if kind is PackedType.DATA:
                is_permitted = rights.permit_topic("publish", topic) and not is_reserved(topic)
            else:
                is_permitted = _may_speak_of(rights, topic, _TO_MASTERS)
            if is_permitted:
                permitted.append(item)
            else:
                refusals.append(("publish", topic) if kind is PackedType.DATA else _of(topic))
        return permitted, refusals

    def visible_filter(self, node: bytes, update: FilterUpdate) -> FilterUpdate:
        """Return the part of our filter that a node may see.

        A leaf sees only the topics to which it may publish.
        """
        rights = self.rights.get(node)
        if rights is None:
            return update
        return _part_of(update, partial(_concerns, rights, rights.publish, _TO_MASTERS))

    def permitted_filter(
        self, rights: TopicRights, update: FilterUpdate
    ) -> tuple[FilterUpdate, list[Refusal]]:
        """Return the permitted part of a leaf's filter, and the refusals of the rest."""
        concerns = partial(_concerns, rights, rights.subscribe, _TO_CLONES)
        refusals = [
            _of(topic) if is_reserved(topic) else ("subscribe", topic)
            for topic in update.added
            if not concerns(topic)
        ]
        return _part_of(update, concerns), refusals


def _part_of(update: FilterUpdate, concerns: Callable[[str], bool]) -> FilterUpdate:
    """Return an update with only the topics for which `concerns` returns True."""
    added, removed = filter(concerns, update.added), filter(concerns, update.removed)
    return update._replace(added=tuple(added), removed=tuple(removed))


def _concerns(rights: TopicRights, prefixes: Collection[str], suffix: str, topic: str) -> bool:
    """Return whether a prefix and a topic overlap, or a store's topic is permitted."""
    if is_reserved(topic):
        return _may_speak_of(rights, topic, suffix)
    return any(topic.startswith(prefix) or prefix.startswith(topic) for prefix in prefixes)


def _may_speak_of(rights: TopicRights, topic: str, suffix: str) -> bool:
    """Return whether a topic belongs to a store that a leaf may read, and ends with a suffix.

    A name with a reserved component is refused. Topics match by prefix: `a/<$>/data/master/x`
    plus the suffix would reach the master of the store `a`, whatever the rights to `a` are.
    """
    name = topic.removesuffix(suffix)
    return name != topic and RESERVED not in name and rights.permit_store(name, "read")


def _of(topic: str) -> Refusal:
    """Return the refusal of a reserved topic: the right to read the store in the topic."""
    return "read", topic.removesuffix(_TO_CLONES).removesuffix(_TO_MASTERS)
