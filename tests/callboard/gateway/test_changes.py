"""Configurations that change while the gateway runs."""

import threading

import pytest

from callboard.gateway import ConfigurationError, Gateway, Message, ModuleFailed
from tests.callboard.gateway.cast import LIMIT, Recorder
from tests.callboard.gateway.shelf import entry, write
from tests.polling import eventually


def test_an_update_adds_modules_and_links(tmp_path, node, shelf):
    path = write(tmp_path / "gw.json", entry("a"))
    with Gateway.from_file(path, node=node) as gateway:
        gateway.update({"modules": [entry("b")], "links": [{"source": "a", "sink": "b"}]})
        gateway.update({"links": [{"source": "b", "sink": "a"}]})
        gateway.update({"modules": [entry("c")]})

        gateway.publish("a", b"x")
        shelf.made["b"].until(1)
        assert shelf.made["c"].calls == ["create", "start"]
        assert gateway.links() == (("a", "b"), ("b", "a"))
        for wrong in (
            {"modules": [entry("a")]},
            {"links": [{"source": "a", "sink": "b"}]},
            {"links": [{"source": "a", "sink": "x"}]},
        ):
            with pytest.raises(ConfigurationError):
                gateway.update(wrong)


def test_a_failed_update_changes_nothing(tmp_path, node, shelf):
    path = write(tmp_path / "gw.json", entry("a"), entry("b"), links=[("a", "b")])
    with Gateway.from_file(path, node=node) as gateway:
        before = gateway.modules(), gateway.links(), dict(shelf.made)
        links = [{"source": "*", "sink": "new"}]
        with pytest.raises(ModuleFailed):
            gateway.update({"modules": [entry("new"), entry("bad", "Broken")], "links": links})
        with pytest.raises(ModuleFailed):
            gateway.reload({"modules": [entry("a", args={"k": 2}), entry("bad", "Broken")]})

        assert (gateway.modules(), gateway.links()) == before[:2]
        assert shelf.made["new"].calls == ["create", "destroy"]
        assert before[2]["a"].calls == ["create", "start"]
        gateway.publish("a", b"still")
        before[2]["b"].until(1)


def test_a_reload_changes_only_differing_entries(tmp_path, node, shelf):
    path = write(
        tmp_path / "gw.json",
        entry("same"),
        entry("other", args={"v": 1}),
        entry("gone"),
        links=[("same", "other"), ("same", "gone")],
    )
    with Gateway.from_file(path, node=node) as gateway:
        gateway.add_module("by hand", Recorder())
        gateway.link("by hand", "by hand")
        old = dict(shelf.made)
        write(
            path,
            entry("same"),
            entry("other", args={"v": 2}),
            entry("fresh"),
            links=[("same", "other"), ("*", "fresh")],
        )
        gateway.reload(path)

        assert shelf.made["same"] is old["same"]
        assert old["same"].calls == ["create", "start"]
        assert old["gone"].calls == old["other"].calls == ["create", "start", "destroy"]
        assert shelf.made["other"].args == {"v": 2}
        gateway.publish("same", b"x")
        shelf.made["other"].until(1)
        shelf.made["fresh"].until(1)
        names = {status.name for status in gateway.modules()}
        assert names == {"same", "other", "fresh", "by hand"}
        assert ("by hand", "by hand") in gateway.links()


def test_no_message_is_lost_or_doubled_while_a_configuration_is_reloaded(node, shelf, tmp_path):
    path = write(
        tmp_path / "gw.json", entry("a"), entry("b", args={"v": 0}), links=[("a", "b")]
    )
    with Gateway.from_file(path, node=node) as gateway:
        sinks = [shelf.made["b"]]
        over = threading.Event()
        sent = []

        def flood():
            while not over.is_set():
                gateway.publish("a", b"%d" % len(sent))
                sent.append(None)

        flooding = threading.Thread(target=flood)
        flooding.start()
        for version in range(1, 6):
            write(path, entry("a"), entry("b", args={"v": version}), links=[("a", "b")])
            gateway.reload(path)
            sinks.append(shelf.made["b"])
        over.set()
        flooding.join(LIMIT)
        assert gateway.settle(LIMIT)
    numbers = [int(content) for sink in sinks for content in sink.contents]
    assert numbers == list(range(len(sent)))


def test_a_publisher_that_still_has_the_old_links_reaches_the_module_that_replaced_its_sink(
    node, shelf, tmp_path
):
    path = write(tmp_path / "gw.json", entry("a"), entry("b"), links=[("a", "b")])
    with Gateway.from_file(path, node=node) as gateway:
        (source,) = [module for module in gateway.broker.modules() if module.name == "a"]
        (old,) = source.sinks
        frame = source.topic + Message(b"late").data
        write(path, entry("a"), entry("b", args={"v": 1}), links=[("a", "b")])
        gateway.reload(path)
        eventually(lambda: old.context is None)

        old.put(frame)
        old.items.append(frame)  # as a publisher does that looked at `room` before the end
        old.wake()
        assert gateway.settle(LIMIT)
        assert shelf.made["b"].contents == [b"late", b"late"]


def test_a_file_that_is_watched_is_followed(tmp_path, node, shelf, monkeypatch):
    monkeypatch.setattr("callboard.gateway.configuration.WATCH_INTERVAL", 0.01)
    path = write(tmp_path / "gw.json", entry("a"))
    failures = []
    with Gateway.from_file(path, node=node, watch=True) as gateway:
        gateway.on("update_failed", failures.append)
        path.write_text("{ this is wrong")
        eventually(lambda: failures)
        assert [status.name for status in gateway.modules()] == ["a"]
        write(path, entry("a"), entry("b"))
        eventually(lambda: [s.name for s in gateway.modules()] == ["a", "b"])
