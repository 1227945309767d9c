"""How a CONNECT that is not granted is answered."""

from callboard.mqtt.codec import encode
from callboard.mqtt.framing import body_start
from callboard.mqtt.packet import V4, V5, ConnAck
from callboard.mqtt.properties import Properties
from callboard.mqtt.reason_code import ReasonCode, return_code


def refusal(version: int, reason: ReasonCode, text: str = "") -> bytes:
    """Return the CONNACK that refuses a client, in its version.

    Args:
        version: of the client.
        reason: why.
        text: why, in words; the address of the other server if it is to use that.
    """
    if version < V5:
        return encode(ConnAck(reason_code=return_code(reason)), V4)
    is_elsewhere = reason is ReasonCode.USE_ANOTHER_SERVER
    said = Properties(
        reason_string=text or None, server_reference=text if is_elsewhere else None
    )
    return encode(ConnAck(reason_code=reason, properties=said), V5)


def level_of(connect: bytes) -> int:
    """Return the protocol level of a CONNECT that was refused for it."""
    start = body_start(connect)
    name = int.from_bytes(connect[start : start + 2], "big")
    return connect[start + 2 + name]
