"""Sessions, retained messages and unacknowledged messages survive the router."""

import gc
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard.commitlog import CommitLog, LogCorrupt, LogError
from callboard.mqtt.journal.journal import RouterJournal
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.record import Published, read_record
from callboard.mqtt.wire.packet import V4, V5, PubAck, PubComp, Publish, PubRec, PubRel
from tests.callboard.mqtt.durable_stage import LASTING, DurableStage
from tests.callboard.mqtt.stage import Stage, connack


@pytest.fixture
def durable() -> DurableStage:
    return DurableStage()


@pytest.mark.parametrize("version", [V4, V5])
def test_a_session_survives_with_its_subscriptions(durable, version) -> None:
    lasting = LASTING if version == V5 else {"version": V4, "clean": False}
    durable.client("s", **lasting).subscribe("a/+", "b", qos=1)

    durable.crash()

    again = durable.client("s", **lasting)
    assert connack(again).session_present is True
    publisher = durable.client("p")
    for topic in ("a/1", "b", "c"):
        publisher.publish(topic, topic.encode(), 1)
    assert again.payloads() == [b"a/1", b"b"]


def test_an_ended_session_or_subscription_is_not_restored(durable) -> None:
    one = durable.client("one", **LASTING)
    one.subscribe("a", "b", qos=1)
    one.unsubscribe("a")
    durable.client("two", **LASTING).subscribe("c", qos=1)
    durable.client("two", clean=True)

    durable.crash()

    assert [log.topic_filter for log in durable.machine.logs] == ["b"]
    assert list(durable.machine.sessions.graveyard) == ["one"]


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_for_a_session_that_is_away_survive(durable, qos) -> None:
    away = durable.client("s", **LASTING)
    away.subscribe("t", qos=qos)
    away.lose()
    publisher = durable.client("p")
    publisher.send(*(publisher.message("t", bytes([n]), qos) for n in range(10)))

    durable.crash()

    again = durable.client("s", **LASTING)
    assert [payload[0] for payload in again.payloads()] == list(range(10))


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_in_flight_are_resent_with_their_identifiers(durable, qos) -> None:
    reader = durable.client("s", answers=False, receive_maximum=4, **LASTING)
    reader.subscribe("t", qos=qos, identifier=3)
    publisher = durable.client("p")
    publisher.send(
        *(publisher.message("t", bytes([n]), qos, content_type="c") for n in range(6))
    )
    sent = reader.messages()
    kind = PubAck if qos == 1 else PubRec
    reader.send(kind(sent[1].packet_id))

    durable.crash()

    got = durable.client("s", answers=False, receive_maximum=100, **LASTING).got()
    messages = [each for each in got if isinstance(each, Publish)]
    first = [each for each in messages if each.dup]
    assert [each.payload[0] for each in messages] == ([0, 2, 3, 4, 5])
    old = {each.payload: each.packet_id for each in sent}
    assert all(old.get(each.payload, each.packet_id) == each.packet_id for each in first)
    assert {each.payload[0] for each in first} == ({0, 2, 3, 4} if qos == 1 else {0, 2, 3})
    assert {each.properties.content_type for each in messages} == {"c"}
    assert {each.properties.subscription_identifiers for each in messages} == {(3,)}
    released = [each.packet_id for each in got if isinstance(each, PubRel)]
    assert released == ([sent[1].packet_id] if qos == 2 else [])


def test_an_acknowledged_qos_2_message_is_not_delivered_twice(durable) -> None:
    reader = durable.client("s", **LASTING)
    reader.subscribe("t", qos=2)
    first = durable.client("p", answers=False, **LASTING)
    message = first.message("t", b"once", 2, packet_id=7)
    first.send(message)
    got = reader.payloads()

    durable.crash()

    reader = durable.client("s", **LASTING)
    again = durable.client("p", answers=False, **LASTING)
    (answer,) = again.send(message)
    assert isinstance(answer, PubRec)
    assert got + reader.payloads() == [b"once"]
    assert [type(each) for each in again.send(PubRel(7))] == [PubComp]
    durable.crash()
    assert not durable.machine.sessions.graveyard["p"].received


def test_after_a_restart_with_a_lower_limit_as_many_retained_messages_as_fit_are_kept() -> None:
    durable = DurableStage()
    publisher = durable.client("p")
    for number in range(5):
        publisher.publish(f"t/{number}", b"x", 1, retain=True)
    durable._limits = Limits(retained=3)

    durable.crash()

    reader = durable.client("s")
    reader.subscribe("t/#")
    assert {message.topic for message in reader.messages()} == {"t/0", "t/1", "t/2"}
    assert durable.machine.effects.meters.not_retained == 2


def _processor_time(work: Callable[[], object]) -> float:
    """Return the least processor time of three calls."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.slow
def test_a_start_with_retained_messages_costs_a_few_times_as_much_as_reading_them() -> None:
    durable = DurableStage(Limits(retained=50_000))
    publisher = durable.client("p")
    topics = [f"site/{number % 50}/device/{number}/state" for number in range(20_000)]
    publisher.send(*(publisher.message(topic, bytes(40), 0, retain=True) for topic in topics))

    def load() -> None:
        Stage.__init__(durable, durable._limits, is_durable=True)
        durable._open()

    def read() -> None:
        for record in durable.journal._log.read(0):
            assert record.payload

    gc.disable()  # as at the start of a router
    try:
        load()
        assert len(durable.machine.logs.retained) == 20_000
        assert _processor_time(load) < 10 * _processor_time(read)
    finally:
        gc.enable()


def test_retained_messages_survive_a_restart_and_removed_ones_stay_removed(durable) -> None:
    publisher = durable.client("p")
    publisher.publish("kept", b"1", retain=True, content_type="x")
    publisher.publish("kept", b"2", retain=True, content_type="y")
    publisher.publish("gone", b"3", retain=True)
    publisher.publish("gone", b"", retain=True)
    publisher.publish("short", b"4", retain=True, message_expiry_interval=10)
    durable.advance(11)

    durable.crash()

    client = durable.client("c")
    client.subscribe("#")
    (message,) = client.messages()
    assert (message.topic, message.payload, message.retain) == ("kept", b"2", True)
    assert message.properties.content_type == "y"


def test_the_expiry_of_a_session_continues_after_a_restart(durable) -> None:
    durable.client("away", clean=False, expiry=100).lose()
    durable.client("there", clean=False, expiry=100)
    durable.now = 60
    durable.crash()

    durable.advance(41)
    left = list(durable.machine.sessions.graveyard)
    durable.advance(100)

    assert left == ["there"]
    assert not durable.machine.sessions.graveyard


def test_a_message_is_acknowledged_only_when_it_is_durable(durable) -> None:
    reader = durable.client("s", **LASTING)
    reader.subscribe("t", qos=1)
    reader.lose()
    publisher = durable.client("p", answers=False)
    publisher.push(publisher.message("t", b"x", 1))

    turn = durable.machine.run_turn(0.0)

    assert [type(record) for record in turn.records] == [Published]
    assert publisher.got() == []  # what acknowledges it is carried out behind the records
    assert [link.client_id for link, _ in turn.transmits] == ["p"]


def test_clean_sessions_are_not_written_to_the_journal(durable) -> None:
    before = len(durable.turns)
    reader = durable.client("s")
    reader.subscribe("t", qos=2)
    publisher = durable.client("p")

    publisher.publish("t", b"x", 2)
    publisher.publish("t", b"x", 0)

    assert reader.payloads() == [b"x", b"x"]
    assert not any(turn.records for turn in durable.turns[before:])


def test_each_publish_is_written_once_for_any_number_of_readers(durable) -> None:
    for number, topic_filter in enumerate(("t", "#", "+")):
        durable.client(f"s{number}", **LASTING).subscribe(topic_filter, qos=1)
    durable.client("p").publish("t", b"once", 1)

    written = [
        record
        for turn in durable.turns
        for record in turn.records
        if isinstance(record, Published)
    ]

    assert len(written) == 1


def test_overlapping_subscriptions_do_not_double_after_a_restart(durable) -> None:
    reader = durable.client("s", **LASTING)
    reader.subscribe("a/#", qos=2)
    reader.subscribe("a/b", qos=2)
    publisher = durable.client("p")
    publisher.send(*(publisher.message("a/b", bytes([n]), 2) for n in range(5)))
    got = reader.payloads()
    reader.unsubscribe("a/#")

    durable.crash()

    again = durable.client("s", **LASTING)
    assert len(got) == 5
    assert again.payloads() == []


def test_qos_0_is_not_delivered_again_after_a_restart(durable) -> None:
    durable.client("other", **LASTING).subscribe("t", qos=1)
    reader = durable.client("s", **LASTING)
    reader.subscribe("t", qos=0)
    durable.client("p").publish("t", b"x", 1)
    got = reader.payloads()

    durable.crash()

    assert got == [b"x"]
    assert durable.client("s", **LASTING).payloads() == []


def test_a_shared_subscription_survives_with_its_place(durable) -> None:
    members = [durable.client(f"m{number}", **LASTING) for number in range(2)]
    for member in members:
        member.subscribe("$share/g/t", qos=1)
    publisher = durable.client("p")
    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(4)))
    got = [payload[0] for member in members for payload in member.payloads()]
    for member in members:
        member.lose()
    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(4, 8)))

    durable.crash()

    again = [durable.client(f"m{number}", **LASTING) for number in range(2)]
    more = [payload[0] for member in again for payload in member.payloads()]
    assert sorted(got) == [0, 1, 2, 3]
    assert sorted(more) == [4, 5, 6, 7]


def test_the_journal_is_compacted_to_its_live_records() -> None:
    durable = DurableStage(least_growth=50_000)
    reader = durable.client("s", **LASTING)
    reader.subscribe("t", qos=2)
    publisher = durable.client("p", **LASTING)
    publisher.publish("kept", b"retained", retain=True)
    sizes = []
    got = []
    for number in range(300):
        publisher.publish("t", bytes([number % 250]) * 500, 2)
        got += [payload[0] for payload in reader.payloads()]
        sizes.append(
            sum(durable.disk.size(f"/mqtt/{n}") for n in durable.disk.listdir("/mqtt"))
        )
    reader.lose()
    publisher.publish("t", b"\xff", 2)

    durable.crash()

    assert max(sizes[100:]) < 4 * 50_000
    assert got == [number % 250 for number in range(300)]
    assert durable.client("s", **LASTING).payloads() == [b"\xff"]
    late = durable.client("late")
    late.subscribe("kept")
    assert late.payloads() == [b"retained"]


def test_a_torn_snapshot_is_discarded(durable, monkeypatch) -> None:
    reader = durable.client("s", **LASTING)
    reader.subscribe("t", qos=1)
    reader.lose()
    durable.client("p").publish("t", b"x", 1)
    whole = durable.journal._append

    def torn(records):
        return whole(records[: len(records) // 2])

    monkeypatch.setattr(durable.journal, "_append", torn)
    durable.journal._cut(durable.machine)

    for _ in range(2):
        durable.crash()
    assert durable.client("s", **LASTING).payloads() == [b"x"]


def test_message_numbers_continue_after_a_restart(durable) -> None:
    durable.client("s", **LASTING).subscribe("t", qos=1)
    durable.client("p").publish("t", b"x", 1)
    before = durable.machine.logs.number

    durable.crash()

    assert durable.machine.logs.number >= before


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("unheard", []), ("publish", [1]), ("close", []), ("sent", 3), ("retain", [b"t", 1])],
)
def test_unreadable_records_are_reported(kind, fields) -> None:
    with pytest.raises(LogCorrupt):
        read_record(kind, fields, 0.0)


def test_a_journal_can_be_read_as_a_log(tmp_path: Path) -> None:
    stage = Stage(is_durable=True)
    journal = RouterJournal(tmp_path / "mqtt", now=lambda: 0.0, wall_clock=lambda: 0)
    stage.client("s", **LASTING).subscribe("t", qos=1)
    for turn in stage.turns:
        journal.write(turn.records, stage.machine)
    journal.close()

    with CommitLog(tmp_path / "mqtt") as log:
        kinds = [record.topic for record in itertools.chain(log.read(0))]

    assert kinds == ["open", "subscribe"]


def test_numbers_of_dropped_messages_are_not_reused(durable) -> None:
    reader = durable.client("s", answers=False, receive_maximum=1, **LASTING)
    reader.subscribe("t", "u", qos=1)
    publisher = durable.client("p")
    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(2)))
    reader.unsubscribe("u")  # while the second message waits
    publisher.send(*(publisher.message("elsewhere") for _ in range(20)))
    reader.answers = True
    for message in reader.messages():
        reader._answer(message)
    durable.run()
    before = durable.machine.logs.number

    durable.crash()

    assert durable.machine.logs.number == before
    again = durable.client("s", **LASTING)
    durable.client("p").publish("t", b"new", 1)
    assert again.payloads() == [b"new"]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("cuts", [False, True])
def test_a_filter_with_qos_0_does_not_consume_messages_of_one_with_qos_1(
    durable, crashes, cuts
) -> None:
    reader = durable.client("s", **LASTING)
    reader.subscribe("a/#", qos=0)
    reader.subscribe("a/b", qos=1)
    reader.lose()
    durable.client("p").publish("a/b", b"x", 1)
    if cuts:
        durable.journal._cut(durable.machine)
    if crashes:
        durable.crash()

    assert durable.client("s", **LASTING).payloads() == [b"x"]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


#: What is done to a file, whatever segment it is.
HARM = {
    "flip": _flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "remove": Path.unlink,
    "zero": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


def _filled(folder: Path) -> dict[str, bytes]:
    """A journal of several segments; returns the payloads of what it retains."""
    stage = Stage(is_durable=True)
    journal = RouterJournal(
        folder, now=lambda: 0.0, wall_clock=lambda: 0, least_growth=1 << 30, segment_bytes=2000
    )
    stage.client("s", **LASTING).subscribe("t/#", qos=1)
    publisher = stage.client("p")
    for number in range(60):
        publisher.publish(f"t/{number}", bytes(100), 1, retain=True)
    for turn in stage.turns:
        journal.write(turn.records, stage.machine)
    journal.close()
    return _retained(folder)


def _retained(folder: Path) -> dict[str, bytes]:
    journal = RouterJournal(folder, now=lambda: 0.0, wall_clock=lambda: 0)
    again = Stage(is_durable=True)
    try:
        journal.restore(again.machine)
    finally:
        journal.close()
    return {str(run.topic): run.payloads[0] for run in again.machine.logs.retained}


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("kind", HARM)
def test_a_damaged_journal_is_reported_and_the_router_does_not_start(
    tmp_path, kind, which
) -> None:
    before = _filled(tmp_path / "mqtt")
    assert len(before) == 60
    segments = sorted((tmp_path / "mqtt").glob("*.log"))
    full = [path for path in segments if path.stat().st_size]
    assert len(full) > 4

    HARM[kind](full[which])

    with pytest.raises(LogError):
        _retained(tmp_path / "mqtt")


def test_a_journal_without_its_segments_is_reported(tmp_path) -> None:
    _filled(tmp_path / "mqtt")
    for path in (tmp_path / "mqtt").glob("*.log"):
        path.unlink()

    with pytest.raises(LogError):
        _retained(tmp_path / "mqtt")
