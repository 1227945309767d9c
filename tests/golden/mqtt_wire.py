"""The output of a router: to clients of both versions, and to another router for a session."""

from collections.abc import Callable
from functools import cache
from typing import Any

from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.mqtt.service.claims import (
    ADMITTED,
    Claims,
    ClaimSession,
    ConfirmSession,
    SessionPolicy,
    SettleSession,
    Stamps,
)
from callboard.mqtt.wire.packet import V4, V5, Publish, Will
from tests.callboard.mqtt.stage import Stage, deliver, packets_of
from tests.golden.mqtt_journal import LASTING, live, told
from tests.golden.sample import Sample


class WireStage(Stage):
    """A router of whose bytes a note is taken, by client."""

    def __init__(self) -> None:
        super().__init__(is_durable=True)
        self.sent: dict[str, bytes] = {}

    def run(self) -> None:
        while True:
            turn = self.machine.run_turn(self.now)
            for link, notifications in turn.transmits:
                data = b"".join(each for each in notifications if isinstance(each, bytes))
                name = link.client_id or ""
                self.sent[name] = self.sent.get(name, b"") + data
                deliver(link, notifications)
            if self.machine.is_idle:
                return


@cache
def everything() -> dict[str, bytes]:
    """Make clients do everything that affects a router's output."""
    stage = WireStage()
    live(stage)
    old = stage.client("old", version=V4)
    new = stage.client("new", topic_alias_maximum=2, receive_maximum=10)
    own = stage.client("")  # gets a name
    for reader in (old, new):
        reader.subscribe("qos0/#", "kept/#")
        reader.subscribe("qos1/#", qos=1)
        reader.subscribe("qos2/#", qos=2)
        reader.subscribe("not/#/valid")
    new.subscribe("raw/#", qos=1, identifier=3, retain_as_published=True, no_local=True)
    new.publish("raw/mine", b"not for me", 1)
    publishers = stage.client("p4", version=V4), stage.client("p5")
    for publisher in publishers:
        for qos in range(3):
            for topic in ("qos0/a", "qos1/a", "qos2/a", "raw/a"):
                publisher.publish(topic, b"%d" % qos, qos, retain=qos == 1)
    said = {"content_type": "c", "correlation_data": b"\0", "user_properties": (("a", "b"),)}
    publishers[1].publish("qos1/p", b"with properties", 1, response_topic="back", **said)
    publishers[1].publish("qos1/late", b"in time", 1, message_expiry_interval=100, retain=True)
    publishers[1].publish("nobody", b"reads", 1)
    stage.advance(30.0)
    late = stage.client("late")
    late.subscribe("qos1/late", "raw/+", qos=2)
    late.unsubscribe("raw/+", "never")
    own.send(b"\xc0\x00")
    stage.client("will4", version=V4, will=Will("qos0/will", b"4")).lose()
    stage.client("new", keep_alive=10)  # takes over from the one before
    own.send(b"\x00\x00")  # no packet
    return stage.sent


def told_by(data: bytes, version: int) -> list[str]:
    """Return the content of packets; packets of 3.1.1 have no properties."""
    return [
        f"{each.topic} {each.payload.decode()} q{each.qos} #{each.packet_id}"
        if isinstance(each, Publish) and each.properties is None
        else told(each)
        for each in packets_of(data, version)
    ]


# --- a session that moves


def encoded(value: Any) -> bytes:
    payload = CODEC.encode(value)
    assert CODEC.decode_message(payload) == value
    return len(payload).to_bytes(4, "big") + payload


CODEC = PayloadCodec(DEFAULT_REGISTRY)


def claims_of(stage: Stage, clock: Callable[[], int]) -> Claims:
    stamps = Stamps(clock)
    stage.machine.sessions.make_stamp = stamps.make
    return Claims(
        stage.machine,
        policy=SessionPolicy.TAKE_OVER,
        stamps=stamps,
        address=lambda: "h:1883",
        make_name=lambda: "offer",
    )


def move() -> tuple[bytes, WireStage]:
    """Connect the reader of `live` to another router; a message arrives after the offer."""
    one, two = WireStage(), WireStage()
    old, new = claims_of(one, lambda: 10**18), claims_of(two, lambda: 2 * 10**18)
    live(one)
    one.advance(3.0)
    said = b""
    steps = new.claim("reader", is_clean=False)
    answers: Any = None
    while True:
        try:
            order = steps.send(answers)
        except StopIteration as end:
            return (said, two) if end.value == ADMITTED else (b"", two)
        said += encoded(order)
        match order:
            case ClaimSession():
                answers = [old.asked(order)]
                one.client("p").publish("t", b"behind the offer", 1)
            case ConfirmSession():
                answers = [old.confirmed(order)]
            case SettleSession():
                old.settled(order)
                answers = []
        said += b"".join(map(encoded, answers))


def arrived(_: object) -> bytes:
    """Return what the reader gets at the other router."""
    _, stage = move()
    stage.client("reader", receive_maximum=100, **LASTING)
    return stage.sent["reader"]


def names(said: bytes) -> list[str]:
    """Return the classes of messages between routers."""
    found = []
    while said:
        size = 4 + int.from_bytes(said[:4], "big")
        found.append(type(CODEC.decode_message(said[4:size])).__name__)
        said = said[size:]
    return found


MOVED = ["ClaimSession", "SessionOffer", "ConfirmSession", "SessionConfirmed", "SettleSession"]
ARRIVED = [
    "ConnAck",
    "dup t 2 q2 #3 for 300",
    "dup t 4 q1 #4 for 300",
    "dup t 5 q2 #5 for 300",
    "dup twice expires q1 #6 for 300",
    "t half q2 #7 for 300",
    "t x q1 #8 for 300",
    "t behind the offer q1 #9 for 300",
    "PubRel 3",
    "PubRel 5",
    "PubRel 7",
]
ACKS = ["ConnAck", *(f"PubAck {n}" for n in range(1, 5))]
ACKS += [f"{kind} {n}" for n in range(5, 9) for kind in ("PubRec", "PubComp")]


#: The output to clients; commas between packets would take a line each.
SEEN: dict[str, str] = {
    "reader": (
        "ConnAck, SubAck 1, retain kept/1 second q1 #1, SubAck 2, t 0 q0 #0 for 300, t 1 "
        "q1 #2 for 300, t 2 q2 #3 for 300, t 3 q0 #0 for 300, t 4 q1 #4 for 300, t 5 q2 "
        "#5 for 300, twice expires q1 #6 for 300 in 500, UnsubAck 3"
    ),
    "old": (
        "ConnAck, SubAck 1, kept/1 second q0 #0, SubAck 2, SubAck 3, SubAck 4, qos0/a 0 "
        "q0 #0, qos1/a 0 q0 #0, qos2/a 0 q0 #0, qos0/a 1 q0 #0, qos1/a 1 q1 #1, qos2/a 1 "
        "q1 #2, qos0/a 2 q0 #0, qos1/a 2 q1 #3, qos2/a 2 q2 #4, PubRel 4, qos0/a 0 q0 #0,"
        " qos1/a 0 q0 #0, qos2/a 0 q0 #0, qos0/a 1 q0 #0, qos1/a 1 q1 #5, qos2/a 1 q1 #6,"
        " qos0/a 2 q0 #0, qos1/a 2 q1 #7, qos2/a 2 q2 #8, PubRel 8, qos1/p with "
        "properties q1 #9, qos1/late in time q1 #10, qos0/will 4 q0 #0"
    ),
    "new": (
        "ConnAck, SubAck 1, retain kept/1 second q0 #0, SubAck 2, SubAck 3, SubAck 4, "
        "SubAck 5, PubAck 6, qos0/a 0 q0 #0, qos1/a 0 q0 #0, qos2/a 0 q0 #0, raw/a 0 q0 "
        "#0 for 3,  1 q0 #0, qos1/a 1 q1 #1, qos2/a 1 q1 #2, retain raw/a 1 q1 #3 for 3,"
        "  2 q0 #0, qos1/a 2 q1 #4, qos2/a 2 q2 #5, PubRel 5, raw/a 2 q1 #6 for 3,  0 q0 "
        "#0, qos1/a 0 q0 #0, qos2/a 0 q0 #0, raw/a 0 q0 #0 for 3,  1 q0 #0, qos1/a 1 q1 "
        "#7, qos2/a 1 q1 #8, retain raw/a 1 q1 #9 for 3,  2 q0 #0, qos1/a 2 q1 #10, "
        "qos2/a 2 q2 #11, PubRel 11, raw/a 2 q1 #12 for 3, qos1/p with properties q1 #13,"
        " qos1/late in time q1 #14 in 100, qos0/will 4 q0 #0, Disconnect, ConnAck"
    ),
    "late": (
        "ConnAck, SubAck 1, retain qos1/late in time q1 #1 in 70, retain raw/a 1 q1 #2, "
        "UnsubAck 2"
    ),
    "auto-1": "ConnAck, PingResp, Disconnect",
    "short": "ConnAck, Disconnect, ConnAck",
    "will4": "ConnAck",
}
SEEN |= dict.fromkeys(("p4", "p5"), ", ".join(ACKS))
SEEN["p5"] += ", PubAck 9, PubAck 10, PubAck 11"


def seen_by(name: str) -> Sample:
    def read(data: bytes) -> str:
        return ", ".join(told_by(data, V4 if name in {"old", "p4", "will4"} else V5))

    return Sample(name, lambda client: everything()[client], read, SEEN[name])


SAMPLES = {f"to {name}": seen_by(name) for name in SEEN}
SAMPLES |= {
    "between routers": Sample(None, lambda _: move()[0], names, MOVED),
    "to a reader who moved": Sample(None, arrived, lambda data: told_by(data, V5), ARRIVED),
}


def missing() -> set[str]:
    """Return nothing: packets and messages are covered by separate kinds."""
    return set()
