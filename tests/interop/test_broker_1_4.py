"""Endpoints of the real Broker 1.4 as peers, each in a process of its own.

`CALLBOARD_FLOOD=100000` floods with so many messages; the suite takes fewer.
"""

import ast
import os
import subprocess
import sys
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from pathlib import Path

import pytest

from callboard import Endpoint
from callboard.broker import SC, BrokerOptions, Configuration, Count, Enum, Port
from callboard.model.data import Data
from tests.polling import eventually

pytestmark = pytest.mark.slow

SYSTEM_PYTHON = "/usr/bin/python3"
SCRIPT = Path(__file__).parent / "real_broker_1_4.py"
WIRE = "zeek-1.4"
WAIT = 20.0
FLOOD = int(os.environ.get("CALLBOARD_FLOOD", "5000"))

#: Seconds that a real endpoint takes for its end at most: it waits 10 s where it hangs.
QUICKLY = 5.0


class RealPeer:
    """An endpoint of the real package; its verbs are those of the script."""

    def __init__(self, *options, command=(SYSTEM_PYTHON,)):
        self.process = subprocess.Popen(
            [*command, SCRIPT, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def tell(self, *order):
        """Let it begin with something."""
        print(repr(order), file=self.process.stdin, flush=True)

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the real Broker ended with {self.process.wait(WAIT)}"
        return ast.literal_eval(line)

    def ask(self, *order):
        self.tell(*order)
        return self.answer()

    def close(self):
        """End it; returns how it ended."""
        self.process.stdin.close()
        try:
            return self.process.wait(WAIT)
        finally:
            self.process.kill()
            self.process.stdout.close()


@pytest.fixture(scope="module")
def has_broker():
    probe = [SYSTEM_PYTHON, "-c", "import broker"]
    if (
        not Path(SYSTEM_PYTHON).exists()
        or subprocess.run(probe, capture_output=True, timeout=120, check=False).returncode
    ):
        pytest.skip("Zeek Broker 1.4 is not installed (apt-get install python3-broker)")


@pytest.fixture
def start(has_broker):
    started = []

    def begin(*options, **how):
        started.append(RealPeer(*options, **how))
        return started[-1]

    yield begin
    ended = [each.close() for each in started]
    assert ended == [0] * len(ended)


@pytest.fixture
def endpoint():
    options = BrokerOptions()
    options.disable_ssl = True
    with Endpoint(Configuration(options)) as made:
        yield made


def meet(endpoint, real, role):
    """Let them peer; `role` is ours."""
    if role == "dials":
        assert endpoint.peer("127.0.0.1", real.ask("listen"), 0.5, wire=WIRE)
    else:
        assert real.ask("peer", endpoint.listen("127.0.0.1", 0, wire=WIRE))


ROLES = pytest.mark.parametrize("role", ["dials", "listens"])


@ROLES
def test_all_messages_arrive_in_order_both_ways_and_nobody_hangs_at_the_end(
    start, endpoint, role
):
    real = start()
    real.ask("subscribe", "/real")
    with (
        endpoint.make_subscriber("/ours", qsize=FLOOD) as ours,
        endpoint.make_status_subscriber(receive_statuses=True) as statuses,
    ):
        meet(endpoint, real, role)
        assert statuses.get().code() is SC.PeerAdded
        real.tell("count", "/real", FLOOD)
        for number in range(FLOOD):
            endpoint.publish("/real/x", [number, "hello"])
        assert real.answer() is True

        real.tell("flood", "/ours/x", FLOOD)
        numbers = []
        while len(numbers) < FLOOD:
            numbers += [value[0] for _, value in ours.get(min(1000, FLOOD - len(numbers)))]
        assert numbers == list(range(FLOOD))
        real.answer()
        assert real.ask("told") == ["SC.PeerAdded"]
        if role == "dials":
            assert real.ask("shutdown") < QUICKLY
            assert statuses.get().code() is SC.PeerLost
        else:
            endpoint.shutdown()
            eventually(lambda: real.ask("told") == ["SC.PeerLost"])
            assert real.ask("shutdown") < QUICKLY


VALUES = [
    None, True, Count(2**64 - 1), -(2**63), 1.5, "grün", "x" * 1000, "\0\n",
    IPv4Address("10.1.2.3"), IPv6Address("2001:db8::1"), IPv6Network("2001:db8::/32"),
    Port(80, Port.TCP), Enum("A::B"), timedelta(seconds=1.5), [1, [2, "x"]], {1, 2}, {"a": 1},
    list(range(5000)),
]  # fmt: skip


@pytest.mark.quick
def test_values_come_back_from_a_real_broker_as_they_went(start, endpoint):
    real = start()
    real.ask("subscribe", "/real")
    with endpoint.make_subscriber("/back") as back:
        meet(endpoint, real, "dials")
        real.tell("echo", "/real", "/back", len(VALUES))
        for value in VALUES:
            endpoint.publish("/real/x", value)
        found = [back.get(WAIT)[1] for _ in VALUES]
        real.answer()
    assert [*map(Data, found)] == [*map(Data, VALUES)]


def test_filters_follow_subscriptions_both_ways(start, endpoint):
    real = start()
    meet(endpoint, real, "listens")
    with endpoint.make_subscriber("/late") as late:
        eventually(lambda: real.ask("peers") == ["/late"])
        real.ask("publish", "/late/x", "now")
        assert late.get(WAIT) == ("/late/x", "now")
    eventually(lambda: real.ask("peers") == [])
    real.ask("subscribe", "/real")
    assert endpoint.await_filter_entry("/real", WAIT)
    endpoint.publish("/real", 1)
    assert real.ask("get", "/real", 1) == [("/real", "1")]


def test_a_subscription_to_all_topics_is_one_for_a_real_broker_too(start, endpoint):
    real = start()
    with endpoint.make_subscriber("") as ours:
        meet(endpoint, real, "dials")
        assert real.ask("attach", "master", "store")
        real.ask("store", "store", "put", "key", 1)
        real.ask("publish", "anything", 1)

        assert ours.get(WAIT) == ("anything", 1)


def test_two_real_brokers_reach_each_other_by_this_endpoint(start, endpoint):
    one, other = start(), start()
    other.ask("subscribe", "/t")
    meet(endpoint, one, "listens")
    meet(endpoint, other, "dials")
    eventually(lambda: one.ask("peers") == ["/t"])
    one.ask("publish", "/t/x", [1, "through"])

    assert other.ask("get", "/t", 1) == [("/t/x", "(1, 'through')")]


def test_messages_in_a_triangle_of_brokers_die(start, endpoint):
    one, other = start(), start()
    for each in (one, other):
        each.ask("subscribe", "/t")
        meet(endpoint, each, "dials")
    port = one.ask("listen")
    assert other.ask("peer", port)
    with endpoint.make_subscriber("/t") as ours:
        for each in (one, other):
            eventually(lambda each=each: "/t" in each.ask("peers"))
        endpoint.publish("/t", "round")
        assert one.ask("get", "/t", 1) == [("/t", "'round'")]
        assert other.ask("get", "/t", 1) == [("/t", "'round'")]
        came = []

        def is_over():
            came.append(
                sum(each.brought for each in endpoint._adapters.peering(WIRE).neighbors())
            )
            return len(came) > 30 and came[-1] == came[-30]

        eventually(is_over)
        assert came[-1] <= 2 * endpoint.configuration.options.ttl
        assert ours.get(WAIT) == ("/t", "round")


def test_a_real_broker_leaves_and_comes_back(start, endpoint):
    real = start()
    port = endpoint.listen("127.0.0.1", 0, wire=WIRE)
    real.ask("subscribe", "/real")
    for _ in range(2):
        assert real.ask("peer", port)
        assert endpoint.await_filter_entry("/real", WAIT)
        endpoint.publish("/real", 1)
        assert real.ask("get", "/real", 1) == [("/real", "1")]
        assert real.ask("unpeer", port)
        eventually(lambda: not endpoint.peers())


def test_a_real_broker_that_ends_is_dialed_until_it_is_there_again(start, endpoint):
    first, second = start(), start()
    port = first.ask("listen")
    with endpoint.make_subscriber("/ours") as ours:
        assert endpoint.peer("127.0.0.1", port, 0.2, wire=WIRE)
        assert first.ask("shutdown") < QUICKLY
        eventually(lambda: not endpoint._adapters.peering(WIRE).neighbors())
        assert second.ask("listen", port) == port
        eventually(lambda: second.ask("peers") == ["/ours"])
        second.ask("publish", "/ours", "again")

        assert ours.get(WAIT) == ("/ours", "again")


@pytest.mark.parametrize("who", ["we", "they"])
def test_an_end_in_the_midst_of_a_flood_harms_nobody(start, endpoint, who):
    real = start()
    real.ask("subscribe", "/real")
    with endpoint.make_subscriber("/ours", qsize=100_000) as ours:
        meet(endpoint, real, "listens")
        real.tell("flood", "/ours", 2000)
        for number in range(2000):
            endpoint.publish("/real", number)
        assert ours.get(WAIT) is not None
        if who == "we":
            endpoint.shutdown()
        real.answer()
        assert real.ask("shutdown") < QUICKLY


@ROLES
def test_tls_is_that_of_the_real_broker_by_default(start, role):
    real = start("--tls")
    with Endpoint() as endpoint, endpoint.make_subscriber("/ours") as ours:
        meet(endpoint, real, role)
        real.ask("publish", "/ours", "secret")

        assert ours.get(WAIT) == ("/ours", "secret")


def test_a_message_for_a_real_broker_alone(start, endpoint):
    real, other = start(), start()
    for each in (real, other):
        each.ask("subscribe", "/t")
        meet(endpoint, each, "listens")
    to = endpoint.peers()[0].peer
    endpoint.publish(to, "/t/you", "alone")
    endpoint.publish("/t", "all")

    found = {each.ask("get", "/t", 1)[0] for each in (real, other)}
    assert found == {("/t/you", "'alone'"), ("/t", "'all'")}


def test_a_clone_finds_no_master_here_and_goes_on(start, endpoint):
    real = start()
    meet(endpoint, real, "listens")
    assert real.ask("attach", "clone", "store")
    assert real.ask("store", "store", "keys") == "None"
    real.ask("publish", "/t", 1)
    assert real.ask("shutdown") < QUICKLY


def test_a_program_for_the_real_package_meets_it_unchanged(start):
    command = (sys.executable, "-m", "callboard", "compat", "broker", "--wire", WIRE, "--")
    real, ours = start(), start(command=command)
    real.ask("subscribe", "/real")
    ours.ask("subscribe", "/ours")
    assert ours.ask("peer", real.ask("listen"))
    eventually(lambda: real.ask("peers") == ["/ours"])
    real.tell("echo", "/real", "/ours/back", 3)
    for number in range(3):
        ours.ask("publish", "/real/x", [number, "hello"])
    real.answer()

    assert ours.ask("get", "/ours", 3) == [("/ours/back", f"({n}, 'hello')") for n in range(3)]
    assert (real.ask("told"), ours.ask("told")) == (["SC.PeerAdded"], ["SC.PeerAdded"])
    assert ours.ask("shutdown") < QUICKLY
    assert real.ask("shutdown") < QUICKLY
