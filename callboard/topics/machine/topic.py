"""Topics: text in components, separated by `/`.

A subscription is a topic too, and matches every topic whose text starts with its own: `/foo`
matches `/foo/bar` and also `/foobar`. The empty topic matches all. Topics with the component
`<$>` are reserved for the endpoints; messages below `<$>/local/` never leave their endpoint.
"""

from collections.abc import Iterable
from typing import Final

from callboard.model.errors import InvalidTopic, UnsupportedData
from callboard.model.scalar import Scalar

#: Maximum bytes of a topic in UTF-8: Broker's wire format has 16 bits for the length.
TOPIC_LIMIT: Final = 65_535
#: The component that is reserved for topics of the endpoints.
RESERVED: Final = "<$>"
#: Topic of changes in the stores of this endpoint, before `/` and the name of the store.
STORE_EVENTS: Final = f"{RESERVED}/local/data/store-events"

_LOCAL: Final = f"{RESERVED}/local/"
#: Characters that fit into the limit in any case: UTF-8 needs at most four bytes for each.
_SURELY_SHORT: Final = TOPIC_LIMIT // 4


class Topic(Scalar):
    """A topic, or the prefix of the topics that a subscription matches.

    >>> Topic("/sensors") / Topic("room-1")
    /sensors/room-1
    >>> Topic("/sensors").prefix_of(Topic("/sensors/room-1"))
    True

    Raises:
        InvalidTopic: the topic exceeds `TOPIC_LIMIT` bytes, or cannot be encoded in UTF-8.
    """

    __slots__ = ()
    _key: str

    def __init__(self, text: str = "") -> None:
        self._key = checked_topic(text)

    def string(self) -> str:
        """Return the text."""
        return self._key

    def prefix_of(self, other: "Topic") -> bool:
        """Return whether a subscription to this topic matches `other`."""
        return other.string().startswith(self._key)

    def __truediv__(self, other: "Topic | str") -> "Topic":
        text = other if isinstance(other, str) else other.string()
        # Broker's rule: one separator between both sides, unless the right side starts with
        # one, and no separator at the end.
        between = "/" if self._key and text and not text.startswith("/") else ""
        return Topic(f"{self._key}{between}{text}".removesuffix("/"))

    def __str__(self) -> str:
        return self._key


#: Argument type of functions that accept one topic or several.
Topics = str | Topic | Iterable[str | Topic]


def checked_topic(topic: object) -> str:
    """Return the text of a topic.

    Raises:
        InvalidTopic: the topic is not text, exceeds `TOPIC_LIMIT` bytes, or cannot be encoded
            in UTF-8.
    """
    if isinstance(topic, Topic):
        return topic.string()
    if not isinstance(topic, str):
        msg = f"a topic must be a str or a Topic, not {type(topic).__name__}"
        raise InvalidTopic(msg)
    if len(topic) > _SURELY_SHORT or not topic.isascii():
        try:
            length = len(topic.encode())
        except UnicodeEncodeError as cause:
            msg = f"a topic cannot be encoded in UTF-8: {cause}"
            raise InvalidTopic(msg) from cause
        if length > TOPIC_LIMIT:
            msg = f"a topic of {length:,} bytes exceeds the limit of {TOPIC_LIMIT:,}"
            raise InvalidTopic(msg)
    return topic


#: A tuple, made once: `str | Topic` in each call would cost more than the rest of the call.
_TOPIC_TYPES: Final = (str, Topic)


def topic_text(topic: object) -> str:
    """Return the text of one topic.

    Raises:
        UnsupportedData: the topic is neither text nor a `Topic`.
        InvalidTopic: the text is too long, or cannot be encoded in UTF-8.
    """
    if not isinstance(topic, _TOPIC_TYPES):
        msg = f"a topic must be a str or a Topic, not {type(topic).__name__}"
        raise UnsupportedData(msg)
    return checked_topic(topic)


def topic_texts(topics: Topics) -> tuple[str, ...]:
    """Return the texts of one topic or several.

    Raises:
        UnsupportedData: an argument is neither text nor a `Topic`.
        InvalidTopic: a text is too long, or cannot be encoded in UTF-8.
    """
    if isinstance(topics, Iterable) and not isinstance(topics, str):
        return tuple(map(topic_text, topics))
    return (topic_text(topics),)


def is_reserved(topic: str) -> bool:
    """Return whether the topic is reserved for endpoints: `<$>` is one of its components."""
    return RESERVED in topic and RESERVED in topic.split("/")


def shortest(topics: Iterable[str]) -> tuple[str, ...]:
    """Return the fewest prefixes that match the same topics, sorted.

    >>> shortest(["/a/b", "/c", "/a", "/ab"])
    ('/a', '/c')
    """
    prefixes: list[str] = []
    for topic in sorted(topics):
        if not prefixes or not topic.startswith(prefixes[-1]):
            prefixes.append(topic)
    return tuple(prefixes)


def is_local(topic: str) -> bool:
    """Return whether messages with this topic stay in the endpoint that publishes them."""
    return topic.startswith(_LOCAL)


def master_topic(name: str) -> str:
    """Return the topic of messages from clones of the store `name` to its master."""
    return checked_topic(f"{name}/{RESERVED}/data/master")


def clone_topic(name: str) -> str:
    """Return the topic of messages from the master of the store `name` to its clones."""
    return checked_topic(f"{name}/{RESERVED}/data/clone")
