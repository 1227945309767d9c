"""Each rule of a life can be broken: a planted bug is found within a few seeds, by its rule."""

from dataclasses import replace

import pytest

from callboard.actors.cell import Cell
from callboard.actors.exit_reason import ExitReason
from callboard.actors.future import Future
from callboard.basp.accounting import Account
from callboard.basp.link import LinkPairs
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.link.attempt import Attempt
from callboard.proxies.link.dialer import Dialer
from callboard.proxies.traffic.incoming import Incoming
from callboard.proxies.traffic.outgoing import Outgoing
from callboard.proxies.traffic.paths import Paths
from callboard.proxies.traffic.remote_reply import RemoteReply
from tests.simulation.life import live_nodes
from tests.simulation.rules import Violation

pytestmark = pytest.mark.slow

#: Those that find most come first.
SEEDS = (7000, 7007, 7068, 7064, 7003, 7025, 7013, *range(7000, 7040), 7080, 7098)


def first_violation() -> str:
    """Return what the first life that breaks a rule says."""
    test = live_nodes.test
    for seed in SEEDS:
        error = test.live(seed, test.faults_of(seed), {}).error
        if error is not None:
            assert isinstance(error, Violation), error
            return str(error)
    return "no rule was broken"


def twice(method):
    """Return a method that does its work two times."""

    def both(*args, **kwargs):
        method(*args, **kwargs)
        return method(*args, **kwargs)

    return both


def no_retry(self, dial):
    """Forget to dial again."""


def ask_never_expires(plant):
    plant(Future, "expire", lambda _: None)


def ask_is_answered_twice(plant):
    plant(Outgoing, "respond_encoded", twice(Outgoing.respond_encoded))


def ask_gets_the_answer_of_another(plant):
    set_result = RemoteReply.set_result

    def off_by_one(self, value):
        return set_result(self, value + 1 if isinstance(value, int) else value)

    plant(RemoteReply, "set_result", off_by_one)


def ask_fails_with_an_error_of_python(plant):
    plant(Future, "expire", lambda self: self.set_exception(KeyError("late")))


def frames_of_a_read_arrive_backwards(plant):
    post = Incoming._post
    plant(Incoming, "_post", lambda self, wire, frames: post(self, wire, frames[::-1]))


def frames_arrive_twice(plant):
    post = Incoming._post
    plant(Incoming, "_post", lambda self, wire, frames: post(self, wire, frames * 2))


def monitors_do_not_hear_of_a_lost_node(plant):
    plant(Proxy, "report_unreachable", lambda *_: None)


def monitors_do_not_hear_of_a_remote_end(plant):
    plant(Proxy, "actor_ended", lambda self, *why: setattr(self, "down", why))


def monitors_fire_twice(plant):
    notify = Proxy._notify
    plant(Proxy, "_notify", lambda self, watchers, *why: notify(self, watchers * 2, *why))


def monitors_tell_a_wrong_reason(plant):
    ended = Proxy.actor_ended
    plant(
        Proxy, "actor_ended", lambda self, _, detail: ended(self, ExitReason.SHUTDOWN, detail)
    )


def monitors_take_an_end_for_a_loss(plant):
    def lost(self, reason, detail):
        self.report_unreachable(detail)
        self.down = reason, detail

    plant(Proxy, "actor_ended", lost)


def local_monitors_tell_a_wrong_reason(plant):
    monitor = Cell.monitor

    def late(self, key, watcher):
        monitor(self, key, lambda down: watcher(replace(down, reason=ExitReason.ERROR)))

    plant(Cell, "monitor", late)


def monitors_of_nodes_never_fire(plant):
    plant(Paths, "monitor_node", lambda *_: None)


def pairs_get_two_links(plant):
    plant(LinkPairs, "acquire", lambda *_: True)


def lost_messages_are_not_counted(plant):
    for name in ("write_off", "expire"):
        plant(Account, name, _forgetting(getattr(Account, name)))


def _forgetting(write_off):
    """Return a method that takes what it writes off out of the books."""

    def forget(self, *epoch):
        written_off = write_off(self, *epoch)
        self.lost -= written_off
        self.sent -= written_off
        self._base -= written_off
        self.offset += written_off
        return written_off

    return forget


def more_is_confirmed_than_was_handled(plant):
    confirm = Account.confirm
    plant(
        Account,
        "confirm",
        lambda self, epoch, *_: confirm(self, epoch, self.sent - self._base, 0, 0),
    )


def nothing_is_confirmed(plant):
    plant(Account, "confirm", lambda *_: 0)


def lost_links_are_not_dialed_again(plant):
    plant(Dialer, "_retry", no_retry)


def arrived_messages_are_dead_letters_as_well(plant):
    post = Cell.post

    def both(self, message, sender):
        if isinstance(sender, RemoteReply) and not sender.wants_reply:
            self.runtime.dead_letter(self.ref, message, sender)
        post(self, message, sender)

    plant(Cell, "post", both)


def an_attempt_forgets_its_timer(plant):
    connected = Attempt._connected

    def forgetful(self, found, error):
        self._late = None
        connected(self, found, error)

    plant(Attempt, "_connected", forgetful)


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (ask_never_expires, ("hangs for", "is open")),
        (ask_is_answered_twice, ("answers more than",)),
        (ask_gets_the_answer_of_another, ("was answered with",)),
        (ask_fails_with_an_error_of_python, ("failed with KeyError",)),
        (frames_of_a_read_arrive_backwards, ("came after",)),
        (frames_arrive_twice, ("came after", "answers more than", "as confirmed by node")),
        (monitors_do_not_hear_of_a_lost_node, ("told: nothing; its node",)),
        (monitors_do_not_hear_of_a_remote_end, ("told: nothing; its actor ended",)),
        (monitors_fire_twice, ("more than once",)),
        (monitors_tell_a_wrong_reason, ("told: shutdown",)),
        (monitors_take_an_end_for_a_loss, ("told: unreachable",)),
        (local_monitors_tell_a_wrong_reason, ("told: error",)),
        (monitors_of_nodes_never_fire, ("never fired",)),
        (pairs_get_two_links, ("links with", "already a neighbor")),
        (lost_messages_are_not_counted, ("are reported lost",)),
        (more_is_confirmed_than_was_handled, ("as confirmed by node",)),
        (nothing_is_confirmed, ("are in flight",)),
        (lost_links_are_not_dialed_again, ("does not reach",)),
        (arrived_messages_are_dead_letters_as_well, ("was a dead letter as well",)),
        (an_attempt_forgets_its_timer, ("each attempt to connect ends once",)),
    ],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_a_planted_bug_is_found_by_its_rule(monkeypatch, bug, words):
    bug(monkeypatch.setattr)

    said = first_violation()

    assert any(word in said for word in words), said
