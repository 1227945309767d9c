"""Wills: messages that the router publishes for clients that end without a DISCONNECT.

A router with a journal records each will when its client connects. After a failure the
standards let a server publish wills when it runs again (MQTT 5, 3.1.2.5). For a client that was
connected at the failure, the delay begins with the restart; a will that was waiting keeps its
time.
"""

from collections.abc import Callable, Iterable
from math import inf

from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.logs import Logs
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.record import WillKept
from callboard.mqtt.router.session import Connection
from callboard.mqtt.wire.packet import Will


class Wills:
    """The wills of clients.

    Attributes:
        waiting: the due time and the will, by client id.
        users: owners of waiting wills, by client id, if they are in the router's table.
        is_removed: whether a user is in that table no longer; then the will is not published.
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
        """Record the will of a client that has connected; requires a journal."""
        self._effects.records += self._connected_will(connection)

    def end(self, connection: Connection, *, has_will: bool) -> float | None:
        """Publish or drop the will of a client that has disconnected.

        Return its time if delayed.
        """
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
        """Delay a will until a time, which is returned."""
        self.waiting[client_id] = (when, will)
        self.users.pop(client_id, None)
        if user:
            self.users[client_id] = user
        if self._effects.is_durable:
            self._effects.records.append(WillKept(client_id, will, when, user))
        return when

    def cancel(self, client_id: str) -> None:
        """Drop a delayed will, because its client has reconnected."""
        self.users.pop(client_id, None)
        if self.waiting.pop(client_id, None) is not None:
            self._drop(client_id)

    def publish_waiting(self, client_id: str, until: float = inf) -> None:
        """Publish the delayed will of a client, if there is one and it is due until a time."""
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
        """Return records of all wills for a snapshot; first of connected clients."""
        connected = [entry for c in connections for entry in self._connected_will(c)]
        return connected + [
            WillKept(name, will, when, self.users.get(name, ""))
            for name, (when, will) in self.waiting.items()
        ]

    def _connected_will(self, connection: Connection) -> list[WillKept]:
        """Return the record of a connected client's will, if the client may publish it."""
        will = connection.link.connect.will
        if will is None or not self._may_be_said(connection, will):
            return []
        return [WillKept(connection.client_id, will, None, connection.link.listed)]

    def _may_be_said(self, connection: Connection, will: Will) -> bool:
        """Return whether a client may publish its will."""
        topic = will.topic.encode()
        return connection.may_publish(topic, is_reserved=self._logs.route(topic).is_reserved)

    def _drop(self, client_id: str) -> None:
        """Record that a client's will was removed."""
        if self._effects.is_durable:
            self._effects.records.append(WillKept(client_id))

    def _publish(self, client_id: str, will: Will) -> None:
        """Publish a will."""
        topic = will.topic.encode()
        run = MessageRun.of_packet(will, topic, client_id, self._effects.now)
        self._effects.meters.wills += 1
        self._logs.append(run, self._logs.route(topic))
        self._drop(client_id)  # recorded after the message, so that a crash loses neither


def delay_of(will: Will, session_expiry: float) -> float:
    """Return the seconds between the end of a connection and its will."""
    requested = 0 if will.properties is None else will.properties.will_delay_interval or 0
    return min(float(requested), session_expiry)
