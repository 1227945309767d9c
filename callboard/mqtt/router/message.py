"""Runs of messages as the router keeps them, and the forms in which it sends them.

A run holds consecutive messages of one publisher on one topic with the same flags. Every reader
gets the same bytes objects; only packet identifiers differ between them. A form is two lists:
with QoS 0 `fronts` are whole packets and `tails` is empty; with QoS 1 and 2 a packet is front +
packet identifier + tail. The form that came in is kept; others are made when a reader first
needs them.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from callboard.mqtt.wire.errors import ProtocolViolation
from callboard.mqtt.wire.field import write_variable
from callboard.mqtt.wire.framing import body_start
from callboard.mqtt.wire.packet import Publish, Will
from callboard.mqtt.wire.properties import NO_PROPERTIES, Place, Properties, write_properties

#: Every packet identifier as it is on the wire.
PACKET_IDS: Final = tuple(number.to_bytes(2, "big") for number in range(1 << 16))

#: Forms of a run that are kept for other readers, beside the one that it came in. Those of
#: retained messages are not: they would live as long as these.
MOST_FORMS: Final = 8

RUN_BYTES: Final = 400
#: What a run and a message in it take in memory beside their payloads, measured on 64-bit
#: CPython: two bytes objects, their places in two lists.
MESSAGE_BYTES: Final = 120

#: The identifier of the property *message expiry interval*.
EXPIRY: Final = 2


class Form(NamedTuple):
    """Messages as they are sent."""

    fronts: list[bytes]
    tails: list[bytes]


def encode_form(
    topic: bytes, payloads: list[bytes], *, qos: int, retain: bool, properties: bytes | None
) -> Form:
    """Return messages in a form.

    Args:
        topic: its bytes without length.
        payloads: of the messages.
        qos: to send with.
        retain: the flag.
        properties: MQTT 5's, without their length; None for 3.1.1.
    """
    first = bytes((0x30 | qos << 1 | retain,))
    name = len(topic).to_bytes(2, "big") + topic
    middle = b"" if properties is None else write_variable(len(properties)) + properties
    rest = len(name) + len(middle) + (2 if qos else 0)
    if qos:
        fronts = [first + write_variable(rest + len(payload)) + name for payload in payloads]
        return Form(fronts, [middle + payload for payload in payloads])
    head = name + middle
    return Form([first + write_variable(rest + len(p)) + head + p for p in payloads], [])


class Passed(NamedTuple):
    """What of a message's properties is passed on, and what is for the router."""

    properties: bytes
    alias: int | None
    expiry: int | None


#: Characters and bytes of properties that are remembered as they are passed on.
_SMALL: Final = 256


def passed_on(properties: Properties | None) -> Passed:
    """Return the properties that readers get, as bytes without their length."""
    said = properties or NO_PROPERTIES
    texts = (said.content_type, said.response_topic, said.correlation_data)
    if said.user_properties or sum(len(each) for each in texts if each is not None) > _SMALL:
        return _passed_on.__wrapped__(said)
    return _passed_on(said)


@lru_cache(1024)
def _passed_on(properties: Properties) -> Passed:
    """Return the same; remembered, as most are like those before."""
    if properties.subscription_identifiers:
        message = "a client sent a PUBLISH with subscription_identifiers, which it may not"
        raise ProtocolViolation(message)
    kept = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    written = write_properties(kept, Place.PUBLISH)
    written = written[body_start(written, -1) :]  # without their length
    return Passed(written, properties.topic_alias, properties.message_expiry_interval)


class Run:
    """Messages of one publisher on one topic, in order.

    Attributes:
        topic: bytes without length.
        qos: what the publisher sent them with.
        retain: whether the publisher set the flag.
        properties: MQTT 5's that go on to readers, without length; empty if there are none.
        publisher: the client id, for no-local.
        filters: the names of the plain filters that match, when they were published.
        number: of the first message, counted over all messages of the router.
        place: 1 more than the number of its record in the journal; 0 if it is not there, -1
            while it is on its way.
        count: how many.
        size: bytes of the longest, as it came in.
        weight: bytes in memory.
        memory: the same with the forms that were made of it.
        expires_at: the time after which they are not sent; None is never.
        recipient: the only client id that gets them: its session brought them from another
            router; None is everybody.
    """

    __slots__ = (
        "_forms",
        "_payloads",
        "count",
        "expires_at",
        "filters",
        "form",
        "key",
        "memory",
        "number",
        "place",
        "properties",
        "publisher",
        "qos",
        "recipient",
        "retain",
        "size",
        "topic",
        "weight",
    )

    def __init__(
        self, topic: bytes, form: Form, key: int, count: int, size: int, publisher: str
    ) -> None:
        """Keep messages that came in a form, with the flag of retained ones not set.

        `key` is their QoS, and 4 for MQTT 5.
        """
        self.topic = topic
        self.form = form
        self.qos = key & 3
        #: QoS, and 4 for MQTT 5: what `form` is.
        self.key = key
        self.count = count
        self.size = size
        self.weight = self.memory = RUN_BYTES + count * (MESSAGE_BYTES + size)
        self.publisher = publisher
        self.properties = b""
        self.retain = False
        self.expires_at: float | None = None
        self.number = 0
        self.place = 0
        self.filters: tuple[str, ...] = ()
        self.recipient: str | None = None
        self._forms: dict[object, Form] | None = None
        self._payloads: list[bytes] | None = None

    @classmethod
    def of_payloads(
        cls,
        topic: bytes,
        payloads: list[bytes],
        qos: int,
        publisher: str,
        properties: bytes = b"",
        expires_at: float | None = None,
        *,
        retain: bool = False,
    ) -> "Run":
        """Return a run of messages that did not come in a form that can be sent on."""
        form = encode_form(topic, payloads, qos=qos, retain=False, properties=properties)
        size = max(map(len, payloads)) + len(topic) + len(properties) + 12
        run = cls(topic, form, qos | 4, len(payloads), size, publisher)
        run.properties, run.retain, run.expires_at = properties, retain, expires_at
        run._payloads = payloads
        return run

    @classmethod
    def of_packet(
        cls, packet: Publish | Will, topic: bytes, publisher: str, now: float
    ) -> "Run":
        """Return a PUBLISH or a will as a run; its expiry begins now."""
        passed = passed_on(packet.properties)
        expires_at = None if passed.expiry is None else now + passed.expiry
        about = packet.qos, publisher, passed.properties, expires_at
        return cls.of_payloads(topic, [packet.payload], *about, retain=packet.retain)

    @property
    def payloads(self) -> list[bytes]:
        """The payloads alone, taken out of the form that came in."""
        if self._payloads is not None:
            return self._payloads
        fronts, tails = self.form
        props = 0
        if self.key & 4:
            props = len(self.properties) + len(write_variable(len(self.properties)))
        if self.qos:
            self._payloads = [tail[props:] for tail in tails] if props else tails
        else:
            beyond = 2 + len(self.topic) + props
            self._payloads = [packet[body_start(packet) + beyond :] for packet in fronts]
        return self._payloads

    def form_for(
        self, qos: int, *, is_v5: bool, retain: bool = False, extra: bytes = b""
    ) -> Form:
        """Return the messages in another form; made once for all readers that need it.

        Args:
            qos: to send with, not above the run's.
            is_v5: whether the reader speaks MQTT 5.
            retain: the flag to set.
            extra: properties to put before the others, for readers that speak MQTT 5.
        """
        key = qos | is_v5 << 2
        extra = extra if is_v5 else b""
        if key == self.key and not retain and not extra and self.expires_at is None:
            return self.form
        forms = self._forms
        if forms is None:
            forms = self._forms = {}
        kind: object = (key, retain, extra) if retain or extra else key
        form = forms.get(kind)
        if form is None:
            properties = extra + self.properties if is_v5 else None
            topic, payloads = self.topic, self.payloads
            form = encode_form(topic, payloads, qos=qos, retain=retain, properties=properties)
            if not retain and len(forms) < MOST_FORMS:
                forms[kind] = form
                self.memory += self.weight
        return form

    def forget_forms(self) -> None:
        """Make forms again when they are needed again: memory is short."""
        self._forms = None
        self.memory = self.weight

    def single(self, index: int) -> "Run":
        """Return one message as a run of its own."""
        about = self.qos, self.publisher, self.properties, self.expires_at
        payload = self.payloads[index]
        run = Run.of_payloads(self.topic, [payload], *about, retain=self.retain)
        run.number = self.number + index
        return run

    def kept(self) -> "Run":
        """Return the last message as a retained one: alone, and in no form that is sent."""
        payload = self.payloads[-1]
        size = len(payload) + len(self.topic) + len(self.properties)
        run = Run(self.topic, Form([], []), self.qos | 4, 1, size, self.publisher)
        run.properties, run.retain, run.expires_at = self.properties, True, self.expires_at
        run.number, run._payloads = self.number + self.count - 1, [payload]
        return run


def expiry_property(seconds: float) -> bytes:
    """Return the property with the time that a message has left, in whole seconds."""
    return bytes((EXPIRY,)) + max(int(seconds), 0).to_bytes(4, "big")
