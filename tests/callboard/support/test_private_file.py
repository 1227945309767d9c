"""Data of a user is private: new folders 0700, new files 0600; others keep their mode."""

import ast
import os
import stat
from pathlib import Path

import pytest

import callboard
from callboard import Node
from callboard.actors.errors import WrongValue
from callboard.commitlog import CommitLog
from callboard.entity.state.backends import open_leases, open_state, open_view
from callboard.entity.state.sqlite import SqliteState
from callboard.flow.file_service import FileService
from callboard.flow.record_file import RecordFile
from callboard.gateway.handle import ModuleOptions
from callboard.gateway.spool import Spool
from callboard.lease.sqlite import Lives, SqliteLeases
from callboard.model.errors import InvalidData
from callboard.mqtt import Router, RouterConfig
from callboard.pipeline.progress import StatusFile
from callboard.store.backend.sqlite import SqliteBackend, SqliteOptions
from callboard.support.files.private_file import make_folder, make_private_file
from tests.sources import mentioning

ROOT = Path(callboard.__file__).parent


def mode_of(path):
    return stat.S_IMODE(path.lstat().st_mode)


def modes_below(folder):
    """Return the modes of all folders and of all files below one, sockets left out."""
    paths = [path for path in folder.rglob("*") if path.is_dir() or path.is_file()]
    folders = {mode_of(path) for path in paths if path.is_dir()}
    return folders, {mode_of(path) for path in paths if path.is_file()}


def _log(place, mode=None):
    with CommitLog(place / "deep" / "log", columns=True, segment_bytes=4096, mode=mode) as log:
        for _ in range(5):
            log.append_batch([os.urandom(800)] * 10, topic="t")
        log.flush()
        with log.reader("billing") as reader:
            next(iter(reader))
            reader.commit()


def _archive(place):
    target = place / "deep" / "archive"
    with CommitLog(place / "log", archive=f"file://{target}", segment_bytes=4096) as log:
        for _ in range(5):
            log.append_batch([os.urandom(800)] * 10, topic="t")
        log.flush()


def _journal(place):
    config = RouterConfig(directory=place / "deep" / "journal")
    with Router(config) as router, router.link("c") as link:
        link.publish("t", b"x", qos=1, retain=True).result(5)


def _store(place):
    backend = SqliteBackend(SqliteOptions(str(place / "things.db")))
    contents = backend.open(0.0)
    assert contents is not None
    assert (place / "things.db-wal").exists()
    assert modes_below(place) == (set(), {0o600})
    backend.close()


def _state(place):
    state = SqliteState(place / "state.db", "writer")
    assert (place / "state.db-wal").exists()
    assert (place / "state.db-shm").exists()
    assert modes_below(place)[1] == {0o600}
    state.close()


def _leases(place):
    life = Lives(place / "deep" / "lives", "w")
    SqliteLeases(place / "leases", "w", life).close()


def _spool(place, mode=None):
    spool = Spool(place / "deep" / "spool", mode)
    spool.append(b"frame")
    spool.close()


def _records(place, mode=None):
    RecordFile(place / "deep" / "a.rec", mode).close()


def _status(place):
    StatusFile(place / "deep" / "query", "name", "log")


KEEPERS = {
    keeper.__name__.strip("_"): keeper
    for keeper in (_log, _archive, _journal, _store, _state, _leases, _spool, _records, _status)
}


@pytest.fixture(autouse=True)
def umask():
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.fixture
def place(tmp_path):
    """Return a folder of an operator that all users may read."""
    found = tmp_path / "operators"
    found.mkdir()
    found.chmod(0o755)
    return found


@pytest.mark.parametrize("name", KEEPERS)
def test_new_files_and_folders_are_private(name, place):
    KEEPERS[name](place)

    folders, files = modes_below(place)
    assert folders <= {0o700}
    assert files == {0o600}
    assert mode_of(place) == 0o755


def test_a_given_mode_is_set_with_any_umask(place):
    os.umask(0o077)

    _log(place, 0o750)

    assert modes_below(place)[0] == {0o750}
    assert _modes_of_locks(place) == ({0o600}, {0o640})


@pytest.mark.parametrize("keeper", [_spool, _records])
def test_a_mode_of_spools_and_recordings_holds_whatever_the_umask_is(place, keeper):
    os.umask(0o077)

    keeper(place, 0o750)

    assert modes_below(place)[0] == {0o750}
    assert _modes_of_locks(place)[1] == {0o640}


def test_a_file_service_and_a_module_check_their_modes(place):
    with pytest.raises(ValueError, match="does not let its user use the folder"):
        ModuleOptions(store=place / "spool", store_mode=0o070)
    with pytest.raises(ValueError, match="does not let its user use the folder"):
        FileService(str(place), mode=0o1700)


def _modes_of_locks(place):
    """Return the modes of lock files, and those of all other files."""
    files = [path for path in place.rglob("*") if path.is_file()]
    locks = [path for path in files if "lock" in path.name]
    return {mode_of(path) for path in locks}, {mode_of(path) for path in {*files} - {*locks}}


@pytest.mark.parametrize(
    ("folder", "lock"), [(0o700, 0o600), (0o755, 0o600), (0o777, 0o660), (0o770, 0o660)]
)
def test_only_users_who_may_write_in_a_folder_can_lock_its_log(place, folder, lock):
    """A user who can read a file can lock it, and so block the writer."""
    for umask in (0, 0o077):
        os.umask(umask)
        log = place / f"log-{umask}"
        log.mkdir()
        log.chmod(folder)
        CommitLog(log).close()

        assert _modes_of_locks(log)[0] == {lock}


def _journal_for_a_group(place):
    with Router(RouterConfig(directory=place / "deep" / "journal", directory_mode=0o750)):
        pass


def _store_for_a_group(place):
    options = {"path": str(place / "things.db"), "mode": 0o640}
    backend = SqliteBackend(SqliteOptions.read(options))
    backend.open(0.0)
    backend.close()


def _state_for_a_group(place):
    url = f"sqlite:{place}/state.db?mode=640"
    state, leases = open_state(url, "writer"), open_leases(url, "writer")
    assert (place / "state.db-wal").exists()
    assert modes_below(place)[1] == {0o640, 0o600}  # the file of a life is locked
    state.close()
    leases.close()


@pytest.mark.parametrize("keep", [_journal_for_a_group, _store_for_a_group, _state_for_a_group])
@pytest.mark.parametrize("umask", [0, 0o077])
def test_journals_stores_and_states_take_a_mode_too(place, keep, umask):
    os.umask(umask)

    keep(place)

    folders, _ = modes_below(place)
    assert folders <= {0o750}
    assert _modes_of_locks(place)[1] - {0o600} == {0o640}


@pytest.mark.parametrize("mode", [0o750, 0o040, 0o4640, "640", 7.5, True])
def test_a_mode_of_a_file_that_its_user_cannot_use_is_refused(mode, place):
    with pytest.raises(InvalidData, match="0o640"):
        SqliteOptions.read({"path": str(place / "things.db"), "mode": mode})


@pytest.mark.parametrize("digits", ["750", "040", "9", "", "0x1ff", "-640"])
def test_a_mode_in_an_address_is_octal_and_of_its_user(digits, place):
    for opened in (open_state, open_view, open_leases):
        with pytest.raises(WrongValue, match="octal digits"):
            opened(f"sqlite:{place}/state.db?mode={digits}", "writer")


@pytest.mark.parametrize("mode", [0o644, "0750"])
def test_a_mode_of_a_journal_that_its_user_cannot_use_is_refused(mode, place):
    with pytest.raises(ValueError, match="0o750"):
        RouterConfig(directory=place, directory_mode=mode)


def test_folders_and_files_that_exist_keep_their_mode(place):
    _log(place)
    folder = place / "deep" / "log"
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = {path: mode_of(path) for path in folder.rglob("*")}

    _log(place)

    assert {path: mode_of(path) for path in before if path.exists()}.items() <= before.items()
    assert mode_of(folder) == 0o755
    new = [path for path in folder.iterdir() if path not in before and path.is_file()]
    assert new
    assert {mode_of(path) for path in new} == {0o644}  # readers of the folder can read them


def test_a_file_of_sqlite_that_exists_keeps_its_mode(place):
    path = place / "things.db"
    path.touch()
    path.chmod(0o640)

    backend = SqliteBackend(SqliteOptions(str(path)))
    backend.open(0.0)
    backend.close()

    assert mode_of(path) == 0o640


def test_a_link_in_the_place_of_a_private_file_is_not_followed(place):
    (place / "things.db").symlink_to(place / "elsewhere")

    make_private_file(place / "things.db")

    assert not (place / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o077, 0o644, 0o1777, "0750", 7.5])
def test_a_mode_without_access_for_the_user_is_refused(mode, tmp_path):
    with pytest.raises(ValueError, match="0o750"):
        CommitLog(tmp_path / "log", mode=mode)


def test_a_file_at_the_path_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "here").touch()

    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "here")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "here" / "below")


# --- code that creates files elsewhere ---

#: Code that creates files or folders which are not data of a node, or in another way.
ELSEWHERE = {
    "support/files/private_file.py": "the owner",
    "commitlog/folder.py": "asks its disk",
    "support/database/sqlite_file.py": "SQLite, behind make_private_file",
    "lease/sqlite.py": "the locked file of a life, 0600",
    "gateway/spool.py": "the position, 0600",
    "pipeline/java.py": "a command in a temporary folder",
    "pipeline/process/fork_server.py": "a command in a temporary folder",
    "cli/work/new.py": "sources of a new project",
    "cli/flow.py": "the output that the user names",
    "demo/line.py": "errors in the demo's temporary folder",
    "demo/analysis.py": "errors in the demo's temporary folder",
    "demo/analysis_process.py": "a state in the demo's temporary folder",
    "commitlog/export/parquet.py": "files for other programs, which the user names",
    "commitlog/objects/store.py": "an object of a store; a local one behind make_private_file",
}


#: Words of calls that make files.
MAKING = ("mkdir", "makedirs", "write_text", "write_bytes", "mknod", "touch", "open", "sqlite3")


def _makes_files(module):
    """Return whether a module has a call that makes a file, a folder or a database."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        text = ast.unparse(node)
        if name in ("mkdir", "makedirs", "write_text", "write_bytes", "mknod", "touch"):
            return True
        is_owned = "opener=open_plain" in text or "opener=open_private" in text
        if name == "open" and not is_owned:
            modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if any(
                isinstance(m, str) and set(m) <= set("rwxabt+") and set(m) & set("wxa")
                for m in modes
            ):
                return True
            if "O_CREAT" in text:
                return True
        if ast.unparse(node.func) == "sqlite3.connect":
            return True
    return False


def test_all_files_and_folders_are_created_by_private_file():
    making = {
        str(path.relative_to(ROOT))
        for path, tree in mentioning(ROOT, *MAKING)
        if "simulation" not in path.parts
        and not {"actors", "basp", "proxies"} & set(path.relative_to(ROOT).parts)
        and _makes_files(tree)
    }
    assert making == set(ELSEWHERE)


def test_other_parts_of_a_node_create_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Node("quiet"):
        pass
    assert list(tmp_path.iterdir()) == []
