"""Runs of messages in the router's memory, and the forms in which it sends them.

A run holds consecutive messages of one publisher on one topic with the same flags. Every reader
gets the same bytes objects; only packet identifiers differ. A form is two lists: with QoS 0
`fronts` are whole packets and `tails` is empty; with QoS 1 and 2 a packet is front + packet
identifier + tail. A run keeps the form that the publisher sent; other forms are made when a
reader first needs them.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from callboard.mqtt.wire.errors import ProtocolViolation
from callboard.mqtt.wire.field import write_variable
from callboard.mqtt.wire.framing import body_start
from callboard.mqtt.wire.packet import Publish, Will
from callboard.mqtt.wire.properties import NO_PROPERTIES, Place, Properties, write_properties

#: Every packet identifier in its two bytes.
PACKET_IDS: Final = tuple(number.to_bytes(2, "big") for number in range(1 << 16))

#: Forms of a run that are cached in addition to the publisher's. Forms with the retain flag are
#: not cached, because they would be kept as long as the retained message.
MOST_FORMS: Final = 8

RUN_BYTES: Final = 400
#: Bytes of memory of a run, and of a message in it, without payloads; measured on 64-bit
#: CPython: two bytes objects and their places in two lists.
MESSAGE_BYTES: Final = 120

#: The identifier of the property *message expiry interval*.
EXPIRY: Final = 2


class Form(NamedTuple):
    """Encoded messages, without their packet identifiers."""

    fronts: list[bytes]
    tails: list[bytes]


#: The form of retained messages, which are encoded when they are sent.
_NO_FORM: Final = Form([], [])


def encode_form(
    topic: bytes, payloads: list[bytes], *, qos: int, retain: bool, properties: bytes | None
) -> Form:
    """Encode messages.

    Args:
        topic: its bytes without length.
        payloads: the payloads of the messages.
        qos: the QoS to send with.
        retain: the flag.
        properties: encoded for MQTT 5, without their length; None for 3.1.1.
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
    """The properties of a message.

    The encoded ones for subscribers, and others for the router.
    """

    properties: bytes
    alias: int | None
    expiry: int | None


#: Characters and bytes of texts in properties whose encoding is cached.
_SMALL: Final = 256


def passed_on(properties: Properties | None) -> Passed:
    """Return the properties for subscribers as bytes without their length."""
    properties = properties or NO_PROPERTIES
    texts = (properties.content_type, properties.response_topic, properties.correlation_data)
    if (
        properties.user_properties
        or sum(len(text) for text in texts if text is not None) > _SMALL
    ):
        return _passed_on.__wrapped__(properties)
    return _passed_on(properties)


@lru_cache(1024)
def _passed_on(properties: Properties) -> Passed:
    """Encode properties; cached, because most messages have the same ones."""
    if properties.subscription_identifiers:
        message = "a client sent a PUBLISH with subscription_identifiers, which is not allowed"
        raise ProtocolViolation(message)
    shared = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    encoded = write_properties(shared, Place.PUBLISH)
    encoded = encoded[body_start(encoded, -1) :]  # without their length
    return Passed(encoded, properties.topic_alias, properties.message_expiry_interval)


class MessageRun:
    """Messages of one publisher on one topic, in order.

    Attributes:
        topic: bytes without length.
        qos: the QoS of the publish.
        retain: whether the publisher set the flag.
        properties: encoded properties for subscribers, without length; empty without any.
        publisher: the client id, for no-local.
        filters: the plain filters that matched when the messages were published.
        number: the number of the first message, counted over all messages of the router.
        place: 1 + the position of its record in the journal; 0 if it is not there, -1 until
            it is written.
        count: the number of messages.
        size: bytes of the longest packet, as published.
        weight: bytes of memory.
        memory: bytes of memory including cached forms.
        expires_at: the time after which they are not sent; None is never.
        recipient: the only client id that gets the messages, for a session that came from
            another router; None is all.
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
        """Store messages in the form of their publisher, without the retain flag.

        `key` is their QoS, plus 4 for MQTT 5.
        """
        self.topic = topic
        self.form = form
        self.qos = key & 3
        #: The kind of `form`: QoS, plus 4 for MQTT 5.
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
    ) -> "MessageRun":
        """Return a run of messages that were not received as packets ready to send."""
        form = encode_form(topic, payloads, qos=qos, retain=False, properties=properties)
        size = max(map(len, payloads)) + len(topic) + len(properties) + 12
        run = cls(topic, form, qos | 4, len(payloads), size, publisher)
        run.properties, run.retain, run.expires_at = properties, retain, expires_at
        run._payloads = payloads
        return run

    @classmethod
    def of_packet(
        cls, packet: Publish | Will, topic: bytes, publisher: str, now: float
    ) -> "MessageRun":
        """Return the run of a PUBLISH or a will; its expiry begins now."""
        passed = passed_on(packet.properties)
        expires_at = None if passed.expiry is None else now + passed.expiry
        rest = packet.qos, publisher, passed.properties, expires_at
        return cls.of_payloads(topic, [packet.payload], *rest, retain=packet.retain)

    @property
    def payloads(self) -> list[bytes]:
        """The payloads, extracted from the publisher's form."""
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
        """Return the messages in another form; cached for all readers that need it.

        Args:
            qos: the QoS to send with, not above the run's.
            is_v5: whether the reader uses MQTT 5.
            retain: the flag to set.
            extra: encoded properties to insert before the others, for MQTT 5.
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
        """Drop cached forms, because memory is short."""
        self._forms = None
        self.memory = self.weight

    def single(self, index: int) -> "MessageRun":
        """Return one message as a separate run."""
        rest = self.qos, self.publisher, self.properties, self.expires_at
        payload = self.payloads[index]
        run = MessageRun.of_payloads(self.topic, [payload], *rest, retain=self.retain)
        run.number = self.number + index
        return run

    @classmethod
    def of_retained(
        cls, topic: bytes, payload: bytes, qos: int, publisher: str, properties: bytes
    ) -> "MessageRun":
        """Return a message as `kept` does."""
        size = len(payload) + len(topic) + len(properties)
        run = cls(topic, _NO_FORM, qos | 4, 1, size, publisher)
        run.properties, run.retain, run._payloads = properties, True, [payload]
        return run

    @property
    def kept_weight(self) -> int:
        """Bytes of memory of the last message as a retained one."""
        size = len(self.payloads[-1]) + len(self.topic) + len(self.properties)
        return RUN_BYTES + MESSAGE_BYTES + size

    def kept(self) -> "MessageRun":
        """Return the last message as a retained one: alone, without encoded forms."""
        if self.form is _NO_FORM:
            return self
        payload = self.payloads[-1]
        size = len(payload) + len(self.topic) + len(self.properties)
        run = MessageRun(self.topic, _NO_FORM, self.qos | 4, 1, size, self.publisher)
        run.properties, run.retain, run.expires_at = self.properties, True, self.expires_at
        run.number, run._payloads = self.number + self.count - 1, [payload]
        return run


def expiry_property(seconds: float) -> bytes:
    """Return the property with the remaining lifetime of a message, in whole seconds."""
    return bytes((EXPIRY,)) + max(int(seconds), 0).to_bytes(4, "big")
