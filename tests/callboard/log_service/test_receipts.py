"""Appends to logs of other nodes: durable when they return, and there once."""

import asyncio
import threading

import pytest

from callboard import Endpoint, Limits, Node, Rights
from callboard.basp.header import LOG_INTAKE
from callboard.commitlog import (
    CommitLog,
    InvalidRecord,
    LogClosed,
    LogFailed,
    LogReader,
    ProducerFenced,
    ProducerForgotten,
    ReceiptUnknown,
    WrongNumber,
)
from callboard.log_service.append import (
    GROUP_BYTES,
    AppendedRow,
    AppendGroup,
    AppendToLog,
    OpenLogProducer,
    ProducerAppend,
    group_of,
    pack_append,
)
from callboard.log_service.append_batcher import AppendBatcher
from callboard.log_service.append_server import AppendServer
from callboard.log_service.log_writer import LogWriter
from callboard.proxies.errors import LinkFull
from callboard.proxies.events import PermissionRefused
from callboard.simulation import SimulatedDisk
from tests.polling import eventually


@pytest.fixture
def make_node():
    made = []

    def make(name="", *, port=0, **options):
        made.append(Node(name, **options))
        made[-1].listen("127.0.0.1", port)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def log(tmp_path):
    with CommitLog(tmp_path / "cpu", sync="none") as log:
        yield log


@pytest.fixture
def shop(make_node, log):
    return make_node("shop", serve_logs={"cpu": log})


@pytest.fixture
def writer(shop):
    with LogWriter(shop.address + "/cpu", "meter-7", timeout=20) as writer:
        yield writer


def payloads(log):
    return [record.payload for record in log.read()]


@pytest.mark.parametrize("served", ["log", "folder", "folder written here", "memory"])
def test_what_returns_is_durable_and_there_once(make_node, tmp_path, served):
    place = None if served == "memory" else tmp_path / "cpu"
    log = None if served == "folder" else CommitLog(place, sync="none")
    shop = make_node("shop", serve_logs={"cpu": log if served in ("log", "memory") else place})
    with LogWriter(shop.address + "/cpu", "meter-7") as writer:
        assert writer.last is None
        headers = {"b": "1", "a": "2"}
        assert writer.append("/t", {"n": 1}, key=b"k", headers=headers, time=7) == 0
        assert writer.append("/t", b"plain", sender="me") == 1
        headers = {"a": "2", "b": "1"}
        assert writer.append("/t", {"n": 1}, key=b"k", headers=headers, number=1) == 0
        assert writer.append_batch(["a", b"b"], topic=["/u", "/v"], key="k") == range(2, 4)
        assert writer.append_batch(["a", b"b"], topic=["/u", "/v"], key="k", number=3)[0] == 2
        assert writer.last == 4
        first, second, third, last = (log or LogReader(place)).read()
        assert (first.payload, first.key, first.time) == ({"n": 1}, b"k", 7)
        assert first.headers == headers
        assert (second.payload, second.sender, second.is_bytes) == (b"plain", "me", True)
        assert (third.topic, last.topic, last.payload) == ("/u", "/v", b"b")
        assert log is None or log.durable == 4
    if log is not None:
        log.close()


def test_what_is_wrong_is_told(writer, shop, log):
    writer.append("/t", 1)
    with pytest.raises(WrongNumber, match="number 1 of meter-7 belongs to another record"):
        writer.append("/t", 2, number=1)
    with pytest.raises(WrongNumber, match="leaves a gap"):
        writer.append("/t", 2, number=7)
    with pytest.raises(InvalidRecord, match="a topic must be a text"):
        writer.append(7, 2)
    with pytest.raises(InvalidRecord, match="cannot be stored"):
        writer.append("/t", object())
    assert writer.append("/t", 2) == 1
    other = LogWriter(shop.address + "/cpu", "new")
    with pytest.raises(ProducerForgotten):
        other.append("/t", 2, number=2)
    other.close()
    with pytest.raises(LogClosed):
        other.append("/t", 2)
    with pytest.raises(LogFailed, match=r"no log is served as 'gpu'.*are: cpu$"):
        LogWriter(shop.address + "/gpu", "meter-7")


def test_the_second_process_fences_the_first(writer, shop, log):
    writer.append("/t", "first")
    with LogWriter(shop.address + "/cpu", "meter-7") as second:
        assert second.last == 1
        with pytest.raises(ProducerFenced):
            writer.append("/t", "swallowed?")
        with pytest.raises(ProducerFenced):
            writer.append("/t", "swallowed?")
        assert second.append("/t", "second") == 1
    assert payloads(log) == ["first", "second"]


@pytest.mark.slow
def test_producers_share_syncs_in_order(shop, log, monkeypatch):
    syncs = []
    monkeypatch.setattr(log, "flush", lambda flush=log.flush: (syncs.append(1), flush()))
    address = shop.address + "/cpu"

    def publish(name):
        with LogWriter(address, name) as writer:
            told = [writer.append_soon(name, n) for n in range(50)]
            assert [log.readv(each.result(20)).records[0].payload for each in told] == [
                *range(50)
            ]

    threads = [threading.Thread(target=publish, args=(f"p{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = list(log.read())
    for n in range(4):
        assert [each.payload for each in found if each.topic == f"p{n}"] == [*range(50)]
    assert len(syncs) < 200


# --- groups ---


@pytest.fixture
def questions(monkeypatch):
    """What intakes are asked to append."""
    asked, append = [], AppendServer._append
    monkeypatch.setattr(
        AppendServer, "_append", lambda intake, it: (asked.append(it), append(intake, it))[1]
    )
    return asked


@pytest.fixture
def held(log, monkeypatch):
    """Lets no sync end before it is set."""
    held, flush = threading.Event(), log.flush
    monkeypatch.setattr(log, "flush", lambda: held.wait(20) and flush())
    yield held
    held.set()


@pytest.fixture
def writers(make_node, shop, held):
    """Writers of one node."""
    held.set()
    address, node = shop.address + "/cpu", make_node("meters")
    made = [LogWriter(address, f"m{n}", node=node, timeout=20) for n in range(4)]
    held.clear()
    yield made
    held.set()
    for each in made:
        each.close()


def test_what_several_writers_append_during_a_sync_is_one_message(
    writers, held, questions, log
):
    told = [writer.append_soon("/t", n) for n in range(5) for writer in writers]
    held.set()
    assert sorted(each.result(20) for each in told) == [*range(20)]
    assert any(isinstance(each, AppendGroup) for each in questions)
    assert len(questions) < 10
    for writer, offsets in zip(writers, (told[n::4] for n in range(4)), strict=True):
        assert [log.readv(each.result()).records[0].payload for each in offsets] == [*range(5)]
        assert writer.last == 5


def test_what_is_wrong_in_a_group_is_told_to_whose_it_is(writers, held, log):
    first, second, third, fourth = writers
    told = [each.append_soon("/t", "first") for each in writers]
    bad = first.append_soon("/t", 2, number=1)  # another record has this number
    odd = second.append_soon("/t", 2, key=3.5)  # what is no record travels alone
    lone = third.append_soon("\ud800", 2)
    good = fourth.append_soon("/t", "last", key=b"k", headers={"b": "1", "a": "2"}, time=7)
    large = fourth.append_soon("/t", bytes(GROUP_BYTES))
    held.set()
    assert {each.result(20) for each in told} == {0, 1, 2, 3}
    with pytest.raises(WrongNumber, match="belongs to another record"):
        bad.result(20)
    with pytest.raises(InvalidRecord, match="a key must be text"):
        odd.result(20)
    with pytest.raises(LogFailed):
        lone.result(20)
    assert (good.result(20), large.result(20)) == (4, 5)
    record = log.readv(4).records[0]
    assert (record.key, record.headers, record.time) == (b"k", {"a": "2", "b": "1"}, 7)
    assert [each.append("/t", "more") for each in writers] == [6, 7, 8, 9]


def test_an_older_node_gets_each_append_by_itself(make_node, shop, log, questions, monkeypatch):
    monkeypatch.setattr(
        LogWriter, "_question", lambda it, epoch: OpenLogProducer("cpu", it.producer, epoch)
    )
    with LogWriter(shop.address + "/cpu", "old") as writer:
        told = [writer.append_soon("/t", n) for n in range(20)]
        assert [each.result(20) for each in told] == [*range(20)]
    assert {type(each) for each in questions} == {AppendToLog}
    assert len(questions) == 20


def test_a_group_that_cannot_be_sent_is_sent_one_by_one(make_node, shop, log, questions, held):
    with Node("small", limits=Limits(payload=4_000)) as node:
        held.set()
        with LogWriter(shop.address + "/cpu", "m", node=node, timeout=20) as writer:
            held.clear()
            told = [writer.append_soon("/t", bytes(1_000)) for _ in range(8)]
            held.set()
            assert [each.result(20) for each in told] == [*range(8)]
            with pytest.raises(LogFailed, match="exceeds the limit"):
                writer.append("/t", bytes(5_000))
            assert writer.append("/t", b"last") == 8
    assert {type(each) for each in questions} == {AppendToLog}


def test_a_link_that_is_full_is_tried_again(shop, log):
    with LogWriter(shop.address + "/cpu", "m", timeout=20) as writer:
        carrier = writer._carrier
        carrier._ref = FullAtFirst(carrier._ref)
        told = [writer.append_soon("/t", n) for n in range(5)]
        assert [each.result(20) for each in told] == [*range(5)]
    assert payloads(log) == [*range(5)]


class FullAtFirst:
    """Stands for an intake behind a link that is full at first."""

    def __init__(self, ref):
        self._ref, self._left = ref, 3

    def ask(self, question, timeout):
        self._left -= 1
        if self._left >= 0:
            raise LinkFull
        return self._ref.ask(question, timeout)


def test_nobody_waits_for_a_writer_that_does_not_append_again(writers, held, monkeypatch):
    monkeypatch.setattr(AppendBatcher, "_answered", _patient(AppendBatcher._answered))
    held.set()
    for each in [writer.append_soon("/t", 0) for writer in writers]:
        each.result(20)
    assert [writers[0].append("/t", n) for n in range(5)] == [*range(4, 9)]


def _patient(answered):
    """Let groups have taken long, as on a slow disk."""
    return lambda carrier, parcels, sent, answer: answered(carrier, parcels, sent - 60, answer)


def test_a_disk_that_is_full_is_told_to_all_of_a_group(make_node):
    disk = SimulatedDisk()
    log = CommitLog("/a", disk=disk, sync="none", segment_bytes=500)
    shop = make_node("shop", serve_logs={"cpu": log})
    node = make_node("meters")
    made = [LogWriter(shop.address + "/cpu", f"m{n}", node=node) for n in range(4)]
    for round_ in range(3):
        told = [each.append_soon("/t", n) for n in range(5) for each in made]
        assert len({each.result(20) for each in told}) == 20
        disk.faults.capacity = 0
        for each in [each.append_soon("/t", 7) for each in made]:
            with pytest.raises(LogFailed):
                each.result(20)
        disk.faults.capacity = None
        assert [each.last for each in made] == [5 * (round_ + 1)] * 4
    for each in made:
        each.close()
    assert payloads(log).count(7) == 0
    assert len(log.segments) > 3


def test_from_coroutines(shop, log):
    async def publish():
        with LogWriter(shop.address + "/cpu", "meter-7", window=4) as writer:
            return await asyncio.gather(*(writer.aappend("/t", n) for n in range(20)))

    assert sorted(asyncio.run(publish())) == [*range(20)]
    assert sorted(payloads(log)) == [*range(20)]


def test_it_goes_on_when_the_node_is_back(make_node, log, shop):
    writer = LogWriter(shop.address + "/cpu", "meter-7", timeout=20)
    writer.append("/t", 0)
    port = int(shop.address.rpartition(":")[2])
    shop.close()
    told = [writer.append_soon("/t", n) for n in range(1, 10)]
    make_node("shop", port=port, serve_logs={"cpu": log})
    assert [each.result(20) for each in told] == [*range(1, 10)]
    assert payloads(log) == [*range(10)]
    writer.close()


def test_a_node_that_stays_away_leaves_it_unknown(make_node, log, shop):
    writer = LogWriter(shop.address + "/cpu", "meter-7", timeout=20)
    writer.append("/t", 0)
    writer._timeout = 0.3
    port = int(shop.address.rpartition(":")[2])
    shop.close()
    with pytest.raises(ReceiptUnknown, match="no receipt for number 2 .*0.3 s .*with number=2"):
        writer.append("/t", 1)
    with pytest.raises(LogFailed, match="not appended, no answer for 0.3 s"):
        writer.append("/t", 1)
    make_node("shop", port=port, serve_logs={"cpu": log})
    assert eventually(lambda: _appended(writer))
    assert payloads(log)[:2] == [0, "late"]
    writer.close()


def _appended(writer):
    try:
        return writer.append("/t", "late") > 0
    except (LogFailed, ReceiptUnknown):
        return False


def test_an_answer_that_stays_away_leaves_it_unknown(shop, log, monkeypatch):
    writer = LogWriter(shop.address + "/cpu", "meter-7", timeout=0.5)
    held, flush = threading.Event(), log.flush
    monkeypatch.setattr(log, "flush", lambda: held.wait(20) and flush())
    with pytest.raises(ReceiptUnknown, match="append it again with number=1") as unknown:
        writer.append("/t", "once")
    held.set()
    assert unknown.value.number == 1
    writer._timeout = 20
    assert writer.append("/t", "once", number=1) == 0
    assert payloads(log) == ["once"]
    writer.close()


def test_a_full_disk_is_told_and_what_waits_behind_is_not_taken(make_node):
    disk = SimulatedDisk()
    log = CommitLog("/a", disk=disk, sync="none")
    shop = make_node("shop", serve_logs={"cpu": log})
    with LogWriter(shop.address + "/cpu", "meter-7") as writer:
        writer.append("/t", 0)
        disk.faults.capacity = disk.size(f"/a/{0:020}.log") + 50
        told = [writer.append_soon("/t", n) for n in range(1, 9)]
        for each in told:
            with pytest.raises(LogFailed):
                each.result(20)
        disk.faults.capacity = None
        assert [writer.append("/t", n) for n in range(1, 9)] == [*range(1, 9)]
        assert payloads(log) == [*range(9)]


def test_a_sync_that_fails_is_tried_again_with_a_log_opened_anew(
    tmp_path, make_node, monkeypatch
):
    shop = make_node("shop", serve_logs={"cpu": tmp_path / "cpu"})
    with LogWriter(shop.address + "/cpu", "meter-7", timeout=20) as writer:
        writer.append("/t", 0)
        failures = [LogFailed("the disk failed")]
        flush = CommitLog.flush
        monkeypatch.setattr(CommitLog, "flush", lambda log: _flush(log, failures, flush))
        assert writer.append("/t", 1) == 1
        assert not failures
    assert payloads(LogReader(tmp_path / "cpu")) == [0, 1]


def _flush(log, failures, flush):
    if failures:
        raise failures.pop()
    flush(log)


# --- publishing ---


def test_what_is_published_with_a_receipt_is_published_once(make_node, shop, log, writer):
    node = make_node("office")
    with pytest.raises(LogFailed, match="shop cannot publish .* without an endpoint"):
        writer.publish("/power", 0)
    with Endpoint(node=shop) as endpoint, Endpoint(node=node) as office:
        node.connect(shop.address)
        subscriber = office.make_subscriber("/power")
        assert endpoint.await_filter_entry("/power")
        assert writer.publish("/power", {"volt": 230.1}, key="L1") == 0
        assert writer.publish("/power", {"volt": 230.1}, key="L1", number=1) == 0
        assert writer.append("/power", "not published") == 1
        assert writer.publish("/power", 7) == 2
        told = [subscriber.get(20.0) for _ in range(2)]
        assert told == [("/power", {"volt": 230.1}), ("/power", 7)]
    assert payloads(log) == [{"volt": 230.1}, "not published", 7]


# --- rights, and hostile questions ---


@pytest.fixture
def guarded(make_node, log):
    secrets = {"meter": "s1", "billing": "s2", "member": "s3"}
    permissions = {
        "meter": Rights(append=["cpu"]),
        "billing": Rights(logs=["cpu", "safe"]),
        "member": Rights.member(),
    }
    logs = {"cpu": log, "safe": log}
    return make_node("shop", secrets=secrets, permissions=permissions, serve_logs=logs)


def test_writing_is_another_right_than_reading(guarded, log):
    told = []
    with guarded.subscribed(told.append):
        with LogWriter(guarded.address + "/cpu", "meter-7", token="s1") as writer:
            assert writer.append("/t", b"x" * 300_000) == 0
        with LogWriter(guarded.address + "/safe", "meter-7", token="s3") as writer:
            assert writer.append("/t", 1) == 1
        for token, name in (("s1", "safe"), ("s2", "cpu"), ("s1", "absent")):
            with pytest.raises(LogFailed, match=f"no right 'append' for '{name}'"):
                LogWriter(f"{guarded.address}/{name}", "meter-7", token=token)
        with pytest.raises(LogFailed, match="no right 'logs'"):
            LogReader(guarded.address + "/cpu", token="s1")
        assert LogReader(guarded.address + "/cpu", token="s2").end == 2
        refused = lambda: {e.right for e in told if isinstance(e, PermissionRefused)}  # noqa: E731
        assert eventually(lambda: "append" in refused())


def test_publishing_needs_its_own_right_as_well(guarded, log):
    with LogWriter(guarded.address + "/cpu", "meter-7", token="s1") as writer:
        endpoint = Endpoint(node=guarded)
        with pytest.raises(LogFailed, match="no right 'publish' for '/t'"):
            writer.publish("/t", 1)
        endpoint.shutdown()
    assert log.end == 0


ROW = ("/t", b"x", True, None, None, "", None)
PACKED = pack_append(ProducerAppend("a", 1, 1, [AppendedRow("/t", b"x")]))


@pytest.mark.parametrize(
    "question",
    [
        OpenLogProducer("../cpu", "a"),
        OpenLogProducer("cpu", "a b"),
        OpenLogProducer("cpu", 7),
        OpenLogProducer("cpu", "a", -1),
        OpenLogProducer("cpu", "a", 2**63),
        OpenLogProducer("cpu", "a", 2**63 - 1),
        OpenLogProducer(["cpu"], "a"),
        AppendToLog("cpu", "a", 0, 1, [ROW]),
        AppendToLog("cpu", "a", 2**62, 1, [ROW]),
        AppendToLog("cpu", "a", 1, -1, [ROW]),
        AppendToLog("cpu", "a", 1, 1, []),
        AppendToLog("cpu", "a", 1, 1, ROW),
        AppendToLog("cpu", "a", 1, 1, [ROW] * 8193),
        AppendToLog("cpu", "a", 1, 1, [ROW[:1]]),
        AppendToLog("cpu", "a", 1, 1, [(7, *ROW[1:])]),
        AppendToLog("cpu", "a", 1, 1, [("/t", "x", *ROW[2:])]),
        AppendToLog("cpu", "a", 1, 1, [("/t", b"\xff", False, *ROW[3:])]),
        AppendToLog("cpu", "a", 1, 1, [("/t", b"\x81" * 5000, False, *ROW[3:])]),
        AppendToLog("cpu", "a", 1, 1, [(*ROW[:3], 7, *ROW[4:])]),
        AppendToLog("cpu", "a", 1, 1, [(*ROW[:4], {1: 2}, *ROW[5:])]),
        AppendToLog("cpu", "a", 1, 1, [(*ROW[:5], None, None)]),
        AppendToLog("cpu", "a", 1, 1, [(*ROW[:6], 2**64)]),
        group_of("../cpu", [PACKED]),
        group_of("cpu", [PACKED, b"\x80"]),
        group_of("cpu", [PACKED, b"\x07"]),
        group_of("cpu", [PACKED, PACKED[:-1]]),
        group_of("cpu", [PACKED, b"\xd9\xd9\xf7" + PACKED]),
        group_of("cpu", [PACKED, b"\x81" * 5000]),
        group_of("cpu", [PACKED, b"\x9b" + b"\xff" * 8]),
        group_of("cpu", [PACKED, b"\x80" * GROUP_BYTES]),
        AppendGroup("cpu", b""),
        AppendGroup("cpu", PACKED),
        AppendGroup("cpu", b"\xa0"),
        AppendGroup("cpu", "text"),
        AppendGroup("cpu", [PACKED]),
        AppendGroup(7, b"\x80"),
    ],
)
def test_what_no_producer_asks_changes_nothing(make_node, shop, log, question):
    node = make_node("peer")
    ref = node.runtime.ref_of(node.connect(shop.address), LOG_INTAKE)
    opened = ref.ask(OpenLogProducer("cpu", "a"), 20).result(20)[0]
    if isinstance(question, AppendToLog) and question.epoch == 1:
        question = AppendToLog("cpu", "a", opened, question.number, question.rows)
    asked = ref.ask(question, 20)
    if (error := asked.exception(20)) is None:
        assert asked.result()[0] in ("fenced", "record")
    else:
        assert "Traceback" not in str(error)
    assert log.end == 0
    assert ref.ask(AppendToLog("cpu", "a", opened, 1, [ROW]), 20).result(20) == 0


def test_a_log_that_is_read_only_says_so(make_node, tmp_path, log):
    log.append("/t", 1)
    shop = make_node("shop", serve_logs={"cpu": LogReader(log.folder)})
    with LogWriter(shop.address + "/cpu", "meter-7") as writer:  # its folder is written here
        assert writer.append("/t", 2) == 1
