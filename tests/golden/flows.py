"""Flows: ZIO messages and files of records."""

import json
from pathlib import Path

from callboard.flow.protocol.message import FLOW, Message, encode_flow, flow_object, read_head
from callboard.flow.record_file import RecordFile, read_records
from tests.golden.sample import Folder, Sample

MESSAGES = {
    "empty": Message(),
    "all fields": Message("TEXT", "läbel", (b"a", b"", b"c" * 300), 2**64 - 1, 5, 7, 8),
    "short form": Message("DA", "x", (b"\0",), level=3),
    "long label": Message(FLOW, "l" * 400, (b"p" * 247, b"p" * 255)),
}
FLOWS = {
    kind: Message().with_object({"flow": kind, **more})
    for kind, more in {
        "BOT": {"direction": "inject", "credit": 10},
        "BOT-loc": {"cid": "0011", "cid_key": "secret"},
        "DAT": {},
        "PAY": {"credit": 3},
        "EOT": {"status": "ä"},
    }.items()
}


def read_flow(data: bytes) -> tuple[dict[str, object], int, bytes]:
    attributes, seqno, start = read_head(data)
    assert flow_object(Message.decode(data).prefix) == attributes
    return dict(attributes), seqno, data[start:]


SAMPLES = {
    name: Sample(message, Message.encode, Message.decode)
    for name, message in (MESSAGES | FLOWS).items()
}
SAMPLES |= {
    f"written by hand: {kind}": Sample(
        message,
        lambda m: encode_flow(m.label.encode(), 9, (b"one", b"two")),
        read_flow,
        (json.loads(message.label), 9, b"\x03one\x03two"),
    )
    for kind, message in FLOWS.items()
}

RECORDS = [*MESSAGES.values(), *FLOWS.values()]


def make(path: Path) -> None:
    file = RecordFile(path / "flow.zio")
    assert file.append(RECORDS[:1]) == 1
    file.append(RECORDS[1:])
    file.close()


def look(path: Path) -> list[Message]:
    found = list(read_records(path / "flow.zio"))
    file = RecordFile(path / "flow.zio")
    first, behind = file.read(0, 3)
    rest, _ = file.read(behind, 1000)
    file.close()
    assert (first + rest, file.count) == (found, len(found))
    return found


def go_on(path: Path) -> list[Message]:
    file = RecordFile(path / "flow.zio")
    file.append([Message("MORE")])
    file.close()
    return [*RECORDS, Message("MORE")]


FOLDERS = {"records": Folder(make, look, RECORDS, go_on)}


def missing() -> set[str]:
    """Return forms that are not here; there is one."""
    return set()
