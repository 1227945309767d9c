"""Commands with hostile arguments: a line that leads on and an exit code, never a traceback."""

import os
import random

import pytest

from callboard.cli.app import main, whole
from tests.callboard.cli.test_every_command import COMMANDS

pytestmark = pytest.mark.slow

#: These would do what they are asked: show a demo, look at all that is installed, run tests,
#: take logs into a folder of any name until they are stopped.
LONG = {("demo",), ("doctor",), ("replay",), ("zeek", "logger")}
HOSTILE = [
    "",
    "\udcff",
    "a\x1b[2J\u202e",
    "99999999999999999999999",
    "1e400",
    "nan",
    "-inf",
    "0",
    "[" * 5000,
    "x" * 70_000,
    "/dev/null",
    "/dev/full",
    "pipe",
    "folder",
    "garbage",
    "deep.toml",
    "deep.json",
    "loop",
    "basp://[::1",
    "127.0.0.1:99999",
    "٣",
]
#: Nobody listens there.
NOBODY = "basp://127.0.0.1:1"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "garbage").write_bytes(random.Random(1).randbytes(500))
    (tmp_path / "deep.toml").write_text("a=" + "[" * 7000)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "loop").symlink_to("loop")


def lines(path):
    """Command lines: each argument and option once with a hostile value, by a seed."""
    command = whole()
    for name in path:
        command = command.commands[name]
    parameters = [each for each in command.params if each.name != "help"]
    given = [each for each in parameters if not getattr(each, "is_flag", False)]
    rng = random.Random(" ".join(path))
    for target in given:
        for value in rng.sample(HOSTILE, 3):
            options, positions = [], []
            for each in given:
                is_option = each.param_type_name == "option"
                if is_option and each is target:
                    name = each.opts[0]
                    options += [f"{name}={value}"] if name.startswith("--") else [name, value]
                elif is_option and each.name in ("peer", "timeout"):
                    options += [each.opts[0], NOBODY if each.name == "peer" else "0.2"]
                elif not is_option:
                    usual = f"{NOBODY}/x" if each.name in ("address", "ref") else "nothing"
                    positions.append(value if each is target else usual)
            yield [*path, *options, "--", *positions]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in LONG], ids=" ".join)
def test_hostile_arguments_are_told_in_lines(path, place, capsys):
    for arguments in lines(path):
        try:
            code = main(arguments)
        except BaseException as error:
            error.add_note(f"callboard {arguments!r:.300}")
            raise
        err = capsys.readouterr().err
        assert code in (0, 1, 2), arguments
        assert code == 0 or err, arguments
        assert "Traceback" not in err, arguments
        assert all(each.isprintable() or each in "\n\t" for each in err), arguments
