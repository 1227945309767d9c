"""The tutorial as a reader does it: its file grows, its programs print what they say."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")
SAID = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


def write_files(folder: Path, blocks: list[str]) -> None:
    for block in blocks:
        name = FILE.match(block)
        if name:
            with (folder / name[1]).open("a") as file:
                file.write(block)


@pytest.mark.parametrize(
    "number", [number for number, block in enumerate(BLOCKS) if not FILE.match(block)]
)
def test_a_program_prints_what_it_says(number, tmp_path):
    write_files(tmp_path, BLOCKS[:number])

    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == SAID.findall(BLOCKS[number])


def test_its_tests_pass(pytester: pytest.Pytester):
    write_files(pytester.path, BLOCKS)

    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=4)


@pytest.fixture
def run(tmp_path):
    """Start a command of the page, for the port that the first node really has."""
    started: list[subprocess.Popen[str]] = []

    def start(command: str, port: str) -> subprocess.Popen[str]:
        words = shlex.split(command.replace("4222", port))
        program = [sys.executable] if words[0] == "python" else [sys.executable, "-m", words[0]]
        started.append(
            subprocess.Popen(
                [*program, *words[1:]], cwd=tmp_path, stdout=subprocess.PIPE, text=True
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_three_nodes_of_which_one_is_killed(run, tmp_path):
    write_files(tmp_path, [block.replace("4222", "PORT") for block in BLOCKS])
    north, east, south, ask, many = (
        command for command in COMMANDS if command.startswith(("callboard", "python"))
    )

    port = run(north, "0").stdout.readline().rpartition(":")[2].strip()
    nodes = [run(east, port), run(south, port)]
    for node in nodes:
        node.stdout.readline()
    answer, _ = run(ask, port).communicate(timeout=120)
    script = tmp_path / "many.py"
    script.write_text(script.read_text().replace("PORT", port))
    program = run(many.replace("300", "30"), port)
    while "answered" not in program.stdout.readline():
        assert program.poll() is None
    nodes[0].send_signal(signal.SIGKILL)
    printed, _ = program.communicate(timeout=120)

    assert answer == "0\n"
    assert program.returncode == 0
    assert "NodeDown east" in printed
    assert printed.rstrip().endswith("30 answered")
