"""Frames that maintain proxies: announce, down, release. They may be forwarded.

======================= ========================== ==================================
operation               operation data             payload
======================= ========================== ==================================
announce_proxy_instance sightings                  empty; names the destination actor
down_message            ordinal of the exit reason empty, or CBOR text: the detail;
                                                   source actor = who ended
release_proxy_instance  sightings, at least 1      empty; names the destination actor
======================= ========================== ==================================
"""

from typing import Final

from callboard.basp.errors import MalformedPayload
from callboard.basp.frame import Frame, pack_frame
from callboard.basp.header import Operation
from callboard.basp.node_id import node_id_text
from callboard.cbor.plain import read_plain, write_plain

#: Limit of the detail in characters: enough for a traceback.
DETAIL_LIMIT: Final = 16_384


def pack_announce(source: bytes, host: bytes, actor: int, sightings: int) -> bytes:
    """Pack the announcement to ``host`` that node ``source`` has a proxy of its ``actor``.

    ``sightings`` is the number of references that ``source`` has received so far, including
    this one.
    """
    operation = Operation.ANNOUNCE_PROXY_INSTANCE
    return pack_frame(operation, sightings, source, host, 0, actor, b"")


def pack_release(source: bytes, host: bytes, actor: int, sightings: int) -> bytes:
    """Pack the notice to ``host`` that ``source`` no longer references its ``actor``.

    ``sightings`` is that of the announcement that this revokes, at least 1. With ``actor`` 0,
    this revokes all announcements up to that number.
    """
    operation = Operation.RELEASE_PROXY_INSTANCE
    return pack_frame(operation, sightings, source, host, 0, actor, b"")


def pack_down(
    source: bytes, actor: int, destination: bytes, reason: int, detail: str = ""
) -> bytes:
    """Pack the notice to ``destination`` that ``actor`` of ``source`` ended.

    ``reason`` is the ordinal of the exit reason. ``detail`` is cut to ``DETAIL_LIMIT``
    characters, and characters that UTF-8 cannot encode are replaced.
    """
    text = detail[:DETAIL_LIMIT].encode(errors="replace").decode()
    payload = write_plain(text) if text else b""
    return pack_frame(Operation.DOWN_MESSAGE, reason, source, destination, actor, 0, payload)


def read_down(frame: Frame) -> tuple[int, int, str]:
    """Return actor, ordinal of the exit reason, and detail of a ``down_message``.

    Raises:
        MalformedPayload: the payload is not a text of at most ``DETAIL_LIMIT`` characters.
    """
    detail = read_plain(frame.payload) if frame.length else ""
    if type(detail) is not str or len(detail) > DETAIL_LIMIT:
        msg = (
            f"down_message of actor {frame.source_actor} on node {node_id_text(frame.source)}: "
            f"detail must be a text of at most {DETAIL_LIMIT:,} characters"
        )
        raise MalformedPayload(msg)
    return frame.source_actor, frame.data, detail
