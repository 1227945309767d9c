"""Wills: messages that the router publishes for clients that leave without a DISCONNECT.

A router with a journal records each will as soon as its client is connected. The standards let
a server that failed publish wills when it runs again (MQTT 5, 3.1.2.5): for a client that was
connected then, the delay begins with the restart; a will that waited keeps its time.
"""

from collections.abc import Callable, Iterable
from math import inf

from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.logs import Logs
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.record import WillKept
from callboard.mqtt.router.session import Connection
from callboard.mqtt.wire.packet import Will


class Wills:
    """The wills of clients.

    Attributes:
        waiting: when each is due, and what it is, by client id.
        users: of the router's table, whose wills wait, by client id.
        is_removed: whether a user is in that table no longer; such wills are not published.
    """

    def __init__(self, logs: Logs, effects: Effects) -> None:
        self.waiting: dict[str, tuple[float, Will]] = {}
        self.users: dict[str, str] = {}
        self.is_removed: Callable[[str], bool] = lambda _: False
        self._logs = logs
        self._effects = effects

    def __len__(self) -> int:
        return len(self.waiting)

    def keep(self, connection: Connection) -> None:
        """Write a will down, in a journal that there is: its client is connected."""
        self._effects.records += self._told(connection)

    def end(self, connection: Connection, *, has_will: bool) -> float | None:
        """Publish or forget a will, as its client is gone; return when it is due if later."""
        will, client_id = connection.link.connect.will, connection.client_id
        if will is None:
            return None
        if has_will and not self._may_be_said(connection, will):
            self._effects.meters.refused += 1
            has_will = False
        delay = delay_of(will, connection.session.expiry)
        if has_will and delay > 0:
            when = self._effects.now + delay
            return self.wait(client_id, will, when, connection.link.listed)
        if has_will:
            self._publish(client_id, will)
        else:
            self._drop(client_id)
        return None

    def wait(self, client_id: str, will: Will, when: float, user: str = "") -> float:
        """Let a will wait for its time, which is returned."""
        self.waiting[client_id] = (when, will)
        self.users.pop(client_id, None)
        if user:
            self.users[client_id] = user
        if self._effects.is_durable:
            self._effects.records.append(WillKept(client_id, will, when, user))
        return when

    def cancel(self, client_id: str) -> None:
        """Forget a will that waits: its client is back."""
        self.users.pop(client_id, None)
        if self.waiting.pop(client_id, None) is not None:
            self._drop(client_id)

    def publish_waiting(self, client_id: str, until: float = inf) -> None:
        """Publish a will that waits, if there is one and it is due until a time."""
        when, will = self.waiting.get(client_id, (inf, None))
        if will is not None and when <= until:
            del self.waiting[client_id]
            user = self.users.pop(client_id, "")
            if user and self.is_removed(user):
                self._effects.meters.refused += 1
                self._drop(client_id)
            else:
                self._publish(client_id, will)

    def records(self, connections: Iterable[Connection]) -> list[WillKept]:
        """Return all wills there are, for a snapshot; first those of these connections."""
        kept = [each for connection in connections for each in self._told(connection)]
        return kept + [
            WillKept(name, will, when, self.users.get(name, ""))
            for name, (when, will) in self.waiting.items()
        ]

    def _told(self, connection: Connection) -> list[WillKept]:
        """Return the record of the will of a connected client, if it may be published."""
        will = connection.link.connect.will
        if will is None or not self._may_be_said(connection, will):
            return []
        return [WillKept(connection.client_id, will, None, connection.link.listed)]

    def _may_be_said(self, connection: Connection, will: Will) -> bool:
        """Return whether the client may publish its will."""
        topic = will.topic.encode()
        return connection.may_publish(topic, is_reserved=self._logs.route(topic).is_reserved)

    def _drop(self, client_id: str) -> None:
        """Record that a client has no will any more."""
        if self._effects.is_durable:
            self._effects.records.append(WillKept(client_id))

    def _publish(self, client_id: str, will: Will) -> None:
        """Publish a will."""
        topic = will.topic.encode()
        run = Run.of_packet(will, topic, client_id, self._effects.now)
        self._effects.meters.wills += 1
        self._logs.append(run, self._logs.route(topic))
        self._drop(client_id)  # behind the message, so that a crash loses neither


def delay_of(will: Will, session_expiry: float) -> float:
    """Return the seconds between the end of a connection and its will."""
    asked = 0 if will.properties is None else will.properties.will_delay_interval or 0
    return min(float(asked), session_expiry)
