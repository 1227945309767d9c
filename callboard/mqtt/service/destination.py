"""Destinations of messages from MQTT: an actor, a work queue, a store or a log.

`Destination` has the settings, and `open` makes the `Sender` that carries them out. A sender
returns when the destination is done with the message: the actor has handled it, or it is
durable in the queue or the log. Otherwise it raises, and the message is sent again.
"""

from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from callboard.arguments import count as checked_count
from callboard.arguments import seconds
from callboard.commitlog import CommitLog, LogError
from callboard.kernel.actors import ActorRef
from callboard.kernel.errors import CallboardError
from callboard.mqtt.wire.topic import is_valid_topic
from callboard.node import Node
from callboard.support.dataclass import dataclass
from callboard.support.nesting import parse_json
from callboard.topics.actor_subscription import TopicMessage
from callboard.topics.hub import Hub

if TYPE_CHECKING:  # loaded with the first store
    from callboard.store.store import Store

#: Settings that name the place; each destination has one of them.
KINDS: Final = ("topic", "actor", "queue", "store", "log")

#: The place that each of the other settings belongs to.
_BELONGS: Final = {"retain": "topic", "state": "queue", "key": "store", "file": "store"}

#: Forms of payloads at a destination.
Form = Literal["text", "json", "bytes"]


@dataclass(frozen=True, slots=True)
class Destination:
    """A place that messages are sent to: exactly one of the first five attributes is set.

    Attributes:
        topic: a topic of the router. `{topic}` stands for the topic of the message, `{1}` for
            its first level, `{2}` for the second.
        actor: the name of an actor on any node. It receives a `TopicMessage`, and is done when
            its handler has returned.
        queue: the name of a work queue; each job is a `TopicMessage`.
        store: the name of a store. Each message sets a value.
        log: the folder of a log.
        retain: whether messages to a topic are retained.
        state: the database of the queue (`sqlite:FILE`), so that this node may own it.
        key: the key in the store, with the same placeholders as `topic`.
        file: the SQLite file of the store, if its master is on this node.
        values: the form of payloads there: `text`, parsed `json`, or `bytes`; a payload that is
            not such text or JSON arrives as bytes.
        attempts: attempts to send a message before it is given up.
        timeout: seconds of one attempt.
    """

    topic: str = ""
    actor: str = ""
    queue: str = ""
    store: str = ""
    log: str = ""
    retain: bool = False
    state: str | None = None
    key: str = "{topic}"
    file: str | None = None
    values: Form = "json"
    attempts: int = 5
    timeout: float = 30.0

    def __post_init__(self) -> None:
        kinds = [kind for kind in KINDS if getattr(self, kind)]
        if len(kinds) != 1:
            present = " and ".join(kinds) or "none"
            message = f"a destination needs one of {', '.join(KINDS)}; here is {present}"
            raise ValueError(message)
        defaults = {item.name: item.default for item in fields(self)}
        for name, kind in _BELONGS.items():
            if getattr(self, name) != defaults[name] and kind != kinds[0]:
                message = f"{name} belongs to a {kind}, not to a destination with {kinds[0]}"
                raise ValueError(message)
        if self.topic and not is_valid_topic(filled(self.topic, "a")):
            message = f"{self.topic!r} is not a topic: wildcards are not allowed"
            raise ValueError(message)
        checked_count(self.attempts, "attempts", 1)
        object.__setattr__(self, "timeout", seconds(self.timeout, "timeout"))

    @property
    def label(self) -> str:
        """The destination in words, for logs; it also names the session of its messages."""
        kind = next(kind for kind in KINDS if getattr(self, kind))
        return f"{kind} {getattr(self, kind)}"

    def open(self, node: Node) -> "Sender":
        """Return the sender to this destination.

        Raises:
            CallboardError: the log, the store or the queue cannot be opened.
        """
        if self.actor:
            return ActorSender(node, self)
        if self.queue:
            return QueueSender(node, self)
        if self.store:
            return StoreSender(node, self)
        return LogSender(self)


def filled(template: str, topic: str) -> str:
    """Replace `{topic}`, and `{1}` and so on by the levels of a topic."""
    text = template.replace("{topic}", topic)
    for number, level in enumerate(topic.split("/"), 1):
        text = text.replace(f"{{{number}}}", level)
    return text


def decoded(payload: bytes, form: Form) -> Any:
    """Return a payload in another form.

    Raises:
        ValueError: it is not such text or JSON.
    """
    if form == "json":
        return parse_json(payload)
    return payload.decode() if form == "text" else payload


class Sender(Protocol):
    """Sends messages to one place; all calls come from one event loop."""

    async def send(self, topic: str, value: Any) -> None:
        """Send a message; return when the destination has accepted it.

        Raises:
            Exception: the destination did not accept the message; the caller may send it again.
        """

    def close(self) -> None:
        """Release files and stores."""


class ActorSender:
    """Asks an actor that is registered under a name, on any node."""

    def __init__(self, node: Node, destination: Destination) -> None:
        """Find the actor with the first message."""
        self._node, self._name, self._timeout = node, destination.actor, destination.timeout
        self._ref: ActorRef | None = None

    async def send(self, topic: str, value: Any) -> None:
        """Send a message, and wait for the end of its handler."""
        if self._ref is None:
            self._ref = await self._node.find(self._name, self._timeout)
        try:
            await self._ref.ask(TopicMessage(topic, value), timeout=self._timeout)
        except CallboardError:
            self._ref = None  # another actor may have the name now
            raise

    def close(self) -> None:
        """Do nothing: the actor belongs to others."""


class QueueSender:
    """Puts jobs into a work queue."""

    def __init__(self, node: Node, destination: Destination) -> None:
        """Use the queue, and own it here if the destination has a database."""
        self._queue = node.queue(destination.queue, state=destination.state)

    async def send(self, topic: str, value: Any) -> None:
        """Put a job, and wait until it is durable."""
        await self._queue.put(TopicMessage(topic, value))

    def close(self) -> None:
        """Do nothing: the queue belongs to the node."""


class StoreSender:
    """Sets values in a store."""

    def __init__(self, node: Node, destination: Destination) -> None:
        """Attach a clone; or the master, if the destination has a file."""
        from callboard.store import Backend, attach_clone, attach_master

        self._key, hub, name = destination.key, Hub.of(node), destination.store
        self._store: Store
        if destination.file is None:
            self._store = attach_clone(hub, name)
        else:
            options = {"path": destination.file}
            self._store = attach_master(hub, name, Backend.SQLite, options)

    async def send(self, topic: str, value: Any) -> None:
        """Set a value."""
        await self._store.aput(filled(self._key, topic), value)

    def close(self) -> None:
        """Close the copy of the store."""
        self._store.close()


class LogSender:
    """Appends records to a log."""

    def __init__(self, destination: Destination) -> None:
        """Open the log."""
        self._folder = Path(destination.log)
        self._log = CommitLog(self._folder)

    async def send(self, topic: str, value: Any) -> None:
        """Append a record, and wait until it is durable."""
        if self._log.may_reopen:
            with suppress(LogError):
                self._log.close()
            self._log = CommitLog(self._folder)
        self._log.append(topic=topic, payload=value)
        await self._log.aflush()

    def close(self) -> None:
        """Flush and close the log."""
        with suppress(LogError):
            self._log.close()
