"""Credit against a model of what is lost, repeated and late between senders and one mailbox."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.mailbox import PARKED_MESSAGES, PARKED_OCTETS
from callboard.proxies.ledger.credit import LONGEST_LEAP, NO_BOUND, Credit, Grants


class Sender:
    """One sender: what waits there, and what is under way in both directions."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.credit = Credit(0, PARKED_MESSAGES, PARKED_OCTETS)
        self.waiting = deque()
        self.under_way = deque()
        self.lines = []
        self.arrived = []
        self.lost = 0
        self.told = 0

    def tell(self, size: int) -> None:
        self.told += 1
        self.waiting.append((self.told, size))
        self.send()

    def send(self) -> None:
        while self.waiting and self.credit.take(self.waiting[0][1]):
            self.under_way.append(self.waiting.popleft())

    def ask(self) -> None:
        if self.credit.is_known:
            self.under_way.append((self.credit.sent, len(self.waiting), "asks"))

    def take_line(self, line) -> None:
        if self.credit.granted(*line):
            self.ask()
        self.send()

    def lose(self) -> None:
        self.lost += sum(len(item) == 2 for item in self.under_way)
        self.under_way.clear()


class Model:
    """Some senders and a mailbox, as the drivers use both sides of credit."""

    def __init__(self, senders: int, limit: int | None, octets: int | None) -> None:
        self.limit, self.octets = limit, octets
        self.grants = Grants(limit, octets)
        self.senders = [Sender(bytes([index])) for index in range(senders)]
        self.mailbox = deque()
        self.deepest = self.heaviest = 0
        for sender in self.senders:
            sender.lines.append(self.grants.welcome(sender.name))

    @property
    def held(self) -> int:
        return sum(self.mailbox)

    def arrive(self, sender: Sender) -> None:
        if not sender.under_way:
            return
        number, size, *is_question = sender.under_way.popleft()
        if is_question:
            self.grants.asks(sender.name, number)
            up_to, octets = self.grants.welcome(sender.name)
            if up_to > number:
                sender.lines.append((up_to, octets))
        else:
            sender.arrived.append(number)
            self.mailbox.append(size)
            self.grants.arrived(sender.name)
        self.deepest = max(self.deepest, len(self.mailbox))
        self.heaviest = max(self.heaviest, self.held)
        self.serve()

    def handle(self) -> None:
        if self.mailbox:
            self.mailbox.popleft()
        self.serve()

    def serve(self) -> None:
        """Serve when half of the bounds is free, as the mailbox says."""
        if (self.limit is None or 2 * len(self.mailbox) <= self.limit) and (
            self.octets is None or 2 * self.held <= self.octets
        ):
            for name, *line in self.grants.serve(len(self.mailbox), self.held):
                self.senders[name[0]].lines.append(tuple(line))

    def settle(self) -> None:
        """Let everything arrive, with a question of each sender that waits in each round."""
        for _ in range(10 + 3 * sum(len(sender.waiting) for sender in self.senders)):
            for sender in self.senders:
                while sender.lines:
                    sender.take_line(sender.lines.pop(0))
                if sender.waiting:
                    if not sender.credit.is_known:
                        sender.lines.append(self.grants.welcome(sender.name))
                    sender.ask()
                while sender.under_way:
                    self.arrive(sender)
            while self.mailbox:
                self.handle()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "tell",
                "burst",
                "arrive",
                "arrive",
                "handle",
                "line",
                "line",
                "ask",
                "lose",
                "lose line",
                "repeat",
                "late",
                "release",
            ]
        ),  # fmt: skip
        st.integers(0, 3),
        st.integers(1, 3000),
    ),
    max_size=150,
)


def step(model: Model, what: str, index: int, size: int) -> None:
    sender = model.senders[index % len(model.senders)]
    if "line" in what or what in ("repeat", "late"):
        step_line(sender, what)
    elif what == "release":
        model.grants.leave(sender.name)
        sender.lines.append(model.grants.welcome(sender.name))
    else:
        {
            "tell": lambda: sender.tell(size),
            "burst": lambda: [sender.tell(size) for _ in range(20)],
            "arrive": lambda: model.arrive(sender),
            "handle": model.handle,
            "ask": sender.ask,
            "lose": sender.lose,
        }[what]()


def step_line(sender: Sender, what: str) -> None:
    if sender.lines:
        at = 0 if what != "late" else len(sender.lines) - 1
        line = sender.lines[at] if what == "repeat" else sender.lines.pop(at)
        if what != "lose line":
            sender.take_line(line)


@given(st.integers(1, 4), st.sampled_from([1, 2, 4, 7, 100]), STEPS)
def test_whatever_is_lost_repeated_or_late_everything_comes_in_order(senders, limit, steps):
    model = Model(senders, limit, None)

    for one in steps:
        step(model, *one)
    model.settle()

    for sender in model.senders:
        assert not sender.waiting
        assert sender.arrived == sorted(sender.arrived)
        assert len(sender.arrived) + sender.lost == sender.told


@given(st.integers(1, 4), st.sampled_from([(None, 2000), (4, 10_000), (50, 100)]), STEPS)
def test_so_it_does_with_bounds_in_bytes(senders, bounds, steps):
    model = Model(senders, *bounds)

    for one in steps:
        step(model, *one)
    model.settle()

    for sender in model.senders:
        assert not sender.waiting
        assert sender.arrived == sorted(sender.arrived)
        assert len(sender.arrived) + sender.lost == sender.told


HONEST = ("tell", "burst", "arrive", "handle", "line", "ask", "repeat", "late", "lose line")


@settings(max_examples=60)
@given(st.integers(1, 4), st.sampled_from([1, 2, 4, 100]), STEPS)
def test_no_more_comes_than_the_bounds_and_what_was_sent_before_they_were_known(
    senders, limit, steps
):
    model = Model(senders, limit, None)

    for what, *rest in steps:
        step(model, what if what in HONEST else "arrive", *rest)

    first = senders * PARKED_MESSAGES
    asked_again = senders
    assert model.deepest <= first + 2 * limit + asked_again


@settings(max_examples=60)
@given(st.integers(1, 4), STEPS)
def test_the_bytes_that_come_are_within_the_bounds_but_for_one_message_of_each(senders, steps):
    model = Model(senders, None, 2000)
    for sender in model.senders:
        sender.credit.granted(0, 0)

    for what, *rest in steps:
        step(model, what if what in HONEST else "arrive", *rest)

    assert model.heaviest <= 2000 + senders * 2 * 3000


def test_nobody_starves_beside_idle_senders_that_keep_what_they_were_granted():
    model = Model(4, 2, None)
    for sender in model.senders[:3]:
        sender.take_line(sender.lines.pop())
        model.arrive(sender)
        while sender.lines:
            sender.take_line(sender.lines.pop(0))
    last = model.senders[3]

    for _ in range(30):
        last.tell(1)
    model.settle()

    assert len(last.arrived) == 30


def test_senders_are_served_in_turn():
    grants = Grants(4, None)
    for name in (b"a", b"b", b"c"):
        grants.asks(name, 0)

    served = [grants.serve(3, 0)]
    for name in (b"c", b"b", b"a"):
        grants.arrived(name)
    served.append(grants.serve(3, 0))

    assert served == [
        [(b"a", 1, 0), (b"b", 1, 0), (b"c", 1, 0)],
        [(b"a", 2, 0), (b"b", 2, 0), (b"c", 2, 0)],
    ]


def test_one_grant_leads_no_further_than_a_node_can_count():
    credit = Credit(5, 16, 1000)
    assert credit.granted(NO_BOUND - 1, 0)

    assert credit.up_to == 5 + 16 + LONGEST_LEAP


def test_a_position_that_was_passed_is_not_believed():
    grants = Grants(10, None)
    grants.asks(b"a", 1000)
    ((_, up_to, _),) = grants.serve(0, 0)

    grants.asks(b"a", 3)

    assert grants.welcome(b"a") == (up_to, 0)
    grants.asks(b"b", 0)
    assert grants.serve(0, 0)[0][0] == b"b"
