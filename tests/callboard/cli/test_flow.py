"""`callboard flow …`: a service in a separate process, and clients that send to it."""

import json
import signal

import pytest

from callboard.cli import main
from tests.callboard.cli.process import start_command

RULES = """
[[rule]]
rule = '(= stream "raw")'
filepat = "{stream}/{name}"

[[rule]]
rw = "r"
filepat = "{stream}/{name}"
"""


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


@pytest.fixture
def address(rules, tmp_path):
    command = ["flow", "serve", rules, "--root", tmp_path / "files", "--json"]
    with start_command(*command) as process:
        try:
            yield json.loads(process.stdout.readline())["address"]
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0
            assert json.loads(err.splitlines()[-1])["malformed"] == 0
        finally:
            process.kill()


def test_sent_messages_are_received(address, tmp_path, capsys):
    source, target = tmp_path / "run.dat", tmp_path / "back.dat"
    source.write_bytes(bytes(range(256)) * 1000)

    sent = main(["flow", "send", address, str(source), "-a", "stream=raw", "--json"])
    assert sent == 0
    assert json.loads(capsys.readouterr().out) == {"records": 4, "bytes": 256_000}
    about = ["-a", "stream=raw", "-a", "name=run.dat"]
    assert main(["flow", "recv", address, *about, "-o", str(target)]) == 0
    assert target.read_bytes() == source.read_bytes()

    assert main(["flow", "send", address, str(source)]) == 1
    assert "no rule matches" in capsys.readouterr().err
    assert main(["flow", "recv", address, "-a", "stream=x", "-a", "name=y"]) == 1
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pairs", "code", "lines"),
    [
        (["stream=raw", "name=a"], 0, ["TRUE  w raw/a", "TRUE  r raw/a"]),
        (["stream=x", "name=a"], 0, ["FALSE w x/a", "TRUE  r x/a"]),
    ],
)
def test_rules_are_tried_without_a_service(rules, capsys, pairs, code, lines):
    assert main(["flow", "test-rules", "-r", str(rules), *pairs]) == code
    assert capsys.readouterr().out.splitlines() == lines


def test_a_rule_for_a_file_without_a_name_is_refused_with_the_reason(rules, capsys):
    assert main(["flow", "test-rules", "-r", str(rules), "stream=raw", "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["holds"]
    assert "needs 'name'" in first["error"]
