"""Every type of message that our own code registers, as payloads of dispatches."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import callboard.convention.messages as convention
import callboard.demo.aggregator as demo
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import Call, Down
from callboard.actors.signals import Exit, Restarted
from callboard.actors.thespian.system import TRAVELING
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.convention.membership import listing
from callboard.flow.factories import Serve
from callboard.flow.file_service import Append, Fetched, FetchRecords
from callboard.gateway.remote import PublishRun, ReceiveRun, StartAgent, StopAgent
from callboard.mqtt.service import claims as mqtt
from callboard.mqtt.service import cluster
from callboard.proxies import inspection, messages
from callboard.proxies.messages import Drained
from callboard.proxies.stats import LinkInfo, ReachableNode
from callboard.simulation.processes import NodeCall
from tests.golden.sample import Sample


class Ref(NamedTuple):
    """Stands for an actor reference; the codec is told what it is made of."""

    node: bytes
    number: int


REF, OTHER = Ref(b"r" * 18, 17), Ref(b"o" * 18, 2**32 - 1)
CODEC = PayloadCodec(
    listing([], TRAVELING), ref_types=(Ref,), ref_to_pair=tuple, pair_to_ref=Ref
)
ACTOR = inspection.ActorInfo("basp:///17@aa", "Worker", "w", "idle", 3, 1000, 1.5, 0.25)
LINK = LinkInfo(b"p" * 18, "peer", "tcp://h:1", 1, 2, 3, 4, 5, 6)
NODE = ReachableNode(b"q" * 18, "far", 2, b"p" * 18)
JOIN = convention.Join(REF, {"Admin Port": 1900, "list": [1, (2,)]})
WRITE = cluster.RetainedWrite(b"k" * 16, 7, b"o", b"t", b"x", 1, "c", b"\x01\x01", 2.5)
KEPT = (("publish", ("x", 1, None, b"y")), ("close", ("s",)))
VALUES: tuple[Any, ...] = (
    messages.Spawn("Worker", (1, "a"), {"k": 2.5}, True),
    messages.Lookup("name"),
    messages.WatchName("name", True, 5),
    messages.HoldersChanged(6, (REF,), (OTHER,), "why", True),
    messages.Describe(),
    messages.StopActor(17, True),
    messages.LinkActors(17, REF, True),
    messages.Failure("ActorDown", "text", "detail", "trace"),
    Call("method", (1,), {"k": None}),
    Down(REF, ExitReason.ERROR, "ValueError: ä"),
    Exit(REF, "own reason", ""),
    Restarted(ExitReason.KILLED, "", 2),
    ExitReason.UNREACHABLE,
    ACTOR,
    inspection.Inspection(
        *("node", 9.5, [ACTOR], 1, 2, 3, 4, 5, False, 6, 7, 8, 9, {"Worker": 0.5}),
        [LINK],
        [NODE],
    ),
    inspection.Inspect(10, True),
    inspection.DrainNode(3.5),
    Drained(1, 2, 3.5, 4),
    LINK,
    NODE,
    JOIN,
    convention.Introduce([JOIN]),
    convention.Leave(REF),
    convention.Create("module.Class", {"need": True}, "hash", "global", REF),
    Append("a/b", (b"one", b"two")),
    FetchRecords("a/b", 8),
    Fetched((b"one",), 300),
    Serve(b"bot", REF, "tcp://h:1", True),
    ReceiveRun((b"one", b"two")),
    PublishRun(REF, (b"three",)),
    StartAgent(),
    StopAgent(),
    mqtt.ClaimSession("c", True, 2**60, 5),
    mqtt.ConfirmSession("c", "offer", 6),
    mqtt.SettleSession("c", "offer"),
    mqtt.NoSession(),
    mqtt.SessionBusy(7),
    mqtt.SessionElsewhere("h:1883", 8),
    mqtt.SessionOffer("offer", 9, KEPT),
    *mqtt.Verdict,
    mqtt.SessionConfirmed(mqtt.Verdict.YES, KEPT),
    WRITE,
    cluster.RetainedPiece((WRITE, cluster.RetainedWrite(b"k" * 16, 8, b"o")), False),
    cluster.RetainedDigests(REF, (0, 2**64 - 1), True),
    cluster.RetainedQuestion(255, ((b"k" * 16, 7, b"o"),)),
    demo.Receipt(10**18),
    demo.SensorReading("A.cpu", 1),
    demo.UseAggregator(REF, OTHER),
    NodeCall("method", (1,), {"k": "v"}),
)


def name_of(value: Any) -> str:
    return DEFAULT_REGISTRY.by_class[type(value)].name


def message(value: Any) -> Sample:
    return Sample(value, CODEC.encode, CODEC.decode_message)


def thespians(kind: type) -> Sample:
    """Return a message of Thespian's own, which have no `__eq__`."""
    value = kind.__new__(kind)
    value.__dict__ |= {"one": 1, "text": "ä"}
    return Sample(
        value,
        CODEC.encode,
        lambda data: (type(found := CODEC.decode_message(data)), vars(found)),
        (kind, vars(value)),
    )


SAMPLES = {
    name_of(value) + (f" {value.name}" if isinstance(value, mqtt.Verdict) else ""): message(
        value
    )
    for value in VALUES
}
SAMPLES |= {f"Thespian's {kind.__name__}": thespians(kind) for kind in TRAVELING}


def missing() -> set[str]:
    """Return names that stand in the source and have no sample, or less than all fields."""
    root = Path(__file__).parents[2]
    sources = (
        p
        for room in ("actors", "basp", "proxies", "callboard")
        for p in (root / room).rglob("*.py")
    )
    names = {
        name
        for path in sources
        for name in re.findall(r'^@?message\("([^"{]+)"\)', path.read_text(), re.MULTILINE)
    }
    return names - {name_of(value) for value in VALUES}
