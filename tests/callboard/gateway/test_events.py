"""Events of a gateway: start and end, new and failed modules, dead letters."""

import threading

import pytest

from callboard.gateway import Gateway, ModuleOptions
from tests.callboard.gateway.cast import LIMIT, Failing, Quiet, Recorder
from tests.callboard.gateway.shelf import entry, write
from tests.polling import eventually


def test_events_arrive_in_order_on_a_thread_of_their_own(tmp_path, node, shelf):
    path = write(tmp_path / "gw.json", entry("a"))
    seen, threads = [], set()

    def note(event, label):
        seen.append((event.kind, label, [status.name for status in event.modules]))
        threads.add(threading.current_thread().name)

    gateway = Gateway.from_file(path, node=node, start=False)
    for kind in ("started", "module_list_changed", "destroyed"):
        gateway.on(kind, note, "first")
        gateway.on(kind, note, "second")
    gateway.on("started", lambda event: 1 / 0)
    with gateway:
        gateway.start()
        gateway.add_module("b", Quiet)
        gateway.remove_module("a")
        eventually(lambda: len(seen) == 6)
        gateway.off("module_list_changed", note)
        gateway.remove_module("b")
    expected = [
        ("started", ["a"]),
        ("module_list_changed", ["a", "b"]),
        ("module_list_changed", ["b"]),
        ("destroyed", []),
    ]
    assert seen == [
        (kind, label, names) for kind, names in expected for label in ("first", "second")
    ]
    assert len(threads) == 1
    with pytest.raises(ValueError, match="there is no event"):
        gateway.on("exploded", note)
    with pytest.raises(TypeError):
        gateway.on("started", None)


def test_a_gateway_may_be_closed_in_a_callback_and_in_receive(node):
    first, second = Gateway(node), Gateway(node)

    class Closer(Recorder):
        def handle(self, message):
            second.close()

    first.on("started", lambda event: first.close())
    first.add_module("a", Quiet)
    first.start()
    assert first.wait(LIMIT)

    closer = Closer()
    second.add_module("source", Quiet)
    second.add_module("closer", closer)
    second.link("source", "closer")
    second.start()
    second.publish("source", b"x")
    assert second.wait(LIMIT)
    closer.until_called("destroy")


def test_dead_letters_are_reported_and_sent_to_their_module(tmp_path, node, shelf):
    path = write(
        tmp_path / "gw.json",
        entry("source"),
        entry("picky", "Picky"),
        entry("morgue"),
        links=[("source", "picky")],
        dead_letters="morgue",
    )
    told = []
    with Gateway.from_file(path, node=node) as gateway:
        gateway.on("dead_letter", lambda event: told.append(event.dead_letter))
        gateway.publish("source", b"bad one", {"k": "v"})
        (dead,) = shelf.made["morgue"].until(1)
        eventually(lambda: told)

    assert dead.content == b"bad one"
    assert dict(dead.properties) == {
        "k": "v",
        "dead.module": "picky",
        "dead.source": "source",
        "dead.reason": "failed",
        "dead.detail": "ValueError: cannot take b'bad one'",
    }
    assert told[0].reason == "failed"


def test_a_module_that_has_ended_for_good_is_reported(gateway):
    failed = []
    gateway.on("module_failed", failed.append)
    options = ModuleOptions(on_error="crash", restart="temporary")
    gateway.add_module("source", Quiet)
    gateway.add_module("picky", Failing(), options=options)
    gateway.link("source", "picky")

    gateway.publish("source", b"bad")

    eventually(lambda: failed)
    assert failed[0].module == "picky"
    assert [status.name for status in gateway.modules()] == ["source"]
    assert gateway.links() == ()
