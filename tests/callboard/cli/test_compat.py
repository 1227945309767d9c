"""`callboard compat broker`: programs that import `broker`."""

import subprocess
import sys
import threading

import pytest

from callboard import Endpoint

PROGRAM = """
import sys
import broker
import broker.zeek
from broker import _broker, bro

assert broker.zeek.Event("x").name() == "x" and _broker.Data and bro.Event
import neighbour
print(sys.argv[1:], __name__, broker.Version.string(), neighbour.NAME)
"""


def run(*arguments):
    command = [sys.executable, "-m", "callboard", "compat", "broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_program_runs_as_it_is(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "neighbour.py").write_text("NAME = 'beside it'")

    done = run("--", str(tmp_path / "program.py"), "--verbose", "x")

    assert (done.stdout, done.stderr) == (
        "['--verbose', 'x'] __main__ 1.4.0 beside it\n",
        "",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "last"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        (
            "open('/nowhere')",
            1,
            "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere'",
        ),
        ("raise SystemExit('so it ends')", 1, "so it ends"),
        ("this is no Python", 1, "SyntaxError: invalid syntax"),
    ],
)
def test_a_program_ends_as_under_python(tmp_path, text, code, last):
    path = tmp_path / "program.py"
    path.write_text(text)

    done = run(str(path))

    assert done.returncode == code
    assert done.stderr.strip().rpartition("\n")[2] == last
    assert "callboard/cli" not in done.stderr


@pytest.mark.slow
def test_a_missing_program_is_reported_in_one_line(tmp_path):
    done = run(str(tmp_path / "missing.py"))

    assert done.returncode == 2
    assert "there is no file" in done.stderr
    assert done.stderr.count("\n") == 1


PEER = """
import sys
import broker

endpoint = broker.Endpoint()
subscriber = endpoint.make_subscriber("/back")
assert endpoint.peer("127.0.0.1", int(sys.argv[1]))
endpoint.publish("/there", ["ping", broker.Count(7)])
print(subscriber.get())
endpoint.shutdown()
"""


@pytest.mark.slow
def test_a_program_peers_with_a_zeek_as_it_is(tmp_path):
    (tmp_path / "program.py").write_text(PEER)
    with Endpoint() as zeek, zeek.make_subscriber("/there") as asked:
        port = zeek.listen("127.0.0.1", 0, wire="zeek-2")

        def echo():
            topic, value = asked.get(60.0)
            zeek.publish("/back", [topic, *value])

        echoing = threading.Thread(target=echo)
        echoing.start()
        done = run("--wire", "zeek-2", "--", str(tmp_path / "program.py"), str(port))
        echoing.join()

    assert (done.stdout, done.stderr) == ("('/back', ('/there', 'ping', Count(7)))\n", "")
