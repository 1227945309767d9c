"""`node run` in a separate process, and the `actor` commands against it."""

import json
import signal

import pytest

from callboard import Node
from callboard.actors.errors import ActorDown, CallboardError, NodeUnreachable
from callboard.cli import main
from tests.callboard.cli.process import start_command
from tests.polling import eventually

pytestmark = pytest.mark.slow

APP = """
from dataclasses import dataclass
from callboard import Actor, handler, message

@message("cli_test.Add")
@dataclass(frozen=True)
class Add:
    amount: int

class Till(Actor):
    def __init__(self):
        self.total = 0

    @handler
    def on_add(self, msg: Add) -> int:
        return self.add(msg.amount)

    @handler
    def on_text(self, msg: str) -> str:
        return msg.upper()

    def add(self, amount):
        self.total += amount
        return self.total

    def fail(self):
        raise KeyError("no such coin")

    async def wait(self):
        await self.sleep(60)

    def describe(self):
        return {"total": self.total, "coins": (1, 2)}

def setup(node):
    for name in ("till", "weak", "slow"):
        node.register(name, node.spawn(Till))
"""


def run_node(*arguments):
    return start_command("node", "run", *arguments)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    path = tmp_path_factory.mktemp("app") / "cli_test_till.py"
    path.write_text(APP)
    return path


@pytest.fixture(scope="module")
def address(app):
    process = run_node(app, "--json", "--drain-timeout", "0.5")  # `wait` lasts much longer
    about = json.loads(process.stdout.readline())
    yield about["address"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)


def actor(capsys, *arguments):
    code = main(["actor", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_node_run_prints_its_address_and_stops_at_a_signal(app, number):
    process = run_node(app, "--name", "shop")
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(number)
    out, err = process.communicate(timeout=120)

    assert lines[0].startswith("shop listens on basp://127.0.0.1:")
    assert lines[1] == "  spawnable: Till\n"
    assert lines[2].startswith("  try: callboard actor call basp://127.0.0.1:")
    drains, stops = out.splitlines()
    assert drains == "shop drains for at most 30 s; a second signal ends it at once"
    assert stops.startswith("shop stops after 0.")
    assert stops.endswith(" messages finished, 0 left")
    assert (err, process.returncode) == ("", 0)


CART = """
from callboard import Entity

class Cart(Entity):
    pass

def setup(node):
    node.host(Cart)
"""


def test_node_run_lists_the_entities_that_it_hosts(tmp_path):
    file = tmp_path / "carts.py"
    file.write_text(CART)
    process = run_node(file)
    lines = [process.stdout.readline() for _ in range(4)]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)

    address = lines[0].split()[-1]
    assert lines[1:] == [
        "  spawnable: nothing\n",
        "  entities: Cart\n",
        f"  try: callboard entity ls {address}   (Ctrl-C stops the node)\n",
    ]
    assert (err, process.returncode) == ("", 0)


SLOW_ACTOR = """
from callboard import Actor

class Slow(Actor):
    async def wait(self, seconds):
        print("waits", flush=True)
        await self.sleep(seconds)
        return seconds

def setup(node):
    node.register("slow", node.spawn(Slow))
"""


@pytest.mark.parametrize(
    ("options", "seconds", "signals", "code", "line"),
    [
        ([], 0.5, 1, 0, ""),
        (["--drain-timeout", "0.3"], 60, 1, 1, "with --drain-timeout SECONDS\n"),
        ([], 60, 2, 1, "by a second signal; one lets it finish first\n"),
    ],
    ids=["in-time", "at-the-deadline", "second-signal"],
)
def test_a_drain_ends_with_0_when_clean_and_1_when_forced(
    tmp_path, options, seconds, signals, code, line
):
    app = tmp_path / "cli_test_slow.py"
    app.write_text(SLOW_ACTOR)
    process = run_node(app, *options)
    with Node() as node:
        address = process.stdout.readline().split()[-1]
        process.stdout.readline()
        process.stdout.readline()
        answer = node.remote_actor(f"{address}/slow").proxy().wait(seconds)
        assert process.stdout.readline() == "waits\n"
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            if signals > 1:
                assert " drains " in (process.stdout.readline() or " drains ")
        _, err = process.communicate(timeout=120)

        assert process.returncode == code
        assert err.endswith(line)
        if code:
            with pytest.raises((ActorDown, NodeUnreachable)):
                answer.result(5)
        else:
            assert answer.result(5) == seconds


def test_node_run_joins_another_node(app, address):
    process = run_node(app, "--join", address, "--json")
    try:
        other = json.loads(process.stdout.readline())
        assert other["spawnable"] == ["Till"]
        assert other["name"] == "cli_test_till"
        assert other["address"] != address
    finally:
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0


def test_call_prints_what_the_method_returns(capsys, address):
    code, out, err = actor(capsys, "call", f"{address}/till", "add", "5")
    assert (code, err) == (0, "")
    first = int(out)

    code, out, _ = actor(capsys, "call", f"{address}/till", "describe", "--json")
    assert json.loads(out) == {"total": first, "coins": [1, 2]}


def test_ask_prints_the_answer(capsys, address):
    assert actor(capsys, "ask", f"{address}/till", "hello") == (0, "HELLO\n", "")
    assert actor(capsys, "ask", f"{address}/till", "hello", "--json") == (0, '"HELLO"\n', "")


def test_registered_types_are_built_from_the_fields(capsys, address, app):
    typed = ["--type", "cli_test.Add", "--app", app]

    before = int(actor(capsys, "call", f"{address}/till", "add", "0")[1])
    answer = actor(capsys, "ask", f"{address}/till", '{"amount": 3}', *typed)
    assert answer == (0, f"{before + 3}\n", "")

    told = actor(capsys, "tell", f"{address}/till", '{"amount": 4}', *typed, "--json")
    assert told == (0, '{"delivered": true}\n', "")
    assert actor(capsys, "call", f"{address}/till", "add", "0")[1] == f"{before + 7}\n"


def test_a_successful_tell_prints_nothing(capsys, address):
    assert actor(capsys, "tell", f"{address}/till", "hello") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["call", "/till", "nothing"], "use a public method of the actor's class"),
        (["call", "/till", "_add", "1"], "can be called"),
        (["call", "/till", "add", "1", "--timeout", "0"], "actor call --help"),
        (["call", "/nobody", "add", "1"], "setup(node) of its APP.py"),
        (["call", "/weak", "fail"], "see the log of its node for the traceback"),
        (["call", "/slow", "wait", "--timeout", "0.3"], "--timeout SECONDS"),
        (["call", "", "add", "1"], "add /NAME"),
        (["ask", "/till", "1.5"], "add one with @handler"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_is_one_line_that_ends_with_the_next_step(capsys, address, arguments, line):
    verb, place, *rest = arguments
    code, out, err = actor(capsys, verb, address + place, *rest)

    assert (code, out) == (2 if "--help" in line else 1, "")
    assert err.count("\n") == 1
    assert err.startswith("callboard: ")
    assert err.rstrip().endswith(line)


def test_an_unknown_field_is_refused_with_the_known_fields(capsys, address, app):
    typed = ["--type", "cli_test.Add", "--app", app]

    code, _, err = actor(capsys, "ask", f"{address}/till", '{"sum": 3}', *typed)
    assert code == 2
    assert err.rstrip().endswith("its fields are: amount")

    code, _, err = actor(capsys, "ask", f"{address}/till", "3", *typed)
    assert code == 1
    assert err.rstrip().endswith("write the fields as a JSON object")


def test_an_address_where_no_node_listens_is_reported(capsys):
    code, _, err = actor(capsys, "call", "basp://127.0.0.1:1/till", "add", "1")

    assert code == 1
    assert err.count("\n") == 1
    assert "no node answers at basp://127.0.0.1:1" in err
    assert err.rstrip().endswith("callboard node run APP.py --listen HOST:PORT")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--listen", "0.0.0.0:0"], "or --insecure to permit everything to all"),
        (["--join", "nonsense"], "basp://HOST:PORT"),
    ],
)
def test_node_run_refuses_invalid_options(app, arguments, line):
    process = run_node(app, *arguments)
    out, err = process.communicate(timeout=120)

    assert process.returncode in (1, 2)
    assert out == ""
    assert err.count("\n") == 1
    assert line in err


def test_a_port_in_use_is_reported(app, address):
    process = run_node(app, "--listen", address.removeprefix("basp://"))
    _, err = process.communicate(timeout=120)

    assert process.returncode == 1
    assert err.count("\n") == 1
    assert err.rstrip().endswith("port 0 picks a free one")


def test_sighup_reads_the_secret_file_again_and_ends_links_of_a_removed_secret(tmp_path, app):
    file = tmp_path / "cluster.secret"
    file.write_text("old\n")
    process = run_node(app, "--json", "--secret-file", file)
    address = json.loads(process.stdout.readline())["address"]
    with Node("old", secret="old") as old, Node("new", secret="new") as new:
        old.connect(address)
        with pytest.raises(CallboardError, match="secrets differ"):
            new.connect(address)
        file.write_text("new\nold\n")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: _is_let_in(new, address))
        assert old.links()
        file.write_text("\n")  # of no use: what was read before holds
        process.send_signal(signal.SIGHUP)
        while "is empty" not in (line := process.stderr.readline()):
            assert line
        assert old.links()
        file.write_text("new\n")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: not old.links())
        assert new.links()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def _is_let_in(node, address):
    try:
        return node.connect(address)
    except CallboardError:
        return False


def test_a_source_of_a_backup_that_is_no_folder_and_no_address_is_named(tmp_path, capsys):
    assert main(["backup", "nofolder", str(tmp_path / "backup")]) == 2

    assert "nofolder is neither a folder nor an address" in capsys.readouterr().err
    assert not (tmp_path / "backup").exists()
