"""Programs that start workers: without a main guard, from `-m`, `-c` and stdin, killed."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from tests.polling import eventually
from tests.proxies.cast import ROOT

pytestmark = pytest.mark.slow

HELPER = """
from callboard import Actor, handler

class Upper(Actor):
    @handler
    def text(self, m: str) -> str:
        return m.upper()
"""

PLAIN = """
with Node() as node:
    pool = node.workers(2)
    print(pool.spawn(Upper).ask("hi").result(20))
"""

OFFERED = """
with Node(spawnable={"upper": Upper}) as node:
    node.workers(2)
"""

CO = """
async def main():
    async with Node() as node:
        pool = await node.aworkers(2)
        print(await (await pool.aspawn(Upper)).ask("hi"))
asyncio.run(main())
"""

THREAD = """
import threading
def main():
    with Node() as node:
        pool = node.workers(1)
        try:
            print(pool.spawn(Upper).ask("hi").result(20))
        except Exception as error:
            sys.exit(f"{type(error).__name__}: {error}")
errors = []
threading.excepthook = lambda it: errors.append(it)
thread = threading.Thread(target=main); thread.start(); thread.join()
if errors: raise errors[0].exc_value
"""

IMPORTS = "import asyncio, sys\nfrom callboard import Actor, Node, handler\n"


def family(mark):
    """All processes that began with a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("WORKER_TEST") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def mark(tmp_path):
    yield str(tmp_path)
    for process in family(str(tmp_path)):
        process.kill()


def environment(mark):
    return {**os.environ, "WORKER_TEST": mark, "PYTHONPATH": str(ROOT)}


def run(mark, *arguments, **more):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=mark,
        env=environment(mark),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


@pytest.mark.parametrize("body", [PLAIN, OFFERED, CO, THREAD])
def test_a_program_without_a_main_guard_is_told_what_it_lacks_and_starts_no_more(
    tmp_path, mark, body
):
    program = tmp_path / "program.py"
    program.write_text(IMPORTS + HELPER + body)

    done = run(mark, str(program))

    assert done.returncode != 0
    assert 'under if __name__ == "__main__":' in done.stderr
    assert str(program) in done.stderr
    assert "hi" not in done.stdout
    eventually(lambda: not family(mark))


@pytest.mark.parametrize("body", [PLAIN, OFFERED, CO])
def test_with_the_guard_it_works(tmp_path, mark, body):
    program = tmp_path / "program.py"
    guarded = 'if __name__ == "__main__":\n' + textwrap.indent(body, "    ")
    program.write_text(IMPORTS + HELPER + guarded)

    done = run(mark, str(program))

    assert (done.returncode, done.stderr) == (0, "")
    eventually(lambda: not family(mark))


def test_classes_of_modules_need_no_guard(tmp_path, mark):
    (tmp_path / "cast_of_mine.py").write_text(HELPER)
    body = IMPORTS + "from cast_of_mine import Upper\n" + PLAIN
    (tmp_path / "program.py").write_text(body)

    for arguments in (["program.py"], ["-c", body]):
        assert run(mark, *arguments).stdout == "HI\n"
    assert run(mark, "-", input=body).stdout == "HI\n"


def test_a_module_of_a_package_run_with_m_may_import_its_neighbors(tmp_path, mark):
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "prices.py").write_text("SUFFIX = '!'\n")
    guarded = 'if __name__ == "__main__":\n' + textwrap.indent(PLAIN, "    ")
    (package / "app.py").write_text(
        IMPORTS
        + "from .prices import SUFFIX\n"
        + HELPER.replace("upper()", "upper() + SUFFIX")
        + guarded
    )

    assert run(mark, "-m", "shop.app").stdout == "HI!\n"


def test_workers_end_with_their_parent_even_while_they_execute_its_file(tmp_path, mark):
    """Outside of the program itself, its file waits for ever."""
    program = tmp_path / "program.py"
    program.write_text(
        IMPORTS
        + HELPER
        + 'if __name__ != "__main__":\n    import threading\n    threading.Event().wait()\n'
        + 'if __name__ == "__main__":\n'
        + textwrap.indent(
            PLAIN.replace("    print(", "    print('ready', flush=True)\n    print("), "    "
        )
    )
    parent = subprocess.Popen(
        [sys.executable, str(program)],
        cwd=mark,
        env=environment(mark),
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout.readline() == "ready\n"
        assert len(family(mark)) == 3
        parent.send_signal(signal.SIGKILL)

    eventually(lambda: not family(mark))
