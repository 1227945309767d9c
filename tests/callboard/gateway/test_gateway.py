"""Gateways: modules and links by name."""

import asyncio

import pytest

from callboard.actors.errors import WouldBlock, WouldDeadlock
from callboard.actors.mailbox import Mailbox
from callboard.gateway import (
    DuplicateLink,
    DuplicateModule,
    Gateway,
    GatewayError,
    InvalidLink,
    ModuleOptions,
    UnknownModule,
)
from tests.callboard.gateway.cast import LIMIT, Gate, Quiet, Recorder
from tests.polling import eventually


def test_names_are_unique_and_star_is_none(gateway):
    gateway.add_module("a", Quiet)

    with pytest.raises(DuplicateModule, match="'a'"):
        gateway.add_module("a", Quiet)
    for name in ("*", "", None, 5):
        with pytest.raises(GatewayError):
            gateway.add_module(name, Quiet)
    with pytest.raises(GatewayError):
        gateway.add_module("b", "no.such:Thing")
    with pytest.raises(GatewayError):
        gateway.add_module("b", {"name": "java"})
    assert [status.name for status in gateway.modules()] == ["a"]


def test_links_are_checked_with_both_names(gateway):
    gateway.add_module("a", Quiet)
    gateway.add_module("b", Quiet)
    gateway.link("a", "b")

    with pytest.raises(DuplicateLink, match="'a' and 'b'"):
        gateway.link("a", "b")
    with pytest.raises(InvalidLink):
        gateway.link("a", "*")
    for ends in (("a", "x"), ("x", "a"), ("*", "x")):
        with pytest.raises(UnknownModule, match="'x'"):
            gateway.link(*ends)
    gateway.link("*", "b")
    assert gateway.unlink("a", "b")
    assert not gateway.unlink("a", "b")
    assert gateway.links() == (("*", "b"),)


def test_removing_a_module_removes_its_links(gateway):
    sink = Recorder()
    gateway.add_module("source", Quiet)
    gateway.add_module("sink", sink)
    gateway.link("source", "sink")
    gateway.publish("source", b"x")

    assert gateway.remove_module("sink")

    assert sink.calls == ["create", "start", "destroy"]
    assert sink.contents == [b"x"]
    assert gateway.links() == ()
    assert not gateway.remove_module("sink")
    gateway.publish("source", b"to nobody")
    assert gateway.modules()[0].counters.unlinked == 1


def test_waits_in_receive_that_could_not_end_are_refused(gateway):
    errors = []

    class Waiting(Recorder):
        def handle(self, message):
            for call in (gateway.settle, gateway.wait):
                with pytest.raises(WouldDeadlock) as caught:
                    call()
                errors.append(caught.value)

    gateway.add_module("source", Quiet)
    gateway.add_module("it", Waiting)
    gateway.link("source", "it")
    gateway.publish("source", b"x")

    eventually(lambda: len(errors) == 2)


def test_settle_waits_until_all_was_received(gateway):
    slow = Gate()
    gateway.add_module("source", Quiet)
    gateway.add_module("slow", slow, options=ModuleOptions(queue=Mailbox(limit=5), hold=True))
    gateway.link("source", "slow")
    gateway.publish("source", b"x")
    assert slow.entered.wait(LIMIT)

    assert not gateway.settle(0.05)
    slow.open.set()
    assert gateway.settle(LIMIT)
    assert slow.contents == [b"x"]


def test_the_twins_work_on_an_event_loop_which_is_never_blocked(node):
    gateway, sink = Gateway(node), Recorder()

    async def program():
        async with gateway:
            gateway.add_module("source", Quiet)
            gateway.add_module("sink", sink)
            gateway.link("source", "sink")
            await gateway.astart()
            gateway.publish("source", b"x")
            assert await gateway.asettle(LIMIT)
            for call in (
                gateway.start,
                gateway.settle,
                gateway.close,
                gateway.broker.release,
                lambda: gateway.remove_module("sink"),
                lambda: gateway.start_module("sink"),
            ):
                with pytest.raises(WouldBlock, match="await a"):
                    call()
            assert await gateway.aremove_module("source")
            assert not await gateway.aremove_module("source")

    asyncio.run(program())
    assert sink.contents == [b"x"]
    assert sink.calls == ["create", "start", "destroy"]
