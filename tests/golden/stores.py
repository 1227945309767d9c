"""Stores: commands of every kind, snapshots, and the file of the SQLite backend."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import cbor2

from callboard.channel import CumulativeAck, Handshake, Heartbeat, Nack, RetransmitFailed
from callboard.model.data import DataType
from callboard.model.scalar import Count
from callboard.store.backend.interface import Backend, Contents
from callboard.store.backend.registry import make_backend
from callboard.store.machine.command import FIELDS as COMMANDS
from callboard.store.machine.command import Action, CommandRun, EntityId, encode_run, read_run
from callboard.store.machine.snapshot import Snapshot, SnapshotChunk
from callboard.store.machine.step import ERASED, Persist, WriterRow
from callboard.store.machine.stored import stored_of, token_of
from tests.golden.sample import Folder, Sample

#: Commands in the order of their numbers.
NAMES = (
    "Put",
    "PutUnique",
    "PutUniqueResult",
    "Erase",
    "Expire",
    "Add",
    "Subtract",
    "Clear",
    "AttachWriter",
    "Keepalive",
    "CumulativeAckCommand",
    "NackCommand",
    "AckClone",
    "RetransmitFailedCommand",
)
WRITER = EntityId(UUID(int=2**100 + 1), 2**64 - 1)
MASTER = EntityId(UUID(int=5), 3)
WHO = (WRITER.endpoint.bytes, WRITER.object)
ROWS = {"plain": (1, "x", None, 2.5), token_of(5): stored_of({Count(1): {2}}), "ä": True}

FIELDS: dict[str, Sequence[Any]] = {
    "Put": ("key", (1, "x"), 5_000_000_000),
    "PutUnique": (token_of((1, "a")), stored_of(Count(3)), None, WHO, 9),
    "PutUniqueResult": (True, WHO, 9),
    "Erase": ("key",),
    "Expire": (token_of(7),),
    "Add": ("set", "member", int(DataType.Set), None),
    "Subtract": ("number", 2.5, -1),
    "Clear": (),
}
CONTROLS = {
    "AttachWriter": Handshake(13, 65_535),
    "Keepalive": Heartbeat(2**64 - 1),
    "CumulativeAckCommand": CumulativeAck(300),
    "NackCommand": Nack((1, 2, 70_000)),
    "RetransmitFailedCommand": RetransmitFailed(4),
}


def write(run: CommandRun) -> bytes:
    (payload,) = encode_run(run)
    return payload


def read(payload: bytes) -> CommandRun:
    return read_run(cbor2.loads(payload, immutable=True))


def actions(*kinds: str) -> Sample:
    made: list[Action] = [(NAMES.index(kind), *FIELDS[kind]) for kind in kinds]
    return Sample(CommandRun(WRITER, MASTER, 41, made), write, read)


def control(command: Any) -> Sample:
    return Sample(CommandRun(MASTER, WRITER, control=command), write, read)


def write_snapshot(rows: dict[Any, Any]) -> bytes:
    (chunk,) = Snapshot(rows, 77, 4).chunks(0, again=False)
    return write(CommandRun(MASTER, WRITER, control=chunk))


ENTRIES = tuple(part for row in ROWS.items() for part in row)
CHUNK = CommandRun(MASTER, WRITER, control=SnapshotChunk(77, 4, 0, True, ENTRIES))
SAMPLES = {kind: actions(kind) for kind in FIELDS}
SAMPLES |= {name: control(each) for name, each in CONTROLS.items()}
SAMPLES |= {
    "AckClone": control(SnapshotChunk(9, 10, 3, False, ("a", 1, b"\x01", None))),
    "snapshot": Sample(ROWS, write_snapshot, read, CHUNK),
    "all actions": actions(*FIELDS),
    "to all": Sample(CommandRun(MASTER, control=Heartbeat(0)), write, read),
}

# --- the file of the SQLite backend: its pages depend on SQLite's release, its rows do not

HELD = {
    "plain": ((1, "x"), None),
    token_of(5): (stored_of({Count(1): {2}}), 12.5),
    token_of((1, "a")): (None, None),
}
WRITERS = {WHO: WriterRow(2**64 - 1, {7: True, 8: False})}


def change(path: Path, *changes: Persist) -> Contents:
    backend = make_backend(Backend.SQLite, {"path": str(path / "store.db")})
    contents = backend.open(1_700_000_000.0)
    done = threading.Semaphore(0)
    for each in changes:
        backend.write(each, lambda failure: done.release() if failure is None else None)
    for _ in changes:
        assert done.acquire(timeout=30)
    backend.close()
    return contents


def make(path: Path) -> None:
    change(
        path,
        Persist(
            rows={**HELD, "gone": (1, None)},
            writers={WHO: (2**64 - 1, [(7, True), (8, False)])},
        ),
    )
    change(path, Persist(rows={"gone": ERASED}))


def go_on(path: Path) -> Contents:
    change(path, Persist(rows={"new": ("value", 1.0), "plain": ERASED}))
    rows = {key: row for key, row in HELD.items() if key != "plain"} | {"new": ("value", 1.0)}
    return Contents(rows, WRITERS)


FOLDERS = {"sqlite": Folder(make, change, Contents(HELD, WRITERS), go_on, foreign=(".db",))}


def missing() -> set[str]:
    """Return commands without a sample."""
    assert len(NAMES) == len(COMMANDS)
    return {*NAMES} - SAMPLES.keys()
