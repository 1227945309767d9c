"""`callboard mqtt …`: a router in a separate process, and its inspection."""

import contextlib
import json
import signal
import socket

import pytest

from callboard import Endpoint, Node
from callboard.cli import main
from callboard.mqtt.access.scrypt import hash_password
from callboard.mqtt.service.cluster import ROUTERS
from callboard.mqtt.wire.packet import V5, Publish
from callboard.mqtt.wire.properties import Properties
from tests.callboard.cli.process import start_command
from tests.callboard.mqtt.caller import Caller

FILE = """
console = "127.0.0.1:0"
app = "app.py"
[[listeners]]
address = "127.0.0.1:0"
[[rules]]
filter = "in"
function = "double"
topic = "out"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mqtt.toml"
    path.write_text(FILE)
    (tmp_path / "app.py").write_text("def double(m):\n    return m.payload * 2\n")
    return path


@pytest.fixture
def router(file):
    with running(file) as said:
        yield said


@contextlib.contextmanager
def running(*arguments, ends_with=0):
    with start_command("mqtt", "run", *arguments, "--json") as process:
        try:
            yield json.loads(process.stdout.readline()) | {"process": process}
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
            assert process.returncode == ends_with
        finally:
            process.kill()


def port_of(router):
    return int(router["addresses"][0].rpartition(":")[2])


def test_a_router_runs_with_its_file_and_can_be_inspected(router, file, capsys):
    console = router["console"]
    with Caller(port_of(router), "c1", V5) as caller:
        caller.subscribe("out")
        caller.say(Publish("in", b"ab"))
        assert caller.hear_packets(1)[0].payload == b"abab"

        assert main(["mqtt", "top", console, "--count", "2", "--interval", "0.05"]) == 0
        out = capsys.readouterr().out
        assert "CLIENT" in out
        assert "c1" in out
        assert main(["mqtt", "top", console, "--count", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["router"]["connections"] >= 1
        trace = ["mqtt", "trace", console, "--client", "c1", "--seconds", "0.01"]
        assert main(trace) == 0
        caller.say(Publish("in", b"x"))
        caller.hear_packets(1)
        assert main([*trace, "--json"]) == 0
        assert '"packet": "Publish"' in capsys.readouterr().out

        file.write_text(FILE + '[auth]\nbans = ["client:c1"]\n[limits]\nreceive_maximum = 7\n')
        router["process"].send_signal(signal.SIGHUP)
        assert caller.hear_packets(1)[0].reason_code == 0x98
    with Caller(port_of(router), "c2", V5) as caller:
        assert caller.greeting.properties.receive_maximum == 7

        rule = '[[rules]]\nfrom = "new"\nto = { topic = "copy" }\n'
        file.write_text(FILE.partition("[[rules]]")[0] + rule)
        router["process"].send_signal(signal.SIGHUP)
        caller.subscribe("copy")
        heard = []
        while not any(isinstance(packet, Publish) for packet in heard):
            caller.say(Publish("new", b"x", 1, packet_id=1))
            heard = caller.hear_packets(1)


@pytest.mark.slow
def test_a_router_joins_a_cluster_and_opens_its_door(tmp_path):
    with Node("hub") as node:
        port = node.listen("127.0.0.1")
        endpoint = Endpoint(node=node)
        path = tmp_path / "mqtt.toml"
        path.write_text(
            f'[[listeners]]\naddress = "127.0.0.1:0"\n'
            f'[node]\njoin = ["basp://127.0.0.1:{port}"]\n[[door]]\n'
        )
        with (
            endpoint.make_subscriber("/mqtt/") as subscriber,
            running(path) as router,
            Caller(port_of(router), "c", V5) as caller,
        ):
            caller.subscribe("back")
            while not subscriber.available():
                caller.say(Publish("a", b"x", 1, packet_id=1))
                caller.hear_packets(1)
            assert subscriber.get() == ("/mqtt/a", "x")
            endpoint.publish("/mqtt/back", "y")
            assert caller.hear_packets(1)[0].payload == b"y"
        endpoint.shutdown()


@pytest.mark.slow
def test_a_session_moves_to_the_router_of_another_process_and_survives_its_end(tmp_path):
    lasting = {"clean_start": False, "properties": Properties(session_expiry_interval=100)}
    with Node("hub") as node:
        port = node.listen("127.0.0.1")
        files = [tmp_path / f"{name}.toml" for name in "ab"]
        for path in files:
            path.write_text(
                f'directory = "{path.stem}"\n[[listeners]]\naddress = "127.0.0.1:0"\n'
                f'[node]\njoin = ["basp://127.0.0.1:{port}"]\n'
            )
        with running(files[0]) as one:
            with running(files[1], ends_with=-signal.SIGKILL) as two:
                node.group(ROUTERS).ready(2).result(10)
                with Caller(port_of(one), "ann", V5, **lasting) as ann:
                    ann.subscribe("t", 1)
                with Caller(port_of(one), "p", V5) as publisher:
                    publisher.say(Publish("t", b"x", 1, packet_id=1))
                    publisher.hear_packets(1)
                ann = came_in(two, "ann", **lasting)
                (message,) = ann.hear_packets(1)
                assert (ann.greeting.session_present, message.payload) == (True, b"x")
                ann.socket.close()
                two["process"].kill()
            with running(files[1]) as two:
                again = came_in(two, "ann", **lasting)
                assert again.greeting.session_present is True
                assert again.hear_packets(1)[0].dup is True  # it was not acknowledged
                again.socket.close()


def came_in(router, client_id, **fields):
    """Return a client that was let in; while routers look for each other they are busy."""
    while True:
        caller = Caller(port_of(router), client_id, V5, **fields)
        if not caller.greeting.reason_code and caller.greeting.session_present:
            return caller
        caller.socket.close()


@pytest.mark.slow
def test_a_router_runs_without_a_file():
    with running("--listen", "127.0.0.1:0") as router, Caller(port_of(router), "c") as caller:
        caller.subscribe("a", 1)


@pytest.mark.parametrize("address", ["1883", "tls://127.0.0.1:0"])
def test_an_address_that_needs_a_file_is_a_usage_error_in_one_line(address, capsys):
    assert main(["mqtt", "run", "--listen", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "without a file; write --listen" in line


def test_without_a_file_a_public_address_is_refused(capsys):
    assert main(["mqtt", "run", "--listen", "0.0.0.0:0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "every client may do everything; set users" in line


def test_a_file_is_checked(file, capsys):
    assert main(["mqtt", "check", str(file)]) == 0
    assert "is valid" in capsys.readouterr().out

    file.write_text(FILE + "[limits]\nreceive_maximum = -1\n")
    assert main(["mqtt", "check", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file}: limits.receive_maximum = -1" in line

    file.write_text(FILE.replace("double", "triple"))
    assert main(["mqtt", "check", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file}: rules.0.function = 'triple': there is no function triple" in line


def test_all_mistakes_of_a_file_are_reported_together(file, capsys):
    file.write_text(
        FILE.replace("app.py", "none.py")
        + 'qos = 1\n[[listeners]]\naddress = "tls://127.0.0.1:0"\ncertificate = "none.pem"\n'
        '[hooks]\npublish = "none:publish"\n[node]\nsecret_file = "none"\n'
    )

    assert main(["mqtt", "check", str(file)]) == 1

    lines = capsys.readouterr().err.splitlines()
    keys = [line.removeprefix(f"callboard: {file}: ").partition(" = ")[0] for line in lines]
    assert keys == ["node.secret_file", "listeners.1.certificate", "app", "hooks.publish"]
    assert all("; give the path of" in line for line in lines[:3])
    assert "write module:function" in lines[3]


def test_a_port_that_cannot_be_opened_is_reported_in_one_line(file, capsys):
    public = FILE.replace("127.0.0.1:0", "192.0.2.1:1", 2)
    file.write_text(public + "[auth]\nanonymous = true\n")

    assert main(["mqtt", "run", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "192.0.2.1:1 cannot be opened" in line


def test_a_missing_console_is_reported_in_one_line(capsys):
    for command in (["top"], ["trace", "--client", "c"]):
        args = ["mqtt", command[0], "http://127.0.0.1:1", *command[1:]]
        assert main(args) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "no console answers" in line


def test_an_invalid_url_is_a_usage_error(capsys):
    assert main(["mqtt", "top", "nonsense"]) == 2

    assert "'nonsense' is not a URL; write http://HOST:PORT" in capsys.readouterr().err


def test_invalid_toml_is_reported_with_its_line(tmp_path, capsys):
    path = tmp_path / "mqtt.toml"
    path.write_text("x =\n")

    assert main(["mqtt", "check", str(path)]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}: it is not TOML: " in line
    assert line.endswith("(at line 1, column 4); correct it there")


# --- changes of a running router ---

GUARDED = """console = "127.0.0.1:CONSOLE"
[[listeners]]
address = "127.0.0.1:0"
[auth]
anonymous = true
[[users]]
name = "ann"
scram = "none"
"""


@pytest.fixture
def guarded(tmp_path):
    """A router with a user, and the file that it follows."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = tmp_path / "mqtt.toml"
    path.write_text(GUARDED.replace("CONSOLE", str(port)).replace('scram = "none"', HASH))
    with running(path) as said:
        yield said, path


HASH = f'password = "{hash_password(b"old", cost=2)}"'


def code_of(router, name: str, password: bytes) -> int:
    with Caller(port_of(router), "u", V5, username=name, password=password) as caller:
        return caller.greeting.reason_code


def test_users_are_added_and_removed_while_a_router_runs(guarded, capsys) -> None:
    router, file = guarded
    assert code_of(router, "eve", b"new") != 0

    assert main(["mqtt", "user", "add", "eve", str(file), "--password", "new"]) == 0
    assert "has reloaded it" in capsys.readouterr().out
    assert code_of(router, "eve", b"new") == 0
    assert main(["mqtt", "user", "add", "ann", str(file), "--password", "new", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reloaded"]
    assert (code_of(router, "ann", b"old"), code_of(router, "ann", b"new")) == (0x86, 0)
    assert main(["mqtt", "user", "remove", "ann", str(file)]) == 0
    assert code_of(router, "ann", b"new") != 0
    assert main(["mqtt", "user", "remove", "ann", str(file)]) == 2
    assert "has no user" in capsys.readouterr().err


def test_a_change_that_makes_the_file_invalid_is_refused(tmp_path, capsys) -> None:
    file = tmp_path / "mqtt.toml"
    file.write_text('[[listeners]]\naddress = "127.0.0.1:0"\n')
    before = file.read_bytes()

    assert main(["mqtt", "user", "add", "*", str(file), "--password", "x"]) == 1

    assert "users.0.name" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mqtt.toml"]


def test_clients_listeners_and_retained_messages_are_managed(guarded, capsys) -> None:
    router, _ = guarded
    console, address = router["console"], router["addresses"][0]
    with Caller(port_of(router), "c/1", V5) as caller:
        caller.say(Publish("a/b", b"x", 1, retain=True, packet_id=1))
        caller.hear_packets(1)
        assert main(["mqtt", "purge", "a/#", console]) == 0
        assert main(["mqtt", "kick", "c/1", console, "--session"]) == 0
        assert len(caller.hear_packets(2)) == 1
    assert main(["mqtt", "kick", "c/1", console]) == 1
    assert main(["mqtt", "purge", "#/a", console]) == 2
    assert main(["mqtt", "listener", "disable", address, console]) == 0
    with pytest.raises(ConnectionError):
        Caller(port_of(router), "again")
    assert main(["mqtt", "listener", "disable", address, console]) == 1
    assert main(["mqtt", "listener", "enable", "127.0.0.1:0", console]) == 0
    out = capsys.readouterr().out
    assert "removed 1 retained messages" in out
    assert "disconnected c/1" in out


def test_a_configuration_of_mosquitto_is_imported(tmp_path, capsys) -> None:
    conf, acl, output = (tmp_path / name for name in ("m.conf", "acl", "mqtt.toml"))
    conf.write_text("listener 1883 127.0.0.1\nallow_anonymous true\ntls_version tlsv1.3\n")
    acl.write_text("topic read a/#\n")

    assert main(["mqtt", "import", str(conf), "--acl", str(acl), "--output", str(output)]) == 0
    captured = capsys.readouterr()
    assert "m.conf:3: tls_version tlsv1.3: no equivalent" in captured.err
    assert f"wrote {output}" in captured.out
    assert main(["mqtt", "check", str(output)]) == 0
    assert "# m.conf:3" in output.read_text()
    assert main(["mqtt", "import", str(conf), "--output", str(output)]) == 1
    capsys.readouterr()
    assert main(["mqtt", "import", str(conf), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unconverted"]
    assert main(["mqtt", "import", str(tmp_path / "none.conf")]) == 2
