"""`callboard mqtt passwd`: the source of the password, and the resulting entry."""

import io
import json
import os
import pty
import sys
import tomllib

import pytest

from callboard.cli import main
from callboard.mqtt.access.scram import ScramKeys, make_keys
from callboard.mqtt.access.scrypt import PasswordHash
from tests.callboard.cli.process import start_command


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    monkeypatch.delenv("MQTT_PASSWORD", raising=False)


def pipe(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def read_user(text: str) -> dict[str, str]:
    (user,) = tomllib.loads(text)["users"]
    return user


def test_an_entry_has_the_hash(capsys):
    assert main(["mqtt", "passwd", "ann", "--password", "secret"]) == 0

    user = read_user(capsys.readouterr().out)
    assert user["name"] == "ann"
    assert PasswordHash.parse(user["password"]).verify(b"secret")


def test_an_entry_has_keys_for_scram_when_they_are_asked_for(capsys):
    command = ["mqtt", "passwd", "ann", "--scram", "--json", "--password"]
    assert main([*command, "secret"]) == 0
    entry = json.loads(capsys.readouterr().out)
    keys = ScramKeys.parse(entry["scram"])
    assert make_keys("secret", count=keys.count, salt=keys.salt) == keys
    assert PasswordHash.parse(entry["password"]).verify(b"secret")

    assert main([*command, "\u0007"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "omit --scram" in line


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\nsecond line\n"])
def test_a_password_is_read_from_a_pipe_without_a_prompt(monkeypatch, capsys, end):
    pipe(monkeypatch, " sécret ".encode() + end)

    assert main(["mqtt", "passwd", "ann"]) == 0

    captured = capsys.readouterr()
    assert captured.err == ""
    user = read_user(captured.out)
    assert PasswordHash.parse(user["password"]).verify(" sécret ".encode())


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "stdin contains no password"), (b"\nx", "no password"), (b"\xff\n", "is not UTF-8")],
)
def test_a_pipe_without_a_password_is_wrong_use(monkeypatch, capsys, content, why):
    pipe(monkeypatch, content)

    assert main(["mqtt", "passwd", "ann"]) == 2

    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert why in line
    assert captured.out == ""


@pytest.mark.slow
def test_a_terminal_prompts_twice_for_the_password_and_does_not_echo_it():
    ours, theirs = pty.openpty()
    # Without a /dev/tty it is stdin that is asked.
    command = ["mqtt", "passwd", "ann"]
    with start_command(*command, stdin=theirs, start_new_session=True) as process:
        try:
            for prompt in ("Password: ", "Repeat for confirmation: "):
                assert process.stderr.read(len(prompt)) == prompt
                os.write(ours, b"secret\n")
                assert process.stderr.read(1) == "\n"
            out, rest = process.communicate(timeout=120)
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)

    assert process.returncode == 0
    assert rest == ""
    assert PasswordHash.parse(read_user(out)["password"]).verify(b"secret")


@pytest.mark.parametrize("name", ["Zoë", "😀", '"\\', "\x7f", "a\nb"])
def test_an_entry_keeps_every_name(capsys, name):
    assert main(["mqtt", "passwd", name, "--password", "secret"]) == 0

    assert read_user(capsys.readouterr().out)["name"] == name


@pytest.mark.parametrize(("name", "password"), [("\udcff", "secret"), ("ann", "\udcff")])
def test_input_that_is_not_text_is_a_usage_error(capsys, name, password):
    assert main(["mqtt", "passwd", name, "--password", password]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "must be UTF-8" in line
