"""What travels with a message across nodes: deadline, trace context, priority, refusals."""

import threading

import pytest

from callboard import Actor, Node, handler
from callboard.actors.envelope import traced, traceparent, tracestate
from callboard.actors.errors import AskTimeout, MailboxFull
from callboard.actors.mailbox import Mailbox
from callboard.proxies.ledger.credit import KNOWS_CREDIT
from tests.polling import eventually
from tests.proxies.cast import everybody_knows

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Far(Actor):
    def __init__(self):
        self.gate, self.entered = threading.Event(), threading.Event()
        self.seen = []

    @handler
    def about(self, msg: str) -> object:
        return {"trace": traceparent(), "state": tracestate(), "left": self.deadline}[msg]

    @handler
    def take(self, msg: int) -> None:
        self.seen.append(msg)

    @handler
    def give(self, msg: list) -> list:
        return self.seen

    @handler
    def hold(self, msg: bytes) -> None:
        self.entered.set()
        assert self.gate.wait(20)


@pytest.fixture
def nodes():
    with Node("here") as here, Node("there") as there:
        there.listen()
        here.connect(there.address)
        yield here, there


def held(here, there, **bounds):
    local = there.spawn(Far.with_options(mailbox=Mailbox(**bounds)))
    far = here.ref(str(local))
    far.tell(b"")
    actor = local.target.actor
    assert actor.entered.wait(10)
    return far, local, actor


def test_a_trace_context_travels_to_other_nodes(nodes):
    here, there = nodes
    far = here.ref(str(there.spawn(Far)))

    with traced(TRACE, "vendor=opaque"):
        assert far.ask("trace").result(5) == TRACE
        assert far.ask("state").result(5) == "vendor=opaque"
    assert far.ask("trace").result(5) is None


def test_a_deadline_travels_to_other_nodes(nodes):
    here, there = nodes
    far = here.ref(str(there.spawn(Far)))

    assert 0 < far.ask("left", timeout=7.0).result(5) <= 7
    with traced(TRACE):
        assert 0 < far.ask("left", timeout=7.0, priority="high").result(5) <= 7
    assert far.ask("left").result(5) is None


def test_what_expired_on_its_way_is_not_handled(nodes):
    here, there = nodes
    far, local, actor = held(here, there)

    with pytest.raises(AskTimeout):
        far.ask(5, timeout=0.02).result(5)
    eventually(lambda: local.target.depth)
    threading.Event().wait(0.03)
    actor.gate.set()

    assert far.ask([]).result(5) == []
    assert there.runtime.counters.expired == 1


def test_a_high_priority_travels_to_other_nodes(nodes):
    here, there = nodes
    far, local, actor = held(here, there)

    for number in (1, 2):
        far.tell(number)
    for number in (10, 20):
        far.tell(number, priority="high")
    eventually(lambda: local.target.depth == 4)
    actor.gate.set()

    assert far.ask([]).result(5) == [10, 20, 1, 2]


@pytest.mark.parametrize("policy", ["fail", "drop_newest"])
def test_an_ask_to_a_full_mailbox_elsewhere_fails(nodes, policy):
    here, there = nodes
    far, _, actor = held(here, there, limit=1, on_full=policy)

    far.tell(1)
    with pytest.raises(MailboxFull):
        far.ask([]).result(5)
    actor.gate.set()


def test_with_wait_messages_from_elsewhere_wait_as_well(nodes):
    here, there = nodes
    far, _, actor = held(here, there, limit=2)

    for number in range(6):
        far.tell(number)
    asked = far.ask([])
    actor.gate.set()

    assert asked.result(5) == [0, 1, 2, 3, 4, 5]
    assert there.runtime.counters.overflows == 0


def test_messages_of_an_earlier_release_have_an_overdraft_and_are_then_counted(nodes):
    here, there = nodes
    everybody_knows(here, there)  # else the other one takes the abilities in behind these
    here._broker.lifetimes._holdings.sightings -= KNOWS_CREDIT
    here._broker.routes.is_able(there.node_id, ["keys"])
    there._broker.routes.is_able(here.node_id, ["keys"])
    far, _, actor = held(here, there, limit=2)

    for number in range(6):
        far.tell(number)
    with pytest.raises(MailboxFull):
        far.ask([]).result(5)
    actor.gate.set()

    while True:  # the mailbox may still be full
        try:
            assert far.ask([]).result(5) == [0, 1, 2, 3]
            break
        except MailboxFull:
            continue
    assert there.runtime.counters.overflows >= 3
