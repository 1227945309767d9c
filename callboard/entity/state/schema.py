"""The tables of a state, for SQLite and PostgreSQL, and the migration of older ones.

`docs/entities-schema.md` describes each column. A released step never changes: later changes
are further steps.
"""

from typing import Final

from callboard.lease.errors import StateVersion


class OnSqlite(str):
    """A statement for SQLite only."""

    __slots__ = ()


#: The step at index n migrates from version n to n + 1. `{json}` and `{key}` are the engine's
#: types of JSON and of text ordered by its bytes.
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
    (  # where PostgreSQL has an index, SQLite has a table that may be outdated
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

#: The version since which SQLite has a table instead of an index.
INDEX_TABLE_VERSION: Final = 4

#: The table with the identity of the state and the version of its tables.
STATE_TABLE: Final = """CREATE TABLE IF NOT EXISTS callboard_state (
    one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, schema_version INTEGER NOT NULL,
    system_id TEXT NOT NULL, timeline TEXT NOT NULL)"""

SQLITE_TYPES: Final = {"json": "TEXT", "key": "TEXT", "clustered": " WITHOUT ROWID"}
POSTGRESQL_TYPES: Final = {"json": "JSON", "key": 'TEXT COLLATE "C"', "clustered": ""}


def steps_from(version: int, types: dict[str, str]) -> list[str]:
    """Return the statements that migrate tables of a version to the current one."""
    is_sqlite = types is SQLITE_TYPES
    statements = (sql for step in STEPS[version:] for sql in step)
    return [s.format_map(types) for s in statements if is_sqlite or not isinstance(s, OnSqlite)]


def check_version(version: int, place: str) -> None:
    """Check that the tables are not newer than this callboard.

    Raises:
        StateVersion: the tables are newer.
    """
    if version > len(STEPS):
        message = (
            f"{place} has tables of version {version}, and this callboard knows version"
            f" {len(STEPS)}: a newer callboard wrote them; upgrade callboard here"
        )
        raise StateVersion(message)
