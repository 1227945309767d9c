"""PUBLISH packets of every kind, one at a time, and what all of them have in common."""

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from callboard.mqtt.codec import encode
from callboard.mqtt.connection import Connection
from callboard.mqtt.decoder import decode
from callboard.mqtt.errors import ProtocolViolation
from callboard.mqtt.message import Run
from callboard.mqtt.packet import V4, V5, PubAck, Publish, PubRec
from callboard.mqtt.properties import Place, Properties, write_properties
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.routes import Route

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

_NONE: Final = Properties()


class Passed(NamedTuple):
    """What of a message's properties is passed on, and what is for the router."""

    properties: bytes
    alias: int | None
    expiry: int | None


@lru_cache(1024)
def passed_on(properties: Properties) -> Passed:
    """Return the properties that readers get, as bytes without their length."""
    if properties.subscription_identifiers:
        msg = "a client sent a PUBLISH with subscription_identifiers, which it may not"
        raise ProtocolViolation(msg)
    kept = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    written = b"" if kept == _NONE else without_length(write_properties(kept, Place.PUBLISH))
    return Passed(written, properties.topic_alias, properties.message_expiry_interval)


def without_length(properties: bytes) -> bytes:
    """Return properties without the variable byte integer in front."""
    start = 1
    while properties[start - 1] & 0x80:
        start += 1
    return properties[start:]


def take_publish(
    machine: "RouterMachine", connection: Connection, first: int, body: bytes
) -> None:
    """Take one PUBLISH.

    Raises:
        RemoteMqttError: it ends the connection.
    """
    packet = decode(first, body, V5 if connection.is_v5 else V4)
    assert isinstance(packet, Publish)
    passed = passed_on(packet.properties or _NONE)
    topic = packet.topic.encode()
    if passed.alias is not None:
        topic = _resolve(machine, connection, topic, passed.alias)
    route = machine.route_of(topic)
    qos, ids = packet.qos, (packet.packet_id,) if packet.qos else ()
    if not is_allowed(connection, topic, route):
        machine.meters.refused += 1
        refuse(connection, qos, ids)
        return
    received: tuple[int, ...] = ()
    if qos == 2:
        is_fresh = bool(receive(machine, connection, ids))
        _acknowledge(connection, PubRec(packet.packet_id))
        if not is_fresh:
            return
        received = ids
    elif qos:
        _acknowledge(connection, PubAck(packet.packet_id))
    expires_at = None if passed.expiry is None else machine.now + passed.expiry
    run = Run.of_payloads(
        topic,
        [packet.payload],
        qos=qos,
        publisher=connection.client_id,
        properties=passed.properties,
        retain=packet.retain,
        expires_at=expires_at,
    )
    machine.append(run, route, connection.session, received)


def _resolve(
    machine: "RouterMachine", connection: Connection, topic: bytes, alias: int
) -> bytes:
    """Return the topic of an alias, or give a topic one."""
    most = connection.limits.topic_alias_maximum
    if alias > most:
        msg = f"the alias {alias} is above the limit of {most}"
        raise ProtocolViolation(msg, ReasonCode.TOPIC_ALIAS_INVALID)
    known = connection.aliases_in
    if known is None:
        known = connection.aliases_in = {}
    if topic:
        known[alias] = topic
        return topic
    found = known.get(alias)
    if found is None:
        msg = f"the alias {alias} stands for no topic on this connection"
        raise ProtocolViolation(msg)
    return found


def is_allowed(connection: Connection, topic: bytes, route: Route) -> bool:
    """Whether a client may publish on a topic."""
    if route.is_reserved and not connection.link.is_local:
        return False
    return connection.may_publish(topic)


def refuse(connection: Connection, qos: int, ids: tuple[int, ...]) -> None:
    """Answer messages that go nowhere: MQTT 5 says so, 3.1.1 has no way to."""
    reason = ReasonCode.NOT_AUTHORIZED if connection.is_v5 else ReasonCode.SUCCESS
    for packet_id in ids:
        _acknowledge(
            connection, PubAck(packet_id, reason) if qos == 1 else PubRec(packet_id, reason)
        )


def _acknowledge(connection: Connection, packet: PubAck | PubRec) -> None:
    connection.acks.append(encode(packet, V5 if connection.is_v5 else V4))


def receive(
    machine: "RouterMachine", connection: Connection, ids: tuple[int, ...]
) -> list[int]:
    """Note identifiers of QoS 2 messages; returns the places of those that were not known.

    Raises:
        ProtocolViolation: more are unreleased than the client was allowed.
    """
    received = connection.session.received
    fresh = [at for at, packet_id in enumerate(ids) if packet_id not in received]
    if len(set(ids)) < len(ids):
        seen: set[int] = set()
        fresh = [at for at in fresh if not (ids[at] in seen or seen.add(ids[at]))]  # type: ignore[func-returns-value]
    new = ids if len(fresh) == len(ids) else tuple(ids[at] for at in fresh)
    most = connection.limits.receive_maximum
    if connection.is_v5 and len(received) + len(new) > most:
        msg = f"more than {most} messages with QoS 2 are not released; the receive maximum"
        raise ProtocolViolation(msg, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
    received.update(new)
    return fresh
