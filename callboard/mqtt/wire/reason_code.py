"""Reason codes of MQTT 5 (section 2.4), and the codes of MQTT 3.1.1 for them."""

import enum
from typing import Final


class ReasonCode(enum.IntEnum):
    """The result of a request in one byte; 0x80 and above are failures.

    0 has three names, because it means success, a normal disconnection or a granted QoS of 0,
    depending on the packet.
    """

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


def _values(text: str) -> frozenset[int]:
    """Return the codes in a list of hexadecimal numbers."""
    return frozenset(bytes.fromhex(text))


#: Codes that a DISCONNECT of either side may have (table 3-10).
DISCONNECT_CODES: Final = _values(
    "00 04 80 81 82 83 87 89 8b 8d 8e 8f 90 93 94 95 96 97 98 99 9a 9b 9c 9d 9e 9f a0 a1 a2"
)
#: Codes that packets may have (tables 3-1 to 3-11); SUBACK and UNSUBACK have one per filter.
CODES: Final = {
    "CONNACK": _values("00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f"),
    "PUBACK": _values("00 10 80 83 87 90 91 97 99"),
    "PUBREC": _values("00 10 80 83 87 90 91 97 99"),
    "PUBREL": _values("00 92"),
    "PUBCOMP": _values("00 92"),
    "SUBACK": _values("00 01 02 80 83 87 8f 91 97 9e a1 a2"),
    "UNSUBACK": _values("00 11 80 83 87 8f 91"),
    "DISCONNECT": DISCONNECT_CODES,
    "AUTH": _values("00 18 19"),
}

#: Codes that a CONNACK of MQTT 3.1.1 may have (its table 3.1).
RETURN_CODES: Final = frozenset(range(6))
#: Codes that a SUBACK of MQTT 3.1.1 may have for a filter.
SUBACK_RETURN_CODES: Final = frozenset((0, 1, 2, 0x80))

_RETURN_CODE: Final = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
}
_UNAVAILABLE: Final = 3


def return_code(reason: int) -> int:
    """Return the return code of a 3.1.1 CONNACK for a reason code of MQTT 5.

    3.1.1 has six codes; reasons without a counterpart become 3, server unavailable.
    """
    return _RETURN_CODE.get(ReasonCode(reason), _UNAVAILABLE)


def reason_text(reason: int) -> str:
    """Return a reason code in words, for logs and refusals."""
    try:
        return ReasonCode(reason).name.lower().replace("_", " ")
    except ValueError:
        return f"reason 0x{reason:02x}"
