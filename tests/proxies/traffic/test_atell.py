"""`await ref.atell(m)` waits for room: at home, elsewhere, in handlers and on any loop."""

import asyncio
import threading

import pytest

from callboard import Actor, Group, Mailbox, errors, handler
from callboard.actors.reference import ActorRef
from callboard.proxies.lifetime.proxy import CREDIT_QUEUE
from callboard.proxies.link.stream import WAITING_LIMIT
from tests.polling import eventually
from tests.proxies import small
from tests.proxies.cast import bare, law_holds, line, settled
from tests.proxies.small import LIMIT


class Small(small.Small):
    """Tells others like it as well."""

    def __init__(self, busy: list[object] | None = None) -> None:
        super().__init__()
        self.busy = [] if busy is None else busy

    @handler
    async def tell_back(self, teller: ActorRef) -> None:
        if len(self.busy) < 2:
            self.busy.append(self.me)
        while len(self.busy) < 2:
            await self.sleep(0.001)
        for number in range(3 * LIMIT):
            await teller.atell(number)


class Teller(Actor):
    """Tells from its handlers."""

    mailbox = Mailbox(limit=LIMIT)

    def __init__(self, to: ActorRef[Small] | None = None) -> None:
        self.to = to

    @handler
    async def tell(self, numbers: tuple) -> int:
        for number in range(*numbers):
            await self.to.atell(number)
        return len(range(*numbers))

    @handler
    async def tell_oneself(self, count: str) -> None:
        for number in range(int(count)):
            await self.me.atell(number)

    @handler
    def take(self, number: int) -> None:
        pass


@pytest.fixture
def three(make_node):
    nodes = [make_node(name) for name in "abc"]
    line(*nodes)
    return nodes


@pytest.fixture(params=["at home", "two hops away"])
def small(three, request):
    """A sender's ref of an actor with little room, and the actor itself."""
    a, _, c = three
    local = (a if request.param == "at home" else c).spawn(Small)
    return bare(a, local) if request.param != "at home" else local, local.target.actor


@pytest.fixture
def held(small):
    """The same of one that handles nothing."""
    ref, actor = small
    ref.tell(b"")
    assert actor.entered.wait(10)
    if not ref.is_local:
        eventually(lambda: ref.target.credit.is_known)
    yield ref, actor
    actor.gate.set()


def in_line(ref):
    """Return how many coroutines wait to tell an actor something."""
    if ref.is_local:
        return len(ref.target.waited_for.pressure.line)
    waiting = ref.target.waiting
    return 0 if waiting is None else len(waiting.pressure.line)


async def waiting_for(tasks, ref):
    """Wait until no task makes headway: those that are left stand in line."""
    async with asyncio.timeout(10):
        while in_line(ref) != sum(not task.done() for task in tasks) or not in_line(ref):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def told(ref, numbers):
    """Begin to tell numbers, and return the tasks once all that there is room for are told."""
    tasks = [asyncio.create_task(ref.atell(number)) for number in numbers]
    await waiting_for(tasks, ref)
    return tasks


def test_coroutines_wait_and_nothing_is_refused_or_lost(three, small):
    ref, actor = small

    async def one(first):
        for number in range(first, first + 50):
            await ref.atell(number)

    async def main():
        await asyncio.gather(*(one(1000 * index) for index in range(20)))

    asyncio.run(main())
    eventually(lambda: len(actor.seen) == 1000)

    for index in range(20):
        assert [seen for seen in actor.seen if seen // 1000 == index] == list(
            range(1000 * index, 1000 * index + 50)
        )
    assert actor.deepest <= LIMIT
    assert [node.stats().overflows for node in three] == [0, 0, 0]
    settled(*three)
    assert law_holds(three[0])


def test_loops_on_several_threads_wait_for_the_same_actor(small):
    ref, actor = small

    async def many(first):
        await asyncio.gather(*(ref.atell(number) for number in range(first, first + 100)))

    threads = [
        threading.Thread(target=lambda first=first: asyncio.run(many(first)))
        for first in (0, 100, 200)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    eventually(lambda: sorted(actor.seen) == list(range(300)))


def test_what_is_cancelled_was_not_sent_and_all_else_was(held):
    ref, actor = held
    count = 3 * CREDIT_QUEUE.limit

    async def main():
        tasks = await told(ref, range(count))
        waiting = [task for task in tasks if not task.done()]
        for task in waiting[::2]:
            task.cancel()
        await asyncio.gather(*waiting[::2], return_exceptions=True)
        await waiting_for(waiting[1::2], ref)
        actor.gate.set()
        await asyncio.gather(*waiting[1::2])
        return {number for number, task in enumerate(tasks) if not task.cancelled()}

    sent = asyncio.run(main())

    eventually(lambda: len(actor.seen) == len(sent))
    assert set(actor.seen) == sent
    assert len(sent) < count


def test_who_is_cancelled_in_its_turn_lets_the_next_one_send(held):
    ref, actor = held

    async def main():
        tasks = await told(ref, range(3 * CREDIT_QUEUE.limit))
        first, second, *_ = [task for task in tasks if not task.done()]
        line = ref.target.waited_for if ref.is_local else ref.target.waiting
        line.pressure.wake_next()
        first.cancel()  # before it runs
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(0)
        assert line.pressure.line  # the second has found no room, and stands in front again
        actor.gate.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert first.cancelled()
        assert not second.cancelled()
        return tasks.index(first)

    left_out = asyncio.run(main())

    eventually(lambda: len(actor.seen) == 3 * CREDIT_QUEUE.limit - 1)
    assert left_out not in actor.seen


def test_a_time_limit_ends_the_wait_and_leaves_nobody_in_line(held):
    ref, actor = held

    async def main():
        tasks = await told(ref, range(3 * CREDIT_QUEUE.limit))
        sent = 0
        for _ in range(20):
            try:
                async with asyncio.timeout(0):
                    await ref.atell(-1)
                    sent += 1  # there was credit that had just come
            except TimeoutError:
                pass
        await waiting_for(tasks, ref)
        actor.gate.set()
        await asyncio.gather(*tasks)
        return sent

    sent = asyncio.run(main())
    eventually(lambda: len(actor.seen) == 3 * CREDIT_QUEUE.limit + sent)
    assert actor.seen.count(-1) == sent < 20


def test_a_handler_waits_and_its_actor_is_not_refused(three, small):
    ref, actor = small

    assert three[0].spawn(Teller, ref).ask((0, 200)).result(20) == 200

    eventually(lambda: len(actor.seen) == 200)
    assert actor.seen == list(range(200))
    assert actor.deepest <= LIMIT


def test_a_handler_that_waits_can_be_killed_and_others_go_on(three, held):
    ref, actor = held
    teller = three[0].spawn(Teller, ref)
    asked = teller.ask((0, 100))
    eventually(lambda: in_line(ref) == 1)
    other = three[0].spawn(Teller, ref).ask((100, 200))
    eventually(lambda: in_line(ref) == 2)

    teller.kill()

    with pytest.raises(errors.ActorDown):
        asked.result(5)
    eventually(lambda: in_line(ref) == 1)
    actor.gate.set()
    assert other.result(20) == 100
    eventually(lambda: [seen for seen in actor.seen if seen >= 100] == list(range(100, 200)))


def test_what_waits_for_an_actor_that_ends_is_a_dead_letter(three, held):
    ref, actor = held

    async def main():
        tasks = await told(ref, range(3 * CREDIT_QUEUE.limit))
        ref.kill()
        actor.gate.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)

    asyncio.run(main())

    eventually(lambda: ref.target.reason if ref.is_local else ref.target.down)
    assert len(actor.seen) <= LIMIT + 2  # what was there before the order to end came
    settled(*three)
    assert law_holds(three[0])


def test_to_an_ended_actor_it_does_not_wait(three, small):
    ref, _ = small
    down = three[0].monitor(ref)
    ref.kill()
    down.result(5)

    before = three[0].stats().dead_letters
    asyncio.run(ref.atell(1))

    eventually(lambda: three[0].stats().dead_letters == before + 1)


def test_who_waits_for_a_node_that_is_lost_goes_on(three):
    a, b, c = three
    local = c.spawn(Small)
    ref, actor = bare(a, local), local.target.actor
    ref.tell(b"")
    assert actor.entered.wait(10)
    eventually(lambda: ref.target.credit.is_known)

    async def main():
        tasks = await told(ref, range(3 * CREDIT_QUEUE.limit))
        await b.aclose()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)

    asyncio.run(main())
    actor.gate.set()

    assert law_holds(a)


def test_high_priority_goes_first_and_waits_as_well(held):
    ref, actor = held

    async def main():
        tasks = await told(ref, range(CREDIT_QUEUE.limit + LIMIT + 4))
        urgent = asyncio.create_task(ref.atell(-1, priority="high"))
        await waiting_for([*tasks, urgent], ref)
        actor.gate.set()
        async with asyncio.timeout(10):
            await asyncio.gather(urgent, *tasks)

    asyncio.run(main())

    eventually(lambda: len(actor.seen) == CREDIT_QUEUE.limit + LIMIT + 5)
    assert sorted(actor.seen) == list(range(-1, CREDIT_QUEUE.limit + LIMIT + 4))


def test_while_the_link_is_full_coroutines_wait(three):
    a, _, c = three
    local = c.spawn(Teller)
    ref = bare(a, local)
    asyncio.run(ref.atell(1))
    routes = a._routes
    wire = routes.wires[routes.router.next_hops[c.node_id]]

    async def main():
        wire.waiting += WAITING_LIMIT + 1
        task = asyncio.create_task(ref.atell(2))
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done
        wire.waiting -= WAITING_LIMIT + 1
        async with asyncio.timeout(10):
            await task

    asyncio.run(main())


def test_a_message_is_what_it_was_when_it_was_told(held):
    ref, actor = held

    async def main():
        tasks = await told(ref, range(3 * CREDIT_QUEUE.limit))
        with pytest.raises(errors.NotSerializable) if not ref.is_local else asyncio.timeout(0):
            await ref.atell(object())
        actor.gate.set()
        await asyncio.gather(*tasks)

    if ref.is_local:  # objects do not travel there
        actor.gate.set()
    else:
        asyncio.run(main())


def test_two_actors_that_fill_each_other_get_an_error_and_do_not_hang(make_node):
    node = make_node()
    busy: list[object] = []
    first, second = node.spawn(Small, busy), node.spawn(Small, busy)

    asked = [first.ask(second, 10), second.ask(first, 10)]

    outcomes = [answer.exception(10) for answer in asked]
    (failed,) = [error for error in outcomes if isinstance(error, errors.RemoteError)]
    assert failed.type_name == errors.WouldDeadlock.__name__
    assert "is full, and its handler waits for" in str(failed)


def test_a_handler_that_fills_its_own_mailbox_gets_an_error(make_node):
    with pytest.raises(errors.RemoteError) as caught:
        make_node().spawn(Teller).ask("9").result(10)

    assert caught.value.type_name == errors.WouldDeadlock.__name__


@pytest.mark.parametrize("policy", ["fail", "drop_newest", "drop_oldest"])
def test_other_policies_refuse_and_drop_as_in_tell(make_node, policy):
    node = make_node()
    mailbox = Mailbox(limit=LIMIT, on_full=policy)
    ref = node.spawn(Small.with_options(mailbox=mailbox))
    actor = ref.target.actor
    ref.tell(b"")
    assert actor.entered.wait(10)

    async def main():
        for number in range(LIMIT + 1):
            await ref.atell(number)

    if policy == "fail":
        with pytest.raises(errors.MailboxFull):
            asyncio.run(main())
    else:
        asyncio.run(main())
    actor.gate.set()
    eventually(lambda: len(actor.seen) == LIMIT)
    assert actor.seen == list(range(policy == "drop_oldest", LIMIT + (policy == "drop_oldest")))


def test_a_group_tells_the_member_whose_turn_it_is(make_node):
    node = make_node()
    group: Group = node.group("takers")
    asyncio.run(group.atell(0))  # without members it is a dead letter
    refs = [node.spawn(Small) for _ in range(2)]
    for ref in refs:
        group.join(ref)

    async def main():
        await asyncio.gather(*map(group.atell, range(40)))

    asyncio.run(main())
    eventually(lambda: [len(ref.target.actor.seen) for ref in refs] == [20, 20])


def test_a_priority_that_is_none_is_refused_at_once(make_node):
    with pytest.raises(errors.WrongValue, match="'normal' or 'high'"):
        asyncio.run(make_node().spawn(Small).atell(1, priority="urgent"))
