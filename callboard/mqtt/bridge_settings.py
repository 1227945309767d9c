"""What a bridge to another broker carries, and how it gets there."""

from dataclasses import dataclass
from typing import Literal

from callboard.mqtt.errors import ListenError
from callboard.mqtt.topic import overlap
from proxies.tls import Tls


@dataclass(frozen=True, slots=True)
class BridgeTopics:
    """One filter that is carried.

    Attributes:
        topic_filter: at the side that messages come from.
        direction: `in`: from the remote broker; `out`: to it.
        qos: the most that messages are carried with.
        prefix: is put before the topics at the side that messages go to.
    """

    topic_filter: str
    direction: str = "in"
    qos: int = 1
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """One bridge.

    Attributes:
        address: of the remote broker: `HOST:PORT` or `tls://HOST:PORT`.
        topics: what is carried.
        client_id: there.
        username: there.
        password: there.
        tls: for `tls://`; with a certificate if the remote broker wants one.
        version: of MQTT that the remote broker speaks: `5`, or `3.1.1`, which has no properties
            and cannot be asked for no messages of our own; so what is carried out must not be
            among what is carried in.
        keep_alive: seconds between pings.
        reconnect_delay: seconds between attempts to reach it; twice as long after each, up to a
            minute.
    """

    address: str
    topics: tuple[BridgeTopics, ...] = ()
    client_id: str = "callboard-bridge"
    username: str | None = None
    password: bytes | None = None
    tls: Tls | None = None
    version: Literal["5", "3.1.1"] = "5"
    keep_alive: int = 60
    reconnect_delay: float = 1.0

    def parse(self) -> tuple[str, int, bool]:
        """Return host, port, and whether TLS is spoken.

        Raises:
            ListenError: the address has another form, or messages would go round.
        """
        self._refuse_rounds()
        scheme, colon, rest = self.address.rpartition("://")
        host, _, port = rest.rpartition(":")
        known = not colon or scheme in {"tcp", "tls"}
        if not known or not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
            msg = f"{self.address!r} is no broker's address; write HOST:PORT or tls://HOST:PORT"
            raise ListenError(msg)
        return host.strip("[]"), int(port), scheme == "tls"

    def _refuse_rounds(self) -> None:
        """Refuse topics that 3.1.1 would bring back as soon as they are sent."""
        if self.version == "5":
            return
        inward = [each.topic_filter for each in self.topics if each.direction == "in"]
        for each in self.topics:
            sent = each.prefix + each.topic_filter
            for topic_filter in inward if each.direction == "out" else ():
                if overlap(sent, topic_filter):
                    msg = (
                        f"the bridge to {self.address} would get what it sends to {sent} back "
                        f"from {topic_filter}: MQTT 3.1.1 cannot tell them apart; choose other "
                        "prefixes"
                    )
                    raise ListenError(msg)
