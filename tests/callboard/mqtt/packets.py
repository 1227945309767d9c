"""Packets of every kind, made by hypothesis."""

from hypothesis import strategies as st

from callboard.mqtt.wire import reason_code as codes
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from callboard.mqtt.wire.properties import Place, Properties

text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
topic = text.map(lambda name: name.replace("#", "").replace("+", ""))
name = topic.filter(bool)
blob = st.binary(max_size=12)
bit = st.integers(0, 1)
byte4 = st.integers(0, 0xFFFFFFFF)
two = st.integers(0, 0xFFFF)
packet_id = st.integers(1, 0xFFFF)
qos = st.integers(0, 2)
pairs = st.lists(st.tuples(text, text), max_size=3).map(tuple)
identifiers = st.integers(1, 268_435_455)


def optional(strategy):
    return st.none() | strategy


_MESSAGE = {
    "payload_format_indicator": optional(bit),
    "message_expiry_interval": optional(byte4),
    "content_type": optional(text),
    "response_topic": optional(topic),
    "correlation_data": optional(blob),
}
_REASON = {"reason_string": optional(text)}
_BOTH = {
    "session_expiry_interval": optional(byte4),
    "receive_maximum": optional(packet_id),
    "maximum_packet_size": optional(byte4.filter(bool)),
    "topic_alias_maximum": optional(two),
    "authentication_method": optional(text),
}
_FIELDS = {
    Place.CONNECT: _BOTH
    | {
        "request_problem_information": optional(bit),
        "request_response_information": optional(bit),
    },
    Place.CONNACK: _BOTH
    | _REASON
    | {
        "assigned_client_identifier": optional(text),
        "server_keep_alive": optional(two),
        "response_information": optional(text),
        "server_reference": optional(text),
        "maximum_qos": optional(bit),
        "retain_available": optional(bit),
        "wildcard_subscription_available": optional(bit),
        "subscription_identifier_available": optional(bit),
        "shared_subscription_available": optional(bit),
    },
    Place.PUBLISH: _MESSAGE
    | {
        "topic_alias": optional(packet_id),
        "subscription_identifiers": st.lists(identifiers, max_size=3).map(tuple),
    },
    Place.WILL: _MESSAGE | {"will_delay_interval": optional(byte4)},
    Place.SUBSCRIBE: {"subscription_identifiers": st.lists(identifiers, max_size=1).map(tuple)},
    Place.UNSUBSCRIBE: {},
    Place.DISCONNECT: _REASON
    | {"session_expiry_interval": optional(byte4), "server_reference": optional(text)},
    Place.AUTH: _REASON
    | {"authentication_method": text, "authentication_data": optional(blob)},
}


def properties(place, version=V5):
    """Any properties of a place, or None where the version has none."""
    if version < V5:
        return st.none()
    return st.builds(Properties, user_properties=pairs, **_FIELDS.get(place, _REASON))


def code(allowed, version=V5, old=None):
    if version < V5:
        return st.sampled_from(sorted(old)) if old else st.just(0)
    return st.sampled_from(sorted(allowed))


@st.composite
def connects(draw, version):
    username = draw(optional(text))
    may_have = version >= V5 or username is not None
    will = st.builds(Will, name, blob, qos, st.booleans(), properties(Place.WILL, version))
    return Connect(
        draw(text),
        draw(st.booleans()),
        draw(two),
        username,
        draw(optional(blob)) if may_have else None,
        draw(optional(will)),
        version,
        draw(properties(Place.CONNECT, version)),
    )


@st.composite
def publishes(draw, version):
    level = draw(qos)
    found = draw(properties(Place.PUBLISH, version))
    aliased = found is not None and found.topic_alias is not None
    return Publish(
        draw(topic if aliased else name),
        draw(blob),
        level,
        draw(st.booleans()),
        draw(st.booleans()) if level else False,
        draw(packet_id) if level else 0,
        found,
    )


@st.composite
def subscriptions(draw, version):
    wanted = draw(text)
    if version < V5:
        return Subscription(wanted, draw(qos))
    local = False if wanted.startswith("$share/") else draw(st.booleans())
    return Subscription(wanted, draw(qos), local, draw(st.booleans()), draw(qos))


@st.composite
def connacks(draw, version):
    reason = draw(code(codes.CODES["CONNACK"], version, codes.RETURN_CODES))
    present = draw(st.booleans()) if not reason else False
    return ConnAck(present, reason, draw(properties(Place.CONNACK, version)))


def packets(version):
    """Any packet of a version."""

    def some(strategy):
        return st.lists(strategy, min_size=1, max_size=4).map(tuple)

    def ack(kind, place, allowed):
        return st.builds(kind, packet_id, code(allowed, version), properties(place, version))

    granted = code(codes.CODES["SUBACK"], version, codes.SUBACK_RETURN_CODES)
    taken = st.just(()) if version < V5 else some(code(codes.CODES["UNSUBACK"]))
    of_both = [
        connects(version),
        connacks(version),
        publishes(version),
        ack(PubAck, Place.PUBACK, codes.CODES["PUBACK"]),
        ack(PubRec, Place.PUBREC, codes.CODES["PUBACK"]),
        ack(PubRel, Place.PUBREL, codes.CODES["PUBREL"]),
        ack(PubComp, Place.PUBCOMP, codes.CODES["PUBREL"]),
        st.builds(
            Subscribe,
            packet_id,
            some(subscriptions(version)),
            properties(Place.SUBSCRIBE, version),
        ),
        st.builds(SubAck, packet_id, some(granted), properties(Place.SUBACK, version)),
        st.builds(Unsubscribe, packet_id, some(text), properties(Place.UNSUBSCRIBE, version)),
        st.builds(UnsubAck, packet_id, taken, properties(Place.UNSUBACK, version)),
        st.just(PingReq()),
        st.just(PingResp()),
        st.builds(
            Disconnect,
            code(codes.DISCONNECT_CODES, version),
            properties(Place.DISCONNECT, version),
        ),
    ]
    if version >= V5:
        of_both.append(st.builds(Auth, code(codes.CODES["AUTH"]), properties(Place.AUTH)))
    return st.one_of(of_both)


versions = st.sampled_from((V4, V5))
versioned = versions.flatmap(lambda version: st.tuples(st.just(version), packets(version)))
