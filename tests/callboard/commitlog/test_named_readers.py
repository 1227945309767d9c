"""Named readers: where they begin, what they commit, who may have a name."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.commitlog import (
    CommitLog,
    LogClosed,
    LogCorrupt,
    LogFailed,
    LogLocked,
    LogReader,
    Retention,
)
from callboard.figures import process_metrics


@pytest.fixture
def log(tmp_path):
    with CommitLog(tmp_path / "log", sync="none") as log:
        log.append_batch(list(range(100)), topic="/n")
        yield log


def offsets(records):
    return [record.offset for record in records]


def test_what_was_not_committed_comes_again(log):
    with log.reader("billing") as reader:
        assert offsets(reader.read(10)) == list(range(10))
        assert reader.commit() == 10
        reader.read(10)
    with LogReader(log.folder).reader("billing", begin=50) as reader:
        assert reader.committed == 10
        assert reader.lag == 90
        assert offsets(reader.poll(5)) == list(range(10, 15))


def test_a_commit_within_a_loop_means_the_record_at_hand(log):
    with log.reader("a", timeout=0.01) as reader:
        for record in reader:
            if record.offset == 41:
                break
        assert reader.commit() == 42
        assert offsets(reader) == list(range(42, 100))
        assert reader.commit() == 100
        assert reader.lag == 0


def test_a_commit_within_a_loop_of_asyncio(log):
    async def main():
        with log.reader("a", timeout=0.01) as reader:
            async for record in reader:
                if record.offset == 41:
                    reader.commit()
                    break
            return offsets(await reader.aread(2))

    assert asyncio.run(main()) == [42, 43]
    assert log.readers[0][:2] == ("a", 42)


def test_it_goes_back_and_forward(log):
    with log.reader("a") as reader:
        assert reader.commit(70) == 70
        assert offsets(reader.read(2)) == [70, 71]
        assert reader.commit(3) == 3
        assert offsets(reader.read(1)) == [3]
        for wrong in (-1, 101):
            with pytest.raises(ValueError, match="the log ends at 100"):
                reader.commit(wrong)
    assert log.readers[0].offset == 3


def test_a_name_is_open_once(log):
    with log.reader("a") as first:
        with pytest.raises(LogLocked, match=rf"reader a .* this process \({os.getpid()}\)"):
            LogReader(log.folder).reader("a")
        log.reader("b").close()
        first.close()
        first.close()
        for call in (first.commit, first.poll):
            with pytest.raises(LogClosed, match="reader a is closed"):
                call()
    log.reader("a").close()


def test_a_process_that_dies_lets_its_name_go(log):
    program = (
        "import os, sys\n"
        "from callboard.commitlog import LogReader\n"
        "reader = LogReader(sys.argv[1]).reader('a')\n"
        "reader.read(7); reader.commit(); reader.read(9)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, log.folder], check=False)
    assert done.returncode == -9
    with log.reader("a") as reader:
        assert offsets(reader.read(1)) == [7]


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "a" * 65, "\x1b[2J", "ä", "a b"])
def test_names_that_are_refused(log, name):
    with pytest.raises(ValueError, match="letters, digits"):
        log.reader(name)


def test_a_log_in_memory_has_none():
    with pytest.raises(LogFailed, match="in memory"):
        CommitLog().reader("a")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"offset": 5, "time": 1, "sum": 7}', b"\0"])
def test_a_damaged_place_is_told(log, content):
    with log.reader("a") as reader:
        reader.commit(5)
    path = Path(log.folder) / "readers" / "a.place"
    assert json.loads(path.read_text())["offset"] == 5
    path.write_bytes(content)
    for look in (lambda: log.reader("a"), lambda: log.readers):
        with pytest.raises(LogCorrupt, match=r"a\.place is damaged"):
            look()
    path.unlink()
    log.reader("a").close()  # the failure before kept no lock


def test_retention_does_not_wait_and_what_was_missed_is_counted(tmp_path):
    with CommitLog(tmp_path, retain=Retention(records=100), sync="none") as log:
        with log.reader("a") as reader:
            reader.commit(0)
        for n in range(1000):
            log.append("/n", n)
        with log.reader("a") as reader:
            assert reader.lag == log.end - log.start
            assert offsets(reader.read(1)) == [log.start]
            assert reader.lost == log.start > 0


def test_its_lag_is_among_the_metrics(log):
    with log.reader("a") as reader, log.reader("b") as other:
        reader.commit(40)
        other.commit(90)
        told = process_metrics()
        lag = next(each for each in told if each.name == "callboard_log_reader_lag")
        here = {dict(labels)["reader"]: n for labels, n in lag.samples}
        assert here == {"a": 60, "b": 10}
        assert dict(lag.samples[0][0])["log"] == log.folder


def test_metrics_go_on_where_a_log_is_gone(tmp_path, log):
    with CommitLog(tmp_path / "gone", sync="none") as other:
        other.append("/n", 1)
    with log.reader("a"), LogReader(tmp_path / "gone").reader("b"):
        shutil.rmtree(tmp_path / "gone")
        told = process_metrics()
    labels = [dict(labels) for each in told for labels, _ in each.samples]
    names = {each["reader"] for each in labels if "reader" in each}
    assert names == {"a"}


@settings(max_examples=30)
@given(
    steps=st.lists(st.sampled_from(["read", "commit", "crash", "append", "loop"]), max_size=25)
)
def test_each_record_comes_at_least_once_and_none_is_skipped(tmp_path_factory, steps):
    with CommitLog(tmp_path_factory.mktemp("log"), sync="none") as log:
        log.append_batch(list(range(5)), topic="/n")
        reader, next_offset, committed = log.reader("a", timeout=0.0), 0, 0
        for step in steps:
            if step == "append":
                log.append_batch([0] * 3, topic="/n")
            elif step == "commit":
                committed = reader.commit()
                assert committed == next_offset
            elif step == "crash":
                reader.close()
                reader, next_offset = log.reader("a", timeout=0.0), committed
            elif step == "read":
                got = offsets(reader.poll(2))
                assert got == list(range(next_offset, next_offset + len(got)))
                next_offset += len(got)
            else:
                for record in reader:
                    assert record.offset == next_offset
                    next_offset += 1
                    break
        reader.close()


def test_a_follower_that_is_left_within_a_loop_skips_nothing(log):
    follower = log.follow(0, timeout=0.0)
    for record in follower:
        if record.offset == 4:
            break
    assert offsets(follower) == list(range(5, 100))


def test_stats_show_them(log, capsys):
    from callboard.cli import main

    with log.reader("billing") as reader:
        reader.commit(30)
    for arguments in (["log", "stats", log.folder], ["log", "stats", log.folder, "--json"]):
        assert not main(arguments)
    text = capsys.readouterr().out
    assert "reader billing: 70 records behind, next is 30" in text
    assert json.loads(text.splitlines()[-1])["readers"][0]["lag"] == 70
