"""Wills outlive the router: published once, when due, unless the client is back."""

import pytest

from callboard.mqtt.wire.packet import V4, V5, Disconnect, Will
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.durable_stage import LASTING, DurableStage


@pytest.fixture
def durable() -> DurableStage:
    return DurableStage()


def delayed(seconds: int, payload: bytes = b"gone", **properties) -> Will:
    said = Properties(will_delay_interval=seconds, **properties)
    return Will("will/c", payload, 1, properties=said)


def watch(durable: DurableStage) -> None:
    watcher = durable.client("watcher", **LASTING)
    watcher.subscribe("will/#", qos=2)
    watcher.lose()


def seen(durable: DurableStage) -> list[bytes]:
    """Return what the watcher got since it looked last."""
    watcher = durable.client("watcher", **LASTING)
    got = watcher.payloads()
    watcher.lose()
    return got


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("lasts", [True, False])
def test_the_will_of_a_connected_client_is_published_after_a_restart(
    durable, version, lasts
) -> None:
    watch(durable)
    options = {"expiry": 1000} if lasts and version == V5 else {}
    will = Will("will/c", b"gone", 1, retain=True)
    durable.client("c", version=version, clean=not lasts, will=will, **options)

    durable.crash()
    durable.run()

    assert seen(durable) == [b"gone"]
    late = durable.client("late")
    late.subscribe("will/c")
    assert late.payloads() == [b"gone"]
    durable.crash()
    durable.run()
    assert seen(durable) == []


def test_the_will_delay_of_a_connected_client_begins_at_the_restart(durable) -> None:
    watch(durable)
    durable.client("c", will=delayed(60), **LASTING)
    durable.advance(500)

    durable.crash()
    durable.advance(59)
    before = seen(durable)
    durable.advance(1)

    assert (before, seen(durable)) == ([], [b"gone"])


def test_a_delayed_will_keeps_its_time(durable) -> None:
    watch(durable)
    durable.client("c", will=delayed(60), **LASTING).lose()
    durable.advance(20)

    durable.crash()
    durable.advance(39)
    before = seen(durable)
    durable.crash()
    durable.advance(1)

    assert (before, seen(durable)) == ([], [b"gone"])


def test_a_will_that_was_due_while_the_router_was_down_is_published_at_once(durable) -> None:
    watch(durable)
    durable.client("c", will=delayed(60), **LASTING).lose()
    durable.now += 100

    durable.crash()
    durable.run()

    assert seen(durable) == [b"gone"]


@pytest.mark.parametrize("was_connected", [True, False])
def test_a_client_that_returns_in_time_has_no_will_published(durable, was_connected) -> None:
    watch(durable)
    client = durable.client("c", will=delayed(60), **LASTING)
    if not was_connected:
        client.lose()

    durable.crash()
    durable.client("c", **LASTING)
    durable.crash()
    durable.advance(200)

    assert seen(durable) == []


@pytest.mark.parametrize("delay", [0, 60])
def test_a_dropped_or_published_will_is_not_published_again(durable, delay) -> None:
    watch(durable)
    durable.client("one", will=delayed(delay, b"one"), **LASTING).send(
        Disconnect(0, Properties())
    )
    durable.client("two", will=delayed(delay, b"two"), **LASTING).lose()
    durable.advance(delay)
    assert seen(durable) == [b"two"]

    durable.crash()
    durable.advance(1000)

    assert seen(durable) == []


def test_a_will_keeps_its_properties(durable) -> None:
    will = delayed(5, content_type="text", user_properties=(("a", "b"),))
    durable.client("c", will=will, **LASTING)
    watch(durable)

    durable.crash()
    watcher = durable.client("watcher", **LASTING)
    durable.advance(5)

    (message,) = watcher.messages()
    assert message.properties.content_type == "text"
    assert message.properties.user_properties == (("a", "b"),)


def test_compaction_of_the_journal_keeps_wills(durable) -> None:
    watch(durable)
    durable.client("there", will=delayed(60, b"there"), **LASTING)
    durable.client("away", will=delayed(60, b"away"), **LASTING).lose()
    durable.advance(10)
    durable.journal._cut(durable.machine)

    durable.crash()
    durable.advance(50)
    first = seen(durable)
    durable.advance(10)

    assert (first, seen(durable)) == ([b"away"], [b"there"])


def test_a_will_that_its_client_may_not_publish_is_dropped(durable) -> None:
    durable.client("c", will=Will("$SYS/broker/lie", b"x", retain=True), **LASTING)
    durable.crash()
    durable.run()
    assert not list(durable.machine.logs.retained)


def test_without_a_journal_no_file_is_written() -> None:
    durable = DurableStage()
    durable.machine.effects.is_durable = False
    durable.client("c", will=delayed(5)).lose()
    assert not any(turn.records for turn in durable.turns)
