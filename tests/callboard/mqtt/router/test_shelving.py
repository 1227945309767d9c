"""Messages of persistent sessions that exceed memory are read back from the journal."""

import pytest

from callboard.commitlog import LogCorrupt
from callboard.mqtt.journal.journal import RouterJournal
from callboard.mqtt.router import logs
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.packet import PubAck, Publish
from tests.callboard.mqtt.durable_stage import LASTING, DurableStage
from tests.callboard.mqtt.stage import Client

SMALL = {"segment_bytes": 2000, "segment_count": 2}


def durable_with(least_growth: int = 1 << 30, **limits) -> DurableStage:
    return DurableStage(Limits(**SMALL, **limits), least_growth)


def away(durable: DurableStage, topic_filter: str = "t", qos: int = 1, name: str = "r") -> None:
    """Make a lasting session whose client is away."""
    reader = durable.client(name, **LASTING)
    reader.subscribe(topic_filter, qos=qos)
    reader.lose()


def flood(publisher: Client, numbers: range, topic: str = "t", qos: int = 1) -> None:
    for number in numbers:
        publisher.publish(topic, number.to_bytes(2, "big"), qos)


def numbers_in(messages: list[Publish]) -> list[int]:
    return [int.from_bytes(each.payload, "big") for each in messages]


def shelved(durable: DurableStage, topic_filter: str = "t") -> int:
    return durable.machine.logs.get(topic_filter).shelved


def written(durable: DurableStage, topic: bytes = b"t") -> list[int]:
    """Return the numbers of messages that stand in the journal, in its order."""
    records = durable.journal._log.read(durable.journal._log.start)
    found = [each.payload for each in records if each.topic == "publish"]
    return [each[1] for each in found if each[0] == topic]


@pytest.mark.slow
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("crashes", [0, 1, 2])
@pytest.mark.parametrize("least_growth", [3_000, 1 << 30])
def test_a_session_that_is_away_has_more_than_memory_holds(qos, crashes, least_growth) -> None:
    durable = durable_with(least_growth)
    away(durable, qos=qos)
    flood(durable.client("p"), range(300), qos=qos)
    assert shelved(durable) > 10

    for _ in range(crashes):
        durable.crash()
    reader = durable.client("r", **LASTING)

    assert numbers_in(reader.messages()) == list(range(300))
    assert durable.lost == 0


def test_segments_of_many_runs_are_written_in_parts_and_few_stay_in_memory(monkeypatch) -> None:
    monkeypatch.setattr(logs, "PART", 2)
    monkeypatch.setattr(logs, "MOST_FETCHED", 4_000)
    durable = durable_with(3_000)
    away(durable)
    flood(durable.client("p"), range(300))
    durable.crash()

    reader = durable.client("r", **LASTING)

    assert numbers_in(reader.messages()) == list(range(300))
    segments = durable.machine.logs.get("t").segments
    assert sum(bool(segment.runs) for segment in segments) < 6


def test_reading_continues_at_its_position_after_a_crash() -> None:
    durable = durable_with(5_000)
    away(durable)
    flood(durable.client("p"), range(200))
    reader = durable.client("r", answers=False, receive_maximum=7, **LASTING)
    got = []
    while len(got) < 100:
        found = reader.messages()
        got += numbers_in(found)
        reader.push(*(PubAck(each.packet_id) for each in found))
        durable.run()
    flood(durable.client("p"), range(200, 300))

    durable.crash()
    rest = numbers_in(durable.client("r", **LASTING).messages())

    assert got == list(range(len(got)))
    assert sorted({*got, *rest}) == list(range(300))
    assert rest == list(range(rest[0], 300))


def test_shelved_messages_are_written_once() -> None:
    durable = durable_with(3_000)
    away(durable)
    away(durable, "#", name="other")
    flood(durable.client("p"), range(300))

    numbers = written(durable)

    assert len(set(numbers)) >= 300
    assert len(numbers) < 330 + 3 * 20


@pytest.mark.slow
def test_messages_read_by_all_are_removed_from_the_disk() -> None:
    durable = durable_with(3_000)
    away(durable)
    publisher = durable.client("p")
    flood(publisher, range(500))
    before = len(written(durable))

    durable.client("r", **LASTING)
    flood(publisher, range(500, 600))

    assert shelved(durable) == 0
    assert len(written(durable)) < before / 2


@pytest.mark.slow
def test_an_ended_session_is_removed_from_the_disk() -> None:
    durable = durable_with(3_000)
    away(durable)
    away(durable, "u", name="other")
    publisher = durable.client("p")
    flood(publisher, range(500))
    assert len(written(durable)) >= 500

    durable.client("r", clean=True)
    flood(publisher, range(300), "u")

    assert len(written(durable)) < 250  # a file of the journal goes as a whole


def test_above_its_limit_the_journal_drops_the_oldest_messages_and_reports_it() -> None:
    durable = durable_with(5_000, journal_bytes=30_000)
    away(durable)
    flood(durable.client("p"), range(1000))

    got = numbers_in(durable.client("r", **LASTING).messages())

    assert got == list(range(got[0], 1000))
    assert durable.lost == durable.machine.meters.lost == got[0]
    assert len(got) > 100
    size = sum(durable.disk.size(f"/mqtt/{n}") for n in durable.disk.listdir("/mqtt"))
    assert size < 30_000 + 60_000


def test_without_shelving_the_journal_keeps_the_messages_in_memory() -> None:
    durable = durable_with(journal_bytes=0)
    away(durable)
    flood(durable.client("p"), range(300))

    got = numbers_in(durable.client("r", **LASTING).messages())

    assert got == list(range(got[0], 300))
    assert durable.lost == got[0] > 200


@pytest.mark.parametrize("filters", [["t"], ["#", "t"]])
def test_messages_reported_as_lost_do_not_return_after_a_crash(filters) -> None:
    durable = durable_with(journal_bytes=0)
    slow = {**LASTING, "answers": False, "receive_maximum": 1}
    reader = durable.client("r", **slow)
    reader.subscribe(*filters, qos=1)
    publisher = durable.client("p")
    flood(publisher, range(10))
    if len(filters) > 1:  # it goes on until it has read what both of them match
        reader.unsubscribe("#")
    reader.lose()
    flood(publisher, range(10, 300))

    reader = durable.client("r", **slow)
    (again,) = reader.messages()
    (following,) = reader.send(PubAck(again.packet_id))
    lost = durable.lost
    assert numbers_in([again]) == [0]
    assert numbers_in([following])[0] > 100
    assert lost > 100
    durable.crash()
    got = numbers_in(durable.client("r", **LASTING).messages())

    assert got == list(range(numbers_in([following])[0], 300))
    assert durable.lost == 0


def test_sessions_that_do_not_last_have_no_shelves() -> None:
    durable = durable_with(acknowledge_patience=0)
    reader = durable.client("r", answers=False)
    reader.subscribe("t", qos=1)
    flood(durable.client("p"), range(500))
    assert shelved(durable) == 0


def test_messages_with_qos_0_are_gaps() -> None:
    durable = durable_with()
    away(durable)
    publisher = durable.client("p")
    for number in range(200):
        flood(publisher, range(number, number + 1), qos=number % 2)

    got = numbers_in(durable.client("r", **LASTING).messages())

    assert [each for each in got if each % 2] == list(range(1, 200, 2))
    assert durable.lost == 200 - len(got) > 50


def test_several_filters_of_one_client_deliver_each_message_once() -> None:
    durable = durable_with(4_000)
    reader = durable.client("r", **LASTING)
    reader.subscribe("t", "#", qos=2)
    reader.lose()
    flood(durable.client("p"), range(300), qos=2)
    durable.crash()

    assert numbers_in(durable.client("r", **LASTING).messages()) == list(range(300))


def test_members_of_a_group_share_shelved_messages() -> None:
    durable = durable_with()
    for name in "ab":
        away(durable, "$share/g/t", name=name)
    flood(durable.client("p"), range(300))
    assert shelved(durable) > 10

    members = [durable.client(name, **LASTING) for name in "ab"]
    got = [numbers_in(member.messages()) for member in members]

    assert sorted(sum(got, [])) == list(range(300))


@pytest.mark.slow
def test_a_reader_of_shelved_messages_does_not_delay_publishers() -> None:
    durable = durable_with()
    away(durable)
    publisher = durable.client("p")
    flood(publisher, range(300))
    reader = durable.client("r", answers=False, receive_maximum=1, **LASTING)
    publisher.got()

    flood(publisher, range(300, 600))

    assert len(publisher.got()) == 300
    got = []
    while found := reader.messages():
        got += numbers_in(found)
        reader.push(*(PubAck(each.packet_id) for each in found))
        durable.run()
    assert got == list(range(600))
    assert durable.lost == 0


def test_messages_that_cannot_be_read_back_are_reported_as_lost() -> None:
    durable = durable_with()
    away(durable)
    flood(durable.client("p"), range(300))
    durable.journal._log.trim(before=250)

    got = numbers_in(durable.client("r", **LASTING).messages())

    assert got == list(range(got[0], 300))
    assert 0 < durable.lost == got[0]


def test_one_shelved_record_that_cannot_be_read_loses_only_its_message(
    monkeypatch, caplog
) -> None:
    durable = durable_with()
    away(durable)
    flood(durable.client("p"), range(300))
    damaged = durable.machine.logs.get("t").segments[0].places()[3]
    read = RouterJournal._read

    def read_or_fail(self, record):
        if record.offset == damaged:
            message = "a record of a later release"
            raise LogCorrupt(message)
        return read(self, record)

    monkeypatch.setattr(RouterJournal, "_read", read_or_fail)

    got = numbers_in(durable.client("r", **LASTING).messages())

    assert got == [0, 1, 2, *range(4, 300)]
    assert durable.lost == 1
    assert "1 of " in caplog.text
    assert "a record of a later release" in caplog.text


def test_a_damaged_batch_of_the_journal_loses_only_its_messages(caplog) -> None:
    durable = durable_with()
    away(durable)
    flood(durable.client("p"), range(300))
    paths = [f"/mqtt/{name}" for name in durable.disk.listdir("/mqtt")]
    path = max(paths, key=durable.disk.size)
    durable.disk.flip_bit(path, 4 * durable.disk.size(path))

    got = numbers_in(durable.client("r", **LASTING).messages())

    assert 290 < len(got) < 300
    assert durable.lost == 300 - len(got)
    assert "cannot be read and are left out" in caplog.text
