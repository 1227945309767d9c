"""Fields that a log declares are columns for SQL, Arrow and Spark."""

import datetime

import pytest

from callboard import Node
from callboard.commitlog import (
    CommitLog,
    DeclaredField,
    FieldConflict,
    LogError,
    LogFailed,
    LogReader,
    write_columns,
)

MOMENT = datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, datetime.UTC)
FIELDS = {
    "ts": "time",
    "id.orig_h": "text",
    "bytes": "uint",
    "ok": "bool",
    "share": "float",
    "n": "int",
    "tags": "text[]",
    "key": "text",
}
ROW = {
    "ts": MOMENT,
    "id.orig_h": "10.0.0.1",
    "bytes": 2**64 - 1,
    "ok": True,
    "share": 0.5,
    "n": -7,
    "tags": ["a", None],
    "key": "k",
}
NAMES = ["ts", "id.orig_h", "bytes", "ok", "share", "n", "tags", "payload.key"]


@pytest.fixture
def folder(tmp_path):
    with CommitLog(tmp_path / "log", segment_bytes=200) as log:
        log.declare(FIELDS)
        log.append("/a", ROW, key="of the record")
        log.append("/a", dict.fromkeys(FIELDS))
        log.append("/a", {"n": "no number"})
        log.append("/a", b"\xff")
        assert len(log.segments) > 1
    return tmp_path / "log"


def test_fields_outlive_the_writer_and_more_are_added(folder):
    with CommitLog(folder) as log:
        assert {each.name: each.type for each in log.fields} == FIELDS
        all_of_them = log.declare(
            [DeclaredField("n", "int"), DeclaredField("x", "int", "port")]
        )

    assert all_of_them == LogReader(folder).fields
    assert all_of_them[-1] == DeclaredField("x", "int", "port")
    assert len(all_of_them) == len(FIELDS) + 1


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"n": "text"}, "n is text, but n is declared int; use another name"),
        ({"N": "int"}, "N is int, but n is declared int"),
        ({"x": "int32"}, "x has the type 'int32'; use one of bool, int"),
        ({f"x{number}": "int" for number in range(1_000)}, "1,008 fields; a log can have"),
    ],
)
def test_what_cannot_be_declared_changes_nothing(folder, fields, why):
    with CommitLog(folder) as log, pytest.raises(ValueError, match=why):
        log.declare(fields)

    assert {each.name: each.type for each in LogReader(folder).fields} == FIELDS


def test_another_type_is_a_conflict_of_its_own(folder):
    with CommitLog(folder) as log, pytest.raises(FieldConflict):
        log.declare({"n": "text"})


def test_a_type_becomes_wider_and_never_narrower(folder):
    with CommitLog(folder) as log:
        log.declare({"n": "float"})
        log.declare({"n": "int"})  # by a program that was not updated yet

    assert {field.name: field.type for field in LogReader(folder).fields}["n"] == "float"


def test_a_log_in_memory_declares_too():
    with CommitLog() as log:
        assert log.fields == []
        log.declare({"n": "int"})
        assert log.fields == [DeclaredField("n", "int")]


def test_a_damaged_file_is_told_and_the_records_are_read(folder):
    (folder / "fields").write_text('[["n", "nonsense", ""]]')
    log = LogReader(folder)

    with pytest.raises(LogFailed, match="fields is damaged"):
        assert log.fields
    assert len(list(log)) == 4


def test_sql_has_them_as_columns_with_and_without_parquet(folder):
    pytest.importorskip("duckdb")
    from callboard.commitlog.sql import open_sql

    quoted = ", ".join(f'"{name}"' for name in NAMES)
    found = []
    for _ in range(2):
        with open_sql({"it's": folder}) as connection:
            found.append(
                connection.sql(f'SELECT {quoted} FROM "it\'s" ORDER BY "offset"').fetchall()
            )
            types = connection.sql(f'SELECT {quoted} FROM "it\'s"').types
            ((total,),) = connection.sql('SELECT sum(n) FROM "it\'s" WHERE n < 0').fetchall()
        write_columns(folder)

    assert found[0] == found[1]
    assert found[0] == [tuple(ROW.values()), *[(None,) * len(NAMES)] * 3]
    assert total == -7
    assert list(map(str, types)) == [
        "TIMESTAMP WITH TIME ZONE",
        "VARCHAR",
        "UBIGINT",
        "BOOLEAN",
        "DOUBLE",
        "BIGINT",
        "VARCHAR[]",
        "VARCHAR",
    ]


def test_arrow_and_pandas_have_them_behind_the_columns_of_records(folder):
    pytest.importorskip("pyarrow")
    table = LogReader(folder).to_arrow(0, 2, fields=True)

    assert table.column_names[-8:] == NAMES
    assert table.select(NAMES).to_pylist() == [
        dict(zip(NAMES, ROW.values(), strict=True)),
        dict.fromkeys(NAMES),
    ]
    assert LogReader(folder).to_arrow(4, fields=True).column_names == table.column_names


def test_spark_infers_them_without_a_sample(folder):
    pytest.importorskip("pyspark")
    from callboard.pipeline.spark.options import SourceOptions
    from callboard.pipeline.spark.source import LogBatchReader, infer_schema

    options = SourceOptions.parse(
        {"path": str(folder), "inferSchema": "true", "endingOffsets": "1", "numPartitions": "1"}
    )
    with CommitLog(folder) as log:
        log.append("/a", {"x": 1})  # what is not declared is no column
        log.declare({"sizes": "uint[]"})

    schema = infer_schema(options)

    told = {field.name: field.dataType.simpleString() for field in schema}
    assert list(told)[-9:] == [*NAMES, "sizes"]
    assert (told["ts"], told["bytes"], told["tags"]) == ("timestamp", "bigint", "array<string>")
    assert told["sizes"] == "array<bigint>"
    fits = [field for field in schema if field.name != "bytes"]
    reader = LogBatchReader(options, type(schema)(fits))
    (part,) = reader.partitions()
    (piece,) = reader.read(part)
    assert piece.column("payload.key").to_pylist() == ["k"]
    assert piece.column("id.orig_h").to_pylist() == ["10.0.0.1"]


def test_a_log_of_a_node_tells_them(folder):
    with Node("shop", serve_logs={"log": folder}) as shop, Node("office") as office:
        shop.listen("127.0.0.1", 0)

        there = LogReader(shop.address + "/log", node=office)

        assert there.fields == LogReader(folder).fields


def test_a_full_disk_refuses_a_declaration(folder, monkeypatch):
    with CommitLog(folder) as log:

        def refuse(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(log.place, "replace", refuse)
        with pytest.raises(LogError, match="were not declared: No space left on device"):
            log.declare({"x": "int"})
