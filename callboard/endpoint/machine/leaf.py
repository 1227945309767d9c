"""Leaves: peers with limited rights, and what passes between them and this endpoint.

Every value is looked at by its topic, where it comes from a leaf and where it leaves for one.
Topics of the endpoints themselves are matched by no prefix that a leaf has: a leaf may speak to
the master of a store that it may read, hears what that says to its clones, and nothing else.
(What a command does is looked at by the store itself.) Of filters only what concerns its own
topics is told to a leaf, and taken from it. The id of an endpoint that belongs to a full member
is never a leaf's.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, Literal, Protocol

from callboard.endpoint.machine.effect import Item
from callboard.endpoint.machine.filter_exchange import FilterUpdate
from callboard.endpoint.machine.run import PackedType
from callboard.endpoint.machine.topic import RESERVED, clone_topic, is_reserved, master_topic

#: Endpoints of members that are remembered after they have gone.
MEMBERS_KEPT: Final = 65_536
#: Topics in the filter of a leaf.
LEAF_FILTER_LIMIT: Final = 8192
#: Refusals that one answer to a leaf names.
REFUSALS_TOLD: Final = 64

_TO_CLONES: Final = clone_topic("")
_TO_MASTERS: Final = master_topic("")

#: What was refused: a right (of stores, the level that it lacks), and the topic or store.
Refusal = tuple[str, str]


class TopicRights(Protocol):
    """What a leaf may do with topics and stores."""

    @property
    def publish(self) -> Collection[str]:
        """Beginnings of topics that it may publish to."""

    @property
    def subscribe(self) -> Collection[str]:
        """Beginnings of topics whose values it may get."""

    def permit_topic(self, right: Literal["publish", "subscribe"], topic: str) -> bool:
        """Return whether a topic begins so."""

    def permit_store(self, name: str, level: Literal["read", "write"]) -> bool:
        """Return whether a store may be read, or written."""


class Leaves:
    """The leaves of one endpoint, and who may not be mistaken for one."""

    def __init__(self, endpoint: bytes, rights: Mapping[bytes, TopicRights]) -> None:
        """Begin without members.

        Args:
            endpoint: the id of this endpoint.
            rights: of the leaves there are, by node; kept up to date by who knows them.
        """
        self.rights = rights
        self._members: dict[bytes, None] = {endpoint: None}

    def note_member(self, endpoint: bytes) -> None:
        """Take note of the endpoint of a full member: no leaf has this id."""
        own = next(iter(self._members))
        if endpoint not in self._members:
            self._members[endpoint] = None
            if len(self._members) > MEMBERS_KEPT:
                del self._members[next(one for one in self._members if one != own)]

    def is_false(self, node: bytes, endpoint: bytes) -> bool:
        """Return whether a leaf gives itself the id of a member's endpoint."""
        return node in self.rights and endpoint in self._members

    def may_have(self, node: bytes, topic: str) -> bool:
        """Return whether a message may leave for a node."""
        rights = self.rights.get(node)
        if rights is None:
            return True
        if is_reserved(topic):
            return _may_speak_of(rights, topic, _TO_CLONES)
        return rights.permit_topic("subscribe", topic)

    def taken(
        self, rights: TopicRights, kind: PackedType, items: list[Item]
    ) -> tuple[list[Item], list[Refusal]]:
        """Return what a leaf may have sent of data and commands, and what is refused."""
        taken: list[Item] = []
        refusals: list[Refusal] = []
        for item in items:
            topic = item[0]
            if kind is PackedType.DATA:
                is_permitted = rights.permit_topic("publish", topic) and not is_reserved(topic)
            else:
                is_permitted = _may_speak_of(rights, topic, _TO_MASTERS)
            if is_permitted:
                taken.append(item)
            else:
                refusals.append(("publish", topic) if kind is PackedType.DATA else _of(topic))
        return taken, refusals

    def told(self, node: bytes, update: FilterUpdate) -> FilterUpdate:
        """Return what a node is told of our filter: a leaf hears of what it may publish."""
        rights = self.rights.get(node)
        if rights is None:
            return update

        return _part_of(update, partial(_concerns, rights, rights.publish, _TO_MASTERS))

    def heard(
        self, rights: TopicRights, update: FilterUpdate
    ) -> tuple[FilterUpdate, list[Refusal]]:
        """Return what counts of a leaf's filter, and what is refused of it."""
        concerns = partial(_concerns, rights, rights.subscribe, _TO_CLONES)
        refusals = [
            _of(topic) if is_reserved(topic) else ("subscribe", topic)
            for topic in update.added
            if not concerns(topic)
        ]
        return _part_of(update, concerns), refusals


def _part_of(update: FilterUpdate, concerns: Callable[[str], bool]) -> FilterUpdate:
    """Return an update without the topics that do not concern somebody."""
    added, removed = (tuple(filter(concerns, each)) for each in (update.added, update.removed))
    return update._replace(added=added, removed=removed)


def _concerns(rights: TopicRights, prefixes: Collection[str], way: str, topic: str) -> bool:
    """Return whether a prefix and a topic overlap, or a store's topic is permitted."""
    if is_reserved(topic):
        return _may_speak_of(rights, topic, way)
    return any(topic.startswith(prefix) or prefix.startswith(topic) for prefix in prefixes)


def _may_speak_of(rights: TopicRights, topic: str, way: str) -> bool:
    """Return whether a topic is that of a store that may be read, in one direction.

    Topics are taken by how they begin: a name that holds a topic of the endpoints could speak
    to another store.
    """
    name = topic.removesuffix(way)
    return name != topic and RESERVED not in name and rights.permit_store(name, "read")


def _of(topic: str) -> Refusal:
    """Return what is refused with a topic of the endpoints: mostly it is a store's."""
    return "read", topic.removesuffix(_TO_CLONES).removesuffix(_TO_MASTERS)
