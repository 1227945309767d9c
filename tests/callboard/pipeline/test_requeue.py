"""Requeues of dead letters: each record once, whatever ends the command."""

import json
import shutil

import pytest

from callboard.cli import main
from callboard.commitlog import CommitLog, LogReader
from callboard.pipeline import requeue as module
from callboard.pipeline.requeue import requeue
from callboard.pipeline.spark.dead_letters import DeadLetter, Origin, bury

SECOND = 10**9


@pytest.fixture
def dead(tmp_path):
    return str(tmp_path / "dead")


@pytest.fixture
def source(tmp_path):
    return str(tmp_path / "flights")


@pytest.fixture
def bad(source, dead):
    """Append records to the source, and bury some of them for a query."""

    def run(query="q", count=6, which=(1, 2, 4), reason="field delay is 'n/a'"):
        if not (path := module.Path(source)).is_dir():
            with CommitLog(path) as log:
                for at in range(count):
                    log.append("/JFK", {"n": at}, key=str(at), time=at * SECOND, sender="s")
        bad = [each for each in LogReader(source) if each.offset in which]
        bury(
            dead, [DeadLetter.of(e, Origin(source, query, f"{query} it"), reason) for e in bad]
        )

    return run


def back(log, begin=6):
    return [each.payload["n"] for each in LogReader(log).read(begin)]


def test_records_are_requeued_unchanged_and_once(bad, source, dead):
    bad()

    (told,) = requeue(dead)
    (again,) = requeue(dead)

    assert (told.letters, told.records, told.before) == (3, 3, 0)
    assert (told.to, told.first, told.end) == (source, 6, 9)
    assert (again.letters, again.records, again.before, again.first) == (3, 0, 3, None)
    assert back(source) == [1, 2, 4]
    first, copy = (
        LogReader(source).readv(1, 1).records[0],
        LogReader(source).readv(6).records[0],
    )
    assert copy[1:4] == first[1:4]
    assert copy[5:] == first[5:]
    assert copy.headers == {"requeued": f"1 {source}"}


def test_a_record_that_failed_in_two_queries_is_requeued_once(bad, source, dead):
    bad("a")
    bad("b", which=(2, 3))

    (told,) = requeue(dead)

    assert (told.letters, told.records) == (5, 4)
    assert sorted(back(source)) == [1, 2, 3, 4]


def test_dead_letters_of_one_query_and_then_another_requeue_each_record_once(bad, source, dead):
    bad("a")
    bad("b", which=(2, 3))

    requeue(dead, wanted=lambda each: each.origin.query == "a")
    (told,) = requeue(dead, wanted=lambda each: each.origin.query == "b")

    assert (told.letters, told.records, told.before) == (2, 1, 1)
    assert back(source) == [1, 2, 4, 3]


def test_records_can_be_requeued_into_a_new_log(bad, source, dead, tmp_path):
    bad()
    other = str(tmp_path / "other")

    requeue(dead)
    for _ in range(2):
        requeue(dead, to=other)

    assert back(other, 0) == back(source) == [1, 2, 4]


def test_a_requeued_record_that_fails_again_is_a_new_dead_letter(bad, source, dead):
    bad()
    requeue(dead)
    bad(which=(6,))

    (told,) = requeue(dead)

    assert (told.records, told.before) == (1, 3)
    assert LogReader(source).readv(9).records[0].headers == {"requeued": f"6 {source}"}


class Died(BaseException):
    pass


def dying(real, steps, step, *, is_done):
    def run(log, *args, **more):
        is_last = next(steps) == step
        if is_last and not is_done:
            raise Died
        returned = real(log, *args, **more)
        if is_last:
            raise Died
        return returned

    return run


@pytest.mark.parametrize("step", range(1, 20))
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_a_run_that_dies_anywhere_is_continued(
    bad, source, dead, tmp_path, monkeypatch, step, is_done
):
    bad(count=12, which=range(10))
    other = str(tmp_path / "other")
    monkeypatch.setattr(module, "_RUN", 3)
    steps = iter(range(1, 1000))
    with monkeypatch.context() as patched:
        for name in ("append", "append_batch", "flush"):
            real = getattr(CommitLog, name)
            patched.setattr(CommitLog, name, dying(real, steps, step, is_done=is_done))
        try:
            requeue(dead, to=other)
            died = False
        except Died:
            died = True
    assert died == (step < next(steps))

    requeue(dead, to=other)

    assert back(other, 0) == [*range(10)]
    assert requeue(dead, to=other)[0].before == 10


def test_concurrent_appends_of_other_writers_are_kept(bad, source, dead, monkeypatch):
    bad()
    with monkeypatch.context() as patched:
        patched.setattr(module, "_record_done", lambda *_: (_ for _ in ()).throw(Died))
        with pytest.raises(Died):
            requeue(dead)
    with CommitLog(source) as log:
        log.append("/JFK", {"n": 99})

    (told,) = requeue(dead)

    assert (told.records, told.before) == (0, 3)
    assert back(source) == [1, 2, 4, 99]


def test_dead_letters_without_a_query_can_be_requeued(source, dead):
    CommitLog(source).close()
    with CommitLog(source) as log:
        log.append("/a", 1)
    told = {"offset": "0", "reason": "no", "encoding": "cbor", "range": f"{source}:0-1"}
    with CommitLog(dead) as log:
        log.append("/dead-letters/a", b"\x01", headers=told)

    requeue(dead)

    assert [each.payload for each in LogReader(source)] == [1, 1]


# --- the command ---


def run(capsys, *arguments, code=0):
    assert main(["log", "requeue", *arguments]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def test_requeue_reports_the_number_of_records(bad, source, dead, capsys):
    bad("a")
    bad("b", which=(2, 3), reason="no CBOR")

    dry = run(capsys, dead, "--dry-run")
    assert dry == (
        f"{source}: 5 letters, 4 records would be appended, 1 are of the same records\n"
    )
    assert back(source) == []
    assert not (module.Path(dead) / "requeued").exists()
    told = run(capsys, dead, "--query", "a it", "--json")
    assert json.loads(told) == {
        **{"to": source, "letters": 3, "records": 3, "before": 0, "first": 6, "end": 9},
        "dry_run": False,
    }
    assert "1 records appended, 9 to 10, 1 were requeued earlier" in run(
        capsys, dead, "--query", "b"
    )


@pytest.mark.parametrize(
    ("options", "records"),
    [
        (("--error", "delay"), [1, 2, 4]),
        (("--error", "CBOR"), []),
        (("--since", "1970-01-01T00:00:02Z"), [2, 4]),
        (("--until", "1970-01-01T00:00:02Z"), [1]),
        (("--topic", "/JFK"), [1, 2, 4]),
        (("--topic", "/LGA"), []),
        (("--query", "nobody"), []),
    ],
)
def test_filters_choose_letters(bad, source, dead, capsys, options, records):
    bad()

    assert main(["log", "requeue", dead, *options]) == (0 if records else 1)

    assert back(source) == records
    assert bool(records) != ("no such dead letters" in capsys.readouterr().err)


def test_a_usage_error_is_reported_in_one_line(bad, source, dead, capsys):
    bad()

    assert "log of these letters" in run(capsys, dead, "--to", dead, code=2)
    assert "no log" in run(capsys, source + "x", code=1)
    with CommitLog(source):
        assert "written by this process" in run(capsys, dead, code=1)
    shutil.rmtree(source)
    assert "is not on this machine; pass a log with --to" in run(capsys, dead, code=2)


@pytest.mark.parametrize(
    ("forged", "told"),
    [
        ({"offset": "9" * 5000}, "no dead letters"),
        ({"offset": "٣"}, "no dead letters"),
        ({"offset": str(2**64)}, "no dead letters"),
        ({"log": "DEAD"}, "is not on this machine"),
        ({"log": "/" + "x" * 5000}, "is not on this machine"),
        ({"log": "/\0"}, "is not on this machine"),
    ],
    ids=range(6),
)
def test_a_forged_dead_letter_is_reported_in_one_line_and_not_appended(
    dead, capsys, forged, told
):
    headers = {"offset": "1", "log": "", "reason": "r", **forged}
    with CommitLog(dead) as log:
        log.append(
            "/dead-letters/a",
            b"",
            headers={**headers, "log": headers["log"].replace("DEAD", dead)},
        )
    assert main(["log", "requeue", dead]) in {1, 2}
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert LogReader(dead).end == 1
