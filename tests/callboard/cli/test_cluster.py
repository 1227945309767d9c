"""The `callboard cluster` commands, against five nodes."""

import json
import logging
import threading
from contextlib import suppress

import pytest

from callboard import Actor, CallboardError, Child, Mailbox, Node, Rights, handler
from callboard.actors.events import ActorFailed
from callboard.cli import main
from tests.polling import eventually

NAMES = ("gate", "shop", "stock", "bank", "mail")


class Till(Actor):
    """Waits for a clerk that never answers."""

    def __init__(self, clerk=None) -> None:
        self.clerk = clerk

    @handler
    async def text(self, msg: str) -> object:
        return await self.clerk.ask(msg, timeout=None)


class Clerk(Actor):
    @handler
    def text(self, msg: str) -> None:
        self.promise()


class Weak(Actor):
    @handler
    def text(self, msg: str) -> None:
        raise ValueError(f"no \x1b[31m{msg}")


class Small(Actor):
    mailbox = Mailbox(limit=1, on_full="drop_newest")

    @handler
    def gate(self, msg: threading.Event) -> None:
        msg.wait(30)


class Sink(Actor):
    @handler
    def number(self, msg: int) -> None:
        pass


@pytest.fixture
def cluster_of_five():
    """A line of nodes on 127.0.0.1: no node but the first two is linked with the first."""
    nodes = [Node(name) for name in NAMES]
    for node in nodes:
        node.listen("127.0.0.1", 0)
    for one, other in zip(nodes, nodes[1:], strict=False):
        one.connect(other.address)
    eventually(lambda: all(len(node.nodes()) == len(nodes) - 1 for node in nodes))
    eventually(lambda: {other.name for other in nodes[0].nodes()} == {*NAMES[1:]})
    yield nodes
    for node in nodes:
        node.close()


def call(capsys, *arguments):
    code = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows(capsys, *arguments):
    code, out, _ = call(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)["rows"]


@pytest.mark.slow
def test_hangs_lists_the_actors_that_hang(cluster_of_five, capsys):
    gate, _, _, bank, _ = cluster_of_five
    clerk = bank.spawn(Clerk)
    till = bank.spawn(Till, clerk)
    bank.register("till", till)
    for word in ("first", "second", "third"):
        till.tell(word)
    eventually(lambda: till.target.activity == "awaiting")

    def found():
        return rows(capsys, "cluster", "hangs", gate.address, "--seconds", "0.1")

    eventually(lambda: found() != [])
    (row,) = found()
    assert (row["node"], row["name"], row["state"], row["depth"]) == (
        *("bank", "till", "awaiting"),
        2,
    )
    assert row["handler"] == "Till.text"
    assert row["place"].startswith("test_cluster.py:")
    assert row["awaits"] == f"an answer of {clerk}"
    _, out, _ = call(capsys, "cluster", "hangs", gate.address, "--seconds", "0.1")
    assert out.splitlines()[1].split()[:4] == ["bank", *_number(till), "Till", "till"]


def test_restarts_lists_the_restarted_actors(cluster_of_five, capsys):
    gate, shop, *_ = cluster_of_five
    failed = threading.Semaphore(0)
    seen = []

    def is_there_again():
        with suppress(CallboardError):
            found = shop.find("weak").result(5)
            if found not in seen:
                seen.append(found)
                return True
        return False

    with shop.subscribed(lambda event: isinstance(event, ActorFailed) and failed.release()):
        shop.supervise([Child(Weak, name="weak")], intensity=(5, 60.0), backoff=(0.0, 0.0))
        for _ in range(2):
            eventually(is_there_again)
            seen[-1].tell("good")
            assert failed.acquire(timeout=10)

    eventually(lambda: _restarts(rows(capsys, "cluster", "restarts", gate.address)) == [2])
    (row,) = rows(capsys, "cluster", "restarts", gate.address)
    assert (row["node"], row["child"], row["gave_up"]) == ("shop", "weak", False)
    assert row["reason"].startswith("error: ValueError: no ")
    _, out, _ = call(capsys, "cluster", "restarts", gate.address)
    assert "\x1b" not in out
    assert "\\x1b[31mgood" in out


def _restarts(found):
    return [row["restarts"] for row in found]


def _number(ref):
    return (f"{ref.actor_id}@{ref.node_id.hex()[:6]}",)


@pytest.mark.slow
def test_losses_lists_the_losses_of_each_node(cluster_of_five, capsys):
    gate, shop, stock, _, mail = cluster_of_five
    sink = mail.spawn(Sink)
    mail.register("sink", sink)
    there = shop.ref(str(sink))
    sink.kill()
    eventually(lambda: mail.stats().actors == 0)
    for number in range(3):
        sink.tell(number)
    there.tell("from afar")  # whichever node learns first of the end counts it
    small, is_over = stock.spawn(Small), threading.Event()
    small.tell(is_over)
    eventually(lambda: small.target.activity == "running")
    for _ in range(5):
        small.tell(threading.Event())

    def found():
        lost = rows(capsys, "cluster", "losses", gate.address)
        return {row["message"] or row["kind"]: row for row in lost}

    eventually(lambda: found().get("int", {}).get("count") == 3)
    eventually(lambda: found().get("overflow", {}).get("count") == 4)
    eventually(lambda: found().get("str", {}).get("count") == 1)
    is_over.set()
    lost = found()
    letters, overflow = lost["int"], lost["overflow"]
    assert (letters["node"], letters["actor_class"], letters["name"]) == (
        *("mail", "Sink", "sink"),
    )
    assert (letters["kind"], letters["end"]) == ("dead letter", "killed")
    from_afar = lost["str"]["actor_class"], lost["str"]["sender"]
    assert from_afar in (("an actor of mail", ""), ("Sink", "node shop"))
    assert (overflow["node"], overflow["actor_class"]) == ("stock", "Small")

    code, out, _ = call(capsys, "node", "dead-letters", mail.address)
    assert code == 0
    lines = [line.split()[:6] for line in out.splitlines()]
    assert ["mail", "dead", "letter", "sink", "3", "int"] in lines


@pytest.mark.slow
def test_all_actors_are_listed_sorted_filtered_and_described(cluster_of_five, capsys):
    gate, shop, *_, mail = cluster_of_five
    busy, quiet = shop.spawn(Sink), mail.spawn(Sink)
    mail.register("quiet", quiet)
    watched = mail.monitor(quiet)
    for number in range(4):
        busy.tell(number)
    eventually(lambda: busy.target.handled == 4)

    listed = rows(capsys, "cluster", "ps", gate.address, "--sort", "handled")
    assert [(row["node"], row["handled"]) for row in listed] == [("shop", 4), ("mail", 0)]
    listed = rows(capsys, "cluster", "ps", gate.address, "--match", "qui*")
    assert [row["name"] for row in listed] == ["quiet"]
    listed = rows(capsys, "cluster", "ps", gate.address, "--node", "sh*", "--state", "idle")
    assert [row["node"] for row in listed] == ["shop"]

    _, out, _ = call(capsys, "cluster", "ps", gate.address, "--actor", "quiet")
    assert out.splitlines()[0] == "Sink (quiet) on mail"
    assert f"  address   {quiet}" in out.splitlines()
    (page,) = rows(capsys, "cluster", "ps", gate.address, "--actor", _number(quiet)[0])
    assert page["watchers"] == 2  # its name's and this test's
    assert not watched.done()

    code, _, err = call(capsys, "cluster", "ps", gate.address, "--actor", "nobody")
    assert (code, err.count("there is no actor")) == (1, 1)
    code, _, err = call(capsys, "cluster", "ps", gate.address, "--sort", "colour")
    assert (code, err.count("choose one of depth")) == (2, 1)


def test_events_of_a_node_are_printed_from_outside(cluster_of_five, capsys):
    gate, shop, *_ = cluster_of_five
    shop.spawn(Weak).tell("luck")
    eventually(lambda: shop.stats().failures == 1)

    code, out, _ = call(capsys, "node", "events", shop.address, "--json")

    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert code == 0
    assert {"LinkUp", "NodeUp", "ActorFailed"} <= {*kinds}
    _, out, _ = call(capsys, "node", "events", shop.address, "--kind", "ActorFailed")
    assert out.count("\n") == 1
    assert "\\x1b[31mluck" in out
    follow = ("-f", "--limit", "0", "--count", "2", "--interval", "0.05")
    code, _, _ = call(capsys, "node", "events", shop.address, *follow)
    assert code == 0


@pytest.mark.slow
def test_a_caller_without_the_right_to_inspect_gets_no_rows(capsys, monkeypatch):
    blind, seeing = Rights(names=["*"]), Rights(inspect=True)
    with Node(
        "shop", secrets={"b": "s1", "s": "s2"}, permissions={"b": blind, "s": seeing}
    ) as shop:
        shop.listen("127.0.0.1", 0)
        for secret, code in (("s1", 1), ("s2", 0)):
            monkeypatch.setenv("CALLBOARD_SECRET", secret)
            for words in (
                *(("cluster", "ps"), ("cluster", "hangs"), ("cluster", "losses")),
                *(("cluster", "restarts"), ("node", "events"), ("node", "dead-letters")),
            ):
                found, _, err = call(capsys, *words, shop.address)
                assert (found, "'inspect'" in err) == (code, code == 1), words


class Hoarder(Actor):
    def __init__(self) -> None:
        self.blocks = [bytes(1_000_000) for _ in range(40)]

    @handler
    def text(self, msg: str) -> None: ...


def test_the_class_of_an_actor_that_holds_40_mb_is_first_in_sizes(cluster_of_five, capsys):
    gate, bank = cluster_of_five[0], cluster_of_five[3]
    hoarder = bank.spawn(Hoarder)
    for _ in range(5):
        gate.spawn(Sink)

    first, second = rows(capsys, "cluster", "sizes", gate.address)

    assert (first["node"], first["class"], first["largest"]) == (
        "bank",
        "Hoarder",
        str(hoarder),
    )
    assert first["bytes"] == pytest.approx(40_000_000, rel=0.01)
    assert (second["class"], second["actors"]) == ("Sink", 5)


def test_links_are_listed_with_their_round_trips_at_both_ends(cluster_of_five, capsys):
    listed = rows(capsys, "cluster", "links", cluster_of_five[0].address)

    ends = {(row["node"], row["peer"]) for row in listed}
    assert {("gate", "shop"), ("shop", "gate"), ("mail", "bank"), ("bank", "mail")} <= ends
    assert len(ends) == 8
    assert all(0.0 < row["round_trip"] < 60.0 for row in listed)


def test_top_shows_rates_memory_and_processor_of_each_node(cluster_of_five, capsys):
    gate, shop = cluster_of_five[:2]
    sink = shop.spawn(Sink)
    arguments = "cluster", "top", gate.address, "--count", 2, "--interval", 0.6, "--json"
    for number in range(50):
        sink.tell(number)

    code, out, _ = call(capsys, *arguments)

    first, second = map(json.loads, out.splitlines())
    assert code == 0
    assert {row["node"] for row in second["nodes"]} == {*NAMES}
    assert all(row["process"]["resident_bytes"] > 1_000_000 for row in second["nodes"])
    assert all(row["cpu"] is None for row in first["nodes"])
    assert all(row["cpu"] >= 0.0 for row in second["nodes"])
    assert "Sink" in {actor["actor_class"] for actor in second["actors"]}


def test_events_of_all_nodes_are_in_the_order_of_time(cluster_of_five, capsys):
    gate, _, _, bank, mail = cluster_of_five
    weak = mail.spawn(Weak)
    weak.tell("a")
    eventually(lambda: mail.stats().failures == 1)
    bank.spawn(Weak).tell("b")
    eventually(lambda: bank.stats().failures == 1)

    arguments = "cluster", "events", gate.address, "--kind", "ActorFailed", "--json"
    code, out, _ = call(capsys, *arguments)

    assert code == 0
    assert [json.loads(line)["node"] for line in out.splitlines()] == ["mail", "bank"]


def test_ps_shows_release_and_memory_of_each_node(cluster_of_five, capsys):
    _, out, _ = call(capsys, "cluster", "ps", cluster_of_five[0].address)

    (line,) = [line for line in out.splitlines() if line.startswith("mail: ")]
    assert "release " in line
    assert "MB of memory" in line


def test_a_log_level_is_changed_and_the_change_is_logged(cluster_of_five, capsys, caplog):
    log = logging.getLogger("callboard.tests.levels")
    log.setLevel("ERROR")
    address, options = cluster_of_five[0].address, ("--logger", log.name, "--json")

    code, out, _ = call(capsys, "node", "log-level", address, "debug", *options)

    assert code == 0
    assert json.loads(out) == {"logger": log.name, "level": "DEBUG", "former": "ERROR"}
    assert log.level == logging.DEBUG
    assert f"the level of {log.name} was ERROR and is DEBUG now" in caplog.text


def test_an_unknown_log_level_is_refused_with_the_known_ones(cluster_of_five, capsys):
    code, _, err = call(capsys, "node", "log-level", cluster_of_five[0].address, "loud")

    assert code != 0
    assert "use one of DEBUG, INFO, WARNING, ERROR, CRITICAL" in err
