"""The journal of an MQTT router: every kind of record, and whole folders.

A folder is checked as clients see it: a router starts with a copy, they connect, and their
messages are compared. Clients and clocks are those of the router's tests.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cbor2

from callboard.mqtt.journal.journal import RouterJournal
from callboard.mqtt.router.datalog import Shelf
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.record import RECORDS as KINDS
from callboard.mqtt.router.record import (
    Acknowledged,
    Adopted,
    Copied,
    HandedOver,
    JournalRecord,
    Moved,
    Published,
    Received,
    Released,
    Releasing,
    Retained,
    Returned,
    SentOut,
    SessionClosed,
    SessionOpened,
    Shelved,
    SnapshotBegun,
    SnapshotEnded,
    Subscribed,
    Unsubscribed,
    WillKept,
    read_record,
)
from callboard.mqtt.router.session import SessionSubscription
from callboard.mqtt.router.window import Sent
from callboard.mqtt.wire.packet import PubAck, Publish, PubRec, Will
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.stage import Stage, deliver
from tests.golden.sample import Folder, Sample, plain

EPOCH = 1.7e9


def run(count: int = 2, recipient: str | None = None, **options: Any) -> MessageRun:
    payloads = [b"payload %d" % n for n in range(count)]
    made = MessageRun.of_payloads(
        b"a/\xc3\xa4", payloads, qos=1, publisher="p", properties=b"\x03\0\1c", **options
    )
    made.number, made.filters, made.recipient = 41, ("a/#", "$share/g/a/+"), recipient
    return made


def shown(value: Any) -> Any:
    """Return the content of a record; for messages, the part that the journal stores."""
    if isinstance(value, MessageRun):
        names = ("topic", "number", "qos", "retain", "publisher", "properties", "expires_at")
        found = {name: getattr(value, name) for name in names}
        return found | {"payloads": list(value.payloads), "recipient": value.recipient}
    if isinstance(value, Published):
        told = (list(value.run.filters), value.client_id, value.packet_ids)
        return ["Published", shown(value.run), *told]
    if isinstance(value, Copied | Retained):
        order = [value.stamp, value.origin] if isinstance(value, Retained) else []
        return [type(value).__name__, shown(value.run) if value.run else value.topic, *order]
    if isinstance(value, Shelved):
        columns = value.starts, *value.shelf
        return [value.topic_filter, value.span, *map(list, columns)]
    return plain(value)


def write(record: JournalRecord) -> bytes:
    """Return kind and fields as the log stores them."""
    kind, fields = record.write(EPOCH)
    return cbor2.dumps([kind, fields])


def read(data: bytes) -> Any:
    kind, fields = cbor2.loads(data)
    return shown(read_record(kind, fields, EPOCH))


ID = b"\x0b\x05"
SUBSCRIPTION = SessionSubscription("a/#", 2, True, True, 2, 7, None, ID)
SENT = Sent(run(), 1, 65_535, 2, ID, True, "a/#", True, True)
WILL = Will("w", b"gone", 1, True, Properties(will_delay_interval=5, content_type="c"))
OFFERED = (("publish", ("x", 1)), ("close", ("s",)))
RECORDS: dict[str, JournalRecord] = {
    "published": Published(run(), "p", (1, 2)),
    "published for one": Published(run(1, "only")),
    "published, expiring": Published(run(1, expires_at=12.5, retain=True)),
    "copied": Copied(run(1)),
    "retained": Retained(b"a/\xc3\xa4", run(1, retain=True)),
    "retained no more": Retained(b"a", None),
    "retained, in order": Retained(b"a/\xc3\xa4", run(1, retain=True), 2**60, b"origin"),
    "retained no more, in order": Retained(b"k" * 16, None, 2**60 + 1, b"origin"),
    "opened": SessionOpened("s", 3600.0, None, 5),
    "opened, away": SessionOpened("s", 3600.0, 100.25),
    "closed": SessionClosed("s"),
    "subscribed": Subscribed("s", SUBSCRIPTION, 9),
    "subscribed, ended": Subscribed("s", SessionSubscription("b", 1, since=3, until=8), 4),
    "unsubscribed": Unsubscribed("s", "a/#"),
    "moved": Moved("s", "a/#", 300),
    "sent": SentOut.of("s", SENT, 1),
    "acknowledged": Acknowledged("s", 0x40, (1, 2, 65_535)),
    "received": Received("s", (3,)),
    "released": Released("s", (3,)),
    "releasing": Releasing("s", (4, 5)),
    "returned": Returned("$share/g/a/+", (41, 42)),
    "shelved": Shelved("a/#", 9, [0, 4], Shelf([4, 5], [100, 2**40], [7, 8])),
    "will": WillKept("s", WILL, 7.5),
    "will of 3.1.1": WillKept("s", Will("w", b"gone"), None),
    "will dropped": WillKept("s"),
    "adopted": Adopted("s", "offer"),
    "owned": Adopted("s", ""),
    "handed": HandedOver("s", "offer", 6, OFFERED, 50.5),
    "begun": SnapshotBegun(99),
    "ended": SnapshotEnded(True),
    "given up": SnapshotEnded(False),
}
SAMPLES = {name: Sample(record, write, read, shown(record)) for name, record in RECORDS.items()}


# --- folders


class DiskStage(Stage):
    """A router with a journal in a real folder, and a clock that only tests move."""

    def __init__(self, folder: Path, *, lived: float = 0.0, least_growth: int = 1 << 30):
        limits = Limits(segment_bytes=2000, segment_count=2)
        super().__init__(limits, is_durable=True)
        self.journal = RouterJournal(
            folder,
            now=lambda: self.now,
            wall_clock=lambda: int((EPOCH + lived + self.now) * 1e9),
            least_growth=least_growth,
            segment_bytes=5_000,
        )
        self.journal.restore(self.machine)

    def run(self) -> None:
        while True:
            turn = self.machine.run_turn(self.now)
            self.turns.append(turn)
            if turn.records:
                self.journal.write(turn.records, self.machine)
            for link, notifications in turn.transmits:
                deliver(link, notifications)
            self.journal.fetch(turn.fetches, self.machine)
            if self.machine.is_idle:
                return


LASTING: dict[str, Any] = {"clean": False, "expiry": 1000}


def live(stage: DiskStage) -> None:
    """Make clients cause every kind of record that a router writes without a cluster."""
    publisher = stage.client("p", **LASTING)
    publisher.publish("kept/1", b"first", 1, retain=True)
    publisher.publish("kept/1", b"second", 1, retain=True, content_type="c")
    publisher.publish("kept/2", b"gone", 0, retain=True)
    publisher.publish("kept/2", b"", 0, retain=True)

    reader = stage.client("reader", answers=False, receive_maximum=4, **LASTING)
    reader.subscribe("kept/#", qos=1)
    reader.subscribe("t", "twice", qos=2, identifier=300)
    for number in range(6):
        publisher.publish("t", b"%d" % number, number % 3)
    publisher.publish("twice", b"expires", 1, message_expiry_interval=500)
    first, second, *_ = [each for each in reader.messages() if each.qos]
    reader.send(PubAck(first.packet_id) if first.qos == 1 else PubRec(first.packet_id))
    reader.send(PubAck(second.packet_id) if second.qos == 1 else PubRec(second.packet_id))
    reader.unsubscribe("twice")
    reader.lose()

    for name in ("one", "two"):
        member = stage.client(name, answers=False, receive_maximum=1, **LASTING)
        member.subscribe("$share/g/work/+", qos=1)
    for number in range(4):
        publisher.publish("work/x", b"job %d" % number, 1)
    member.lose()

    away = stage.client("away", **LASTING)
    away.subscribe("many", qos=1)
    away.lose()
    for number in range(60):
        publisher.publish("many", b"%d" % number * 20, 1)

    publisher.push(publisher.message("t", b"half", 2))
    stage.run()
    stage.client("mourned", will=Will("kept/will", b"dead", 1, True, Properties()), **LASTING)
    stage.client("short", will=Will("t", b"x", 1, False, Properties()), **LASTING)
    stage.client("short", clean=True)


def told(packet: Any) -> str:
    """Return what a packet says, shortly."""
    if not isinstance(packet, Publish):
        return f"{type(packet).__name__} {getattr(packet, 'packet_id', '')}".strip()
    marks = "dup " * packet.dup + "retain " * packet.retain
    said = packet.properties
    ids = f" for {said.subscription_identifiers[0]}" if said.subscription_identifiers else ""
    left = f" in {said.message_expiry_interval}" if said.message_expiry_interval else ""
    text = packet.payload.decode()
    return f"{marks}{packet.topic} {text} q{packet.qos} #{packet.packet_id}{ids}{left}"


def survivors(folder: Path) -> dict[str, list[str]]:
    """Return what each client gets that comes back to a router with a copy of the folder."""
    with TemporaryDirectory() as copied:
        shutil.copytree(folder, copied, dirs_exist_ok=True)
        stage = DiskStage(Path(copied), lived=100.0)
        found: dict[str, list[str]] = {}
        for name in ("p", "reader", "one", "two", "away", "mourned", "short"):
            client = stage.client(name, receive_maximum=100, **LASTING)
            stage.advance(1.0)
            if client.connack.session_present:
                found[name] = [told(each) for each in client.got()]
        watcher = stage.client("watcher")
        watcher.subscribe("kept/#")
        found["kept"] = [told(each) for each in watcher.got()]
        stage.journal.close()
    return found


def make(path: Path) -> None:
    stage = DiskStage(path)
    live(stage)
    stage.advance(0.5)
    stage.journal.close()
    (path / "lock").unlink()


def make_cut(path: Path) -> None:
    """Make a journal that is cut down to a snapshot again and again."""
    stage = DiskStage(path, least_growth=3_000)
    live(stage)
    stage.journal.close()
    (path / "lock").unlink()


def go_on(path: Path) -> dict[str, list[str]]:
    stage = DiskStage(path, lived=50.0)
    stage.client("p2").publish("many", b"more", 1)
    stage.journal.close()
    more = {name: [*packets] for name, packets in EXPECTED.items()}
    more["away"].append("many more q1 #61")
    return more


EXPECTED = {
    "p": [],
    "reader": [
        "dup t 2 q2 #3 for 300",
        "dup t 4 q1 #4 for 300",
        "dup t 5 q2 #5 for 300",
        "dup twice expires q1 #6 for 300",
        "kept/will dead q1 #7",
        "t half q2 #8 for 300",
        "t x q1 #9 for 300",
        "PubRel 3",
        "PubRel 5",
        "PubRel 8",
    ],
    "one": ["dup work/x job 1 q1 #1", "work/x job 2 q1 #2", "work/x job 3 q1 #3"],
    "two": ["dup work/x job 0 q1 #1"],
    "away": [f"many {str(n) * 20} q1 #{n + 1}" for n in range(60)],
    "mourned": [],
    "kept": ["retain kept/will dead q0 #0", "retain kept/1 second q0 #0"],
}
FOLDERS = {
    "journal": Folder(make, survivors, EXPECTED, go_on),
    "journal with snapshots": Folder(make_cut, survivors, EXPECTED, go_on),
}


def missing() -> set[str]:
    """Return kinds of records without a sample."""
    found = {type(record) for record in RECORDS.values()}
    return {kind.__name__ for kind in KINDS.values() if kind not in found}
