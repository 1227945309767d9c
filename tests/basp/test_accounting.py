import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from callboard.basp.accounting import OPEN_EPOCH_LIMIT, Account, Accounts
from callboard.basp.errors import MalformedPayload, RemoteProtocolError
from callboard.basp.header import POSITION_MASK, SEQUENCE_BITS, SEQUENCE_COUNT
from callboard.cbor.plain import read_plain, write_plain

A, B = b"a" * 18, b"b" * 18


class AccountLaw(RuleBasedStateMachine):
    """A sends to B over a network that delays, loses, and reports late or never."""

    def __init__(self):
        super().__init__()
        self.sender, self.receiver = Accounts(), Accounts()
        self.account = self.sender.account(B)
        self.on_the_way: list[int] = []
        self.reports: list[bytes] = []
        self.sent = self.told_lost = self.arrived_in_time = 0
        self.arrived: dict[int, int] = {}

    @rule(count=st.integers(1, 5))
    def send(self, count):
        self.sender.account(B).sent += count
        self.sent += count
        self.on_the_way += [self.account.epoch] * count

    @rule(count=st.integers(1, 5), dead=st.booleans())
    def arrive(self, count, dead):
        for epoch in self.on_the_way[:count]:
            arrivals = self.receiver.arrivals_of(A, epoch)
            arrivals.dead_letters += dead
            arrivals.delivered += not dead
        del self.on_the_way[:count]

    @rule(count=st.integers(1, 3))
    def vanish(self, count):
        del self.on_the_way[-count:]

    @rule(count=st.integers(1, 5))
    def give_up(self, count):
        for epoch in self.on_the_way[:count]:
            self.receiver.arrivals_of(A, epoch).given_up += 1
        del self.on_the_way[:count]

    @rule()
    def make_report(self):
        self.reports += [payload for _node, payload in self.receiver.reports()]

    @rule(pick=st.integers(0, 100), keep=st.booleans())
    def take_report(self, pick, keep):
        if self.reports:
            index = pick % len(self.reports)
            self.told_lost += self.sender.receive_report(B, self.reports[index])
            if not keep:
                del self.reports[index]

    @rule()
    def move_path(self):
        self.told_lost += self.sender.path_moved(B)

    @rule()
    def lose_node(self):
        self.told_lost += self.sender.node_lost(B)
        assert self.account.in_flight == 0

    @invariant()
    def law(self):
        account = self.account
        assert account.sent == self.sent
        assert account.lost == self.told_lost
        assert account.in_flight >= 0
        assert account.sent == account.confirmed + account.lost + account.in_flight
        assert account.dead_letters <= account.confirmed
        assert self.sender.totals() == (
            account.sent,
            account.confirmed,
            account.lost,
            account.in_flight,
        )
        # Nothing is confirmed that did not arrive.
        arrivals = self.receiver.arrivals.get(A, {}).values()
        assert account.confirmed <= sum(a.delivered + a.dead_letters for a in arrivals)


AccountLaw.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAccountLaw = AccountLaw.TestCase


def exchange(sender, receiver):
    for _node, payload in receiver.reports():
        sender.receive_report(B, payload)


def test_everything_that_arrives_is_confirmed():
    sender, receiver = Accounts(), Accounts()
    for _ in range(200):
        account = sender.account(B)
        account.sent += 3
        receiver.arrivals_of(A, account.epoch).delivered += 2
        receiver.arrivals_of(A, account.epoch).dead_letters += 1
        sender.path_moved(B)
        exchange(sender, receiver)

    assert sender.totals() == (600, 600, 0, 0)
    assert sender.account(B).dead_letters == 200
    assert len(receiver.arrivals[A]) <= OPEN_EPOCH_LIMIT + 1


def test_epochs_wrap_and_count_anew():
    sender, receiver = Accounts(), Accounts()
    account = sender.account(B)
    for turn in range(200):
        account.sent += 2
        receiver.arrivals_of(A, account.epoch).delivered += 1
        exchange(sender, receiver)
        assert account.confirmed == turn + 1
        assert sender.node_lost(B) == 1
        assert account.epoch == (turn + 1) % 64


def test_a_late_report_confirms_nothing():
    sender, receiver = Accounts(), Accounts()
    account = sender.account(B)
    account.sent += 5
    receiver.arrivals_of(A, account.epoch).delivered += 5

    assert sender.node_lost(B) == 5
    exchange(sender, receiver)

    assert (account.confirmed, account.lost, account.epoch) == (0, 5, 1)


def test_a_late_report_of_an_earlier_path_confirms_nothing():
    sender, receiver = Accounts(), Accounts()
    account = sender.account(B)
    account.sent += 5
    receiver.arrivals_of(A, account.epoch).delivered += 5
    sender.path_moved(B)
    account.sent += 1

    assert sender.node_lost(B) == 6
    exchange(sender, receiver)

    assert (account.confirmed, account.lost, account.in_flight) == (0, 6, 0)


def test_an_epoch_without_messages_continues():
    sender = Accounts()
    account = sender.account(B)
    assert (sender.node_lost(B), sender.path_moved(B), account.epoch) == (0, 0, 0)


def test_open_epochs_have_a_limit_and_the_oldest_is_written_off():
    sender = Accounts()
    account = sender.account(B)
    written_off = 0
    for _ in range(OPEN_EPOCH_LIMIT + 2):
        account.sent += 1
        written_off += sender.path_moved(B)

    assert written_off == account.lost == 3
    assert account.in_flight == OPEN_EPOCH_LIMIT - 1


def test_reports_have_only_changes_and_can_be_repeated():
    receiver = Accounts()
    receiver.arrivals_of(A, 3).delivered += 7
    first = receiver.reports()

    assert first == [(A, write_plain([[3, 7, 0, 0]]))]
    assert receiver.reports() == []
    receiver.repeat_report(A)
    receiver.repeat_report(B)
    assert receiver.reports() == first
    receiver.forget_arrivals(A)
    receiver.repeat_report(A)
    assert receiver.reports() == []


def test_no_report_confirms_more_than_was_sent():
    sender = Accounts()
    account = sender.account(B)
    account.sent += 5
    sender.path_moved(B)
    account.sent += 2
    sender.receive_report(B, write_plain([[0, 2**63, 2**63, 9], [1, 9, 9, 9], [40, 1, 1, 1]]))

    assert (account.confirmed, account.dead_letters, account.in_flight) == (7, 7, 0)
    assert account.lost == 0


def test_only_the_last_line_of_a_report_can_name_an_epoch_that_has_not_begun():
    """Numbers wrap: after epoch 42, 0 is an old one or the 64th."""
    sender, receiver = Accounts(), Accounts()
    account = sender.account(B)
    for number in range(42):
        account.sent += 1
        sender.path_moved(B)
        account.confirm(number, 1, 0, 0)
    receiver.arrivals_of(A, 20).delivered += 1
    receiver.arrivals_of(A, 0).delivered += 1

    receiver.expected = {A: 20}.get
    receiver.repeat_report(A)
    ((_, report),) = receiver.reports()
    assert read_plain(report)[-1][0] == 20
    assert sender.receive_report(B, report) == 0
    assert account.epoch == 42

    receiver.expected = {A: 50}.get
    receiver.repeat_report(A)
    ((_, report),) = receiver.reports()
    sender.receive_report(B, report)
    assert account.epoch == 51


def test_a_report_ends_with_the_expected_epoch_and_shows_a_missed_end():
    sender, receiver = Accounts(), Accounts()
    account = sender.account(B)
    receiver.expected = {A: 1}.get
    for _ in range(3):
        account.sent += 1
        sender.path_moved(B)
    receiver.arrivals_of(A, 0).delivered += 1

    ((_, report),) = receiver.reports()
    assert read_plain(report) == [[0, 1, 0, 0], [1, 0, 0, 0]]
    sender.receive_report(B, report)
    assert not account.is_missed  # of epoch 1 a message is under way
    assert receiver.reports() == []

    account.expire(2)
    receiver.repeat_report(A)
    sender.receive_report(B, *[report for _, report in receiver.reports()])
    assert (account.is_missed, account.epoch) == (True, 3)


def test_messages_that_the_destination_gave_up_are_lost_at_once():
    sender, receiver = Accounts(), Accounts()
    account = sender.account(B)
    account.sent += 5
    receiver.arrivals_of(A, 0).delivered += 2
    receiver.arrivals_of(A, 0).given_up += 3
    ((_, report),) = receiver.reports()

    assert sender.receive_report(B, report) == 3
    assert sender.receive_report(B, report) == 0
    assert (account.confirmed, account.lost, account.in_flight) == (2, 3, 0)

    account.sent += 2
    sender.path_moved(B)
    receiver.arrivals_of(A, 0).delivered += 1
    receiver.arrivals_of(A, 0).given_up += 1
    ((_, report),) = receiver.reports()

    assert sender.receive_report(B, report) == 1
    assert (account.confirmed, account.lost, account.in_flight) == (3, 4, 0)
    assert account.expire(0) == 0


def test_no_report_gives_up_more_than_is_in_flight():
    account = Account()
    account.sent += 5

    assert account.confirm(0, 2, 0, 2**63) == 3
    assert account.confirm(0, 5, 0, 3) == 0
    assert (account.confirmed, account.lost, account.in_flight) == (2, 3, 0)


def position(account):
    found = account.offset + account.sent & POSITION_MASK
    return found >> SEQUENCE_BITS, found % SEQUENCE_COUNT


def test_positions_rise_and_skip_the_rest_of_an_epoch_that_ended():
    account = Account()
    for epoch in range(130):
        for sequence in range(3):
            assert position(account) == (epoch % 64, sequence)
            account.sent += 1
        if epoch % 2:
            account.next_epoch()
        else:
            account.write_off()


def test_the_epoch_after_a_full_one_begins_by_itself():
    account = Account()
    account.sent += SEQUENCE_COUNT
    assert (account.epoch, account.sent_in_epoch) == (0, SEQUENCE_COUNT)

    account.sent += SEQUENCE_COUNT + 1
    assert position(account) == (2, 1)
    assert (account.epoch, account.sent_in_epoch) == (2, 1)
    assert account.confirm(0, SEQUENCE_COUNT, 0, 0) == 0
    assert account.confirm(1, 5, 0, 0) == 0
    assert account.confirmed == SEQUENCE_COUNT + 5

    account.next_epoch()
    assert position(account) == (3, 0)
    assert account.expire(2) == SEQUENCE_COUNT - 5 + 1
    assert account.in_flight == 0


def test_a_dispatch_with_several_messages_stays_in_its_epoch():
    account = Account()
    assert account.room == SEQUENCE_COUNT
    account.sent += SEQUENCE_COUNT - 3
    assert account.room == 3

    account.sent += account.room

    assert (account.epoch, account.room) == (0, SEQUENCE_COUNT)
    account.sent += 5
    assert (account.epoch, account.sent_in_epoch) == (1, 5)
    account.next_epoch()
    assert (account.epoch, account.room) == (2, SEQUENCE_COUNT)


def test_unknown_nodes_have_no_lost_messages():
    accounts = Accounts()
    assert accounts.receive_report(B, write_plain([[0, 5, 0, 0]])) == 0

    assert accounts.node_lost(B) == accounts.path_moved(B) == 0
    assert accounts.totals() == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "content", [5, {}, [5], [[1, 2, 3]], [[64, 0, 0, 0]], [[-1, 0, 0, 0]], [[0, -1, 0, 0]],
                [[0, 0, True, 0]], [[0, 0, 0, -1]], [[0, 0, 0, 0]] * 65],
)  # fmt: skip
def test_malformed_reports_are_refused(content):
    sender = Accounts()
    sender.account(B).sent += 1
    with pytest.raises(MalformedPayload, match="delivery report of node"):
        sender.receive_report(B, write_plain(content))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_report_or_refused(payload):
    try:
        Accounts().receive_report(B, payload)
    except RemoteProtocolError:
        event("refused")


def test_an_old_epoch_expires_as_lost_and_late_reports_of_it_are_ignored():
    account = Account()
    account.sent += 5
    account.confirm(0, 2, 0, 0)
    account.next_epoch()
    account.sent += 1

    assert account.expire(0) == 3
    account.confirm(0, 5, 0, 1)

    assert (account.sent, account.confirmed, account.lost, account.in_flight) == (6, 2, 3, 1)


def test_an_expired_epoch_expires_all_earlier_ones():
    account = Account()
    for _ in range(3):
        account.sent += 2
        account.next_epoch()

    assert account.expire(1) == 4
    assert (account.expire(0), account.expire(1), account.expire(2)) == (0, 0, 2)


def test_the_current_epoch_does_not_expire():
    account = Account()
    account.sent += 1

    assert account.expire(0) == 0
    assert account.in_flight == 1


def test_a_closed_account_counts_on_in_the_totals():
    sender = Accounts()
    sender.account(A).sent += 5
    sender.receive_report(A, write_plain([[0, 3, 0, 0]]))
    sender.close(A)
    assert sender.accounts  # two are in flight

    sender.node_lost(A)
    sender.close(A)
    sender.account(B).sent += 1

    assert sender.totals() == (6, 3, 2, 1)
    assert list(sender.accounts) == [B]
