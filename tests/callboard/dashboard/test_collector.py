"""The cost of a watched cluster: questions and rows, and none without a watcher."""

import asyncio
import time

import pytest

from callboard import Actor, Node, handler
from callboard.dashboard import collector
from callboard.dashboard.collector import (
    DEEP,
    MEMORY_CURVES,
    OLD,
    ClusterWatch,
    Member,
    curves,
)
from callboard.dashboard.streams import Streams
from callboard.proxies.inspection import Inspect, Inspection
from callboard.support.inspection_tables import RowWindow


class Worker(Actor):
    @handler
    def text(self, message: str) -> None: ...


@pytest.fixture(scope="module")
def watch():
    """The collector of three nodes with 150 actors each, whose questions are noted."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Node("n0") as hub,
        Node("n1") as east,
        Node("n2") as west,
    ):
        for limit in ("SILENT", "PATIENCE"):  # a busy machine answers late
            patch.setattr(collector, limit, 60.0)
        hub.listen("127.0.0.1", 0)
        for node in (east, west):
            node.connect(hub.address)
        for node in (hub, east, west):
            for number in range(150):
                node.register(f"w{number:03}-{node.name}", node.spawn(Worker))
        found = ClusterWatch(hub, interval=0.05)
        found.questions = []
        ask = found.ask

        async def noted(node_id, question):
            answer = await ask(node_id, question)
            if isinstance(question, Inspect) and question.rates:
                found.questions.append((question, answer))
            return answer

        found.ask = noted
        yield found


async def look(watch, window, times=1):
    """Return the names in a window after several polls, and the questions asked for it."""
    async with watch.watched():
        await watch.next_round(0 if not watch.members else watch.rounds)
        for _ in range(times):
            watch.questions.clear()
            found, count, silent = await watch.actors(window)
    assert (count, silent) == (450, {})
    return [actor.name for _, actor in found], list(watch.questions)


@pytest.mark.parametrize("skip", [0, 5, 200, 360, 420])
@pytest.mark.parametrize("rising", [True, False])
def test_a_window_of_rows_is_stable_and_only_its_rows_are_sent(watch, skip, rising):
    window = RowWindow(sort="name", rising=rising, skip=skip, limit=90)
    names = sorted((f"w{i:03}-n{n}" for i in range(150) for n in range(3)), reverse=not rising)

    first, _ = asyncio.run(look(watch, window))
    again, asked = asyncio.run(look(watch, window, times=2))

    assert first == again == names[skip : skip + 90]
    assert len(asked) == 3
    assert all(not question.keys for question, _ in asked)
    assert sum(len(answer.actors) for _, answer in asked) <= 90 + 3 * 20


def test_a_window_of_rows_is_sent_anew_after_its_rows_moved_far(watch):
    async def work():
        window = RowWindow(sort="handled", limit=60)
        async with watch.watched():
            await watch.next_round(watch.rounds)
            await watch.actors(window)
            refs = [watch.node.find(f"w{number:03}-n2") for number in range(60)]
            for ref in [await each for each in refs]:
                ref.tell("work")
            found = []
            while [member.name for member, _ in found] != ["n2"] * 60:
                await watch.next_round(watch.rounds)
                found, _, _ = await watch.actors(window)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_pages_with_the_same_view_share_one_answer(watch):
    streams, given = Streams(watch), {"view": "actors", "limit": "20", "sort": "name"}

    async def follow(pages):
        opened = [streams.changes(given) for _ in range(pages)]
        async with watch.watched():
            for page in opened:
                await anext(page)
            for _ in range(3):
                seen = watch.rounds
                watch.questions.clear()
                await asyncio.gather(*map(anext, opened))
                rounds = watch.rounds - seen
                assert len(watch.questions) <= 3 * (rounds + 1)
        for page in opened:
            await page.aclose()

    asyncio.run(asyncio.wait_for(follow(10), 60))


def test_a_node_that_does_not_answer_is_not_waited_for(watch):
    async def work():
        async with watch.watched():
            await watch.next_round(0 if not watch.members else watch.rounds)
            (member,) = [each for each in watch.members.values() if each.name == "n1"]
            member.turn("silent", 0.0, "it does not answer")
            watch.questions.clear()
            found, count, silent = await watch.actors(RowWindow(sort="name", limit=400))
            return {each.name for each, _ in found}, count, silent, len(watch.questions)

    names, count, silent, asked = asyncio.run(asyncio.wait_for(work(), 60))

    assert (names, count, asked % 2) == ({"n0", "n2"}, 300, 0)
    assert silent == {"n1": "it does not answer"}


def test_the_history_has_sums_of_all_nodes_at_seconds_of_the_wall_clock():
    with Node() as node:
        watch, now, before = ClusterWatch(node), time.monotonic(), time.time_ns() / 1e9
        for name in "ab":
            member = watch.members[name.encode()] = Member(name.encode(), name)
            for second, handled in ((now - 1.0, 0.0), (now, 30.0)):
                member.history.append((second, {"handled": handled, "sent": 0.0, "lost": 0.0}))

        history = watch.history()

    assert history["handled"] == [60.0]
    assert history["times"] == [pytest.approx(before, abs=5.0)]


def samples(*values, memory=1e6):
    """Return rows of figures, ten seconds apart, of which `handled` has the values."""
    return [
        {"age": 10.0 * (len(values) - number), "handled": handled, "sent": 0.0, "lost": 0.0}
        | {"waiting": 2.0, "waited": number / 4, "resident_bytes": memory}
        for number, handled in enumerate(values, 1)
    ]


def test_curves_add_the_rates_of_nodes_and_keep_the_memory_of_each():
    hour = curves(
        {"shop": samples(0.0, 100.0, 300.0), "bank": samples(0.0, 10.0, 20.0, memory=5e6)},
        now=1_000_000.0,
    )

    assert hour["times"] == [999_990, 1_000_000]
    assert hour["handled"] == [11.0, 21.0]
    assert hour["waiting"] == [4.0, 4.0]
    assert hour["waited"] == [0.5, 0.75]
    assert hour["memory"] == {"shop": [1e6, 1e6], "bank": [5e6, 5e6]}


def test_curves_show_the_nodes_with_most_memory():
    hour = curves({f"n{i}": samples(0.0, 0.0, memory=i) for i in range(10)}, now=0.0)

    assert sorted(hour["memory"]) == [f"n{i}" for i in range(10 - MEMORY_CURVES, 10)]


def report(**figures):
    return Inspection("shop", 1.0, [], 0, 0, 0, 0, 0, is_draining=False, **figures)


@pytest.mark.parametrize(
    ("figures", "kind"),
    [
        ({"hanging": 2}, "hanging"),
        ({"deepest": DEEP}, "deep"),
        ({"oldest": OLD}, "old"),
    ],
)
def test_hangs_and_deep_and_old_mailboxes_are_problems(figures, kind):
    member = Member(b"shop", "shop", inspection=report(**figures))

    assert [problem[0] for problem in member.problems()] == [kind]
    assert Member(b"shop", "shop", inspection=report()).problems() == []


@pytest.mark.parametrize(("ready", "is_full"), [(89, False), (90, True)])
def test_a_queue_with_nine_tenths_of_its_limit_is_a_problem(ready, is_full):
    row = {"queue": "mails", "ready": ready, "delayed": 0, "taken": 0, "dead": 0, "limit": 100}
    member = Member(b"shop", "shop", inspection=report(), queues=[row])

    assert [problem[0] for problem in member.problems()] == ["full"] * is_full
