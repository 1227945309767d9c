"""Every example runs, and prints what it says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

PRINTED = {
    "two_nodes.py": ["HELLO", "killed"],
    "supervised.py": ["2.0", "RemoteError: ZeroDivisionError: division by zero", "3.0"],
    "thespian_program.py": ["HELLO, WORLD!"],
    "flow_files.py": [
        f"{len(list(EXAMPLES.rglob('*.py')))} files sent by 4 clients at once",
        f"{len(list(EXAMPLES.rglob('*.py')))} files came back with the same checksum",
    ],
    "gateway_metrics.py": ["3 modules run", "memory was recorded: True"],
    "recording.py": [
        "0 /room/1 {'celsius': 20.5} from sensors",
        "1 /room/2 {'celsius': 20.7} from sensors",
        "2 /room/3 {'celsius': 21.0} from sensors",
    ],
    "workers.py": ["[168, 303]", "unreachable", "25"],
}


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_example_says_how_to_run_it(name):
    said = ast.get_docstring(ast.parse((EXAMPLES / name).read_text()))

    assert said is not None
    assert said.endswith(f"Run it with `python examples/{name}`.")


@pytest.mark.parametrize("name", PRINTED)
def test_example_prints_what_it_says(name):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED[name]


def test_the_example_of_a_test_suite_passes():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=EXAMPLES / "testing_a_cluster",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
