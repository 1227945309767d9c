"""Forwarding: messages with QoS 1 and 2 reach a destination at least once.

A `Forwarder` is a client of the router with a lasting session. It acknowledges a message to the
router when the destination is done with it. So a message whose handler fails, or that is under
way when the router is restarted (with a `directory`), is sent again. After the destination's
number of attempts it is given up: it is counted and logged, and reported as
`MessageNotHandled`. A message that the handler refuses (`Refusal`) is given up at once.

Messages are begun in their order, up to `IN_FLIGHT` at a time; one that is sent again comes
after others.
"""

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from callboard.backoff import Backoff
from callboard.closing import Closing
from callboard.kernel.errors import Refusal
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.service.destination import Destination, Sender
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.errors import LinkClosed
from callboard.node import Node
from callboard.support.dataclass import dataclass
from callboard.support.text import error_text

_log: Final = logging.getLogger(__name__)

#: Messages on their way to one destination.
IN_FLIGHT: Final = 100
#: Seconds that messages wait at the router for a forwarder that does not run.
SESSION: Final = 7 * 86_400
#: Seconds of the first and of the longest pause between two attempts.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
#: Seconds within which the router must grant the subscriptions.
START_TIMEOUT: Final = 10.0
#: The start of client ids of the forwarders of rules.
RULE_PREFIX: Final = "$rule-"

#: Opens a link of the router; see `Router.link`.
OpenLink = Callable[..., LocalLink]


class Forwarded(NamedTuple):
    """A message as its destination gets it."""

    topic: str
    value: Any


#: Converts a message; None if the destination does not get it.
Convert = Callable[[Message], Forwarded | None]


@dataclass(frozen=True, slots=True)
class MessageNotHandled:
    """A message from MQTT was given up after the destination's number of attempts.

    Attributes:
        topic: the topic in MQTT.
        destination: the destination in words.
        attempts: the number of attempts.
        reason: the reason for which the last attempt failed.
    """

    topic: str
    destination: str
    attempts: int
    reason: str


@dataclass(slots=True)
class ForwardFigures:
    """Counts of a forwarder.

    Attributes:
        handled: messages that the destination is done with.
        retried: attempts after the first.
        dead: messages that were given up.
    """

    handled: int = 0
    retried: int = 0
    dead: int = 0


def session_id(prefix: str, *parts: object) -> str:
    """Return the client id of a forwarder: the same for the same filter and destination."""
    return prefix + hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


class Forwarder(Closing):
    """Sends the messages of filters to a destination, on a separate thread.

    Attributes:
        figures: the counts.
    """

    def __init__(
        self,
        open_link: OpenLink,
        node: Node,
        client_id: str,
        filters: Iterable[tuple[str, int]],
        destination: Destination,
        convert: Convert,
    ) -> None:
        """Subscribe, and start forwarding.

        Args:
            open_link: opens a link of the router.
            node: the node from which destinations are reached.
            client_id: the name of the lasting session.
            filters: topic filters with the QoS of each.
            destination: where messages go.
            convert: makes the value for the destination.

        Raises:
            Refused: the router does not grant a subscription.
            CallboardError: the destination cannot be opened.
        """
        self.figures = ForwardFigures()
        self._destination, self._convert, self._node = destination, convert, node
        self._sender: Sender = destination.open(node)
        self._link = open_link(
            client_id, clean_start=False, session_expiry=SESSION, acknowledge="manual"
        )
        for topic_filter, qos in filters:
            granted = self._link.subscribe(
                topic_filter, qos=qos, no_local=True, retain_handling=1
            )
            granted.result(START_TIMEOUT)
        name = f"mqtt-to-{destination.label}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; messages that are not handled stay in the session. Idempotent."""
        self._link.close()
        self._thread.join(START_TIMEOUT)

    def _run(self) -> None:
        """Forward messages on an event loop of this thread."""
        try:
            asyncio.run(self._forward_all())
        finally:
            self._sender.close()

    async def _forward_all(self) -> None:
        """Forward messages until the link is closed."""
        room, tasks = asyncio.Semaphore(IN_FLIGHT), set[asyncio.Task[None]]()
        with suppress(LinkClosed):
            while True:
                await room.acquire()
                message = await self._link.arecv()
                task = asyncio.ensure_future(self._forward(message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: room.release())
        for task in list(tasks):
            task.cancel()

    async def _forward(self, message: Message) -> None:
        """Send one message until it is handled, or given up; then acknowledge it."""
        forwarded, destination = self._convert(message), self._destination
        backoff, reason = Backoff(FIRST_PAUSE, LONGEST_PAUSE), ""
        while forwarded is not None:
            try:
                async with asyncio.timeout(destination.timeout):
                    await self._sender.send(*forwarded)
            except Refusal as refusal:  # an answer, which another attempt would not change
                self._give_up(message, backoff.attempts + 1, error_text(refusal))
                break
            except Exception as error:  # noqa: BLE001  (of the application's handler, too)
                reason = error_text(error) or "it took too long"
            else:
                self.figures.handled += 1
                break
            if backoff.attempts + 1 >= destination.attempts:
                self._give_up(message, destination.attempts, reason)
                break
            self.figures.retried += 1
            await asyncio.sleep(backoff.next_pause(None))
        with suppress(LinkClosed):  # it will arrive again
            self._link.acknowledge(message)

    def _give_up(self, message: Message, attempts: int, reason: str) -> None:
        """Count, log and report a message that was not handled."""
        self.figures.dead += 1
        label = self._destination.label
        _log.warning(
            "a message of %r was not handled by the %s in %d attempts: %s",
            message.topic[:200],
            label,
            attempts,
            reason,
        )
        self._node.context.report(MessageNotHandled(message.topic, label, attempts, reason))
