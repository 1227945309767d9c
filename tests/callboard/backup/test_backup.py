"""A backup is one cut, is whole or nothing, and its restore is recognized as one."""

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import locks
from callboard.backup import (
    BackupDamaged,
    BackupError,
    BackupRefused,
    back_up,
    back_up_folder,
    restore,
    taking,
    verify,
)
from callboard.backup.manifest import DATA, FORMAT, MANIFEST, read_manifest
from callboard.backup.service import request_backup
from callboard.commitlog import CommitLog, LogReader, PositionRefused, Retention
from callboard.kernel.access import Rights
from callboard.kernel.errors import NotPermitted, RemoteError
from callboard.lease.errors import WrongState
from callboard.node import Node, ask_for_backup
from tests.callboard.backup.shop import LOG, STATE, STORE, Shop

COUNT = 20


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of 20 numbers."""
    folder = tmp_path_factory.mktemp("taken")
    shop = Shop(folder / "data")
    for number in range(1, COUNT + 1):
        shop.write(number)
    reader = shop.log.reader("billing")
    reader.commit(7)
    reader.close()
    back_up(folder / "backup", node="shop")
    shop.close()
    return folder / "backup"


@pytest.fixture
def restored(taken: Path, tmp_path: Path) -> Iterator[Shop]:
    restore(taken, tmp_path / "data")
    shop = Shop(tmp_path / "data")
    yield shop
    shop.close()


def test_everything_that_was_acknowledged_before_the_cut_is_restored(restored: Shop) -> None:
    assert restored.total() == COUNT
    assert [record.payload for record in restored.log] == list(range(1, COUNT + 1))
    assert restored.store.get("number") == COUNT
    assert restored.log.reader("billing").committed == 7


def test_a_restored_node_continues_after_the_cut(restored: Shop) -> None:
    assert restored.write(COUNT + 1) == f"Counter/one/{COUNT + 1}~1"

    assert restored.total() == COUNT + 1
    assert restored.log.end == COUNT + 1


def test_the_fences_of_all_slots_rise_with_each_restore(taken: Path, tmp_path: Path) -> None:
    epochs = []
    source = taken
    for number in (1, 2):
        restore(source, tmp_path / f"data{number}")
        source = tmp_path / f"backup{number}"
        manifest = back_up_folder(tmp_path / f"data{number}", source)
        epochs.append(next(part for part in manifest.parts if part.name == STATE).facts)
    database = sqlite3.connect(tmp_path / "data2" / STATE)
    lowest, slots = database.execute(
        "SELECT min(epoch), count(*) FROM callboard_fences"
    ).fetchone()
    database.close()

    assert slots == 256
    assert lowest >= 2 * 2**32
    assert epochs[0]["epoch"] < epochs[1]["epoch"]
    assert epochs[0]["state"] != epochs[1]["state"]


def test_nodes_with_the_former_and_the_restored_state_refuse_each_other(
    taken: Path, tmp_path: Path
) -> None:
    restore(taken, tmp_path / "restored")
    former = tmp_path / "former.db"
    shutil.copy(taken / DATA / STATE, former)
    leases = f"sqlite:{tmp_path / 'leases'}"

    with Node("former") as one, Node("restored") as two:
        from tests.callboard.backup.shop import Counter

        one.host(Counter, state=f"sqlite:{former}", leases=leases)
        with pytest.raises(WrongState):
            two.host(Counter, state=f"sqlite:{tmp_path / 'restored' / STATE}", leases=leases)


def test_a_store_is_not_mistaken_for_the_file_whose_place_it_takes(
    taken: Path, tmp_path: Path
) -> None:
    from callboard.store.backend.sqlite import SqliteBackend, SqliteOptions
    from callboard.store.errors import BackendFailure

    first = SqliteBackend(SqliteOptions(str(tmp_path / STORE)))
    first.open(0.0)
    first.close()
    restore(taken, tmp_path / "restored")
    (tmp_path / "restored" / STORE).rename(tmp_path / STORE)

    with pytest.raises(BackendFailure, match="another file had its place"):
        SqliteBackend(SqliteOptions(str(tmp_path / STORE))).open(0.0)


def test_a_cut_is_one_moment_of_all_files_while_they_are_written(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "data")
    ended = threading.Event()
    written: list[int] = [0]

    def work() -> None:
        while not ended.is_set():
            shop.write(written[-1] + 1)
            written.append(written[-1] + 1)

    thread = threading.Thread(target=work)
    thread.start()
    facts = []
    for number in range(5):
        before = written[-1]
        back_up(tmp_path / f"backup{number}")
        verify(tmp_path / f"backup{number}")
        facts.append((before, *numbers_in(tmp_path / f"backup{number}")))
    ended.set()
    thread.join()
    shop.close()

    for before, events, records, stored in facts:
        assert stored <= records  # a put may return before its commit
        assert before <= records <= events <= records + 1
    assert facts == sorted(facts)


def numbers_in(backup: Path) -> tuple[int, int, int]:
    """Return the events of the entity, the records of the log, the number in the store."""
    facts = {part.name: part.facts for part in read_manifest(backup).parts}
    database = sqlite3.connect(f"file:{backup / DATA / STORE}?mode=ro", uri=True)
    rows = database.execute("SELECT value FROM entries").fetchall()
    database.close()
    import cbor2

    number = cbor2.loads(rows[0][0]) if rows else 0
    return facts[STATE]["events"].get("Counter", 0), facts[LOG]["end"], number


def test_a_log_keeps_its_segments_while_they_are_copied(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "log", segment_bytes=1, retain=Retention(records=10))
    log.append("x", 0)
    assert log.writer.hold(1)
    log.writer.pin()
    log.writer.resume()

    for number in range(1, 50):
        log.append("x", number)
    assert log.trim() == 0
    log.writer.unpin()

    assert log.trim() > 0
    log.close()


def test_a_restored_log_refuses_positions_after_its_end(tmp_path: Path) -> None:
    with CommitLog(tmp_path / "log") as log:
        log.append("x", 1)
        back_up(tmp_path / "backup")
        before = log.position(1)
        log.append("x", 2)
        after = log.position(2)
    restore(tmp_path / "backup", tmp_path / "restored")
    with CommitLog(tmp_path / "restored" / "log") as log:
        assert log.identity.log == before.log
        assert log.identity.epochs[-1].number > after.epoch
        for offset in (1, 2):
            log.append("x", offset)
        assert [record.payload for record in log.read(log.cursor(before))] == [1, 2]
        with pytest.raises(PositionRefused):
            log.cursor(after)


def test_a_backup_needs_a_new_or_empty_folder(taken: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    for target in (tmp_path, tmp_path / "file"):
        with pytest.raises(BackupRefused, match="name a new"):
            restore(taken, target)
    (tmp_path / "empty").mkdir()
    restore(taken, tmp_path / "empty")
    assert (tmp_path / "empty" / STATE).is_file()


def test_an_unfinished_folder_is_not_overwritten(taken: Path, tmp_path: Path) -> None:
    (tmp_path / "data.partial").mkdir()

    with pytest.raises(BackupRefused, match=r"data\.partial was left by"):
        restore(taken, tmp_path / "data")


def test_a_folder_without_a_manifest_is_not_a_backup(taken: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(taken, copy)
    (copy / MANIFEST).unlink()

    for use in (verify, lambda folder: restore(folder, tmp_path / "data")):
        with pytest.raises(BackupRefused, match="not a whole backup"):
            use(copy)
    assert not (tmp_path / "data").exists()


def files_of(backup: Path) -> list[str]:
    return [
        f"{part.name}/{file.name}".rstrip("/")
        for part in read_manifest(backup).parts
        for file in part.files
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(data=st.data())
def test_a_changed_byte_is_found_and_its_file_is_named(
    taken: Path, tmp_path: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(files_of(taken)))
    path = taken / DATA / name
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    try:
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)

        with pytest.raises(BackupDamaged, match=str(path)):
            verify(taken)
        with pytest.raises(BackupDamaged, match=str(path)):
            restore(taken, tmp_path / "data")
    finally:
        path.write_bytes(content)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_named(taken: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(taken, copy)
    (copy / DATA / STATE).unlink()

    with pytest.raises(BackupDamaged, match=STATE):
        verify(copy)
    with pytest.raises(BackupDamaged, match=STATE):
        restore(copy, tmp_path / "data")


def test_damage_that_was_copied_is_found_in_a_log(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "data" / "log")
    log.append_batch(list(range(100)), topic="x")
    log.flush()
    segment = tmp_path / "data" / "log" / "00000000000000000000.log"
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    back_up(tmp_path / "backup")
    log.close()

    with pytest.raises(BackupDamaged, match="log is damaged"):
        verify(tmp_path / "backup")


#: A manifest as the first release with backups wrote it; later releases must read it.
FIRST = """{"sum": "%s", "backup": {"node": "shop", "machine": "a",
 "time": "2026-11-30T03:00:00.000000+00:00", "base": "/srv/shop", "release": "0.2.0",
 "seconds": 0.5, "held_ms": 0.25, "parts": [{"kind": "log", "name": "logs/cpu",
 "facts": {"start": 0, "end": 3}, "files": [["00000000000000000000.log", 100, "ab"]]}],
 "left_out": [["postgresql://shop", "use pg_dump"]], "format": 1}}"""


def write_manifest(folder: Path, **changes: object) -> None:
    import hashlib

    folder.mkdir(exist_ok=True)
    outer = json.loads(FIRST % "")
    outer["backup"] |= changes
    text = json.dumps(outer["backup"], sort_keys=True, separators=(",", ":"))
    outer["sum"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(outer))


def test_the_first_format_is_read(tmp_path: Path) -> None:
    write_manifest(tmp_path)

    manifest = read_manifest(tmp_path)

    assert (manifest.node, manifest.base, manifest.format) == ("shop", "/srv/shop", 1)
    assert manifest.parts[0].files[0] == ("00000000000000000000.log", 100, "ab")
    assert manifest.left_out == [("postgresql://shop", "use pg_dump")]


def test_a_newer_format_is_refused_with_the_release_that_reads_it(tmp_path: Path) -> None:
    write_manifest(tmp_path, format=FORMAT + 1, release="9.1", unknown=1)

    with pytest.raises(BackupRefused, match=r"restore it with callboard 9\.1 or later"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ""])
def test_a_manifest_cannot_name_a_file_outside(tmp_path: Path, name: str) -> None:
    part = {"kind": "log", "name": name, "facts": {}, "files": []}
    write_manifest(tmp_path, parts=[part])

    with pytest.raises(BackupDamaged):
        read_manifest(tmp_path)


@given(st.text() | st.binary())
def test_any_other_manifest_is_refused(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    data = content if isinstance(content, bytes) else content.encode(errors="replace")
    (folder / MANIFEST).write_bytes(data)

    with pytest.raises(BackupError, match=MANIFEST):
        read_manifest(folder)


def test_a_process_that_stores_nothing_has_no_backup(tmp_path: Path) -> None:
    with pytest.raises(BackupRefused, match="nothing is stored here"):
        back_up_folder(tmp_path, tmp_path / "backup")
    assert not (tmp_path / "backup.partial").exists()


def test_what_a_node_has_open_is_backed_up_by_its_address_only(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "data")
    try:
        with pytest.raises(BackupError, match="address of"):
            back_up_folder(tmp_path / "data", tmp_path / "backup")
    finally:
        shop.close()
    assert not (tmp_path / "backup").exists()


def test_a_folder_without_a_node_is_backed_up_without_leases(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "data")
    shop.write(1)
    shop.close()

    manifest = back_up_folder(tmp_path / "data", tmp_path / "backup")

    assert [(part.kind, part.name) for part in manifest.parts] == [
        ("log", LOG),
        ("entities", STATE),
        ("store", STORE),
    ]
    assert numbers_in(tmp_path / "backup") == (1, 1, 1)


def test_a_state_in_postgresql_is_named_as_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callboard.support.files.open_objects import OpenObjects

    states: OpenObjects[SimpleNamespace] = OpenObjects(locks.lock("test", 603))
    state = SimpleNamespaceWithHash(url="postgresql://me:word@host/shop")
    states.add(state)
    module = SimpleNamespace(OPEN=states)
    monkeypatch.setitem(taking.sys.modules, taking._POSTGRESQL, module)
    with CommitLog(tmp_path / "log") as log:
        log.append("x", 1)
        manifest = back_up(tmp_path / "backup")

    ((name, reason),) = manifest.left_out
    assert "word" not in name
    assert "host/shop" in name
    assert "pg_dump" in reason


class SimpleNamespaceWithHash(SimpleNamespace):
    __hash__ = object.__hash__


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("callboard.backup.sources.copy_file", fail)
    with CommitLog(tmp_path / "log") as log:
        log.append("x", 1)
        with pytest.raises(BackupError, match="No space left"):
            back_up(tmp_path / "backup")
        log.append("x", 2)  # it is not held any more

    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_node_writes_only_where_its_asker_can_write(tmp_path: Path) -> None:
    (tmp_path / "x.partial").mkdir()
    (tmp_path / "x.partial" / "request").write_text("right")
    with (
        CommitLog(tmp_path / "log"),
        Node("shop") as shop,
        Node("tool", is_tool=True) as tool,
    ):
        shop.listen()
        ask = partial(ask_for_backup, tool, tool.connect(shop.address))
        for folder, token in [
            (str(tmp_path / "x.partial"), "wrong"),
            (str(tmp_path / "x.partial"), ""),
            (str(tmp_path / "missing.partial"), "right"),
            (str(tmp_path / "x"), "right"),
            ("x.partial", "right"),
        ]:
            with pytest.raises(RemoteError, match="cannot write to|malformed"):
                ask(folder, token)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "x.partial"]

        target = tmp_path / "backup"
        summary = request_backup(target, ask)

    assert summary["node"] == "shop"
    assert [part["kind"] for part in summary["parts"]] == ["log"]
    verify(target)
    assert not (target / "request").exists()


def test_a_peer_with_limited_rights_cannot_have_a_backup_made(tmp_path: Path) -> None:
    rights = Rights(inspect=True, drain=True)
    with (
        CommitLog(tmp_path / "log"),
        Node("shop", secrets={"tool": "a" * 32}, permissions={"tool": rights}) as shop,
        Node("tool", secret="a" * 32) as tool,
    ):
        shop.listen()
        ask = partial(ask_for_backup, tool, tool.connect(shop.address))
        with pytest.raises(NotPermitted):
            request_backup(tmp_path / "backup", ask)

    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_restored_log_knows_how_far_it_is_durable(taken: Path, tmp_path: Path) -> None:
    restore(taken, tmp_path / "data")
    segment = tmp_path / "data" / LOG / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[:-1])

    with CommitLog(tmp_path / "data" / LOG) as log:
        assert log.recovery.damaged
    assert LogReader(tmp_path / "data" / LOG).end == COUNT
