"""`node ps`, `top`, `drain`, `check` and `actor stop` against a node in another process."""

import json
import re
import signal
import socket
import tempfile
import urllib.error
import urllib.request

import pytest

from callboard.cli import main
from tests.callboard.cli.process import start_command
from tests.polling import eventually

pytestmark = pytest.mark.slow

APP = """
from callboard import Actor

class Till(Actor):
    def __init__(self, start=0):
        self.total = start

    def add(self, amount):
        self.total += amount
        return self.total

class Stubborn(Actor):
    async def wait(self):
        await self.sleep(60)

def setup(node):
    for name in ("first", "second"):
        node.register(name, node.spawn(Till))
    stubborn = node.spawn(Stubborn)
    node.register("stubborn", stubborn)
    stubborn.proxy().wait()
    stubborn.tell("waits")
"""


@pytest.fixture
def app(tmp_path):
    path = tmp_path / "node_commands_app.py"
    path.write_text(APP)
    return path


@pytest.fixture
def run_node():
    started = []

    def run(*arguments, **variables):
        process = start_command("node", "run", "--json", *arguments, variables=variables)
        started.append(process)
        line = process.stdout.readline()
        return process, json.loads(line or "{}")

    yield run
    for process in started:
        process.kill()
        process.communicate()


def call(capsys, *arguments):
    code = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_running_node_is_listed_watched_and_drained(app, run_node, capsys):
    process, about = run_node(app, "--drain-timeout", "0.2")
    address = about["address"]

    code, out, _ = call(capsys, "node", "ps", address)
    head, first, *others, process_line = out.splitlines()
    assert code == 0
    assert ": release " in process_line
    assert head.split() == [
        *("ACTOR", "CLASS", "NAME", "STATE", "DEPTH", "HANDLED", "RESTARTS", "AGE")
    ]
    assert first.split()[1:5] == ["Stubborn", "stubborn", "awaiting", "1"]
    assert sorted(line.split()[2] for line in others) == ["first", "second"]

    code, out, _ = call(capsys, "node", "ps", address, "--system", "--json")
    classes = {actor["actor_class"] for actor in json.loads(out)["actors"]}
    assert {"Broker", "SpawnServer", "Directory", "Inspector", "Till"} <= classes

    _, out, _ = call(capsys, "node", "ps", address, "--system")
    actors, links, routes = out.split("\n\n")
    assert "node_commands_app: release 0.2" in actors.splitlines()[-1]
    assert links.startswith("LINK ")
    assert links.splitlines()[1].startswith("callboard node")
    assert routes.startswith("ROUTE TO ")
    assert routes.splitlines()[1].endswith(" 1  callboard node")

    code, out, _ = call(capsys, "node", "ps", address, "--limit", "1")
    assert "… 2 more; --limit shows them\n" in out

    looks = ["--count", "2", "--interval", "0.05"]
    code, out, _ = call(capsys, "node", "top", address, *looks)
    assert code == 0
    assert out.count("node_commands_app: up ") == 2
    assert out.count("MSG/S") == 2
    assert out.count(" waiting, 0 dead letters, 0 overflows, 0 expired, 0 slow handlers\n") == 2
    assert out.count("time in handlers: ") == 2
    code, out, _ = call(capsys, "node", "top", address, *looks, "--json")
    assert [len(json.loads(line)["actors"]) for line in out.splitlines()] == [3, 3]
    assert all("rate" in actor for actor in json.loads(out.splitlines()[0])["actors"])
    assert json.loads(out.splitlines()[0])["peers"] == []

    code, out, err = call(capsys, "node", "drain", address, "--timeout", "0.3")
    assert code == 1
    assert "was drained in 0." in out
    assert err.endswith("see the log of that node for unfinished work\n")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert json.loads(out)["drained"]["left"] == 2


def test_a_node_at_a_unix_socket_is_reached_by_its_path(app, run_node, capsys):
    with tempfile.TemporaryDirectory() as folder:
        process, about = run_node(app, "--listen", f"unix:{folder}/s.sock")

        assert about["address"] == f"basp+unix:{folder}/s.sock:"
        code, out, _ = call(capsys, "node", "ps", f"unix:{folder}/s.sock")
        assert (code, "stubborn" in out) == (0, True)
        code, out, _ = call(capsys, "actor", "call", f"{about['address']}/first", "add", "2")
        assert (code, out) == (0, "2\n")
        code, out, _ = call(capsys, "doctor", "--listen", f"unix:{folder}/s.sock")
        assert code == 1
        assert f"another process listens at {folder}/s.sock" in out


def test_actors_are_stopped_and_a_clean_drain_ends_with_0(app, run_node, capsys):
    process, about = run_node(app)
    address = about["address"]

    assert call(capsys, "actor", "stop", f"{address}/first") == (0, "ended: normal\n", "")
    code, out, _ = call(capsys, "actor", "stop", f"{address}/stubborn", "--kill", "--json")
    assert (code, json.loads(out)) == (0, {"reason": "killed"})
    code, _, err = call(capsys, "actor", "stop", f"{address}/first")
    assert code == 1
    assert "no actor is registered as 'first'" in err

    code, out, _ = call(capsys, "node", "drain", address, "--json")
    assert (code, json.loads(out)["left"]) == (0, 0)
    process.communicate(timeout=120)
    assert process.returncode == 0


TEARDOWN = """
import pathlib

def setup(node):
    node.register("it", node.spawn(Till))

from callboard import Actor

class Till(Actor):
    def add(self, amount):
        return amount

def teardown(node):
    answer = node.find("it").result(5).call(Till.add, 7).result(5)  # the node still works
    pathlib.Path(__file__).with_suffix(".ended").write_text(f"{node.name} {answer}")
    if node.name == "failing":
        raise ValueError("no end")
"""


@pytest.mark.parametrize(("name", "code"), [("fine", 0), ("failing", 1)])
def test_the_teardown_of_a_file_is_called_before_its_node_drains(
    run_node, tmp_path, name, code
):
    app = tmp_path / "with_teardown.py"
    app.write_text(TEARDOWN)
    process, _ = run_node(app, "--name", name)

    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)

    assert process.returncode == code, errors
    assert app.with_suffix(".ended").read_text() == f"{name} 7"
    assert ("teardown(node) failed at line" in errors) is bool(code)


def test_an_actor_that_does_not_end_in_time_is_reported(app, run_node, capsys):
    _, about = run_node(app)

    code, out, err = call(
        capsys, "actor", "stop", f"{about['address']}/stubborn", "--timeout", "0.2"
    )

    assert (code, out) == (1, "")
    assert err.endswith("allow more time with --timeout SECONDS, or use --kill\n")


def test_commands_prove_the_secret_that_the_environment_names(
    app, run_node, capsys, tmp_path, monkeypatch
):
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    _, about = run_node(app, "--secret-file", secret)

    code, _, err = call(capsys, "node", "ps", about["address"], "--timeout", "2")
    assert code == 1
    assert err.count("\n") == 1

    monkeypatch.setenv("CALLBOARD_SECRET_FILE", str(secret))
    code, out, _ = call(capsys, "node", "ps", about["address"])
    assert code == 0
    assert "Till" in out

    monkeypatch.setenv("CALLBOARD_SECRET_FILE", str(tmp_path / "none"))
    code, _, err = call(capsys, "node", "ps", about["address"])
    assert code == 2
    assert err.endswith("use a text file with --secret-file FILE\n")


@pytest.mark.quick
def test_a_node_runs_from_a_file_with_children_health_and_a_service_manager(
    app, run_node, capsys, tmp_path
):
    config = tmp_path / "node.toml"
    config.write_text(
        f"""
        app = "{app.name}"
        name = "shop"
        listen = "127.0.0.1:0"
        health = "127.0.0.1:0"
        drain_timeout = 0.2
        spawnable = {{ till = "Till" }}

        [[children]]
        class = "Till"
        args = [40]
        name = "till"
        """
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        process, about = run_node(
            "--config", config, NOTIFY_SOCKET=str(tmp_path / "notify"), CALLBOARD_NAME="till"
        )

        assert (about["name"], about["spawnable"]) == ("till", ["till"])
        assert manager.recv(4096).startswith(b"READY=1\n")
        with urllib.request.urlopen(f"{about['health']}/readyz", timeout=10) as answer:
            assert answer.read() == b"ready\n"
        with urllib.request.urlopen(f"{about['health']}/metrics", timeout=10) as answer:
            assert b"callboard_actors 5\n" in answer.read()
        code, out, _ = call(capsys, "actor", "call", f"{about['address']}/till", "add", "2")
        assert (code, out) == (0, "42\n")

        process.send_signal(signal.SIGTERM)
        assert manager.recv(4096).startswith(b"STOPPING=1\n")
        process.communicate(timeout=120)
        assert process.returncode == 1  # the stubborn one was left


DYING = """
import os
from callboard import Actor, Child, handler

class Dying(Actor):
    def __init__(self) -> None:
        self.after(0.0, "end")

    @handler
    def end(self, _: str) -> None:
        raise RuntimeError("no disk")

def setup(node):
    inner = Child(Dying, name="dying", restart="permanent")
    node.supervise([inner], intensity=(2, 60.0), backoff=(0.2, 0.2))
"""


def test_a_node_ends_with_an_error_when_its_top_supervisor_gives_up(run_node, tmp_path):
    file = tmp_path / "dying.py"
    file.write_text(DYING)

    process, _ = run_node(file)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 1
    assert err.count("dying was restarted by ") == 2
    last = err.splitlines()[-1]
    assert re.search(r"supervisor .* gave up: dying needed more than 2 restarts", last)


def test_or_it_stays_and_is_not_ready(run_node, tmp_path, capsys):
    file = tmp_path / "dying.py"
    file.write_text(DYING)
    arguments = ("--health", "127.0.0.1:0", "--when-exhausted", "stay")

    process, about = run_node(file, *arguments)

    def status():
        try:
            with urllib.request.urlopen(f"{about['health']}/readyz", timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    eventually(lambda: status()[0] == 503)
    assert b"gave up: dying" in status()[1]
    with urllib.request.urlopen(f"{about['health']}/metrics", timeout=10) as answer:
        figures = answer.read()
    assert b"callboard_restarts_total 2\n" in figures
    assert b"callboard_supervisors_exhausted_total 1\n" in figures
    _, out, _ = call(capsys, "node", "ps", about["address"], "--tree")
    assert out.startswith("1 supervisors gave up")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 1


def test_the_tree_shows_the_children_of_each_supervisor(run_node, tmp_path, capsys):
    file = tmp_path / "shop.py"
    file.write_text(
        """
from callboard import Actor, Child, Supervisor

class Till(Actor):
    pass

def setup(node):
    node.spawn(Till)
    node.supervise([Child(Supervisor, [Child(Till)]), Child(Till)])
"""
    )
    _, about = run_node(file)

    _, out, _ = call(capsys, "node", "ps", about["address"], "--tree")

    classes = [line[line.index(" ") :].rstrip() for line in out.splitlines()[1:-1]]
    depths = {(len(text) - len(text.lstrip()), text.split()[0]) for text in classes}
    top = min(depth for depth, _ in depths)
    assert {(depth - top, name) for depth, name in depths} == {
        *((0, "Till"), (0, "Supervisor"), (2, "Supervisor"), (2, "Till"), (4, "Till")),
    }


def test_a_configuration_is_checked_without_starting_a_node(app, tmp_path, capsys):
    config = tmp_path / "node.toml"
    config.write_text(f'app = "{app.name}"\nname = "shop"\n')
    assert call(capsys, "node", "check", config) == (0, f"{config} is valid\n", "")
    assert call(capsys, "node", "check", config, "--json") == (0, '{"valid": true}\n', "")

    config.write_text('name = 5\nlisten = "here"\n[limits]\nlinks = 0\n')
    code, out, err = call(capsys, "node", "check", config)
    assert (code, out) == (1, "")
    assert [line.split(" = ")[0] for line in err.splitlines()] == [
        f"callboard: {config}: {key}" for key in ("name", "listen", "limits.links")
    ]

    config.write_text(f'app = "{app.name}"\n[[children]]\nclass = "Tills"\n')
    code, _, err = call(capsys, "node", "check", config)
    assert code == 1
    assert "there is no actor class Tills in node_commands_app" in err


def test_a_run_ends_with_one_line_for_each_mistake_of_its_file(tmp_path, capsys):
    config = tmp_path / "node.toml"
    config.write_text('name = 5\nlog_level = "loud"\n')

    code, out, err = call(capsys, "node", "run", "--config", config)

    assert (code, out, err.count("\n")) == (1, "", 2)


def test_a_node_needs_an_app_or_a_file(capsys):
    code, _, err = call(capsys, "node", "run")

    assert code == 2
    assert err.endswith("node run --help\n")
