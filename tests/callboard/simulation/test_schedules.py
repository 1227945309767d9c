"""Searches over schedules: what they find, what they print, and that nothing is left out."""

import asyncio
import random
import re

import pytest

from callboard import Actor, Down, handler
from callboard.broker import Endpoint
from callboard.simulation import (
    AlwaysBroken,
    Counter,
    Deadlock,
    NotDeterministic,
    NotLinearizable,
    TimeStandsStill,
    always,
    cut,
    explore,
    kill,
    linearizable,
)
from callboard.simulation.schedules.search import Search

pytest_plugins = ["pytester"]


class Store(Actor):
    def __init__(self) -> None:
        self.total = 0

    @handler
    def on_read(self, msg: str) -> int:
        return self.total

    @handler
    def on_write(self, msg: int) -> None:
        self.total = msg


class Client(Actor):
    def __init__(self, store) -> None:
        self.store = store

    @handler
    async def on_go(self, msg: str) -> int:
        seen = await self.store.ask("read")
        await self.store.ask(seen + 1)
        return seen + 1


class Relay(Actor):
    def __init__(self, to, what) -> None:
        self.to, self.what = to, what

    @handler
    def on_text(self, msg: str) -> None:
        self.to.tell(self.what)


class Sink(Actor):
    def __init__(self, seen) -> None:
        self.seen = seen

    @handler
    def on_text(self, msg: str) -> None:
        self.seen.append(msg)


def two_clients(cluster, names=("b", "c")):
    nodes = {node.name: node for node in cluster(3, topology="mesh")}
    store = nodes["a"].spawn(Store)
    history = cluster.history()
    for name in names:
        node = nodes[name]
        client = node.spawn(Client, node.ref(str(store)))
        history.ask(client, "go", key="total", operation="add", value=1)
    cluster.advance(5.0)
    history.check(linearizable(Counter()))


def test_a_lost_update_between_awaits_is_found():
    found = explore(two_clients)

    assert isinstance(found.failure.error, NotLinearizable)
    assert "Store on a" in str(found.failure)


def test_a_wrong_assumption_of_order_between_two_senders_is_found_with_one_deviation():
    def in_order(cluster):
        (a,) = cluster(1)
        seen = []
        sink = a.spawn(Sink, seen)
        for what in ("first", "second"):
            a.spawn(Relay, sink, what).tell("go")
        cluster.advance(1.0)
        assert seen == ["first", "second"]

    found = explore(in_order)

    assert found.failure.taken == [(1, "Relay on a 2")]
    lines = str(found.failure).splitlines()
    assert re.fullmatch(r" +Relay on a 2 +Relay on a +Sink on a", lines[0])
    assert re.fullmatch(r"\*   1 +0.0000 s  o 'go' +\| +\|  +\(before Relay on a\)", lines[1])
    assert "o 'second' from Relay on a 2" in lines[3]


class Patient(Actor):
    def __init__(self, service) -> None:
        self.service, self.state = service, "new"

    @handler(concurrent=True)
    async def on_go(self, msg: str) -> str:
        self.after(0.5, 1)
        await self.service.ask("read")
        assert self.state == "new", "given up, and answered"
        self.state = "answered"
        return self.state

    @handler
    def on_late(self, msg: int) -> None:
        if self.state == "new":
            self.state = "given up"


def a_timer_and_an_answer(cluster):
    a, b = cluster(2)
    patient = a.spawn(Patient, a.ref(str(b.spawn(Store))))
    assert patient.ask("go").result(5) == "answered"


def test_a_timer_that_races_with_an_answer_is_found():
    found = explore(a_timer_and_an_answer)

    assert found.failure.taken == [(2, "time")]
    assert "--- 0.5" in str(found.failure)


def test_timers_of_callboard_are_no_steps():
    def publish(cluster):
        a, b = cluster(2)
        here, there = Endpoint(node=a), Endpoint(node=b)
        subscriber = there.make_subscriber(["/x"])
        cluster.advance(1.0)
        here.publish("/x", 1)
        cluster.advance(1.0)
        assert subscriber.poll() == [("/x", 1)]

    found = explore(publish, walks=5, deviations=1)

    assert found.failure is None
    assert found.most_steps < 20


def test_a_timer_does_not_race_with_what_may_not_be_as_late():
    found = explore(a_timer_and_an_answer, late=0.4, walks=20)

    assert found.failure is None
    assert found.is_whole


class Asked(Actor):
    """Two of them ask each other, if they come to it at the same time."""

    other = None

    @handler
    def on_other(self, msg: list) -> None:
        self.other = msg[0]

    @handler
    async def on_go(self, msg: str) -> str:
        return await self.other.ask(1)

    @handler
    def on_number(self, msg: int) -> str:
        return "answer"


class Late(Actor):
    def __init__(self, to) -> None:
        self.to = to

    @handler
    async def on_text(self, msg: str) -> str:
        await self.sleep(0.05)
        return await self.to.ask(msg)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_deadlock_of_asks_is_found_and_named(nodes):
    def ask_both(cluster):
        made = cluster(nodes)
        one, other = made[0].spawn(Asked), made[-1].spawn(Asked)
        one.tell([made[0].ref(str(other))])
        other.tell([made[-1].ref(str(one))])
        cluster.advance(0.1)
        asked = [one.ask("go"), made[-1].spawn(Late, other).ask("go")]
        assert [each.result(60) for each in asked] == ["answer", "answer"]

    early = explore(ask_both, late=0.01, walks=10, deviations=1)
    found = explore(ask_both)

    assert early.failure is None
    assert isinstance(found.failure.error, Deadlock)
    last = "Asked on b" if nodes == 2 else "Asked on a 2"
    assert f"Asked on a -> {last} -> Asked on a" in str(found.failure.error)


class Watcher(Actor):
    """It monitors its worker only when that has said hello."""

    def __init__(self, worker, monitors_first) -> None:
        self.worker, self.monitors_first, self.lost = worker, monitors_first, False

    @handler
    def on_text(self, msg: str) -> None:
        if self.monitors_first:
            self.monitor(self.worker)
        self.worker.tell(self.me)

    @handler
    def on_hello(self, msg: int) -> None:
        if not self.monitors_first:
            self.monitor(self.worker)

    @handler
    def on_down(self, msg: Down) -> None:
        self.lost = True

    @handler
    def on_question(self, msg: bytes) -> bool:
        return self.lost


class Greeter(Actor):
    @handler
    def on_any(self, msg: object) -> None:
        msg.tell(1)


@pytest.mark.parametrize("monitors_first", [True, False])
def test_a_missed_monitor_is_found_with_a_kill_at_any_step(monitors_first):
    def watch(cluster):
        a, b = cluster(2)
        watcher = a.spawn(Watcher, a.ref(str(b.spawn(Greeter))), monitors_first)
        watcher.tell("go")
        cluster.advance(20.0)
        assert cluster.is_running(b) or watcher.ask(b"?").result(5)

    found = explore(watch, faults=[kill(1)], walks=50, deviations=1)

    if monitors_first:
        assert found.failure is None
        assert found.is_whole
    else:
        assert [who for _, who in found.failure.taken] == ["kill(1, at=0, lasts=1)"]


def test_a_fault_may_come_while_all_is_at_rest():
    def rest(cluster):
        a, b = cluster(2)
        cluster.advance(5.0)
        assert len(a.nodes()) == 1
        cluster.advance(1.0)

    assert explore(rest, walks=0).failure is None
    assert explore(rest, faults=[kill(1)], walks=0).failure is not None


def test_what_always_holds_may_be_said_in_a_handler():
    class Picky(Actor):
        @handler
        def on_text(self, msg: str) -> None:
            always(msg == "a", "it is an a")

    def tell(cluster):
        (a,) = cluster(1)
        a.spawn(Picky).tell("b")
        cluster.advance(1.0)

    assert isinstance(explore(tell).failure.error, AlwaysBroken)


def test_a_test_without_an_end_is_found_soon():
    class Loop(Actor):
        @handler
        def on_text(self, msg: str) -> None:
            self.me.tell(msg)

    def tell(cluster):
        (a,) = cluster(1)
        a.spawn(Loop).tell("again")
        cluster.advance(1.0)

    assert isinstance(explore(tell).failure.error, TimeStandsStill)


def test_a_schedule_that_ends_otherwise_is_not_deterministic():
    chance = random.Random(1)

    def careless(cluster):
        assert chance.random() > 0.5

    with pytest.raises(NotDeterministic, match="it was repeated"):
        explore(careless)


# --- nothing is left out ---


class Part(Actor):
    """Passes what it gets on as its program says, and keeps its order."""

    def __init__(self, seen, program) -> None:
        self.seen, self.program, self.to = seen, program, {}

    @handler
    def on_others(self, msg: dict) -> None:
        self.to = msg

    @handler
    def on_text(self, msg: str) -> None:
        self.seen.append(msg)
        for other, word in self.program.get(msg, ()):
            self.to[other].tell(word)

    @handler(concurrent=True)
    async def on_number(self, msg: int) -> None:
        self.seen.append("begin")
        await self.sleep(0.01)
        self.seen.append("end")


def programs(seed):
    """Return what three actors do with words, at random, without circles."""
    rng = random.Random(seed)
    words = "abcdef"
    return [
        {
            word: [
                (rng.randrange(3), rng.choice([*words[place + 1 :], 1]))
                for _ in range(rng.randrange(3))
            ]
            for place, word in enumerate(words[:4])
        }
        for _ in range(3)
    ]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("seed", range(1, 5))
def test_what_is_not_tried_twice_leaves_no_outcome_out(seed, is_shared):
    def outcomes(*, prune):
        found = set()

        def live(cluster):
            nodes = cluster(2)
            together = []
            seen = [together if is_shared else [] for _ in range(3)]
            homes = [nodes[0], nodes[0], nodes[1]]
            refs = [
                home.spawn(Part, mine, program)
                for home, mine, program in zip(homes, seen, programs(seed), strict=True)
            ]
            with cluster.in_order():
                for home, ref in zip(homes, refs, strict=True):
                    others = {place: home.ref(str(each)) for place, each in enumerate(refs)}
                    ref.tell(others)
                cluster.advance(0.1)
            for ref in refs[:2]:
                ref.tell("a")
            cluster.advance(1.0)
            found.add(tuple(map(tuple, seen)))

        explored = Search(live, deviations=2, walks=0, prune=prune).run()
        assert explored.is_whole
        return found, explored.tried

    all_of_them, tried = outcomes(prune=False)
    found, fewer = outcomes(prune=True)

    assert found == all_of_them
    assert fewer <= tried


class Put(Actor):
    def __init__(self, store, what) -> None:
        self.store, self.what = store, what

    @handler
    def on_text(self, msg: str) -> None:
        self.store.put("x", self.what)


def test_the_order_of_writes_to_a_store_counts_as_a_state():
    seen: dict[bool, set[int]] = {True: set(), False: set()}
    for prune in seen:

        def write(cluster, prune=prune):
            (a,) = cluster(1)
            master = Endpoint(node=a).attach_master("prices")
            writers = [a.spawn(Put, master, number) for number in range(3)]
            for writer in writers:
                writer.tell("go")
            cluster.advance(1.0)
            seen[prune].add(master.get("x"))

        explore(write, walks=0, prune=prune)

    assert seen[True] == seen[False] == {0, 1, 2}


def test_orders_that_differ_in_nothing_are_tried_once():
    def pairs(cluster):
        (a,) = cluster(1)
        for _ in range(3):
            a.spawn(Relay, a.spawn(Sink, []), "x").tell("go")
        cluster.advance(1.0)

    some = explore(pairs, deviations=4, walks=0)
    every = explore(pairs, deviations=4, walks=0, prune=False)

    assert some.is_whole
    assert some.tried < every.tried / 2


def test_tasks_of_asyncio_are_steps():
    class Busy(Actor):
        @handler
        async def on_text(self, msg: str) -> list:
            seen: list[int] = []

            async def work(number):
                await asyncio.sleep(0)
                seen.append(number)

            await asyncio.gather(work(1), work(2))
            return seen

    def ask(cluster):
        (a,) = cluster(1)
        assert a.spawn(Busy).ask("go").result(5) == [1, 2]

    found = explore(ask, walks=10)

    assert found.failure is None
    assert "all with up to 2 deviations" in str(found)


def test_random_walks_find_what_needs_more_deviations_and_make_it_small():
    def in_reverse(cluster):
        (a,) = cluster(1)
        seen = []
        sink = a.spawn(Sink, seen)
        for what in "abcdef":
            a.spawn(Relay, sink, what).tell("go")
        cluster.advance(1.0)
        assert seen[0] != "e" or seen[-1] != "a"

    found = explore(in_reverse, deviations=0, walks=500)

    assert found.tried > 1
    assert 1 <= len(found.failure.taken) <= 6


def test_a_lost_link_is_a_fault_that_is_searched():
    def ask(cluster):
        a, b = cluster(2)
        a.ref(str(b.spawn(Store))).ask("read", timeout=3.0).result(5)

    assert explore(ask, walks=5).failure is None
    found = explore(ask, faults=[cut(0, 1)], deviations=1)

    assert [who for _, who in found.failure.taken] == ["cut(0, 1, at=0, lasts=1)"]


# --- as a test ---

TESTS = """
    from callboard import Actor, handler
    from callboard.simulation import cut, schedule_test, sometimes

    class Sink(Actor):
        def __init__(self, seen):
            self.seen = seen

        @handler
        def on_text(self, msg: str) -> None:
            self.seen.append(msg)

    class Relay(Actor):
        def __init__(self, to, what):
            self.to, self.what = to, what

        @handler
        def on_text(self, msg: str) -> None:
            self.to.tell(self.what)

    def words(cluster):
        (a,) = cluster(1)
        seen = []
        sink = a.spawn(Sink, seen)
        for what in ("first", "second"):
            a.spawn(Relay, sink, what).tell("go")
        cluster.advance(1.0)
        return seen

    @schedule_test(faults=[cut(0, 1)])
    def test_order(cluster, tmp_path):
        assert words(cluster) == ["first", "second"]

    @schedule_test(walks=3)
    def test_all_come(cluster):
        seen = words(cluster)
        sometimes(seen[0] == "second", "they come in another order")
        sometimes(len(seen) == 3, "one came twice")
        assert sorted(seen) == ["first", "second"]

    @schedule_test(schedule=[(1, "Relay on b")])
    def test_another(cluster):
        words(cluster)
"""


@pytest.mark.slow
def test_a_failed_schedule_is_printed_kept_and_lived_again(pytester: pytest.Pytester):
    pytester.makepyfile(test_it=TESTS)

    failed = pytester.runpytest("-p", "no:randomly", "-k", "order")

    failed.assert_outcomes(failed=1)
    text = failed.stdout.str()
    assert "one failed, shrunk to 1 deviation from the usual order" in text
    assert "o 'go'" in text
    (kept,) = (pytester.path / ".callboard" / "schedules").iterdir()
    assert kept.read_text().splitlines()[1:] == ['[[1, "Relay on a 2"]]']
    program = text[text.index("E       from callboard.simulation import cut, schedule_test") :]
    lines = [line[8:] for line in program.splitlines() if line.startswith("E")]
    pytester.makepyfile(test_kept="\n".join(lines))
    again = pytester.runpytest("test_kept.py")
    again.assert_outcomes(failed=1)
    (seed,) = set(re.findall(r"callboard replay (\d+)", text))
    once_more = pytester.runpytest(f"--callboard-seed={seed}", "-k", "order")
    once_more.stdout.fnmatch_lines(["*a saved schedule fails, with 1 deviation*"])


def test_a_test_that_passes_tells_what_was_tried(pytester: pytest.Pytester, monkeypatch):
    pytester.makepyfile(test_it=TESTS)
    monkeypatch.setenv("CALLBOARD_SEEDS", "7")

    passed = pytester.runpytest("-p", "no:randomly", "-k", "all_come")

    passed.assert_outcomes(passed=1)
    passed.stdout.fnmatch_lines(
        ["*test_all_come: * all with up to 2 deviations from the usual order, and 7 at random"]
    )
    passed.stdout.fnmatch_lines(["*NeverHappened: *schedules never reached 'one came twice'"])


def test_a_kept_schedule_that_does_not_come_any_more_is_told(pytester: pytest.Pytester):
    pytester.makepyfile(test_it=TESTS)

    failed = pytester.runpytest("-p", "no:randomly", "-k", "another")

    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*NoSuchStep: step 1 cannot be 'Relay on b', because *"])
