"""Odd times, wherever a program, a file or another node may give seconds."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Actor, Child, Endpoint, Limits, Node, errors, handler
from callboard.actors.errors import AskTimeout, CallboardError, InvalidSeconds
from callboard.actors.runner.timers import Timers
from callboard.arguments import limit, period, seconds
from callboard.basp.header import INSPECTOR
from callboard.broker import Backend
from callboard.commitlog import CommitLog, Retention
from callboard.flow.flow import Flow
from callboard.flow.protocol.machine import FlowMachine
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.router.limits import Limits as RouterLimits
from callboard.mqtt.service.config import RouterConfig
from callboard.proxies.messages import DrainNode
from callboard.store.options import CloneOptions, StoreOptions
from callboard.support.seconds import MAX_SECONDS, checked_seconds
from tests.polling import eventually

#: No times at all.
NO_TIMES = [math.nan, "1", b"1", True, 1j, [], Decimal(1), object()]
#: Times that stand for ever.
FOR_EVER = [math.inf, 1e308, 1e18, 10**400]


@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.fractions()))
def test_a_time_is_a_number_from_0_to_the_longest_or_refused(value):
    try:
        made = seconds(value)
    except InvalidSeconds:
        assert (
            not isinstance(value, int | float | Fraction)
            or value != value
            or value is True
            or value is False
        )
        return
    assert type(made) is float
    assert 0.0 <= made <= MAX_SECONDS
    assert limit(value) == (None if made == MAX_SECONDS else made)
    if made == 0.0:
        with pytest.raises(InvalidSeconds):
            period(0.0)


def test_the_error_is_ours_a_value_error_and_short():
    with pytest.raises(CallboardError, match=r"^timeout=nan: a time must be a number of"):
        seconds(math.nan)
    with pytest.raises(ValueError, match="every=0: a period must be more than 0") as caught:
        period(0, "every")
    assert isinstance(caught.value, errors.InvalidSeconds)
    with pytest.raises(ValueError, match="timeout") as caught:
        checked_seconds("x" * 10**6)
    assert len(str(caught.value)) < 200


class Odd(Actor):
    @handler
    def after_seconds(self, given: tuple) -> None:
        self.after(given[0], "late")

    @handler
    def every_seconds(self, given: list) -> None:
        self.every(given[0], "late")

    @handler
    async def sleeps(self, given: set) -> None:
        await self.sleep(ODD["it"])

    @handler
    def late(self, _: str) -> None:
        """Receive a delayed message."""


ODD = {}


@pytest.fixture(scope="module")
def node():
    with Node("times") as node:
        node.listen()
        yield node


@pytest.fixture(scope="module")
def endpoint(node):
    with Endpoint(node=node) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def flow():
    return lambda timeout: Flow(FlowMachine("extract", 1, {}), timeout)


def calls(node, endpoint, flow, tmp_path):
    """Return the functions that take a time, by name."""
    subscriber = endpoint.make_subscriber(["t"])
    ref = node.spawn(Odd)
    loop = node.runtime.loop
    return {
        "ask": lambda t: ref.ask("x", timeout=t).result(5),
        "result": lambda t: node.monitor(ref).result(t),
        "find": lambda t: node.find("x", t),
        "find_all": lambda t: node.find_all("x", t),
        "connect": lambda t: node.connect("basp://127.0.0.1:9", t),
        "remote_actor": lambda t: node.remote_actor("basp://127.0.0.1:9/x", t),
        "disconnect": lambda t: node.disconnect(b"x" * 18, t),
        "child": lambda t: Child(Odd, shutdown=t),
        "intensity": lambda t: node.supervise([], intensity=(1, t)),
        "backoff": lambda t: node.supervise([], backoff=(t, t)),
        "call_at": lambda t: loop.call_at(t, print),
        "await_peer": lambda t: endpoint.await_peer("x", timeout=t),
        "get": lambda t: subscriber.get(1, t),
        "queue": lambda t: subscriber._queue.get(t),
        "flow": flow,
        "store": lambda t: StoreOptions(tick_interval=t),
        "clone": lambda t: CloneOptions(resync_interval=t),
        "router": lambda t: RouterLimits(session_expiry=t),
        "network": lambda t: NetworkLimits(linger=t),
        "sys": lambda t: RouterConfig(sys_interval=t),
        "retention": lambda t: Retention(seconds=t),
        "sync": lambda t: CommitLog(tmp_path / "log", sync_interval=t),
        "limits": lambda t: Limits(links=t),
    }


@pytest.mark.parametrize("odd", NO_TIMES, ids=lambda odd: type(odd).__name__)
def test_every_api_refuses_an_invalid_time(node, endpoint, flow, tmp_path, odd):
    for name, call in calls(node, endpoint, flow, tmp_path).items():
        if odd in (True, Decimal(1)) and name in ("call_at", "retention", "sync"):
            continue
        with pytest.raises((ValueError, TypeError)):
            print(name, call(odd))


@pytest.mark.parametrize(
    "odd", NO_TIMES[:1] + NO_TIMES[1:2] + [True], ids=lambda odd: type(odd).__name__
)
def test_a_time_that_is_none_ends_the_actor_that_gave_it_and_timers_stay_in_order(node, odd):
    ODD["it"] = odd
    for message in ((odd,), [odd], {1}):
        with pytest.raises(errors.RemoteError, match="InvalidSeconds"):
            node.spawn(Odd).ask(message).result(5)

    fired = []
    for delay in (0.09, 0.01, 0.05, 0.03):
        node.runtime.call_later(delay, fired.append, delay)
    eventually(lambda: len(fired) == 4)
    assert fired == [0.01, 0.03, 0.05, 0.09]


@pytest.mark.parametrize("long", FOR_EVER, ids=lambda each: f"{float(min(each, 1e300))}")
def test_times_without_end_are_for_ever(node, long):
    ODD["it"] = long
    ref = node.spawn(Odd)
    assert ref.ask((long,), timeout=long).result(5) is None
    assert ref.ask([long], timeout=long).result(long) is None
    with Node("other") as other:
        far = other.remote_actor(str(ref))
        other.connect(node.address, long)
        assert far.ask((long,), timeout=long).result(5) is None
        with pytest.raises(AskTimeout):
            far.ask({1}, timeout=0.05).result(5)
        with pytest.raises(AskTimeout):
            far.ask({1}, timeout=-long).result(5)
    assert Retention(seconds=long) if long != math.inf else Retention(seconds=long).is_unlimited


@given(st.lists(st.floats(), max_size=20))
def test_the_heap_of_timers_takes_no_nan_and_stays_in_order(times):
    timers = Timers()
    for each in times:
        try:
            timers.add(each, print, (each,))
        except InvalidSeconds:
            assert math.isnan(each)

    fired = [args[0] for _, args in timers.due(math.inf)]

    finite = [each for each in fired if abs(each) <= 1e15]
    assert finite == sorted(finite)
    assert len(fired) == sum(not math.isnan(each) for each in times)


@pytest.mark.parametrize("odd", [math.nan, "soon", None, True], ids=repr)
def test_a_drain_asked_for_with_an_odd_time_is_refused(node, odd):
    with Node("asker") as asker:
        inspector = asker.runtime.ref_of(asker.connect(node.address), INSPECTOR)
        with pytest.raises(CallboardError, match="timeout="):
            inspector.ask(DrainNode(odd)).result(5)
        with pytest.raises(CallboardError, match="timeout="):
            inspector.ask(DrainNode(odd)).result(5)


@pytest.mark.parametrize(
    "odd",
    [math.nan, math.inf, 1e308, 10**400, -(10**400), "x", True],
    ids=lambda each: f"{type(each).__name__}",
)
def test_an_expiry_that_no_store_can_hold_is_refused(endpoint, odd):
    with endpoint.attach_master("odd", Backend.Memory) as store, pytest.raises(CallboardError):
        store.put("key", 1, odd)
