"""Topics: text in components, `/` between them.

A subscription is a topic too, and takes every topic whose text starts with its own: `/foo`
takes `/foo/bar` and also `/foobar`. The empty topic takes all. Topics with the component
`<$>` belong to the endpoints themselves; those below `<$>/local/` never leave one.
"""

from collections.abc import Iterable
from typing import Final

from callboard.model.errors import InvalidTopic, UnsupportedData
from callboard.model.scalar import Scalar

#: Bytes of a topic in UTF-8: its length has 16 bits on the wire.
TOPIC_LIMIT: Final = 65_535
#: The component that users' topics do not have.
RESERVED: Final = "<$>"
#: What changed in the stores of this endpoint; `/` and the name of a store follow.
STORE_EVENTS: Final = f"{RESERVED}/local/data/store-events"

_LOCAL: Final = f"{RESERVED}/local/"
#: Below a quarter of the limit, no character can take a topic over it.
_SURELY_SHORT: Final = TOPIC_LIMIT // 4


class Topic(Scalar):
    """A topic, or the prefix of topics that a subscription takes.

    >>> Topic("/sensors") / Topic("room-1")
    /sensors/room-1
    >>> Topic("/sensors").prefix_of(Topic("/sensors/room-1"))
    True

    Raises:
        InvalidTopic: longer than `TOPIC_LIMIT` bytes, or without UTF-8 form.
    """

    __slots__ = ()
    _key: str

    def __init__(self, text: str = "") -> None:
        self._key = checked_topic(text)

    def string(self) -> str:
        """Return the text."""
        return self._key

    def prefix_of(self, other: "Topic") -> bool:
        """Return whether a subscription to this topic takes `other`."""
        return other.string().startswith(self._key)

    def __truediv__(self, other: "Topic | str") -> "Topic":
        text = other if isinstance(other, str) else other.string()
        # Broker's rule: a separator goes between, unless the right side brings one itself,
        # and one at the end goes away.
        between = "/" if self._key and text and not text.startswith("/") else ""
        return Topic(f"{self._key}{between}{text}".removesuffix("/"))

    def __str__(self) -> str:
        return self._key


#: What users give as topics: one, or several.
Topics = str | Topic | Iterable[str | Topic]


def checked_topic(topic: object) -> str:
    """Return the text of a topic.

    Raises:
        InvalidTopic: longer than `TOPIC_LIMIT` bytes, or without UTF-8 form, or no text.
    """
    if isinstance(topic, Topic):
        return topic.string()
    if not isinstance(topic, str):
        msg = f"a topic is a str or a Topic, not {type(topic).__name__}"
        raise InvalidTopic(msg)
    if len(topic) > _SURELY_SHORT or not topic.isascii():
        try:
            length = len(topic.encode())
        except UnicodeEncodeError as cause:
            msg = f"a topic has no UTF-8 form: {cause}"
            raise InvalidTopic(msg) from cause
        if length > TOPIC_LIMIT:
            msg = f"a topic of {length:,} bytes exceeds the limit of {TOPIC_LIMIT:,}"
            raise InvalidTopic(msg)
    return topic


#: Made once: `str | Topic` at each call would cost more than all the rest.
_TOPIC_TYPES: Final = (str, Topic)


def topic_text(topic: object) -> str:
    """Return the text of one topic.

    Raises:
        UnsupportedData: it is neither text nor a `Topic`.
        InvalidTopic: the text is too long, or has no UTF-8 form.
    """
    if not isinstance(topic, _TOPIC_TYPES):
        msg = f"a topic is a str or a Topic, not {type(topic).__name__}"
        raise UnsupportedData(msg)
    return checked_topic(topic)


def topic_texts(topics: Topics) -> tuple[str, ...]:
    """Return the texts of one topic or several.

    Raises:
        UnsupportedData: they are neither text nor `Topic`, nor several of these.
        InvalidTopic: a text is too long, or has no UTF-8 form.
    """
    if isinstance(topics, Iterable) and not isinstance(topics, str):
        return tuple(map(topic_text, topics))
    return (topic_text(topics),)


def is_reserved(topic: str) -> bool:
    """Return whether the topic belongs to the endpoints: `<$>` is one of its components."""
    return RESERVED in topic and RESERVED in topic.split("/")


def shortest(topics: Iterable[str]) -> tuple[str, ...]:
    """Return the prefixes that take what all of these take, sorted: none takes another.

    >>> shortest(["/a/b", "/c", "/a", "/ab"])
    ('/a', '/c')
    """
    found: list[str] = []
    for topic in sorted(topics):
        if not found or not topic.startswith(found[-1]):
            found.append(topic)
    return tuple(found)


def is_local(topic: str) -> bool:
    """Return whether messages with this topic stay in the endpoint where they arise."""
    return topic.startswith(_LOCAL)


def master_topic(name: str) -> str:
    """Return where the master of the store `name` hears its clones."""
    return checked_topic(f"{name}/{RESERVED}/data/master")


def clone_topic(name: str) -> str:
    """Return where the clones of the store `name` hear their master."""
    return checked_topic(f"{name}/{RESERVED}/data/clone")
