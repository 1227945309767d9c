"""`callboard log …` on intact, damaged and growing logs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.cli import main
from callboard.commitlog import CommitLog, Retention


@pytest.fixture
def folder(tmp_path):
    """A log with twenty records about two topics, one each second of 2026."""
    start = 1_767_225_600 * 10**9
    with CommitLog(tmp_path / "metrics", segment_bytes=300) as log:
        for number in range(20):
            log.append(
                f"/cpu/{number % 2}",
                {"load": number},
                key="k" if number == 0 else None,
                time=start + number * 10**9,
            )
    return tmp_path / "metrics"


def run(capsys, *arguments):
    code = main(["log", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out.splitlines(), shown.err


def test_ls_finds_logs_below(capsys, folder):
    code, lines, _ = run(capsys, "ls", folder.parent, "--json")

    assert code == 0
    (found,) = map(json.loads, lines)
    assert (found["path"], found["start"], found["end"]) == (str(folder), 0, 20)
    assert run(capsys, "ls", folder.parent)[1][0].startswith(f"{folder}: records 0 to 20, ")


def test_ls_reports_an_empty_state(capsys, tmp_path):
    assert run(capsys, "ls", tmp_path) == (0, [], f"no logs in {tmp_path} or below\n")
    assert run(capsys, "ls", tmp_path / "none")[0] == 2


def test_cat_prints_records(capsys, folder):
    code, lines, _ = run(capsys, "cat", folder, "--limit", 2)

    assert code == 0
    assert lines == [
        "0 2026-01-01T00:00:00.000000Z /cpu/0 'k' {'load': 0}",
        "1 2026-01-01T00:00:01.000000Z /cpu/1 {'load': 1}",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", 18], [18, 19]),
        (["--since", "2026-01-01T00:00:17Z"], [17, 18, 19]),
        (["--since", "2026-01-01 00:00:18.5"], [19]),
        (["--topic", "/cpu/1", "--from", 15, "--limit", 2], [15, 17]),
        (["--since", "1"], []),
    ],
)
def test_cat_starts_at_an_offset_and_filters_by_topic(capsys, folder, options, expected):
    lines = run(capsys, "cat", folder, "--json", *options)[1]

    assert [json.loads(line)["offset"] for line in lines] == expected
    assert all(
        json.loads(line)["payload"] == {"load": json.loads(line)["offset"]} for line in lines
    )


def test_tail_prints_the_newest(capsys, folder):
    lines = run(capsys, "tail", folder, "-n", 3, "--json")[1]
    assert [json.loads(line)["offset"] for line in lines] == [17, 18, 19]
    lines = run(capsys, "tail", folder, "-n", 3, "--json", "--topic", "/cpu/0")[1]
    assert [json.loads(line)["offset"] for line in lines] == [14, 16, 18]
    assert len(run(capsys, "tail", folder)[1]) == 10


def test_tail_follows_a_writer(folder):
    command = [
        sys.executable,
        "-m",
        "callboard",
        "log",
        "tail",
        str(folder),
        "-n",
        "1",
        "-f",
        "--json",
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert json.loads(process.stdout.readline())["offset"] == 19
        with CommitLog(folder) as log:
            log.append("/new", "come")
            assert json.loads(process.stdout.readline())["payload"] == "come"
    finally:
        process.kill()
        process.communicate()


def test_verify_prints_the_intact_records(capsys, folder):
    assert run(capsys, "verify", folder) == (0, ["20 records from 0 to 20 are intact"], "")


def test_verify_names_damage_and_fails(capsys, folder):
    path = sorted(folder.glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)

    code, lines, _ = run(capsys, "verify", folder)
    assert code == 1
    assert f"{path} is damaged at byte 0" in lines[0]
    code, lines, _ = run(capsys, "verify", folder, "--json")
    assert (code, json.loads(lines[0])["lost"]) == (1, 1)


def test_verify_does_not_mind_a_torn_tail(capsys, folder):
    with max(folder.glob("*.log")).open("ab") as file:
        file.write(b"CBL1 half")

    code, lines, _ = run(capsys, "verify", folder)
    assert (code, lines[-1]) == (
        0,
        "9 bytes of an incomplete batch follow; the next writer removes them",
    )


def test_stats_count_topics(capsys, folder):
    lines = run(capsys, "stats", folder, "--json")[1]
    found = json.loads(lines[0])

    assert found["topics"] == {"/cpu/0": 10, "/cpu/1": 10}
    assert found["latest_time"] - found["first_time"] == 19 * 10**9
    assert found["bytes"] == sum(each["bytes"] for each in found["segments"])
    assert run(capsys, "stats", folder)[1][1:] == [
        "from 2026-01-01T00:00:00.000000Z to 2026-01-01T00:00:19.000000Z",
        "          10  /cpu/0",
        "          10  /cpu/1",
    ]


def test_stats_of_an_empty_log(capsys, tmp_path):
    CommitLog(tmp_path).close()

    assert run(capsys, "stats", tmp_path)[1] == ["records 0 to 0, 0 bytes, 1 segments"]


def test_records_that_retention_removed_are_reported(capsys, tmp_path):
    with CommitLog(tmp_path, retain=Retention(records=10)) as log:
        for number in range(30):
            log.append("/t", number)

    code, lines, error = run(capsys, "cat", tmp_path, "--from", 0)
    assert code == 0
    assert len(lines) <= 11
    assert "removed by retention" in error


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["cat", "none"], 1, "there is no log in"),
        (["verify", "none"], 1, "there is no log in"),
        (["cat", "none", "--since", "1", "--from", "1"], 2, "are both given"),
        (["cat"], 2, "log cat --help"),
    ],
)
def test_an_error_is_one_line_with_a_next_step(
    capsys, tmp_path, monkeypatch, arguments, code, named
):
    monkeypatch.chdir(tmp_path)
    found, lines, error = run(capsys, *arguments)

    assert (found, lines) == (code, [])
    assert named in error
    assert error.count("\n") == 1


def test_a_time_that_is_none_is_refused(capsys, folder):
    code, _, error = run(capsys, "cat", folder, "--since", "noon")

    assert code == 2
    assert "'noon' is not a time" in error


def test_columns_are_written_once(capsys, folder):
    pytest.importorskip("pyarrow")
    code, lines, _ = run(capsys, "columns", folder, "--json")
    rows = [json.loads(line) for line in lines]

    assert code == 0
    assert [row["base"] for row in rows[1:]] == [row["end"] for row in rows[:-1]]
    assert all(row["is_made"] and Path(row["columns"]).exists() for row in rows)
    assert run(capsys, "columns", folder)[1][0] == (
        f"records 0 to {rows[0]['end']}: {rows[0]['columns']} there"
    )


def test_columns_of_a_log_that_has_just_begun_are_none(capsys, tmp_path):
    pytest.importorskip("pyarrow")
    CommitLog(tmp_path).close()

    code, lines, err = run(capsys, "columns", tmp_path)

    assert (code, lines) == (0, [])
    assert err == f"no sealed segments in {tmp_path}: the newest one is still written\n"


@pytest.fixture
def sql(capsys):
    pytest.importorskip("pyarrow")
    pytest.importorskip("duckdb")
    pytest.importorskip("pytz")
    return lambda *arguments: run(capsys, "sql", *arguments)


def test_sql_prints_a_table(sql, folder):
    query = (
        "select topic, count(*) as n, max((value->>'load')::int) as most from log group by 1"
    )
    code, lines, err = sql(query + " order by 1", folder)

    assert (code, err) == (0, "")
    assert lines == ["topic    n  most", "/cpu/0  10    18", "/cpu/1  10    19"]


def test_sql_prints_json_with_payloads_as_values(sql, folder):
    query = f"""select "offset", time, key, value from '{folder}' order by 1 limit 2"""
    code, lines, _ = sql(query, "--json")

    assert code == 0
    assert [json.loads(line) for line in lines] == [
        {"offset": 0, "time": "2026-01-01 00:00:00+00:00", "key": "6b", "value": {"load": 0}},
        {"offset": 1, "time": "2026-01-01 00:00:01+00:00", "key": None, "value": {"load": 1}},
    ]


def test_sql_prints_the_first_of_many_rows_and_their_number(sql, folder):
    code, lines, err = sql('select "offset" from log order by 1', folder, "--limit", 3)

    assert (code, len(lines)) == (0, 4)
    assert err == "only the first 3 rows; --limit prints more, --json all\n"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("selec 1", "the query fails: Parser Error: syntax error at or near"),
        ("select 1 from nothing", "Table with name nothing does not exist"),
        ("select nothing from log", 'Referenced column "nothing" not found'),
    ],
)
def test_a_failed_query_is_reported_in_one_line(sql, folder, query, why):
    code, lines, err = sql(query, folder)

    assert (code, lines) == (2, [])
    assert why in err
    assert err.count("\n") == 1


def test_sql_without_duckdb_names_the_extra_to_install(capsys, folder, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setitem(sys.modules, "duckdb", None)

    code, _, err = run(capsys, "sql", "select 1", folder)

    assert code == 1
    assert err.endswith("install it with: pip install 'callboard[sql]'\n")
