"""Every type of message that our own code registers, as payloads of dispatches."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import callboard.convention.messages as convention
import callboard.demo.aggregator as demo
import callboard.demo.entities.daily_peak as peaks
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import Call, Down
from callboard.actors.signals import Exit, Restarted
from callboard.actors.streams import messages as streams
from callboard.actors.thespian.system import TRAVELING
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.caf.wire.message import Atom
from callboard.convention.membership import listing
from callboard.entity import messages as entities
from callboard.entity.queue import messages as jobs
from callboard.flow.factories import Serve
from callboard.flow.file_service import Append, Fetched, FetchRecords
from callboard.gateway.remote import PublishRun, ReceiveRun, StartAgent, StopAgent
from callboard.log_service import messages as logs
from callboard.log_service.append import (
    AppendedRow,
    AppendToLog,
    OpenLogProducer,
    ProducerAppend,
    group_of,
    pack_append,
)
from callboard.mqtt.service import claims as mqtt
from callboard.mqtt.service import cluster
from callboard.proxies import actor_trace, event_history, inspection, messages
from callboard.proxies.messages import Drained
from callboard.proxies.stats import LinkInfo, ReachableNode
from callboard.simulation.processes import NodeCall
from callboard.topics.actor_subscription import TopicMessage
from tests.golden.sample import Sample


class Ref(NamedTuple):
    """Replaces an actor reference; the codec gets its parts."""

    node: bytes
    number: int


REF, OTHER = Ref(b"r" * 18, 17), Ref(b"o" * 18, 2**32 - 1)
CODEC = PayloadCodec(
    listing([], TRAVELING), ref_types=(Ref,), ref_to_pair=tuple, pair_to_ref=Ref
)
EARLIER = inspection.ActorInfo("basp:///17@aa", "Worker", "w", "idle", 3, 1000, 1.5, 0.25)
ACTOR = replace(
    EARLIER,
    parent="basp:///18@aa",
    restarts=7,
    busy=2.5,
    rate=3.5,
    handler="Worker.work",
    place="worker.py:7",
    message="Job",
    awaits="an answer",
)
EVENT = event_history.EventInfo(7, 0.5, "LinkUp", {"name": "peer"})
LOSS = event_history.LossInfo(
    "dead letter", "basp:///17@aa", "Worker", "w", "Job", "Boss", 3, 0.5, "x"
)
FAILURE = event_history.FailureInfo("basp:///17@aa", "Worker", "w", "ValueError: ä", 1.5)
RESTART = event_history.RestartInfo(
    "w", "basp:///17@aa", "basp:///18@aa", 2, "error", 3.5, True
)
PAGE = inspection.ActorPage(ACTOR, "bounds", 1, ["m"], ["l"], ["c"], [FAILURE], [LOSS])
PAGES = inspection.ActorPages([PAGE])
ACCOUNT = inspection.AccountRow("aa", "node", 6, 3, 1, 1, 2, 4)
TRACED = actor_trace.TracedMessage(4, 0.5, "str", "node far")
ANSWER = inspection.NodeAnswer("node", "aa", "", PAGES)
LINK = LinkInfo(b"p" * 18, "peer", "tcp://h:1", 1, 2, 3, 4, 5, 6, True)
NODE = ReachableNode(b"q" * 18, "far", 2, b"p" * 18)
JOIN = convention.Join(REF, {"Admin Port": 1900, "list": [1, (2,)]})
WRITE = cluster.RetainedWrite(b"k" * 16, 7, b"o", b"t", b"x", 1, "c", b"\x01\x01", 2.5)
TABLE = entities.EntityTable("shop.Cart", 7, "{}")
KEPT = (("publish", ("x", 1, None, b"y")), ("close", ("s",)))
#: The records of a group: a plain one, and one with all possible fields.
APPENDS = (
    ProducerAppend("meter-7", 10**18, 7, [AppendedRow("/t", b"one")]),
    ProducerAppend(
        "meter-8",
        10**18,
        8,
        [AppendedRow("/t", b"\x01", False, "k", {"a": "b"}, "me", 9)],
        True,
    ),
)


VALUES: tuple[Any, ...] = (
    messages.Spawn("Worker", (1, "a"), {"k": 2.5}, True),
    messages.Lookup("name"),
    messages.WatchName("name", True, 5),
    messages.HoldersChanged(6, (REF,), (OTHER,), "why", True),
    messages.Describe(True),
    messages.CancelAsk(17, 5),
    messages.StopActor(17, True),
    messages.LinkActors(17, REF, True),
    messages.AskCredit(17, 1_000),
    messages.UnverifiedFrame(b"frame"),
    messages.CarriedAnswers(b"\0\0\0\7\0\0\0\2\0\0\0\x09\0\0\0\2", b"\x81\x01\x81\xf6"),
    messages.Failure("ActorDown", "text", "detail", "trace"),
    Call("method", (1,), {"k": None}),
    Down(REF, ExitReason.ERROR, "ValueError: ä"),
    Exit(REF, "own reason", ""),
    Restarted(ExitReason.KILLED, "", 2),
    TopicMessage("/home/kitchen", ("warm", 21.5)),
    Atom("add"),
    ExitReason.UNREACHABLE,
    ACTOR,
    inspection.Inspection(
        *("node", 9.5, [ACTOR], 1, 2, 3, 4, 5, False, 6, 7, 8, 9, {"Worker": 0.5}),
        [LINK],
        [NODE],
        *(10, 11, [LOSS], [FAILURE], [RESTART]),
        *([ACCOUNT], [(0, 2.5), (1, "a")], 12),
    ),
    inspection.Inspect(
        *(10, True, "busy", "W*", "idle", 2.5, True),
        *("text", True, 3, True, True, True),
    ),
    *(EVENT, LOSS, FAILURE, RESTART, PAGE, PAGES, ANSWER),
    event_history.EventPage([EVENT], 7, 2),
    inspection.InspectActor("w"),
    inspection.ReadEvents(6, 10, False),
    inspection.SetLogLevel("DEBUG", "callboard"),
    messages.BackUpNode("/backups/node.part", "token"),
    streams.StreamRequest(5, 60.0),
    streams.StreamOpened(REF, 3),
    streams.PullItems(3, 0, 64, 1_000),
    streams.StreamItems(1, [b"one", "two"], True),
    streams.CloseStream(3),
    inspection.ReadPart("keys", "store", "text", "key", True, 1, 2, True),
    inspection.PartRows([{"key": "a", "expires": None}], 7, [(1, "a")]),
    ACCOUNT,
    actor_trace.TraceActor("w", 3, 2.5),
    TRACED,
    actor_trace.ActorTracePage([TRACED], 4, 1.5),
    inspection.ClusterInspection([ANSWER]),
    inspection.InspectCluster(inspection.InspectActor("w"), 2.5),
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
    mqtt.ClaimSession("c", True, 2**60, 5, "ann"),
    mqtt.ConfirmSession("c", "offer", 6),
    mqtt.SettleSession("c", "offer"),
    mqtt.NoSession(),
    mqtt.SessionBusy(7),
    mqtt.SessionRefused(),
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
    peaks.Level(0.5),
    peaks.AskPeak(),
    NodeCall("method", (1,), {"k": "v"}),
    logs.ListLogs(),
    logs.ListLogFiles("cpu"),
    logs.ReadLogFile("cpu", "00000000000000000000.log", 2**40, 262_144, 7),
    logs.AwaitLogGrowth("cpu", "00000000000000000000.log", 2**40),
    OpenLogProducer("cpu", "meter-7", 10**18, True),
    AppendToLog("cpu", "meter-7", 10**18, 7, [("/t", b"\x01", False, "k", {"a": "b"}, "", 9)]),
    group_of("cpu", list(map(pack_append, APPENDS))),  # type: ignore[arg-type]
    entities.EntityMessage("shop.Cart", "u-17", "tea", False, REF, True, 3),
    entities.EntityMessages("shop.Cart", bytes(range(42)), b"u-17u-18", b"\x81\x63tea\x81\x01"),
    TABLE,
    entities.NotOwner(TABLE),
    entities.AskEntityTable("shop.Cart"),
    entities.FollowJournal("shop.Cart"),
    entities.JournalGrew("shop.Cart", 2**40),
    entities.AskVote("shop.Cart", "writer"),
    entities.EntityMarker("shop.Cart", 255, True),
    entities.MoveSlots("shop.Cart", [0, 255], "ab" * 18),
    entities.StopEntity("shop.Cart", "u-17"),
    jobs.ChangeJobs((('{"to":"ann"}', 2.5),), ((2**40, "token"),)),
    jobs.JobsChanged((2**40,), (jobs.CHANGED, jobs.GONE, jobs.ANOTHERS)),
    jobs.TakeJob("token", 30.0),
    jobs.TakenJob(2**40, 2, '{"to":"ann"}'),
    jobs.WithdrawTake("token"),
    jobs.GiveBackJob(2**40, "token", 1.5, "why"),
    jobs.RefuseJob(2**40, "token", ("shop.New",), "why"),
    jobs.ExtendJob(2**40, "token", 30.0),
    jobs.AskDeadJobs(2**40, 100),
    jobs.DeadJobs(((2**40, 3, "why", '{"to":"ann"}'),)),
    jobs.ReviveJobs((2**40,), False),
    jobs.AskQueueStats(),
    jobs.QueueStats(1, 2, 3, 4, 5),
)


#: As it was before it had `restarts` and `exhausted`, and its actors `parent` and `restarts`.
EARLIER_INSPECTION = bytes.fromhex(
    "81d9bf07827463616c6c626f6172642e496e7370656374696f6eb0646e616d65646e6f64656675707469"
    "6d65fb4023000000000000666163746f727381d9bf07827363616c6c626f6172642e4163746f72496e66"
    "6fa867616464726573736d626173703a2f2f2f31374061616b6163746f725f636c61737366576f726b65"
    "72646e616d6561776573746174656469646c65656465707468036768616e646c65641903e863616765fb"
    "3ff800000000000066776169746564fb3fd00000000000006b6163746f725f636f756e74016768616e64"
    "6c6564026c646561645f6c65747465727303656c696e6b7304656e6f646573056b69735f647261696e69"
    "6e67f4696f766572666c6f7773066765787069726564076d736c6f775f68616e646c6572730867776169"
    "74696e67096f68616e646c65725f7365636f6e6473a166576f726b6572fb3fe00000000000006a6e6569"
    "6768626f75727381d9bf07827263616c6c626f6172642e4c696e6b496e666fa964706565725270707070"
    "707070707070707070707070707069706565725f6e616d6564706565726761646472657373697463703a"
    "2f2f683a316b6672616d65735f73656e74016f6672616d65735f7265636569766564026a62797465735f"
    "73656e74036e62797465735f7265636569766564046d62797465735f77616974696e6705667061757365"
    "730666726f7574657381d9bf07827763616c6c626f6172642e526561636861626c654e6f6465a4676e6f"
    "64655f696452717171717171717171717171717171717171646e616d656366617264686f707302637669"
    "6152707070707070707070707070707070707070"
)


#: As it was before it had `has_groups`.
EARLIER_OPENING = bytes.fromhex(
    "81d9bf0782781963616c6c626f6172642e4f70656e4c6f6750726f6475636572a3636c6f676363707568"
    "70726f6475636572676d657465722d376565706f63681b0de0b6b3a7640000"
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
SAMPLES["callboard.Inspection of the release before"] = Sample(
    inspection.Inspection(
        *("node", 9.5, [EARLIER], 1, 2, 3, 4, 5, False, 6, 7, 8, 9, {"Worker": 0.5}),
        [replace(LINK, is_tool=False)],
        [NODE],
    ),
    lambda _: EARLIER_INSPECTION,
    CODEC.decode_message,
)
SAMPLES["callboard.Describe of the release before"] = Sample(
    messages.Describe(),
    lambda _: bytes.fromhex("81d9bf07827263616c6c626f6172642e4465736372696265a0"),
    CODEC.decode_message,
)
SAMPLES["callboard.OpenLogProducer of the release before"] = Sample(
    OpenLogProducer("cpu", "meter-7", 10**18),
    lambda _: EARLIER_OPENING,
    CODEC.decode_message,
)
SAMPLES |= {f"Thespian's {kind.__name__}": thespians(kind) for kind in TRAVELING}


def missing() -> set[str]:
    """Return names in the source that lack a sample, or some of its fields."""
    root = Path(__file__).parents[2]
    sources = (
        p
        for room in ("actors", "basp", "proxies", "callboard")
        for p in (root / room).rglob("*.py")
    )
    names = {
        name
        for path in sources
        for name in re.findall(
            r'^@?(?:frozen_)?message\("([^"{]+)"\)', path.read_text(), re.MULTILINE
        )
    }
    return names - {name_of(value) for value in VALUES}
