"""The hook `on_stop`: it runs once, before the end of its actor is reported."""

import asyncio

import pytest

from callboard import Actor, Node, errors, handler
from callboard.actors import cell

pytestmark = pytest.mark.timeout(60)


class Writer(Actor):
    def __init__(self, calls: list[str], seconds: float = 0.01) -> None:
        self.calls, self.seconds = calls, seconds

    @handler
    async def fail(self, msg: int) -> None:
        raise ValueError(msg)

    @handler
    async def wait(self, msg: str) -> None:
        await self.sleep(3600)

    async def on_stop(self, reason: str) -> None:
        self.calls.append(f"begin {reason}")
        await self.sleep(self.seconds)
        self.calls.append("end")


class Plain(Writer):
    def on_stop(self, reason: str) -> None:
        self.calls.append(str(reason))
        message = "no"
        raise ValueError(message)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda ref: ref.stop(), "normal"),
        (lambda ref: ref.kill(), "killed"),
        (lambda ref: ref.tell(1), "error"),
    ],
)
def test_it_ends_before_monitors_fire_and_runs_once(end, reason):
    calls = []
    with Node() as node:
        writer = node.spawn(Writer, calls)
        seen = []
        down = node.monitor(writer)
        down.on_done(lambda _: seen.extend(calls))
        end(writer)
        assert down.result(5).reason == reason

    assert calls == seen == [f"begin {reason}", "end"]


def test_it_runs_when_the_node_closes():
    calls = []
    with Node() as node:
        node.spawn(Writer, calls)

    assert calls == ["begin shutdown", "end"]


def test_a_handler_that_awaits_is_cancelled_and_its_ask_fails():
    calls = []
    with Node() as node:
        writer = node.spawn(Writer, calls)
        answer = writer.ask("wait")
        node.spawn(Writer, []).ask("x", timeout=0.05).exception(5)
        writer.kill()
        assert isinstance(answer.exception(5), errors.ActorDown)

    assert calls == ["begin killed", "end"]


def test_its_exception_is_logged_and_the_actor_ends(caplog):
    calls = []
    with Node() as node:
        plain = node.spawn(Plain, calls)
        down = node.monitor(plain)
        plain.stop()
        assert down.result(5).reason == "normal"

    assert calls == ["normal"]
    assert "in its on_stop" in caplog.text


def test_it_is_cancelled_after_the_time_of_a_shutdown(monkeypatch):
    monkeypatch.setattr(cell, "SHUTDOWN_TIMEOUT", 0.05)
    calls = []
    with Node() as node:
        writer = node.spawn(Writer, calls, 3600)
        down = node.monitor(writer)
        writer.stop()
        assert down.result(5).reason == "normal"

    assert calls == ["begin normal"]


def test_astop_waits_for_the_end_on_any_node():
    calls = []
    with Node() as far, Node() as near:
        far.listen("127.0.0.1", 0)
        far.register("writer", far.spawn(Writer, calls))
        writer = near.remote_actor(far.address + "/writer")
        asyncio.run(writer.astop())
        assert calls == ["begin normal", "end"]
        asyncio.run(writer.astop())  # has ended
