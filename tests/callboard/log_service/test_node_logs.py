"""Logs that a node serves to others over BASP: read as if they were here, by who may."""

import asyncio
import gc
import threading

import pytest

from callboard import Node, Rights, errors
from callboard.actors.errors import NodeClosed
from callboard.actors.future import Future
from callboard.basp.header import LOG_SERVICE
from callboard.commitlog import CommitLog, LogFailed, LogReader, Retention
from callboard.commitlog.verify import verify
from callboard.log_service import log_service, node_disk, read_scheduler
from callboard.log_service.messages import AwaitLogGrowth, ListLogFiles, ListLogs, ReadLogFile
from callboard.operation.metrics import node_metrics
from callboard.proxies.events import PermissionRefused
from tests.polling import eventually
from tests.proxies.papers import Papers

FIRST = "00000000000000000000.log"


@pytest.fixture
def make_node():
    made = []

    def make(name="", *, port=0, host="127.0.0.1", **options):
        made.append(Node(name, **options))
        made[-1].listen(host, port)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def log(tmp_path):
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=5000) as log:
        for start in range(0, 600, 50):
            log.append_batch(list(range(start, start + 50)), topic=["/a", "/b"] * 25, key="k")
        yield log


@pytest.fixture
def shop(make_node, log):
    return make_node("shop", serve_logs={"cpu": log.folder})


@pytest.fixture
def peer(make_node, shop):
    """Ask the service of the shop as another node does."""
    node = make_node("peer")
    ref = node.runtime.ref_of(node.connect(shop.address), LOG_SERVICE)
    return lambda question: ref.ask(question, 20)


@pytest.mark.parametrize("own_node", [True, False])
def test_it_reads_as_a_folder_does(shop, log, make_node, own_node):
    log.append("/big", b"x" * 3_000_000)
    node = None if own_node else make_node("reader")
    there, here = LogReader(shop.address + "/cpu", node=node), LogReader(log.folder)
    assert (there.start, there.end, len(there.segments)) == (0, 601, len(here.segments))
    assert list(there.read(5)) == list(here.read(5))
    assert there.readv(590, 5) == here.readv(590, 5)
    assert there.offset_at(here.readv(300, 1).records[0].time) <= 300
    assert there.folder == shop.address + "/cpu"
    assert verify(there).records == verify(here.folder).records == 601
    assert there.readers == []


@pytest.mark.parametrize("served", ["folder", "log", "memory", "other process"])
def test_who_follows_sees_what_is_appended(make_node, tmp_path, served):
    place = None if served == "memory" else tmp_path / "cpu"
    with CommitLog(place) as log:
        what = log.folder if served in ("folder", "other process") else log
        shop = make_node("shop", serve_logs={"cpu": what})
        if served == "other process":  # nothing tells of what is appended there
            log.growth = type(log.growth)()
        log.append("/n", 0)
        follower = LogReader(shop.address + "/cpu").follow(0, timeout=20)
        for number in range(5):
            assert next(iter(follower)).payload == number
            timer = threading.Timer(0.05, log.append, ("/n", number + 1))
            timer.start()
        timer.join()


def test_a_follower_on_a_loop_leaves_it_free(shop, log):
    follower = LogReader(shop.address + "/cpu").follow(598, timeout=20)

    async def follow():
        ticks = 0
        seen = []

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async for record in follower:
            seen.append(record.offset)
            if len(seen) == 3:
                break
            if len(seen) == 2:
                asyncio.get_running_loop().call_later(0.05, log.append, "/n", 1)
        ticking.cancel()
        return seen, ticks

    seen, ticks = asyncio.run(follow())
    assert seen == [598, 599, 600]
    assert ticks > 3


def test_a_log_may_be_made_later(make_node, tmp_path):
    shop = make_node("shop", serve_logs={"cpu": tmp_path / "cpu"})
    with pytest.raises(LogFailed, match="there is no log in basp://"):
        LogReader(shop.address + "/cpu")
    with CommitLog(tmp_path / "cpu") as log:
        log.append("/a", 1)
        assert LogReader(shop.address + "/cpu").end == 1


def test_retention_while_reading_is_counted(make_node):
    with CommitLog(segment_bytes=2000, retain=Retention(records=300)) as log:
        shop = make_node("shop", serve_logs={"cpu": log})
        log.append_batch([b"x" * 100] * 10, topic="/a")
        reader = LogReader(shop.address + "/cpu")
        reading = iter(follower := reader.follow(0, timeout=5))
        assert next(reading).offset == 0
        reading.close()
        for _ in range(100):
            log.append_batch([b"y" * 100] * 10, topic="/a")
        first = follower.read(1)[0]
        assert first.offset == log.start > 1
        assert follower.lost == log.start - 1


def test_it_goes_on_behind_a_node_that_was_started_anew(make_node, log, shop):
    follower = LogReader(shop.address + "/cpu").follow(590, timeout=20)
    assert follower.poll()[-1].offset == 599
    port = int(shop.address.rpartition(":")[2])
    shop.close()
    log.append("/late", 1)
    again = {"port": port, "serve_logs": {"cpu": log}}
    timer = threading.Timer(0.1, make_node, ("shop",), again)
    timer.start()
    assert [each.offset for each in follower.poll()] == [600]
    timer.join()


def test_a_node_that_stays_away_is_told(monkeypatch, shop, log):
    reader = LogReader(shop.address + "/cpu")
    shop.close()
    monkeypatch.setattr(node_disk, "PATIENCE", 0.3)
    with pytest.raises(LogFailed, match="no answer; is that node running"):
        reader.start  # noqa: B018
    with pytest.raises(LogFailed, match="no answer; is that node running"):
        LogReader("basp://127.0.0.1:1/cpu")


def test_what_is_not_served_is_named(make_node, shop):
    with pytest.raises(LogFailed, match=r"no log is served as 'gpu' by shop.*are: cpu$"):
        LogReader(shop.address + "/gpu")
    with pytest.raises(LogFailed, match="that node does not serve logs"):
        LogReader(make_node("other").address + "/cpu")


@pytest.mark.parametrize(
    "text",
    ["basp://", "basp://h/x", "basp://h:1", "basp://h:1/", "basp://h:x/y", "basp://h:1/a b"],
)
def test_an_address_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match="does not name a log; write basp://HOST:PORT/NAME"):
        LogReader(text)


@pytest.mark.parametrize(
    ("logs", "why"),
    [
        (["cpu"], "serve_logs takes folders or logs by their names"),
        ({"cpu": 5}, "serve_logs takes folders or logs by their names"),
        ({"a/b": "/tmp/x"}, "'a/b' is not a log name"),
        ({"cpu": "grpc://h:1/cpu"}, "is served elsewhere"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(logs, why):
    with pytest.raises((TypeError, ValueError), match=why):
        Node("shop", serve_logs=logs)


def test_nothing_can_be_written(shop):
    with pytest.raises(LogFailed, match="served read-only"):
        CommitLog(shop.address + "/cpu")


@pytest.mark.slow
def test_the_node_of_readers_ends_with_the_last_of_them(shop):
    readers = [LogReader(shop.address + "/cpu") for _ in range(3)]
    assert len(shop.links()) == 1
    assert shop.nodes() == []  # it is a tool
    del readers
    gc.collect()
    eventually(lambda: not shop.links())


def test_a_drain_does_not_wait_for_who_follows(shop, log):
    follower = LogReader(shop.address + "/cpu").follow(timeout=20)
    read = []
    thread = threading.Thread(target=lambda: read.extend(follower.read(timeout=20)))
    thread.start()
    cell = shop.runtime.contexts[LOG_SERVICE]
    eventually(lambda: cell.owed_answers)
    report = shop.drain(20)
    assert report.is_clean
    assert report.seconds < 15
    port = int(shop.address.rpartition(":")[2])
    log.append("/n", 1)
    with Node("again", serve_logs={"cpu": log}) as again:
        again.listen("127.0.0.1", port)
        thread.join()
    assert [each.offset for each in read] == [600]


# --- rights ---

SECRETS = {"billing": "s1", "nobody": "s2", "member": "s3"}
PERMISSIONS = {
    "billing": Rights(logs=["cpu", "orders-*"]),
    "nobody": Rights(names=["*"]),
    "member": Rights.member(),
}


@pytest.fixture
def guarded(make_node, log):
    logs = dict.fromkeys(("cpu", "orders-1", "safe"), log.folder)
    return make_node("shop", secrets=SECRETS, permissions=PERMISSIONS, serve_logs=logs)


def test_who_may_read_is_said_by_rights(guarded, monkeypatch):
    assert LogReader(guarded.address + "/cpu", token="s1").end == 600
    assert LogReader(guarded.address + "/safe", token="s3").end == 600
    monkeypatch.setenv("CALLBOARD_SECRET", "s1")
    assert LogReader(guarded.address + "/orders-1").end == 600


def test_who_may_not_read_learns_no_names(guarded):
    told = []
    with guarded.subscribed(told.append):
        for token, name in (("s1", "safe"), ("s1", "absent"), ("s2", "cpu")):
            with pytest.raises(LogFailed, match=f"no right 'logs' for '{name}'") as failed:
                LogReader(f"{guarded.address}/{name}", token=token)
            others = {"cpu", "orders-1", "safe", "absent"} - {name}
            assert not any(other in str(failed.value) for other in others)
        with pytest.raises(LogFailed, match=r"are: cpu, orders-1$"):
            LogReader(guarded.address + "/orders-2", token="s1")
        refusals = [each for each in told if isinstance(each, PermissionRefused)]
        assert refusals[0].right == "logs"


def test_a_wrong_secret_is_told_at_once(guarded):
    with pytest.raises(LogFailed, match="secret"):
        LogReader(guarded.address + "/cpu", token="wrong")


def test_rights_hold_for_nodes_behind_a_member(make_node, log):
    leaf = Rights(logs=["cpu"], reach=["store"])
    shop = make_node(
        "shop", secrets={"a": "s1", "m": "s3"}, permissions={"a": leaf, "m": Rights.member()}
    )
    store = make_node("store", secret="s3", serve_logs={"cpu": log, "safe": log})
    store.connect(shop.address)
    probe = make_node("probe", secret="s1")
    probe.connect(shop.address)
    eventually(lambda: probe.overlay.path(store.node_id))
    ref = probe.runtime.ref_of(store.node_id, LOG_SERVICE)
    assert ref.ask(ListLogFiles("cpu"), 20).result(20)
    for question in (ListLogFiles("safe"), ListLogs(), ReadLogFile("safe", FIRST, 0, 9)):
        with pytest.raises(errors.NotPermitted):
            ref.ask(question, 20).result(20)


def test_tls_guards_the_way(make_node, log, tmp_path, monkeypatch):
    papers = Papers(tmp_path / "tls")
    shop = make_node("shop", tls=papers.tls(mutual=False), serve_logs={"cpu": log})
    reader = make_node("reader", tls=papers.tls(mutual=False))
    assert LogReader(shop.address + "/cpu", node=reader).end == 600
    monkeypatch.setenv("CALLBOARD_TLS", str(tmp_path / "tls"))
    assert LogReader(shop.address + "/cpu").end == 600


def test_a_unix_socket_is_an_address(make_node, log, tmp_path):
    shop = Node("shop", serve_logs={"cpu": log})
    with shop:
        shop.listen(f"unix:{tmp_path}/s")
        assert LogReader(shop.address + "/cpu").end == 600


# --- hostile questions ---


@pytest.mark.parametrize(
    "question",
    [
        ReadLogFile("cpu", FIRST, -1, 5),
        ReadLogFile("cpu", FIRST, 0, -5),
        ReadLogFile("cpu", FIRST, 2**70, 5),
        ReadLogFile("cpu", FIRST, "0", 5),
        ReadLogFile("cpu", FIRST, 0, 5, reader=-1),
        ReadLogFile("cpu", "../cpu/" + FIRST, 0, 5),
        ReadLogFile("cpu", "lock", 0, 5),
        ReadLogFile("cpu", "", 0, 5),
        ReadLogFile("cpu", FIRST + "\n", 0, 5),
        ReadLogFile(["cpu"], FIRST, 0, 5),
        ReadLogFile("../cpu", FIRST, 0, 5),
        ListLogFiles("cpu\n"),
        ListLogFiles(7),
        AwaitLogGrowth("cpu", FIRST, 1.5),
        AwaitLogGrowth("cpu", "/etc/passwd", 1),
    ],
)
def test_questions_that_no_reader_asks_are_refused(peer, question):
    with pytest.raises(errors.CallboardError):
        peer(question).result(20)
    assert peer(ListLogs()).result(20) == ("cpu",)


def test_no_answer_is_longer_than_a_piece(peer, log):
    log.append("/big", b"x" * 1_000_000)
    file = max(peer(ListLogFiles("cpu")).result(20))
    file = max(each for each in peer(ListLogFiles("cpu")).result(20) if each.endswith(".log"))
    assert len(peer(ReadLogFile("cpu", file, 0, 2**60)).result(20)) == 8 + (256 << 10)
    assert len(peer(ReadLogFile("cpu", file, 2**62, 100)).result(20)) == 8


def test_who_takes_nothing_gets_no_more_lists(monkeypatch, peer):
    monkeypatch.setattr(log_service, "TAKEN_WITHIN", 0)
    with pytest.raises(errors.MailboxFull, match="the link to the reader is full"):
        peer(ListLogFiles("cpu")).result(20)


def test_readers_beyond_a_limit_look_now_and_then(monkeypatch, shop, log, peer):
    monkeypatch.setattr(read_scheduler, "WAITS_PER_PEER", 0)
    with pytest.raises(errors.MailboxFull, match="wait for growth already"):
        peer(AwaitLogGrowth("cpu", *peer(AwaitLogGrowth("cpu")).result(20))).result(20)
    follower = LogReader(shop.address + "/cpu").follow(timeout=20)
    timer = threading.Timer(0.05, log.append, ("/new", "value"))
    timer.start()
    assert next(iter(follower)).payload == "value"
    timer.join()


def test_metrics_tell_readers_and_their_lag(shop, log):
    reader = LogReader(shop.address + "/cpu")
    assert shop.served_logs()[0].readers == 0
    next(reading := iter(reader.read(0)))
    (served,) = shop.served_logs()
    assert (served.name, served.readers) == ("cpu", 1)
    assert 0 < served.lag < served.size == sum(each.bytes for each in log.segments)
    told = {each.name: each.samples for each in node_metrics(shop)}
    assert [value for *_, value in told["callboard_served_log_readers"]] == [1]
    assert [value for *_, value in told["callboard_served_log_lag_bytes"]] == [served.lag]
    assert len(list(reading)) == 599
    eventually(lambda: shop.served_logs()[0].lag == 0)
    assert Node.served_logs(shop)[0].lag == 0


class Caller:
    """Stands for a node with a log; its reply is made by hand."""

    log = "cpu"

    def __init__(self):
        self.reply = Future()

    def begin(self, _question, _seconds):
        return self.reply


@pytest.mark.parametrize("reply", [("first", 7), ("first", "a number"), NodeClosed("gone")])
def test_a_reply_about_growth_wakes_readers_and_a_failure_lets_them_poll(reply):
    caller, woken = Caller(), []
    growth = node_disk.RemoteGrowth(caller)
    growth.add(lambda: woken.append(True))

    if isinstance(reply, tuple):
        caller.reply.set_result(reply)
    else:
        caller.reply.set_exception(reply)

    assert bool(woken) is isinstance(reply, tuple)


def test_a_reply_to_a_reader_that_is_gone_wakes_nobody():
    caller, woken = Caller(), []
    growth = node_disk.RemoteGrowth(caller)
    growth.add(lambda: woken.append(True))

    del growth
    gc.collect()
    caller.reply.set_result(("first", 7))

    assert woken == []
