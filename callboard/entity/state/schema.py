"""The tables of a state, alike for SQLite and PostgreSQL, and how older ones become newer.

`docs/entities-schema.md` tells each column. A step is never changed once it was released: what
comes later is a step more.
"""

from typing import Final

from callboard.lease.errors import StateVersion


class OnSqlite(str):
    """A statement that is left out where the engine is another one."""

    __slots__ = ()


#: Each step leads from the version that is its index to the next one. `{json}` and `{key}` are
#: the engine's types of JSON and of text that is ordered by its bytes.
STEPS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE callboard_types (
            type {key} PRIMARY KEY, last BIGINT NOT NULL)""",
        """CREATE TABLE callboard_fences (
            type {key} NOT NULL, slot INTEGER NOT NULL, epoch BIGINT NOT NULL,
            writer TEXT NOT NULL, PRIMARY KEY (type, slot)){clustered}""",
        """CREATE TABLE callboard_writers (
            writer {key} PRIMARY KEY, number BIGINT NOT NULL, time_ms BIGINT NOT NULL)""",
        """CREATE TABLE callboard_events (
            type {key} NOT NULL, position BIGINT NOT NULL, key {key} NOT NULL,
            number BIGINT NOT NULL, time_ms BIGINT NOT NULL, epoch BIGINT NOT NULL,
            kind TEXT NOT NULL, version INTEGER NOT NULL, body {json} NOT NULL,
            PRIMARY KEY (type, position)){clustered}""",
        """CREATE UNIQUE INDEX callboard_events_of_key
            ON callboard_events (type, key, number)""",
        """CREATE TABLE callboard_snapshots (
            type {key} NOT NULL, key {key} NOT NULL, number BIGINT NOT NULL,
            version INTEGER NOT NULL, time_ms BIGINT NOT NULL, body {json} NOT NULL,
            PRIMARY KEY (type, key, number)){clustered}""",
        """CREATE TABLE callboard_kinds (
            type {key} NOT NULL, kind {key} NOT NULL, version INTEGER NOT NULL,
            PRIMARY KEY (type, kind, version)){clustered}""",
    ),
    (
        """CREATE TABLE callboard_reminders (
            type {key} NOT NULL, key {key} NOT NULL, name {key} NOT NULL,
            slot INTEGER NOT NULL, due_ms BIGINT NOT NULL, every_ms BIGINT NOT NULL,
            body {json} NOT NULL, PRIMARY KEY (type, key, name)){clustered}""",
        """CREATE INDEX callboard_reminders_due
            ON callboard_reminders (type, slot, due_ms)""",
        """CREATE TABLE callboard_jobs (
            type {key} NOT NULL, key {key} NOT NULL, number BIGINT NOT NULL,
            status INTEGER NOT NULL, due_ms BIGINT NOT NULL, attempt INTEGER NOT NULL,
            taker TEXT NOT NULL, visible_ms BIGINT NOT NULL, reason TEXT NOT NULL,
            time_ms BIGINT NOT NULL, body {json} NOT NULL,
            PRIMARY KEY (type, key, number)){clustered}""",
        """CREATE INDEX callboard_jobs_due
            ON callboard_jobs (type, key, status, due_ms, number)""",
    ),
    (
        """CREATE TABLE callboard_readers (
            type {key} NOT NULL, reader {key} NOT NULL, position BIGINT NOT NULL,
            epoch BIGINT NOT NULL, time_ms BIGINT NOT NULL,
            PRIMARY KEY (type, reader)){clustered}""",
    ),
    (  # where PostgreSQL keeps an index, SQLite has a table that may be behind
        OnSqlite("DROP INDEX callboard_events_of_key"),
        OnSqlite(
            """CREATE TABLE callboard_events_of_key (
            type {key} NOT NULL, key {key} NOT NULL, number BIGINT NOT NULL,
            position BIGINT NOT NULL, PRIMARY KEY (type, key, number)){clustered}"""
        ),
        OnSqlite(
            """CREATE TABLE callboard_indexed (
            type {key} PRIMARY KEY, position BIGINT NOT NULL){clustered}"""
        ),
        OnSqlite(
            """INSERT INTO callboard_events_of_key
            SELECT type, key, number, position FROM callboard_events
            ORDER BY type, key, number"""
        ),
        OnSqlite("INSERT INTO callboard_indexed SELECT type, last FROM callboard_types"),
    ),
    (
        """ALTER TABLE callboard_reminders
            ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0""",
    ),
)

#: From this version on SQLite has a table in place of an index.
INDEX_TABLE_VERSION: Final = 4

#: The table that says which state this is, and which version its tables have.
STATE_TABLE: Final = """CREATE TABLE IF NOT EXISTS callboard_state (
    one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, schema_version INTEGER NOT NULL,
    system_id TEXT NOT NULL, timeline TEXT NOT NULL)"""

SQLITE_TYPES: Final = {"json": "TEXT", "key": "TEXT", "clustered": " WITHOUT ROWID"}
POSTGRESQL_TYPES: Final = {"json": "JSON", "key": 'TEXT COLLATE "C"', "clustered": ""}


def steps_from(version: int, types: dict[str, str]) -> list[str]:
    """Return the statements that bring tables of a version up to date."""
    is_sqlite = types is SQLITE_TYPES
    statements = (sql for step in STEPS[version:] for sql in step)
    return [s.format_map(types) for s in statements if is_sqlite or not isinstance(s, OnSqlite)]


def check_version(version: int, where: str) -> None:
    """Refuse tables of a newer callboard.

    Raises:
        StateVersion: they are.
    """
    if version > len(STEPS):
        message = (
            f"{where} has tables of version {version}, and this callboard knows {len(STEPS)}:"
            " a newer one wrote them; upgrade callboard here"
        )
        raise StateVersion(message)
