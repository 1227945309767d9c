"""What the system offers: the portable forms say the same as those of Linux, or nothing."""

import os
import re
import selectors
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from callboard.support.platform import system

PACKAGE = Path(__file__).parents[4]

#: Names that only Linux has. Others use them through `callboard.support.platform.system`.
LINUX_ONLY = re.compile(r"\"/proc/|TCP_DEFER_ACCEPT|sched_getaffinity")


@pytest.fixture(params=[True, False], ids=["linux", "portable"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Select the forms of Linux, where the tests run on it, or the portable ones."""
    if request.param and not system.IS_LINUX:
        pytest.skip("the forms of Linux are switched off, or this is another system")
    monkeypatch.setattr(system, "IS_LINUX", request.param)
    return bool(request.param)


@pytest.mark.usefixtures("form")
def test_a_process_knows_its_memory_its_start_and_its_processors() -> None:
    assert 1_000_000 < system.resident_bytes() < 100_000_000_000
    assert 0 < time.monotonic_ns() - system.process_start_ns() < 3_600_000_000_000
    assert 1 <= system.processors() <= (os.cpu_count() or 1)


@pytest.mark.usefixtures("form")
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    if Path("/proc/self").exists():
        assert system.file_system_of("/proc/self") == "proc"
    assert system.file_system_of(str(tmp_path.resolve()))


def test_only_linux_tells_who_holds_a_lock_and_where_a_file_is_mapped(
    form: bool, tmp_path: Path
) -> None:
    path = tmp_path / "it.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (a)")
    file = Path(f"{path}-shm").stat()

    assert (system.mapped_at(file.st_dev, file.st_ino) is not None) == form
    assert (system.boot_id() != "") == form
    assert system.lock_holder(file.st_ino) is None, "this process itself does not count"
    connection.close()


def test_a_portable_poller_reports_what_can_be_read() -> None:
    reader, writer = os.pipe()
    with system.portable_selector() as poller:
        assert not isinstance(poller, getattr(selectors, "EpollSelector", ()))
        poller.register(reader, selectors.EVENT_READ)
        assert poller.select(0) == []
        os.write(writer, b"x")
        assert [key.fd for key, _ in poller.select(5)] == [reader]
    os.close(reader)
    os.close(writer)


PROGRAM = """
from callboard import Actor, Node, handler
from callboard.actors.runner.poller import best_selector

class Echo(Actor):
    @handler
    def text(self, message: str) -> str:
        return message.upper()

with Node("host", spawnable={"echo": Echo}) as host, Node("guest") as guest:
    host.listen("127.0.0.1", 0)
    print(guest.remote_spawn(host.address, "echo").ask("hello").result(20))
    print(type(host.runner.selector).__name__)
"""


def test_a_variable_switches_to_the_portable_forms() -> None:
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"CALLBOARD_PORTABLE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()

    assert output == ["HELLO", type(system.portable_selector()).__name__]


def test_no_other_file_uses_what_only_linux_has() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for folder in ("actors", "basp", "proxies", "callboard")
        for path in (PACKAGE / folder).rglob("*.py")
        if path != Path(system.__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LINUX_ONLY.search(line.partition("#")[0])
    ]

    assert found == []
