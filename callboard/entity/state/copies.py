"""Copies of states in SQLite files: their facts, and the changes of a restored one."""

import sqlite3
from uuid import uuid4

from callboard.entity.machine.table import RESTORE_EPOCHS, SLOTS


def is_state(tables: set[str]) -> bool:
    """Return whether a database with these tables holds a state."""
    return "callboard_state" in tables


def facts_of(connection: sqlite3.Connection) -> dict[str, str | int | dict[str, int]]:
    """Return the identity, the version, and the number of events of each type."""
    state, version = connection.execute(
        "SELECT id, schema_version FROM callboard_state"
    ).fetchone()
    events = dict(connection.execute("SELECT type, last FROM callboard_types ORDER BY type"))
    (epoch,) = connection.execute("SELECT max(epoch) FROM callboard_fences").fetchone()
    return {"state": state, "version": version, "events": events, "epoch": epoch or 0}


def mark_restored(connection: sqlite3.Connection) -> None:
    """Give a restored state a new identity, and raise its fences; in a transaction.

    So nodes with the former state and nodes with this one refuse each other. No epoch is given
    twice, although the former state may have raised it since the backup, and the `fence` of
    entities tells both apart.
    """
    connection.execute("UPDATE callboard_state SET id = ?", (uuid4().hex,))
    types = [name for (name,) in connection.execute("SELECT type FROM callboard_types")]
    slots = [(name, slot) for name in types for slot in range(SLOTS)]
    # A slot without a fence may have been claimed since the backup, too.
    sql = "INSERT INTO callboard_fences VALUES (?, ?, 0, '') ON CONFLICT DO NOTHING"
    connection.executemany(sql, slots)
    connection.execute(
        "UPDATE callboard_fences SET epoch = epoch + ?, writer = 'restored'", (RESTORE_EPOCHS,)
    )
