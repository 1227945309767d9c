import subprocess
import sys
from pathlib import Path

import pytest

from callboard.cli import main

ROOT = Path(__file__).parents[3]

COMMANDS = [
    ["demo"],
    ["replay"],
    ["node", "run"],
    ["actor", "call"],
    ["actor", "ask"],
    ["actor", "tell"],
    ["topic", "pub"],
    ["topic", "sub"],
    ["flow", "serve"],
    ["flow", "send"],
    ["flow", "recv"],
    ["flow", "test-rules"],
    ["gateway", "run"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples_and_json(command, capsys):
    assert main([*command, "--help"]) == 0

    out = capsys.readouterr().out
    assert "Examples:" in out
    assert f"callboard {' '.join(command)}" in out
    assert "--json" in out


def test_help_lists_the_nouns(capsys):
    assert main(["--help"]) == 0

    out = capsys.readouterr().out
    assert all(noun in out for noun in ("demo", "node", "actor", "topic", "flow", "replay"))


def test_version(capsys):
    assert main(["--version"]) == 0

    name, version, *_build = capsys.readouterr().out.split()
    assert name == "callboard"
    assert version[0].isdigit()


@pytest.mark.parametrize("arguments", [[], ["node"], ["actor"]])
def test_a_noun_alone_shows_its_help_as_wrong_use(arguments, capsys):
    assert main(arguments) == 2
    assert "Commands:" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "next_step"),
    [
        (["nod"], "--help"),
        (["node", "walk"], "node --help"),
        (["demo", "--wrong"], "demo --help"),
        (["demo", "--seconds", "1"], "demo --help"),
        (["demo", "--seconds", "soon"], "demo --help"),
        (["actor", "call"], "actor call --help"),
        (["actor", "call", "nonsense", "add"], "or basp+unix:/PATH"),
        (
            ["actor", "ask", "basp://127.0.0.1:1/x", "m", "--type", "no.Such"],
            "file that registers it with --app APP.py",
        ),
        (["flow", "serve", "no_such.toml"], "correct the file of rules"),
        (["flow", "send", "basp://127.0.0.1:1", "-a", "x"], "write it like stream=raw"),
        (["flow", "send", "basp://127.0.0.1:1", "no_such.dat"], "pass paths of files"),
        (["topic", "pub"], "topic pub --help"),
        (["topic", "pub", "/a", "x"], "use --peer basp://HOST:PORT or --listen HOST:PORT"),
        (["topic", "sub", "--listen", "here"], "--listen 127.0.0.1:4222"),
        (["node", "run", "no_such.py"], "give the path of a Python file"),
        (["node", "run", __file__, "--listen", "here"], "like 127.0.0.1:4222"),
    ],
    ids=" ".join,
)
def test_a_usage_error_is_one_line_with_the_next_step_and_exit_code_2(
    arguments, next_step, capsys
):
    assert main(arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("callboard: ")
    assert line.endswith(next_step)


def test_importing_the_command_line_loads_no_large_package():
    code = (
        "import sys, callboard.cli; "
        "print(*sorted({'psutil', 'rich.live', 'callboard.demo.run'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )

    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr
