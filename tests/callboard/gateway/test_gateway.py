"""Gateways: modules and links by name, configurations, events."""

import asyncio
import json
import threading

import pytest

from actors.errors import WouldBlock, WouldDeadlock
from actors.mailbox import Mailbox
from callboard.gateway import (
    ConfigurationError,
    DuplicateLink,
    DuplicateModule,
    Gateway,
    GatewayError,
    InvalidLink,
    ModuleFailed,
    ModuleOptions,
    UnknownModule,
)
from tests.callboard.gateway.cast import LIMIT, Failing, Gate, Quiet, Recorder, eventually

HERE = "tests.callboard.gateway.shelf"


@pytest.fixture
def shelf():
    from tests.callboard.gateway import shelf

    shelf.made.clear()
    return shelf


@pytest.fixture
def gateway(node):
    with Gateway(node) as made:
        yield made


def entry(name, kind="Kept", **more):
    return {"name": name, "module": f"{HERE}:{kind}", **more}


def write(path, *modules, links=(), **more):
    shown = [{"source": source, "sink": sink} for source, sink in links]
    path.write_text(json.dumps({"modules": list(modules), "links": shown, **more}))
    return path


def test_a_file_makes_a_gateway_that_runs(tmp_path, node, shelf):
    path = write(
        tmp_path / "gw.json", entry("a"), entry("b", args={"k": 1}), links=[("a", "b")]
    )

    with Gateway.from_file(path, node=node) as gateway:
        gateway.publish("a", b"hello", {"p": "v"})
        assert shelf.made["b"].until(1)[0].properties == {"p": "v"}
        assert shelf.made["b"].args == {"k": 1}
        assert gateway.links() == (("a", "b"),)
        assert [status.name for status in gateway.modules()] == ["a", "b"]
        assert gateway.modules()[1].sources == ("a",)
    assert shelf.made["a"].calls == ["create", "start", "destroy"]
    assert gateway.wait(0)


def test_toml_says_the_same(tmp_path, node, shelf):
    path = tmp_path / "gw.toml"
    path.write_text(
        f"""
        dead_letters = "sink"
        [[loaders]]
        type = "python"
        name = "mine"
        configuration = {{ path = "lib" }}
        [[modules]]
        name = "source"
        loader = {{ name = "mine", entrypoint = {{ "module.path" = "{HERE}:Kept" }} }}
        [[modules]]
        name = "sink"
        module = "{HERE}:Kept"
        queue = {{ limit = 5, on_full = "drop_oldest" }}
        restart = "transient"
        on_error = "crash"
        detached = true
        [[links]]
        source = "*"
        sink = "sink"
        """
    )

    with Gateway.from_file(path, node=node) as gateway:
        gateway.publish("source", b"x")
        shelf.made["sink"].until(1)
        assert gateway.modules()[1].sources == ("*",)


def test_modules_beside_the_file_can_be_imported(tmp_path, node, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside_gw.py").write_text(
        "from callboard.gateway import module\n\n"
        "@module\ndef echo(message):\n    return message\n"
    )
    path = tmp_path / "gw.json"
    path.write_text(json.dumps({"modules": [{"name": "e", "module": "beside_gw:echo"}]}))

    with Gateway.from_file(path, node=node) as gateway:
        assert gateway.modules()[0].is_started


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "\xff", '{"a": NaN'])
def test_what_is_no_configuration_is_refused_with_the_files_name(tmp_path, text):
    path = tmp_path / "gw.json"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigurationError, match=r"gw\.json: it is"):
        Gateway.from_file(path)
    with pytest.raises(ConfigurationError, match="give the path"):
        Gateway.from_file(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ConfigurationError, match=r"bad\.toml: it is no TOML"):
        Gateway.from_file(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"modules": [{}]}, "modules.0.name: it has to be there"),
        ({"modules": [{"name": "a"}]}, "modules.0 = 'a': give either"),
        ({"modules": [{"name": 5, "module": "timer"}]}, "modules.0.name = 5: input should"),
        ({"modules": [{"name": "", "module": "timer"}]}, "modules.0.name = ''"),
        ({"modules": [entry("*")]}, "modules.0.name = '*': it stands for all"),
        ({"modules": [entry("a"), entry("a")]}, "modules.1.name = 'a': another module"),
        ({"modules": [entry("a", on_fire=1)]}, "modules.0.on_fire: there is no such key"),
        ({"modules": [entry("a", args=5)]}, "modules.0.args = 5"),
        ({"modules": [entry("a", restart="x")]}, "modules.0.restart = 'x'"),
        ({"modules": [entry("a", queue={"limit": 0})]}, "modules.0.queue.limit = 0"),
        ({"modules": [{"name": "a", "module": "nowhere"}]}, "names no module"),
        ({"modules": [{"name": "a", "module": "no.such:X"}]}, "no.such cannot be imported"),
        ({"modules": [entry("a", "Nobody")]}, "there is no module class Nobody"),
        ({"modules": [entry("a", "made")]}, "there is no module class made"),
        (
            {"modules": [{"name": "a", "loader": {"name": "native"}}]},
            "modules.0.loader.name = 'native': loader type 'native' loads code of another",
        ),
        ({"modules": [{"name": "a", "loader": {"name": "x"}}]}, "there is no loader type 'x'"),
        (
            {"modules": [{"name": "a", "loader": {"entrypoint": {"k": 1}}}]},
            "modules.0.loader.entrypoint.k = 1: there is no such key",
        ),
        (
            {"modules": [{"name": "a", "loader": {"entrypoint": {"module.path": 1}}}]},
            "modules.0.loader.entrypoint.module.path = 1",
        ),
        ({"loaders": [{"type": "java", "name": "j"}]}, "loaders.0.type = 'java'"),
        ({"loaders": [{"type": "python"}]}, "loaders.0.name: it has to be there"),
        ({"links": [{"source": "a"}]}, "links.0.sink: it has to be there"),
        ({"links": [{"source": "a", "sink": "b"}]}, "links.0.source = 'a': there is no module"),
        ({"links": [{"source": "a", "sink": "b"}]}, "links.0.sink = 'b': there is no module"),
        (
            {"modules": [entry("a")], "links": [{"source": "a", "sink": "*"}]},
            "links.0.sink = '*': only a source",
        ),
        (
            {"modules": [entry("a")], "links": [{"source": "a", "sink": "a"}] * 2},
            "links.1 = 'a -> a': this link is there already",
        ),
        ({"dead_letters": "x"}, "dead_letters = 'x': there is no module"),
        ({"module": []}, "module: there is no such key here; there are loaders, modules"),
        (
            {"modules": [{"name": "t", "module": "timer", "args": {"period": 0}}]},
            "modules.0.args.period = 0: input should be greater than 0",
        ),
        (
            {"modules": [{"name": "t", "module": "timer", "args": {"perod": 1}}]},
            "modules.0.args.perod: there is no such key here; there are period",
        ),
    ],
)
def test_a_mistake_is_told_with_file_and_path_and_nothing_is_made(
    tmp_path, shelf, values, line
):
    path = tmp_path / "gw.json"
    path.write_text(json.dumps(values))

    with pytest.raises(ConfigurationError) as caught:
        Gateway.from_file(path)

    assert any(each.startswith(f"{path}: ") and line in each for each in caught.value.lines)
    assert shelf.made == {}


def test_all_mistakes_are_told_at_once(tmp_path):
    path = write(tmp_path / "gw.json", entry("*"), entry("a"), entry("a"), links=[("x", "*")])

    with pytest.raises(ConfigurationError) as caught:
        Gateway.from_file(path)

    assert len(caught.value.lines) == 4


def test_a_module_that_cannot_be_created_undoes_the_whole_creation(tmp_path, node, shelf):
    path = write(tmp_path / "gw.json", entry("a"), entry("b"), entry("c", "Broken"))

    with pytest.raises(ModuleFailed, match="'c' was not created"):
        Gateway.from_file(path, node=node)

    assert shelf.made["a"].calls == shelf.made["b"].calls == ["create", "destroy"]


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


def test_a_module_that_is_removed_takes_its_links_along(gateway):
    sink = Recorder()
    gateway.start()
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


def test_events_come_in_order_on_one_other_thread(tmp_path, node, shelf):
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
    gateway.start()
    gateway.publish("source", b"x")

    eventually(lambda: len(errors) == 2)


def test_dead_letters_are_told_and_go_to_their_module(tmp_path, node, shelf):
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


def test_an_update_that_fails_leaves_everything_as_it_was(tmp_path, node, shelf):
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


def test_a_reload_changes_only_what_is_different(tmp_path, node, shelf):
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


def test_a_file_that_is_watched_is_followed(tmp_path, node, shelf, monkeypatch):
    monkeypatch.setattr("callboard.gateway.watch.INTERVAL", 0.01)
    path = write(tmp_path / "gw.json", entry("a"))
    failures = []
    with Gateway.from_file(path, node=node, watch=True) as gateway:
        gateway.on("update_failed", failures.append)
        path.write_text("{ this is wrong")
        eventually(lambda: failures)
        assert [status.name for status in gateway.modules()] == ["a"]
        write(path, entry("a"), entry("b"))
        eventually(lambda: [s.name for s in gateway.modules()] == ["a", "b"])


def test_a_module_that_has_ended_for_good_is_told(gateway):
    failed = []
    gateway.on("module_failed", failed.append)
    gateway.start()
    options = ModuleOptions(on_error="crash", restart="temporary")
    gateway.add_module("source", Quiet)
    gateway.add_module("picky", Failing(), options=options)
    gateway.link("source", "picky")

    gateway.publish("source", b"bad")

    eventually(lambda: failed)
    assert failed[0].module == "picky"
    assert [status.name for status in gateway.modules()] == ["source"]
    assert gateway.links() == ()


def test_settle_waits_until_all_was_received(gateway):
    slow = Gate()
    gateway.add_module("source", Quiet)
    gateway.add_module("slow", slow, options=ModuleOptions(queue=Mailbox(limit=5), hold=True))
    gateway.link("source", "slow")
    gateway.start()
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
