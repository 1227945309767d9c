"""What users give as topics: text, a `Topic`, or several of them."""

from collections.abc import Iterable

from callboard.endpoint import Topic
from callboard.endpoint.machine.topic import checked_topic
from callboard.model.errors import UnsupportedData

#: One topic or several.
Topics = str | Topic | Iterable[str | Topic]


def topic_text(topic: object) -> str:
    """Return the text of one topic.

    Raises:
        UnsupportedData: it is neither text nor a `Topic`.
        InvalidTopic: the text is too long, or has no UTF-8 form.
    """
    if not isinstance(topic, str | Topic):
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
