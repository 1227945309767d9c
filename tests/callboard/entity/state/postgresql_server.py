"""A PostgreSQL server of the tests' own, one for each process of tests, on a socket."""

import atexit
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest

from tests.polling import eventually


class PostgresqlServer:
    """A server in a temporary folder, which is removed when the tests end."""

    def __init__(self, programs: Path) -> None:
        """Make the folder with its files; the server is not running yet."""
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="callboard-pg-", dir="/tmp"))
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody")
        self._run("initdb", "-D", self.folder / "data", "-U", "postgres", "-E", "UTF8",
                  "--locale=C", "--no-sync", "-A", "trust")  # fmt: skip

    def start(self, *options: str) -> Self:
        """Start the server, with settings as `fsync=off`; returns when it answers."""
        settings = ["listen_addresses=", f"unix_socket_directories={self.folder}", *options]
        arguments = [part for setting in settings for part in ("-c", setting)]
        command = self._command("postgres", "-D", self.folder / "data", *arguments)
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            **_as_nobody(),
        )
        assert eventually(lambda: self._answers(), 30.0), "PostgreSQL did not start"
        return self

    def _answers(self) -> bool:
        command = self._command("pg_isready", "-q", "-h", self.folder, "-U", "postgres")
        done = subprocess.run(command, check=False, cwd=self.folder, **_as_nobody())
        return done.returncode == 0

    def kill(self) -> None:
        """End the server at once, as `pg_ctl stop -m immediate` does."""
        if self._process is not None:
            pid = (self.folder / "data" / "postmaster.pid").read_text().split("\n")[0]
            subprocess.run(["kill", "-QUIT", pid], check=False)
            self._process.wait(30)
            self._process = None

    def new_database(self) -> str:
        """Make an empty database; returns its URL."""
        name = f"t{next(self._numbers)}"
        self._run("createdb", "-h", self.folder, "-U", "postgres", name)
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def close(self) -> None:
        """End the server and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, program: str, *arguments: object) -> list[str]:
        return [str(self._programs / program), *map(str, arguments)]

    def _run(self, program: str, *arguments: object) -> None:
        command = self._command(program, *arguments)
        options = _as_nobody()
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **options)


def _as_nobody() -> dict[str, Any]:
    """Return options of a process, which PostgreSQL refuses to be as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def new_server() -> PostgresqlServer:
    """Make a server that is not running; skips the test where that cannot be."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        pytest.skip("PostgreSQL's server is not installed (apt-get install postgresql)")
    server = PostgresqlServer(found[-1].parent)
    atexit.register(server.close)
    return server


@cache
def running_server() -> PostgresqlServer:
    """Return the server of this process of tests, started when it is first wanted."""
    return new_server().start()
