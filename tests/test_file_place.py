"""What happens when a file or folder is removed, moved or replaced under its owner."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from callboard import Entity, Node, event, handler, message
from callboard.broker import Backend, Endpoint
from callboard.commitlog import CommitLog, LogError, LogReplaced
from callboard.entity.state.sqlite import SqliteState
from callboard.errors import CallboardError
from callboard.flow.protocol.message import Message
from callboard.flow.record_file import RecordFile
from callboard.gateway.spool import Spool
from callboard.lease.leases import LeaseValue
from callboard.lease.sqlite import SqliteLeases
from callboard.support.files.file_place import CHECK_SECONDS, FilePlaces


@message("file-tests.Counted")
@dataclass
class Counted:
    by: int


class Count(Entity):
    def __init__(self) -> None:
        self.count = 0

    @handler
    def on_add(self, msg: int) -> int:
        self.persist(Counted(msg))
        return self.count

    @event
    def on_counted(self, event: Counted) -> None:
        self.count += event.by


class Owner(NamedTuple):
    """What has files open: a call that acknowledges a write, and the files."""

    write: Callable[[], Any]
    files: tuple[Path, ...]


def make_log_of_groups(folder: Path, stack: ExitStack) -> Owner:
    log = CommitLog(folder / "log")
    stack.callback(close, log)
    log.append("/a", 0)
    return Owner(lambda: log.append("/a", 1), files_of(folder / "log"))


def make_log_without_syncs(folder: Path, stack: ExitStack) -> Owner:
    log = CommitLog(folder / "log", sync="none")
    stack.callback(close, log)
    log.append("/a", 0)
    return Owner(lambda: log.append("/a", 1), files_of(folder / "log"))


def make_log_of_a_producer(folder: Path, stack: ExitStack) -> Owner:
    log = CommitLog(folder / "log", sync="none")
    stack.callback(close, log)
    producer = log.producer("p")
    producer.append("/a", 0)
    return Owner(lambda: producer.append("/a", 1), files_of(folder / "log"))


def make_named_reader(folder: Path, stack: ExitStack) -> Owner:
    log = CommitLog(folder / "log", sync="none")
    stack.callback(close, log)
    for number in range(20):
        log.append("/a", number)
    reader = log.reader("r")
    stack.callback(reader.close)
    reader.poll(1)
    reader.commit()

    def write() -> None:
        reader.poll(1)
        reader.commit()

    return Owner(write, (folder / "log" / "readers" / "r.lock",))


def make_store(folder: Path, stack: ExitStack) -> Owner:
    endpoint = stack.enter_context(Endpoint())
    store = endpoint.attach_master("s", Backend.SQLite, {"path": f"{folder}/s.db"})
    store.put("a", 1)
    keys = count()
    return Owner(
        lambda: store.put_unique(next(keys), 1), (folder / "s.db", folder / "s.db-wal")
    )


def make_state(folder: Path, stack: ExitStack) -> Owner:
    state = SqliteState(folder / "state.db", "w")
    stack.callback(close, state)
    state.claim("t", {1: 1})
    files = (folder / "state.db", folder / "state.db-wal", folder / "state.db-shm")
    return Owner(lambda: state.claim("t", {1: 2}), files)


def make_entities(folder: Path, stack: ExitStack) -> Owner:
    node = stack.enter_context(Node("files"))
    node.host(Count, state=f"sqlite:{folder}/state.db")
    entity = node.entity(Count, "k")
    entity.ask(1).result(20)
    return Owner(lambda: entity.ask(1).result(20), (folder / "state.db",))


def make_leases(folder: Path, stack: ExitStack) -> Owner:
    leases = SqliteLeases(folder / "l.db", "w")
    stack.callback(close, leases)
    leases.write("x", LeaseValue("w", 1, ""), 0)
    files = folder / "l.db", folder / "l.db-wal", folder / "l.db-lives" / "w"
    return Owner(lambda: leases.write("x", LeaseValue("w", 2, ""), 1), files)


def make_record_file(folder: Path, stack: ExitStack) -> Owner:
    file = RecordFile(folder / "f.zio")
    stack.callback(file.close)
    return Owner(lambda: file.append([Message("DAT", "", ())]), (folder / "f.zio",))


def make_spool(folder: Path, stack: ExitStack) -> Owner:
    spool = Spool(folder / "spool")
    stack.callback(spool.close)
    spool.append(b"12345678x")
    return Owner(lambda: spool.append(b"12345678x"), files_of(folder / "spool", "received"))


OWNERS = {
    name.removeprefix("make_"): make
    for name, make in list(globals().items())
    if name.startswith("make_")
}


def close(owner: Any) -> None:
    with suppress(LogError, CallboardError):
        owner.close()


def files_of(folder: Path, *others: str) -> tuple[Path, ...]:
    """Return the files that a log has open; readers notice a replaced identity themselves."""
    others += ("identity", "epochs")
    return tuple(p for p in folder.iterdir() if p.is_file() and p.name not in others)


def remove_file(path: Path) -> None:
    path.unlink()


def move_file(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replace_file(path: Path) -> None:
    new = path.with_name("new")
    shutil.copyfile(path, new)
    new.rename(path)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace_folder(path: Path) -> None:
    aside = path.parent.with_name("aside")
    path.parent.rename(aside)
    sockets = shutil.ignore_patterns("*-nodes")  # they cannot be copied
    shutil.copytree(aside, path.parent, ignore=sockets)


#: Each waits until the owner looks at its place again.
SLOW = pytest.mark.slow

CHANGES = (remove_file, move_file, replace_file, remove_folder, move_folder, replace_folder)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize(
    "change",
    [each if each is replace_file else pytest.param(each, marks=SLOW) for each in CHANGES],
)
@pytest.mark.parametrize("kind", OWNERS)
def test_nothing_is_acknowledged_soon_after_a_file_is_no_longer_at_its_path(
    kind, change, tmp_path, stack
):
    number, known = 0, 1
    while number < known:
        folder = tmp_path / str(number) / "owned"
        folder.mkdir(parents=True)
        owner = OWNERS[kind](folder, stack)
        owner.write()
        known, path = len(owner.files), owner.files[number]
        change(path)

        threading.Event().wait(CHECK_SECONDS)  # what is acknowledged until then may be lost

        for _ in range(3):
            with pytest.raises((CallboardError, LogError)) as caught:
                owner.write()
            text = str(caught.value)
            assert str(folder) in text, f"{path}: {text}"
            assert "removed or replaced" in text, f"{path}: {text}"
        number += 1


def test_a_log_whose_files_are_gone_acknowledges_no_flush_at_all(tmp_path):
    log = CommitLog(tmp_path / "log", sync="none")
    log.append("/a", 1)
    shutil.rmtree(tmp_path / "log")

    with pytest.raises(LogReplaced, match="removed or replaced"):
        log.flush()
    assert log.has_failed
    assert not log.may_reopen
    log.close()


def test_a_log_is_opened_again_after_its_folder_was_put_back(tmp_path):
    folder, aside = tmp_path / "log", tmp_path / "aside"
    log = CommitLog(folder, sync="none")
    log.append("/a", 1)
    log.flush()
    folder.rename(aside)
    with pytest.raises(LogReplaced):
        log.flush()
    aside.rename(folder)
    with pytest.raises(LogReplaced):
        log.append("/a", 2)
    log.close()
    with CommitLog(folder) as again:
        assert again.append("/a", 2) == 1


def test_a_file_that_changes_its_contents_stays_in_place(tmp_path):
    path, times = tmp_path / "f", iter(range(100))
    path.write_text("a")
    places = FilePlaces(lambda: float(next(times)))
    places.add(path)
    path.write_text("b")
    assert not places.misplaced()
    path.chmod(0o600)
    (tmp_path / "g").hardlink_to(path)
    assert not places.misplaced()
    replace_file(path)
    assert places.misplaced() == str(path)
    (tmp_path / "g").rename(path)
    assert places.misplaced() == str(path)  # what was written in between is not known


def test_the_system_is_asked_a_few_times_a_second_only(tmp_path, monkeypatch):
    path, now = tmp_path / "f", [0.0]
    path.write_text("a")
    places = FilePlaces(lambda: now[0])
    places.add(path)
    asked: list[str] = []
    monkeypatch.setattr(
        "callboard.support.files.file_place.is_at", lambda path, _: asked.append(path) or True
    )
    for tick in range(1000):
        now[0] = tick / 1000
        assert not places.misplaced()
    assert len(asked) == 3
