"""Byte layouts: what a struct and a page's words make, and where they do not agree."""

from struct import Struct

import pytest

from scripts.protocol_tables.layout import LayoutRow, StructField, layout_rows, struct_fields
from scripts.protocol_tables.source import TableError
from scripts.protocol_tables.tables import table


def test_a_struct_has_its_fields_with_padding():
    assert list(struct_fields(Struct(">B2x2I4s"))) == [
        StructField(1, "u8"),
        StructField(2, "padding"),
        StructField(4, "u32"),
        StructField(4, "u32"),
        StructField(4, "bytes"),
    ]


def test_a_struct_in_the_machines_order_is_not_a_wire_format():
    with pytest.raises(TableError, match="byte order"):
        list(struct_fields(Struct("=I")))


def test_offsets_end_behind_a_field_of_variable_size():
    rows = layout_rows(
        "callboard.basp.handshake:", ["nonce | NONCE_SIZE | n", "tail | rest | t", "x | 4 | u"]
    )

    assert rows == [
        LayoutRow(0, 16, "", "nonce", "n"),
        LayoutRow(16, "rest", "", "tail", "t"),
        LayoutRow(-1, 4, "", "x", "u"),
    ]


HEAD = "callboard.gateway.wire.control:_HEAD"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["magic | m", "version | v"], "has 2 fields that the page does not name"),
        (["a | m", "b | v", "c | t", "d | s", "e | n"], "has no field for 'e'"),
        (["magic | m", "rest | 4 | r"], "stands before a field of the struct"),
    ],
)
def test_a_page_that_differs_from_the_struct_is_refused(lines, problem):
    with pytest.raises(TableError, match=problem):
        layout_rows(HEAD, lines)


def test_a_sample_is_cut_into_the_fields():
    text = table(
        "bytes",
        HEAD,
        ["magic | m", "version | v", "type | t", "size | s"],
        {"sample": "gateways control: ok"},
    )

    assert text.splitlines() == [
        "8 bytes, big-endian, from `callboard.gateway.wire.control._HEAD`:",
        "",
        "| offset | size | type | field | meaning | sample |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 0 | 2 | bytes | magic | m | `a1 6c` |",
        "| 2 | 1 | u8 | version | v | `01` |",
        "| 3 | 1 | u8 | type | t | `02` |",
        "| 4 | 4 | u32 | size | s | `00 00 00 09` |",
    ]


@pytest.mark.parametrize(
    ("kind", "target", "lines"),
    [
        ("bytes", "callboard.basp.nowhere:HEADER", []),
        ("bytes", "callboard.basp.header:NOTHING", []),
        ("codes", "callboard.basp.handshake:DropReason", ["CLOSING | the node closes"]),
        ("constants", "callboard.basp.header", ["HEADER_SIZE"]),
        ("messages", "callboard.entity.messages", ["Nobody"]),
        ("mqtt-packets", "", ["CONNECT | all"]),
    ],
)
def test_a_page_that_differs_from_the_code_is_refused(kind, target, lines):
    with pytest.raises(TableError):
        table(kind, target, lines, {})
