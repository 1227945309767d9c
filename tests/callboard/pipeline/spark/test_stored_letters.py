"""Dead letters on an object store: stored once, read, listed and requeued there."""

import json
import random
import shutil
from itertools import pairwise

import pyarrow as pa
import pytest

from callboard.cli import main
from callboard.commitlog import CommitLog, LogFailed, LogReader, Retention
from callboard.pipeline import InvalidSetting, PublishFailed
from callboard.pipeline import requeue as module
from callboard.pipeline.requeue import requeue
from callboard.pipeline.spark import dead_letters, store_journal
from callboard.pipeline.spark.dead_letters import DeadLetter, Origin, bury
from callboard.pipeline.spark.options import SourceOptions
from callboard.pipeline.spark.range_reader import read_range
from callboard.pipeline.spark.store_journal import LETTERS, StoreJournal
from tests.callboard.commitlog.stores import FlakyObjects

SCHEMA = pa.schema([("offset", pa.int64()), ("delay", pa.int64())])
BAD = [at for at in range(30) if at % 3]


@pytest.fixture
def dead(tmp_path, s3, monkeypatch):
    """The address of letters, and the way there in the environment as commands have it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint_url"])
    return f"s3://logs/{tmp_path.name}/dead"


@pytest.fixture
def flights(tmp_path):
    folder = str(tmp_path / "flights")
    with CommitLog(folder, sync="none") as log:
        log.append_batch([{"delay": "n/a" if at % 3 else 1} for at in range(30)], topic="/JFK")
    return folder


def read(folder, dead, borders, query="q", **more):
    options = SourceOptions.parse(
        {"path": folder, "deadLetters": dead, "queryId": query, **more}
    )
    for start, end in pairwise(borders):
        yield from read_range(options, SCHEMA, start, end)


def offsets(log, query):
    found = [DeadLetter.read(each) for each in log]
    return sorted(each.offset for each in found if each.origin.query == query)


@pytest.mark.slow
def test_each_bad_record_is_one_dead_letter_of_a_query_for_any_partitions(flights, dead):
    for borders in ([0, 30], [0, 7, 30], [5, 11, 23, 30]):
        list(read(flights, dead, borders))
        dead_letters._KNOWN.clear()  # as in another process
    list(read(flights, dead, [0, 30], query="other"))

    log = LogReader(dead)
    assert offsets(log, "q") == offsets(log, "other") == BAD
    letter = DeadLetter.read(next(iter(log)))
    assert (letter.place, letter.topic) == ((flights, 1), "/JFK")


def test_options_of_the_object_store_apply_to_dead_letters(flights, s3, tmp_path):
    dead = f"s3://logs/{tmp_path.name}/dead"
    given = {f"storage.{name}": value for name, value in s3.items()}

    assert sum(each.num_rows for each in read(flights, dead, [0, 30], **given)) == 10

    assert offsets(LogReader(dead, storage_options=s3), "q") == BAD


@pytest.mark.parametrize(
    "place", ["grpc://host:1/dead", "basp://host:1/dead", "no-such://dead"]
)
def test_an_unusable_place_for_dead_letters_is_refused_at_once(flights, place):
    with pytest.raises(InvalidSetting, match=place.partition(":")[0]):
        list(read(flights, place, [0, 30]))


def letter(at, query="q"):
    return DeadLetter(Origin("/l", query), at, "no", at * 10**9, "/t", None, {}, "", b"", True)


def burying(monkeypatch, objects):
    """Store letters as objects in memory, without caches, as in another process."""
    dead_letters._KNOWN.clear()
    journal = StoreJournal(objects, kind=LETTERS)
    monkeypatch.setattr(dead_letters, "journal_at", lambda *_, **__: journal)
    monkeypatch.setattr(store_journal, "_PAUSE", 0.0)


@pytest.mark.parametrize("seed", range(10))
def test_lost_answers_and_refusals_duplicate_no_dead_letter(monkeypatch, seed):
    luck, store = random.Random(seed), FlakyObjects()

    def fault(what, name):
        return luck.choice(["refused", "unheard", *[""] * 12])

    for part in range(12):
        burying(monkeypatch, store.client(fault))
        few = luck.sample(range(40), 12) if part else range(40)
        bury("sim://bucket/dead", [letter(at) for at in sorted(few)])

    journal = StoreJournal(store, kind=LETTERS)
    assert offsets(journal.reader, "q") == [*range(40)]


def test_concurrent_writers_add_each_dead_letter_once(monkeypatch):
    """Another task publishes the same letters between the look at the store and the answer."""
    store, others = FlakyObjects(), [0, 1]

    def fault(what, name):
        if what == "create" and others:
            others.pop()
            known = dict(dead_letters._KNOWN)
            burying(monkeypatch, store.client(lambda *_: ""))
            bury("sim://bucket/dead", [letter(1), letter(2 + len(others))])
            dead_letters._KNOWN.update(known)
        return ""

    burying(monkeypatch, store.client(fault))
    bury("sim://bucket/dead", [letter(at) for at in range(5)])

    assert offsets(StoreJournal(store, kind=LETTERS).reader, "q") == [*range(5)]


def test_dead_letters_expire_by_their_own_times(monkeypatch):
    store = FlakyObjects()
    journal = StoreJournal(store, kind=LETTERS, retain=Retention(seconds=60))
    dead_letters._KNOWN.clear()
    monkeypatch.setattr(dead_letters, "journal_at", lambda *_, **__: journal)

    for at in range(3):  # of 1970
        bury("sim://bucket/dead", [letter(at)])

    assert offsets(journal.reader, "q") == [2]  # the newest is always kept


def test_a_place_with_other_content_is_refused_and_not_changed(monkeypatch):
    store = FlakyObjects()
    results = StoreJournal(store)
    results.publish("q", 1, [results.stage([(_batch(), 1)])])

    burying(monkeypatch, store)
    with pytest.raises(PublishFailed, match="holds results of .*; use another place"):
        bury("sim://bucket/dead", [letter(1)])


def _batch():
    with CommitLog() as log:
        log.append("/a", 1)
        return log.place.read(log.segments[0].path)


# --- back again ---


def back(log, begin=30):
    return [each.headers["requeued"].split()[0] for each in LogReader(log).read(begin)]


@pytest.mark.slow
def test_the_command_lists_dead_letters_and_requeues_each_once(flights, dead, tmp_path, capsys):
    list(read(flights, dead, [0, 30]))
    list(read(flights, dead, [0, 30], query="other"))

    assert main(["log", "cat", dead, "--limit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["headers"]["query"] == "q"
    assert main(["log", "requeue", dead, "--dry-run"]) == 0
    assert "40 letters, 20 records would be appended" in capsys.readouterr().out
    assert main(["log", "requeue", dead, "--query", "q"]) == 0
    assert main(["log", "requeue", dead, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert (told["letters"], told["records"], told["before"]) == (40, 0, 40)
    assert back(flights) == [str(at) for at in BAD]
    other = str(tmp_path / "again")
    for _ in range(2):
        assert main(["log", "requeue", dead, "--to", other]) == 0
    assert len(back(other, 0)) == 20


@pytest.mark.slow
def test_a_requeue_from_another_host_counts_records_that_the_log_has(
    flights, dead, monkeypatch
):
    list(read(flights, dead, [0, 30]))
    requeue(dead)
    monkeypatch.setattr(module.socket, "gethostname", lambda: "elsewhere")

    (told,) = requeue(dead)  # the same log, seen from another host
    assert (told.records, told.before) == (0, 20)

    shutil.rmtree(flights)  # another log under the same path
    with CommitLog(flights) as log:
        log.append_batch([{}] * 30, topic="/x")
    monkeypatch.setattr(module.socket, "gethostname", lambda: "third")
    (told,) = requeue(dead)
    assert (told.records, told.before) == (20, 0)


def test_a_run_that_dies_before_its_commit_record_is_continued(flights, dead, monkeypatch):
    list(read(flights, dead, [0, 30]))
    with monkeypatch.context() as patched:
        patched.setattr(
            module, "_record_done", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            requeue(dead)

    (told,) = requeue(dead)

    assert (told.records, told.before) == (0, 20)
    assert back(flights) == [str(at) for at in BAD]


def test_a_folder_that_is_not_a_log_is_reported(dead, capsys):
    with pytest.raises(LogFailed, match="there is no log at s3://"):
        requeue(dead)
    assert main(["log", "requeue", dead, "--to", "s3://logs/x"]) != 0
    assert "s3://logs/x is not a directory" in capsys.readouterr().err


def test_the_logs_on_a_store_are_listed(flights, dead, capsys):
    list(read(flights, dead, [0, 30]))
    requeue(dead)
    bucket = dead.rpartition("/")[0]

    assert main(["log", "ls", bucket, "--json"]) == 0

    listed = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    assert [each["path"] for each in listed] == [dead, f"{dead}/requeued"]
    assert listed[0]["end"] == 20
    assert main(["log", "ls", f"{bucket}/none"]) == 0
    assert "no logs in" in capsys.readouterr().err
    assert main(["log", "cat", "s3://"]) == 2
    assert (
        "'s3://' does not name a place; write it like s3://BUCKET/NAME"
        in capsys.readouterr().err
    )


def test_requeue_of_a_log_without_dead_letters_fails_with_a_message(flights, tmp_path, capsys):
    assert main(["log", "requeue", flights]) == 1
    assert f"no dead letters in {flights}; pass the log of" in capsys.readouterr().err
