"""Forks that replace processes of Python."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")
if sys.platform != "linux":
    pytest.skip("forks are for Linux", allow_module_level=True)

from callboard.pipeline.process.fork_server import start_python

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[4]
MODULE = """
import os, sys
print(sys.argv[1:], os.getcwd(), os.environ.get("COLOR"), "pandas" in sys.modules)
print(sys.stdin.readline().strip(), file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "told.py").write_text(MODULE)
    (tmp_path / "waits.py").write_text(
        "import sys\nprint('here', flush=True)\nsys.stdin.read()"
    )
    return tmp_path


def environment(folder, **more):
    path = os.pathsep.join(
        [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return {**os.environ, "PYTHONPATH": path, **more}


def run(python, *arguments, folder, **more):
    return subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=environment(folder, **more),
        input="asked\n",
        capture_output=True,
        text=True,
    )


def test_a_fork_gets_its_arguments_folder_variables_and_streams_and_reports_its_exit_code(
    folder,
):
    done = run(start_python(), "-m", "told", "a", "b c", folder=folder, COLOR="red")

    assert done.stdout == f"['a', 'b c'] {folder} red True\n"
    assert done.stderr == "asked\n"
    assert done.returncode == 7


def test_errors_of_a_fork_are_printed_as_python_prints_them(folder):
    (folder / "fails.py").write_text("raise ValueError('much')")

    done = run(start_python(), "-m", "fails", folder=folder)

    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: much\n")


def test_a_program_that_is_not_a_module_runs_in_a_python_of_its_own(folder):
    done = run(
        start_python(), "-c", "import sys; print('pandas' in sys.modules)", folder=folder
    )

    assert done.stdout == "False\n"


def test_a_signal_to_end_reaches_the_fork(folder):
    process = subprocess.Popen(
        [start_python(), "-m", "waits"],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline() == b"here\n"

        process.send_signal(signal.SIGTERM)

        assert process.stdout.read() == b""  # the fork has it open no more
        assert process.wait() == 1


def test_the_server_ends_with_its_parent_and_without_it_python_itself_runs(folder):
    program = (
        "import subprocess, sys\n"
        "from callboard.pipeline.process.fork_server import start_python\n"
        "python = start_python(); subprocess.run([python, '-m', 'told'], input=b'')\n"
        "print(python, flush=True); sys.stdin.read(); import os; os._exit(0)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    told = parent.stdout.readline()
    python = Path(parent.stdout.readline().strip())
    copy = folder / "python"
    copy.write_text(python.read_text())
    copy.chmod(0o755)

    parent.communicate("")  # returns when the server has closed these streams as well

    assert told.endswith("True\n")
    assert not python.exists()
    assert run(copy, "-m", "told", folder=folder).stdout.endswith("None False\n")
