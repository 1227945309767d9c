"""Rights of a peer: their names, the patterns they apply to, and checks."""

from collections.abc import Collection, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, Literal, Self

from callboard.support.calls import Keywords
from callboard.support.dataclass import dataclass
from callboard.support.keyed_name import QUEUE_PREFIX

#: The name of the actor of topics and stores, which checks each value of a leaf itself.
CORE_NAME: Final = "callboard.core"
#: Prefix of the names of stores' masters; the name of the store follows in hex.
MASTER_NAME: Final = "callboard.master."

#: Rights whose patterns are matched with names, as file names are (`*`, `?`, `[a-z]`).
NAMED: Final = (
    *("names", "send", "monitor", "spawn", "stop", "link", "logs", "append", "reach"),
    *("entities", "host", "queues"),
)
#: Rights whose entries are prefixes of topics.
TOPICS: Final = ("publish", "subscribe")
#: Prefix of the names of callboard's own actors; only patterns with this prefix match them.
OWN: Final = "callboard."
#: Levels of access to a store, each including those before it.
STORE_LEVELS: Final = ("read", "write")

Level = Literal["read", "write"]
NamedRight = Literal[
    "names",
    "send",
    "monitor",
    "spawn",
    "stop",
    "link",
    "logs",
    "append",
    "reach",
    "entities",
    "host",
    "queues",
]


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a peer at a node; for `Node(permissions={pattern: Rights(…)})`.

    A right without entries is not granted. Patterns are matched like file names (`*`, `?`,
    `[a-z]`), and upper and lower case differ. An actor without a registered name is matched by
    the name of its class. Names with the prefix `callboard.` are callboard's own: only patterns
    with this prefix match them. A peer with limited rights is a *leaf*: its frames may name
    only itself as the source, it sees no other nodes and forwards nothing. It may always send
    to actors that were granted to it. An actor is granted if the leaf looked it up or spawned
    it, if the actor sent the leaf a message, or if a message to the leaf contained the actor's
    ref.

    Attributes:
        names: names that it may look up and watch, groups included.
        send: actors that it may send to without a grant.
        monitor: actors that it may monitor.
        spawn: offered classes, by the names they are offered under.
        stop: actors that it may stop and kill.
        link: actors that it may link with its own.
        publish: prefixes of topics that it may publish to.
        subscribe: prefixes of topics whose values it may get.
        stores: stores that it may `"read"`, or `"write"` as well, by patterns of their names.
        logs: logs that it may read.
        append: logs that it may append to, under the name of any producer.
        inspect: it may ask for the node's figures, actors, links and events.
        drain: it may drain the node.
        reach: names of other nodes with which it may exchange messages through this node, under
            the same rights.
        entities: types of entities that it may send to, on any node, and whose refs it may put
            into messages.
        host: types of entities that it may host, so that its claims about their owners are
            accepted.
        queues: work queues that it may put to and take from.
    """

    names: Collection[str] = ()
    send: Collection[str] = ()
    monitor: Collection[str] = ()
    spawn: Collection[str] = ()
    stop: Collection[str] = ()
    link: Collection[str] = ()
    publish: Collection[str] = ()
    subscribe: Collection[str] = ()
    stores: Mapping[str, Level] = field(default_factory=dict)
    logs: Collection[str] = ()
    append: Collection[str] = ()
    inspect: bool = False
    drain: bool = False
    reach: Collection[str] = ()
    entities: Collection[str] = ()
    host: Collection[str] = ()
    queues: Collection[str] = ()
    #: Whether it is a full member: not a leaf, with all rights.
    is_member: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Check the values, and copy them.

        Raises:
            TypeError: a right has the wrong type, such as a text instead of a list of texts.
            ValueError: a store's level is unknown.
        """
        for right in (*NAMED, *TOPICS):
            value = getattr(self, right)
            if isinstance(value, str) or not all(isinstance(entry, str) for entry in value):
                msg = f"Rights({right}=…) takes a list of texts: {right}=[{value!r}]"
                raise TypeError(msg)
            object.__setattr__(self, right, tuple(value))
        stores: object = self.stores
        if not isinstance(stores, Mapping):
            msg = f'Rights(stores=…) takes a map such as {{"prices": "read"}}, not {stores!r}'
            raise TypeError(msg)
        for name, level in stores.items():
            if level not in STORE_LEVELS:
                from difflib import get_close_matches

                matches = get_close_matches(str(level), STORE_LEVELS, 1)
                hint = f"; did you mean {matches[0]!r}?" if matches else ""
                msg = f"a store is for 'read' or 'write', not {level!r} ({name!r}){hint}"
                raise ValueError(msg)
        object.__setattr__(self, "stores", MappingProxyType(dict(stores)))

    @classmethod
    def member(cls) -> Self:
        """Return the rights of a full member: everything."""
        everything: Keywords = dict.fromkeys(NAMED, ("*",)) | dict.fromkeys(TOPICS, ("",))
        rights = cls(stores={"*": "write"}, inspect=True, drain=True, **everything)
        object.__setattr__(rights, "is_member", True)
        return rights

    @property
    def has_topics(self) -> bool:
        """Whether any topic or store is open: the endpoints of both sides may talk."""
        return bool(self.publish or self.subscribe or self.stores)

    def permit(self, right: NamedRight, name: str) -> bool:
        """Return whether a right is granted for a name."""
        if right == "entities" and name.startswith(QUEUE_PREFIX):
            right, name = "queues", name.removeprefix(QUEUE_PREFIX)
        own = OWN if name.startswith(OWN) else ""
        patterns: tuple[str, ...] = getattr(self, right)
        return self.is_member or any(
            fnmatchcase(name, pattern) for pattern in patterns if pattern.startswith(own)
        )

    def permit_topic(self, right: Literal["publish", "subscribe"], topic: str) -> bool:
        """Return whether a right is granted for a topic and all topics with this prefix."""
        return topic.startswith(tuple(getattr(self, right)))

    def permit_store(self, name: str, level: Level) -> bool:
        """Return whether a store may be read, or written."""
        needed = STORE_LEVELS.index(level)
        return any(
            fnmatchcase(name, pattern) and STORE_LEVELS.index(granted) >= needed
            for pattern, granted in self.stores.items()
        )


def may_look_up(rights: Rights, name: str, *, is_here: bool = True) -> bool:
    """Return whether a leaf may look up or watch a name.

    A leaf that has a right to a topic or store may look up the actor for topics of its own
    member. Masters of stores are not looked up by name, because they are found through topics.

    ARGS name: the name to look up. is_here: whether the leaf asks the member to which it is
        linked, not another node.
    """
    if name == CORE_NAME:
        return is_here and rights.has_topics
    return not name.startswith(MASTER_NAME) and rights.permit("names", name)
