"""Bounded mailboxes slow senders on other nodes down, as they do at home."""

import asyncio
import threading

import pytest

from callboard import Actor, Mailbox, Rights, errors, handler
from callboard.actors.mailbox import PARKED_MESSAGES
from callboard.actors.reference import ActorRef
from callboard.basp.accounting import write_credit
from callboard.basp.frame import pack_frame
from callboard.basp.header import Operation
from callboard.proxies.events import MessagesLost, NodeDown
from callboard.proxies.ledger.credit import KNOWS_CREDIT
from callboard.proxies.lifetime.proxy import CREDIT_QUEUE
from callboard.proxies.messages import AskCredit
from tests.polling import eventually
from tests.proxies.cast import bare, cut, law_holds, line, recorded, settled
from tests.proxies.small import LIMIT, Small


class Teller(Actor):
    """Tells so many numbers in one turn, and counts those that were refused."""

    def __init__(self, to: ActorRef[Small]) -> None:
        self.to = to

    @handler
    def tell(self, numbers: tuple) -> int:
        refused = 0
        for number in range(*numbers):
            try:
                self.to.tell(number)
            except errors.MailboxFull:
                refused += 1
        return refused


class Roomy(Small):
    """Has any room."""

    mailbox = None


def far(node, host, actor_class=Small):
    """Return the ref of a new actor elsewhere, and the actor."""
    local = host.spawn(actor_class)
    return bare(node, local), local.target.actor


def held(node, host):
    """The same of an actor that waits for its gate; its bounds are known."""
    ref, actor = far(node, host)
    ref.tell(b"")
    assert actor.entered.wait(10)
    eventually(lambda: ref.target.credit.is_known)
    return ref, actor


def filled(node, host):
    """The same of one that no message may be sent to any more."""
    ref, actor = held(node, host)
    mailbox = host.runtime.contexts[ref.actor_id].waited_for
    number = 0
    while mailbox.load[0] <= LIMIT // 2 or ref.target.waiting is None:
        ref.tell(number)
        number += 1
        eventually(lambda: ref.target.waiting is None or mailbox.load[0] > LIMIT // 2)
    return ref, actor, number


@pytest.fixture
def three(make_node):
    nodes = [make_node(name) for name in "abc"]
    line(*nodes)
    return nodes


def test_asks_and_tells_of_threads_to_a_small_mailbox_two_hops_away_all_come(three):
    a, b, c = three
    ref, actor = far(a, c)
    answers = []

    def send(first):
        for number in range(first, first + 200):
            ref.tell(number)
        answers.extend(ref.ask(number).result(20) for number in range(first, first + 100))

    threads = [threading.Thread(target=send, args=(1000 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 400
    assert len(actor.seen) == 1200
    for index in range(4):
        seen = [one for one in actor.seen if one // 1000 == index]
        assert seen[:200] == list(range(1000 * index, 1000 * index + 200))
    assert actor.deepest <= LIMIT
    assert [node.stats().overflows for node in three] == [0, 0, 0]
    settled(*three)
    assert a.accounts()[c.node_id].lost == a.accounts()[c.node_id].dead_letters == 0


@pytest.mark.slow
def test_so_do_those_of_coroutines(three):
    a, _, c = three
    ref, actor = far(a, c)

    async def one(index):
        for number in range(20):
            ref.tell(number)
            assert await ref.ask(number) == number

    async def main():
        await asyncio.gather(*map(one, range(40)))
        return await asyncio.gather(*map(ref.ask, range(500)))

    assert asyncio.run(main()) == list(range(500))
    assert len(actor.seen) == 40 * 40 + 500
    assert actor.deepest <= LIMIT
    assert a.stats().overflows == c.stats().overflows == 0


def test_several_nodes_are_served_in_turn(make_node):
    hub, *others = (make_node(name) for name in "habcdef")
    for other in others:
        line(other, hub)
    local = hub.spawn(Small.with_options(mailbox=Mailbox(limit=1)))

    def send(node):
        ref = bare(node, local)
        assert [ref.ask(number).result(20) for number in range(50)] == list(range(50))

    threads = [threading.Thread(target=send, args=(node,)) for node in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(local.target.actor.seen) == 300
    assert local.target.actor.deepest <= 1


@pytest.mark.slow
def test_what_a_sender_holds_is_bounded_and_its_other_actors_go_on(three):
    a, _, c = three
    ref, actor = held(a, c)
    other, another = far(a, c)

    def flood():
        for number in range(500):
            ref.tell(number)

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    # What waits may be less than the limit again by then: those go on when half is free.
    eventually(lambda: ref.target.waiting and len(ref.target.waiting.pressure.waiters) == 3)

    assert other.ask(7).result(5) == 7
    assert len(ref.target.waiting) <= CREDIT_QUEUE.limit
    eventually(lambda: a.accounts()[c.node_id].waiting == len(ref.target.waiting) > 0)
    assert sum(c.runtime.contexts[ref.actor_id].waited_for.load) <= 2 * LIMIT + PARKED_MESSAGES
    assert law_holds(a)
    actor.gate.set()
    for thread in threads:
        thread.join()
    assert ref.ask(-1).result(20) == -1
    assert len(actor.seen) == 1501
    assert a.accounts()[c.node_id].waiting == 0


def test_a_handler_gets_the_overdraft_once_and_then_an_error(three):
    a, _, c = three
    ref, actor = held(a, c)
    teller = a.spawn(Teller, ref)

    refused = teller.ask((0, 100)).result(10)
    again = teller.ask((100, 110))
    actor.gate.set()

    assert 0 < refused < 100
    assert 100 - refused >= 2 * CREDIT_QUEUE.limit
    refused += again.result(10)
    eventually(lambda: len(actor.seen) == 110 - refused)
    assert actor.seen == sorted(actor.seen)
    assert a.stats().overflows == refused


def test_two_actors_that_fill_each_others_mailboxes_over_a_link_go_on(three):
    a, _, c = three

    class Both(Actor):
        mailbox = Mailbox(limit=2)

        def __init__(self):
            self.seen = self.refused = 0
            self.to = None

        @handler
        def take(self, numbers: int) -> None:
            self.seen += 1
            for _ in range(numbers):
                try:
                    self.to.tell(0)
                except errors.MailboxFull:
                    self.refused += 1

    one, other = a.spawn(Both), c.spawn(Both)
    one.target.actor.to, other.target.actor.to = bare(a, other), bare(c, one)
    for _ in range(3):
        one.tell(100)
        other.tell(100)

    both = one.target.actor, other.target.actor
    eventually(lambda: sum(each.seen + each.refused for each in both) == 606)


def test_an_ask_waits_no_longer_than_its_time(three):
    a, _, c = three
    ref, actor, count = filled(a, c)

    with pytest.raises(errors.AskTimeout):
        ref.ask(-1, timeout=0.05).result(5)
    actor.gate.set()

    assert ref.ask(-2).result(10) == -2
    assert (count, actor.seen) == (count, [*range(count), -2])


def test_stop_waits_its_turn_and_kill_does_not(three):
    a, _, c = three
    ref, actor, count = filled(a, c)
    down = a.monitor(ref)

    ref.stop()
    actor.gate.set()

    assert down.result(10).reason == "normal"
    assert actor.seen == list(range(count))
    doomed, actor, _ = filled(a, c)
    down = a.monitor(doomed)
    doomed.kill()
    actor.gate.set()
    assert down.result(10).reason == "killed"


def test_high_priority_goes_before_what_waits(three):
    a, _, c = three
    ref, actor, count = filled(a, c)

    ref.tell(-1)
    ref.tell(-2, priority="high")
    actor.gate.set()

    eventually(lambda: len(actor.seen) == count + 2)
    assert actor.seen.index(-2) < actor.seen.index(-1)


def test_what_waits_for_an_actor_that_ends_is_reported_lost(three):
    a, _, c = three
    ref, actor, _ = filled(a, c)
    asked = ref.ask(-1)
    waiting = a.accounts()[c.node_id].waiting

    with recorded(a) as events:
        c.ref(str(ref)).kill()
        actor.gate.set()
        with pytest.raises(errors.ActorDown):
            asked.result(10)
        eventually(lambda: any(isinstance(event, MessagesLost) for event in events))

    (lost,) = [event.count for event in events if isinstance(event, MessagesLost)]
    account = a.accounts()[c.node_id]
    assert (lost, account.waiting, account.lost) == (waiting, 0, waiting)
    settled(a, c)


def test_what_waits_for_a_node_that_is_lost_is_reported_lost(three):
    a, b, c = three
    ref, actor, _ = filled(a, c)
    asked = ref.ask(-1)
    waiting = a.accounts()[c.node_id].waiting

    with recorded(a) as events:
        cut(b, c)
        with pytest.raises(errors.NodeUnreachable):
            asked.result(10)
        eventually(lambda: any(isinstance(event, NodeDown) for event in events))

    (down,) = [event for event in events if isinstance(event, NodeDown)]
    account = a.accounts()[c.node_id]
    assert account.lost == down.lost >= waiting
    assert (account.waiting, account.in_flight) == (0, 0)
    actor.gate.set()


def test_a_thread_that_waits_goes_on_when_its_node_closes(three):
    a, _, c = three
    ref, actor, _ = filled(a, c)

    def flood():
        for number in range(200):
            ref.tell(number)

    thread = threading.Thread(target=flood)
    thread.start()
    eventually(lambda: len(ref.target.waiting or ()) >= CREDIT_QUEUE.limit)
    a.close()
    thread.join(10)

    assert not thread.is_alive()
    actor.gate.set()


def test_actors_without_bounds_and_other_policies_need_no_credit(three):
    a, _, c = three
    refs = [
        bare(a, c.spawn(Teller, None)),
        far(a, c, Roomy)[0],
        far(a, c, Small.with_options(mailbox=Mailbox(limit=1, on_full="fail")))[0],
    ]

    eventually(lambda: all(ref.target.credit is None for ref in refs))
    assert all(ref.target.outbound is a._broker.outgoing for ref in refs)


def test_bounds_in_bytes_slow_senders_down_as_well(three):
    a, _, c = three

    class Heavy(Actor):
        mailbox = Mailbox(bytes=10_000)

        def __init__(self):
            self.heaviest = self.count = 0

        @handler
        def take(self, _: bytes) -> int:
            self.count += 1
            load = self.myAddress.target.waited_for.load
            self.heaviest = max(self.heaviest, load[1])
            return self.count

    local = c.spawn(Heavy)
    ref = bare(a, local)
    for size in (100, 4_000, 20_000, 100) * 50:
        ref.tell(bytes(size))

    assert ref.ask(b"").result(20) == 201
    assert local.target.actor.heaviest < 256 * 1024 + 20_000
    assert c.stats().overflows == 0


# --- who does not know of credit, or does not keep to it


def test_a_node_of_an_earlier_release_is_served_as_before(three):
    """Its sightings are small, so it is told nothing, and has an overdraft."""
    a, b, _ = three
    b_local = b.spawn(Small)
    a._broker.lifetimes._holdings.sightings -= KNOWS_CREDIT
    a._broker.routes.is_able(b.node_id, ["keys"])
    b._broker.routes.is_able(a.node_id, ["keys"])
    ref = bare(a, b_local)
    ref.tell(b"")
    actor = b_local.target.actor
    assert actor.entered.wait(10)

    for number in range(100):
        ref.tell(number)
    eventually(lambda: b.stats().overflows == 100 - 2 * LIMIT)
    actor.gate.set()

    eventually(lambda: actor.seen == list(range(2 * LIMIT)))
    settled(a, b)
    assert a.accounts()[b.node_id].dead_letters == 100 - 2 * LIMIT


@pytest.mark.slow
def test_an_earlier_release_behind_others_is_found_out(three, monkeypatch):
    a, _, c = three
    monkeypatch.setattr("callboard.proxies.traffic.credit_window.ANSWER_TIME", 0.2)
    monkeypatch.setattr(c._broker.credit_issuer, "announced", lambda *_: None)
    ref, actor = far(a, c, Roomy)

    for number in range(3 * PARKED_MESSAGES):
        ref.tell(number)

    eventually(lambda: len(actor.seen) == 3 * PARKED_MESSAGES)
    assert actor.seen == list(range(3 * PARKED_MESSAGES))


def test_who_ignores_credit_is_refused_and_others_are_not(three):
    a, b, c = three
    local = c.spawn(Small)
    hostile, honest = bare(b, local), bare(a, local)
    honest.tell(b"")
    actor = local.target.actor
    assert actor.entered.wait(10)
    eventually(lambda: honest.target.credit.is_known)
    eventually(lambda: hostile.target.credit.is_known)
    hostile.target.outbound = b._broker.outgoing

    for number in range(500):
        hostile.tell(number)
        if number % 10 == 0:
            hostile.target.command(AskCredit(hostile.actor_id, 1 << 40))
    eventually(lambda: c.stats().overflows >= 500 - 2 * LIMIT - PARKED_MESSAGES)
    load = local.target.waited_for.load[0]
    assert load <= 2 * LIMIT + PARKED_MESSAGES
    actor.gate.set()

    assert [honest.ask(-number).result(10) for number in range(100)] == [
        -number for number in range(100)
    ]


@pytest.mark.parametrize("number", ["5", -1, 1 << 63, None, 2.0])
def test_a_strange_question_is_left_unanswered(three, number):
    a, b, _ = three
    ref, actor = far(a, b)
    assert ref.ask(1).result(5) == 1

    ref.target.command(AskCredit(ref.actor_id, number))
    ref.target.command(AskCredit(number, 1))

    assert ref.ask(2).result(5) == 2


def test_a_node_that_grants_anything_harms_only_itself(three):
    a, b, _ = three
    ref, actor = far(a, b)
    assert ref.ask(1).result(5) == 1
    wire = b._broker.routes.wires[a.node_id]
    for actor_number in (ref.actor_id, 77):
        payload = write_credit([(actor_number, (1 << 64) - 2, 0)] * 3)
        frame = pack_frame(Operation.DELIVERY_REPORT, 0, b.node_id, a.node_id, 0, 0, payload)
        wire.write(frame)

    eventually(lambda: ref.target.credit.up_to > 1 << 20)
    assert ref.ask(2).result(5) == 2
    assert far(a, b)[0].ask(3).result(5) == 3
    assert a.links()


def test_a_grant_that_is_lost_is_asked_for_again(three, monkeypatch):
    a, b, _ = three
    ref, actor = held(a, b)
    granting = b._broker.credit_issuer
    queue = granting.queue
    lost = []
    monkeypatch.setattr(granting, "queue", lambda node, line: lost.append(line))
    actor.gate.set()
    asked = [ref.ask(number) for number in range(CREDIT_QUEUE.limit)]
    eventually(lambda: lost)
    monkeypatch.setattr(granting, "queue", queue)

    assert [one.result(10) for one in asked] == list(range(CREDIT_QUEUE.limit))


def test_a_leaf_has_credit_for_what_it_may_send_to(make_node):
    shop = make_node(
        "shop", secrets={"till": "x"}, permissions={"till": Rights(send=["small"])}
    )
    leaf = make_node("leaf", secret="x")
    shop.listen()
    leaf.connect(shop.address)
    eventually(lambda: leaf.nodes())
    local = shop.spawn(Small)
    shop.register("small", local)
    ref = bare(leaf, local)

    asked = [ref.ask(number) for number in range(100)]

    assert [one.result(20) for one in asked] == list(range(100))
    assert shop.stats().overflows == 0


def test_a_ref_that_is_made_anew_begins_behind_what_was_granted(three):
    a, b, _ = three
    local = b.spawn(Small)

    for _ in range(5):
        ref = bare(a, local)
        assert [ref.ask(number).result(5) for number in range(40)] == list(range(40))
        del ref
        a._broker.runtime.post(a._broker.lifetimes.release_unused)

    assert b.stats().overflows == 0


def test_a_proxy_that_nobody_holds_stays_until_its_bounds_are_known(three, monkeypatch):
    """Made again while nobody has told, it would send as many messages once more."""
    a, b, _ = three
    local = b.spawn(Small)
    lifetimes, told = a._broker.lifetimes, []
    take = a._broker.credit_window.apply_credit
    with monkeypatch.context() as patch:
        patch.setattr(
            type(a._broker.credit_window), "apply_credit", lambda *line: told.append(line[1:])
        )
        ref = bare(a, local)
        assert [ref.ask(number).result(5) for number in range(3)] == [0, 1, 2]
        eventually(lambda: told)
        del ref
        looked = threading.Event()
        a._broker.runtime.post(lambda: (lifetimes.release_unused(), looked.set()))
        assert looked.wait(5)
        assert lifetimes.proxy_of(b.node_id, local.actor_id) is not None

    for each in told:
        a._broker.runtime.post(take, *each)
    eventually(lambda: lifetimes.proxy_of(b.node_id, local.actor_id).credit.is_known)
    a._broker.runtime.post(lifetimes.release_unused)
    eventually(lambda: lifetimes.proxy_of(b.node_id, local.actor_id) is None)
