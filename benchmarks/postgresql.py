"""A PostgreSQL server for one run: it commits to disk, and nothing of it is left."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import PeerMissingError

PROGRAMS = Path("/usr/lib/postgresql")


def prepare() -> None:
    """Check that there is a server.

    Raises:
        PeerMissingError: there is none.
    """
    if find_spec("psycopg") is None or not list(PROGRAMS.glob("*/bin/postgres")):
        message = "PostgreSQL's server or psycopg is not installed: apt-get install postgresql"
        raise PeerMissingError(message)


@contextmanager
def database() -> Iterator[str]:
    """Start a server on a socket; give the URL of an empty database."""
    from tests.callboard.entity.state.postgresql_server import PostgresqlServer

    newest = max(PROGRAMS.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    server = PostgresqlServer(newest.parent)
    try:
        server.start()
        yield server.new_database()
    finally:
        server.close()
