"""Archives on S3 and in a folder of the machine, through fsspec, and at the command line."""

import json
import threading

import pytest

from callboard.cli import main
from callboard.commitlog import (
    Archive,
    CommitLog,
    ExtraMissing,
    LogFailed,
    LogReader,
    Retention,
)
from callboard.commitlog.errors import InvalidOption
from callboard.commitlog.objects import store
from callboard.commitlog.verify import verify
from callboard.figures import process_metrics
from tests.callboard.commitlog.stores import s3_server
from tests.polling import eventually

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with s3_server() as options:
        yield options


@pytest.fixture
def at_s3(s3, monkeypatch):
    """The same by the environment, as commands have it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint_url"])


def fill(log, batches=20):
    for batch in range(batches):
        log.append_batch([f"value {batch}-{i}" for i in range(100)], topic="/a")


def copied(log):
    return eventually(lambda: log.archives and log.archives[0].end == log.segments[-1].base)


def test_a_log_is_copied_while_it_is_written_and_read_from_both_places(tmp_path, s3):
    place = Archive("s3://logs/cpu", storage_options=s3)
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=10_000, archive=place) as log:
        fill(log)
        assert copied(log)
        there = LogReader("s3://logs/cpu", storage_options=s3)
        assert there.end == log.segments[-1].base
        assert list(there) == [each for each in log if each.offset < there.end]
        both = LogReader("s3://logs/cpu", storage_options=s3, tail=log.folder)
        assert list(both) == list(log)
        told = {each.name: each.samples for each in process_metrics()}
        mine = (("log", log.folder), ("place", "s3://logs/cpu"))
        assert (mine, 0) in told["callboard_log_archive_lag"]
    assert "s" not in repr(place).partition("storage_options")[2]


@pytest.mark.slow
def test_the_host_of_a_log_may_be_gone(tmp_path, at_s3, capsys):
    with CommitLog(tmp_path / "gone", sync="none", segment_bytes=10_000) as log:
        fill(log)
        end = log.segments[-1].base
    assert not main(["log", "archive", log.folder, "s3://logs/gone"])
    assert (
        capsys.readouterr().out.splitlines()[-1] == f"records up to {end} are at s3://logs/gone"
    )
    assert not main(["log", "stats", log.folder])
    assert f"archive s3://logs/gone: {2000 - end} records behind" in capsys.readouterr().out
    for path in (tmp_path / "gone").iterdir():
        path.unlink()
    assert not main(["log", "stats", "s3://logs/gone", "--json"])
    assert json.loads(capsys.readouterr().out)["records"] == end
    assert not main(["log", "cat", "s3://logs/gone", "--from", str(end - 2)])
    assert not main(["log", "tail", "s3://logs/gone", "-n", "1"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert not main(["log", "verify", "s3://logs/gone"])
    duckdb = pytest.importorskip("duckdb")
    assert duckdb
    assert not main(["log", "sql", "select count(*) as n from log", "s3://logs/gone", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"n": end}


def test_verify_finds_a_bit_flipped_on_the_store(tmp_path, at_s3, s3, capsys):
    with CommitLog(tmp_path / "bad", sync="none", segment_bytes=10_000) as log:
        fill(log)
    assert not main(["log", "archive", log.folder, "s3://logs/bad"])
    files = fsspec.filesystem("s3", **s3)
    name = next(
        each for each in files.ls("logs/bad/segments", detail=False) if each.endswith("log")
    )
    data = bytearray(files.cat_file(name))
    data[len(data) // 2] ^= 16
    files.pipe_file(name, bytes(data))
    capsys.readouterr()
    assert main(["log", "verify", "s3://logs/bad"]) == 1
    assert "is damaged at byte" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["log", "cat", "s3://nobody/x"], "the bucket does not exist"),
        (["log", "cat", "s3://logs/nothing"], "there is no log at s3://logs/nothing"),
        (["log", "archive", "FOLDER", "s3://nobody/x"], "the bucket does not exist"),
        (["log", "cat", "nonsense://x/y"], "nonsense://x/y cannot be opened"),
    ],
)
def test_mistakes_are_one_line(tmp_path, at_s3, capsys, arguments, text):
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=10_000) as log:
        fill(log)
    given = [log.folder if each == "FOLDER" else each for each in arguments]
    assert main(given)
    err = capsys.readouterr().err
    assert text in err
    assert len(err.strip().splitlines()) == 1


def test_a_store_that_is_not_reached_is_told_in_one_line(monkeypatch):
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    options["config_kwargs"] = {"retries": {"max_attempts": 1}}
    pytest.importorskip("s3fs")
    with pytest.raises(LogFailed, match="cannot be used: EndpointConnectionError") as caught:
        LogReader("s3://logs/x", storage_options=options)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    store._file_system.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(ExtraMissing, match="install 'callboard\\[objects\\]'"):
        LogReader("s3://logs/x")


def test_options_that_mean_nothing_are_refused(tmp_path):
    with pytest.raises(InvalidOption, match="is not an address"):
        CommitLog(tmp_path / "a", archive="backup")
    with pytest.raises(InvalidOption, match="needs a folder"):
        CommitLog(archive="memory://x")
    with pytest.raises(InvalidOption, match="need an archive"):
        LogReader(tmp_path, tail=tmp_path)
    with pytest.raises(InvalidOption, match="texts, numbers"):
        LogReader("memory://x/y", storage_options={"key": object()})


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_other_file_systems_serve_as_well(tmp_path, kind):
    place = f"{kind}://{tmp_path}/copies"
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=10_000, archive=place) as log:
        fill(log)
        assert copied(log)
        assert list(LogReader(place, tail=tmp_path / "cpu")) == list(log)
    assert verify(place).damage == []


def test_one_of_many_creates_an_object_of_the_machine(tmp_path):
    objects = store.FileSystemObjects(store.object_address(f"file://{tmp_path}/x"))
    made = []
    threads = [
        threading.Thread(target=lambda n=n: made.append(objects.create("m/1", b"%d" % n)))
        for n in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(made) == [False] * 7 + [True]
    assert objects.names("m") == ["1"]


def test_a_store_without_create_if_absent_is_not_written(tmp_path):
    from fsspec.implementations.memory import MemoryFileSystem

    class Plain(MemoryFileSystem):
        protocol = "plain"

        def pipe_file(self, path, value, mode="overwrite", **kwargs):
            super().pipe_file(path, value)

    fsspec.register_implementation("plain", Plain, clobber=True)
    objects = store.FileSystemObjects(store.object_address("plain://x/y"))
    with pytest.raises(LogFailed, match="does not support create-if-absent"):
        objects.create("m/1", b"")


def test_retention_waits_for_copies_unless_it_is_told_not_to(tmp_path, monkeypatch):
    class Down(store.FileSystemObjects):
        is_down = True

        def names(self, folder):
            if self.is_down:
                raise LogFailed("down; wait")
            return super().names(folder)

    monkeypatch.setattr("callboard.commitlog.objects.archive.FileSystemObjects", Down)
    monkeypatch.setattr("callboard.commitlog.objects.archive._FIRST_PAUSE", 0.01)
    limits = {"sync": "none", "segment_bytes": 10_000, "retain": Retention(bytes=20_000)}
    with CommitLog(tmp_path / "a", archive=f"file://{tmp_path}/c", **limits) as log:
        fill(log, 100)
        assert log.start == 0
        assert eventually(lambda: log.archives and "down" in log.archives[0].trouble)
        monkeypatch.setattr(Down, "is_down", False)
        assert eventually(lambda: log.start > 0)
        assert LogReader(f"file://{tmp_path}/c").start == 0
        monkeypatch.setattr(Down, "is_down", True)
    place = Archive(f"file://{tmp_path}/d", holds=False)
    with CommitLog(tmp_path / "b", archive=place, **limits) as log:
        fill(log, 100)
        assert log.start > 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            PermissionError("Access Denied"),
            "refuses access: Access Denied; check the key and its rights",
        ),
        (OSError(16, "Slow Down"), "cannot be used: OSError"),
        (type("NoCredentialsError", (Exception,), {})("none"), "; set AWS_ACCESS_KEY_ID"),
        (ImportError("crypto"), "needs a package that is missing: crypto"),
    ],
)
def test_what_a_store_refuses_is_one_line_with_the_next_step(error, text):
    from fsspec.implementations.memory import MemoryFileSystem

    class Refusing(MemoryFileSystem):
        protocol = "refusing"

        def ls(self, *_, **__):
            raise error

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    store._file_system.cache_clear()
    Refusing.clear_instance_cache()
    with pytest.raises((LogFailed, ExtraMissing)) as caught:
        LogReader("refusing://x/y")
    assert text in str(caught.value)
    assert str(caught.value).startswith("refusing://x/y")


def test_a_slow_log_is_copied_after_a_time(tmp_path):
    times = iter(
        [0, 0, 10**9, 3 * 10**9, 3 * 10**9, 3 * 10**9, 4 * 10**9, 4 * 10**9, 5 * 10**9]
    )
    place = f"file://{tmp_path}/copies"
    options = {"segment_seconds": 2.0, "clock": lambda: next(times, 9 * 10**9)}
    with CommitLog(tmp_path / "cpu", sync="none", archive=place, **options) as log:
        for n in range(8):
            log.append("/n", n)
        assert len(log.segments) > 1
        assert copied(log)
    with pytest.raises(ValueError, match="segment_seconds"):
        CommitLog(tmp_path / "x", segment_seconds=-1)


def test_an_endpoint_records_into_a_log_that_is_archived(tmp_path):
    from callboard import Endpoint

    place = f"file://{tmp_path}/copies"
    with Endpoint() as endpoint:
        with endpoint.record("/cpu", tmp_path / "cpu", archive=place):
            endpoint.publish("/cpu/1", 1)
        assert LogReader(tmp_path / "cpu").readv(0).records[0].payload == 1
