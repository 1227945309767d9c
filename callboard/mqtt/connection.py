"""What the router knows of a client while it is connected."""

from typing import TYPE_CHECKING

from callboard.mqtt.limits import Limits
from callboard.mqtt.link import Access, Link, Notification
from callboard.mqtt.packet import V5, Will
from callboard.mqtt.properties import Properties
from callboard.mqtt.session import Session

if TYPE_CHECKING:
    from callboard.mqtt.brake import Waiting

_NONE = Properties()


class Connection:
    """A connected client.

    Attributes:
        link: where its packets come from and go to.
        session: what outlives the connection.
        acks: acknowledgements to send, always before messages: the ackslog of this connection.
        out: what this turn sends.
        unsent: messages and bytes given since the link was last known to be empty.
        will: published if the connection ends without DISCONNECT.
        aliases_in: topics by the alias that the client gave them.
        aliases_out: aliases that we gave topics.
        largest: bytes of a packet that the client takes; None is no limit.
        limits: that held when it connected, some of which it was told.
        packets_in: from the client, since it connected.
        dropped: messages that were too large for the client.
        held: what it sent while others wait for readers of it; None while it is not held.
    """

    __slots__ = (
        "access",
        "acks",
        "alias_maximum",
        "aliases_in",
        "aliases_out",
        "allowed",
        "client_id",
        "dropped",
        "held",
        "is_v5",
        "keep_alive",
        "largest",
        "limits",
        "link",
        "out",
        "packets_in",
        "session",
        "unsent",
        "unsent_bytes",
        "will",
    )

    def __init__(self, link: Link, session: Session, limits: Limits) -> None:
        connect = link.connect
        self.limits = limits
        properties = connect.properties or _NONE
        self.link = link
        self.session = session
        self.client_id = session.client_id
        self.is_v5 = connect.version >= V5
        self.access = topic_rules(link)
        self.acks: list[bytes] = []
        self.out: list[Notification] = []
        self.unsent = 0
        self.unsent_bytes = 0
        self.will: Will | None = connect.will
        self.keep_alive = connect.keep_alive
        self.aliases_in: dict[int, bytes] | None = None
        self.aliases_out: dict[bytes, bytes] | None = None
        self.alias_maximum = properties.topic_alias_maximum or 0
        self.largest = properties.maximum_packet_size
        #: What `access` answered: by topic, for publishing and for receiving.
        self.allowed: tuple[dict[bytes, bool], dict[bytes, bool]] | None = None
        self.dropped = 0
        self.packets_in = 0
        self.held: Waiting | None = None

    def may_publish(self, topic: bytes) -> bool:
        """Whether this client may publish on a valid topic."""
        return self.access is None or self._is_allowed(topic, 0)

    def may_receive(self, topic: bytes) -> bool:
        """Whether this client may get messages of a topic."""
        return self.access is None or self._is_allowed(topic, 1)

    def _is_allowed(self, topic: bytes, which: int) -> bool:
        assert self.access is not None
        if self.allowed is None:
            self.allowed = ({}, {})
        answers = self.allowed[which]
        answer = answers.get(topic)
        if answer is None:
            if len(answers) >= MOST_ANSWERS:
                answers.clear()
            ask = self.access.may_receive if which else self.access.may_publish
            answer = answers[topic] = ask(topic.decode())
        return answer

    def forget_answers(self) -> None:
        """Ask the link's access again."""
        self.access = topic_rules(self.link)
        self.allowed = None


def topic_rules(link: Link) -> Access | None:
    """Return what to ask about topics; None if all are open to the client."""
    access = link.access
    return None if getattr(access, "is_open", False) else access


MOST_ANSWERS = 1_000
"""Topics of one client for which an answer is kept."""
