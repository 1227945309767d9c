"""Wills in lives of an MQTT router: which must be said, which must not, none twice."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any

from callboard.mqtt.router.link import Disconnected, RouterLink
from callboard.mqtt.wire.packet import V5, Will
from callboard.mqtt.wire.properties import Properties
from tests.simulation.mqtt_client import SimulatedClient
from tests.simulation.rules import Violation

ROUNDING = 0.001
"""Seconds that a time may change by on its way through the journal."""


class Fate(Enum):
    """The known facts about a will."""

    OPEN = "may be said"
    DUE = "must be said"
    DROPPED = "must not be said"


@dataclass(eq=False)
class KnownWill:
    """The will of one connection.

    Attributes:
        client: whose it is.
        number: of the connection, over the whole life.
        delay: seconds.
        link: of the connection; None when it is over.
        is_confirmed: the router has said that the client is connected.
        ended_at: when the connection ended, without DISCONNECT.
        noticed_at: when the router had taken note of that.
        is_challenged: the client has connected again since, or tried to.
        left_by: the link on which a DISCONNECT waits for its answer.
    """

    client: SimulatedClient
    number: int
    delay: int
    link: RouterLink | None = None
    is_confirmed: bool = False
    ended_at: float | None = None
    noticed_at: float | None = None
    is_challenged: bool = False
    left_by: RouterLink | None = None
    fate: Fate = Fate.OPEN

    @property
    def payload(self) -> bytes:
        """The payload that identifies the will."""
        return f"will {self.client.name} {self.number}".encode()

    @property
    def packet(self) -> Will:
        """The fields of the CONNECT."""
        properties = None
        if self.client.version == V5:
            properties = Properties(will_delay_interval=self.delay or None)
        return Will(f"will/{self.client.name}", self.payload, 2, properties=properties)

    def end(self, now: float) -> None:
        """Record the end of the connection without a DISCONNECT."""
        self.link, self.ended_at = None, now
        if self.is_confirmed and not self.delay:
            self.fate = Fate.DUE


class Wills:
    """All wills of a life."""

    def __init__(self) -> None:
        self.all: list[KnownWill] = []
        self._known: dict[str, RouterLink] = {}

    def connect(
        self,
        client: SimulatedClient,
        mailbox: Any,
        delay: int | None,
        now: float,
        *,
        clean: bool,
    ) -> None:
        """Connect a client, with a will if a delay is given."""
        for each in self._of(client):
            if each.link is not None:  # it is taken over
                each.end(now)
            elif each.noticed_at is not None and not each.is_challenged:
                is_due = now >= each.noticed_at + each.delay + ROUNDING
                each.fate = Fate.DUE if is_due and each.is_confirmed else each.fate
            each.is_challenged = True
        made = None if delay is None else KnownWill(client, len(self.all), delay)
        client.connect(mailbox, clean=clean, will=made and made.packet)
        if client.begins_anew:  # the end of a session ends the delays of its wills
            for each in self._of(client):
                each.ended_at = None
        if made is not None:
            made.link = client.link
            self.all.append(made)

    def leave(self, client: SimulatedClient) -> None:
        """Send a client's DISCONNECT."""
        link = client.leave()
        for each in self.all:
            if link is not None and each.link is link:
                each.link, each.left_by = None, link

    def look(self, clients: list[SimulatedClient], now: float) -> None:
        """Record the clients' knowledge."""
        for client in clients:
            link = client.link
            if (
                link is not None
                and client.is_connected
                and self._known.get(client.name) != link
            ):
                self._known[client.name] = link
                self._begun(client, now)
        for each in self.all:
            if each.link is not None and each.link is not each.client.link:
                each.end(now)
            left = each.left_by
            if left and any(isinstance(said, Disconnected) for said in left.outgoing):
                each.fate, each.left_by = Fate.DROPPED, None

    def _begun(self, client: SimulatedClient, now: float) -> None:
        """Record that a client is connected: its waiting will is not published."""
        for each in self._of(client):
            if each.link is client.link:
                each.is_confirmed = True
            elif each.ended_at is not None:
                if each.fate is Fate.OPEN and now < each.ended_at + each.delay:
                    each.fate = Fate.DROPPED
                each.ended_at = None

    def _of(self, client: SimulatedClient) -> list[KnownWill]:
        return [each for each in self.all if each.client is client]

    def turned(self, now: float) -> None:
        """Record that the router has processed all events."""
        for each in self.all:
            if each.ended_at is not None and each.noticed_at is None:
                each.noticed_at = now

    def restarted(self) -> None:
        """Record a crash: no DISCONNECT will be answered any longer."""
        for each in self.all:
            each.left_by = None

    def check(self, watcher: SimulatedClient) -> None:
        """Check what the watcher got in the end."""
        counts = Counter(payload for _, _, payload, _ in watcher.taken)
        for each in self.all:
            count = counts[each.payload]
            if count > 1:
                raise Violation(f"{each.payload!r} was said {count} times")
            if each.fate is Fate.DUE and not count:
                raise Violation(f"{each.payload!r} was not said")
            if each.fate is Fate.DROPPED and count:
                raise Violation(f"{each.payload!r} was said")
